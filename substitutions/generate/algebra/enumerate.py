"""Enumerates operators at given ranks, and the parallel operators on a tensor.

A ranked call is an operator at given ranks and positions, with symbols for its other attributes.
The *lengths* are the numbers of axes of the runs of indices. They determine the ranks, and the
positions of the indices whose position is an attribute (``axis``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from pcg.errors import OperatorError
from pcg.language.language import EquationError
from pcg.language.poly import Poly
from pcg.ops import OPERATORS
from pcg.types.operator import Call, Operator, positions_at

NAMES = ("x", "y", "z", "w", "u", "v", "s", "t")
MAX_RANK = 3
DEGREE = "k"

DimLabel = tuple[str, int]
"""A dimension: (run, number of the axis in the run), or ("", number of the dimension) outside of
runs."""


def input_names(count: int) -> tuple[str, ...]:
    """``count`` names of inputs."""
    return (*NAMES, *(f"x{i}" for i in range(len(NAMES), count)))[:count]


@dataclass(frozen=True)
class RankedCall:
    """An operator at given ranks of its operands and outputs."""

    call: Call
    ranks: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def max_rank(self) -> int:
        return max(*self.ranks, *self.outputs)

    @property
    def edges(self) -> tuple[int, ...]:
        """The ranks of the operands, then of the outputs."""
        return (*self.ranks, *self.outputs)


def instances(operator: Operator, max_rank: int = MAX_RANK) -> Iterator[RankedCall]:
    """Yield a compute operator (or join) at every choice of ranks and positions up to ``max_rank``,
    or up to its least ranks if these are greater."""
    runs = runs_of(operator)
    only_runs = all(d.run for o in operator.template.operands for d in o.dims)
    # A single run besides other indices holds batch dimensions. It has at least one, since without
    # any the operator is another one.
    least = 0 if only_runs or len(runs) > 1 else 1
    fixed = [sum(least if d.run else 1 for d in part.dims) for part in operator.template.placing]
    max_rank = max(max_rank, *fixed)
    for lengths in product(range(least, max_rank + 1), repeat=len(runs)):
        ranked = instance(operator, dict(zip(runs, lengths, strict=True)))
        if ranked is not None and ranked.max_rank <= max_rank:
            yield ranked


def runs_of(operator: Operator) -> list[str]:
    """The runs of indices of an operator's operands, in order of appearance."""
    dims = (dim for operand in operator.template.operands for dim in operand.dims)
    return list(dict.fromkeys(dim.names[0] for dim in dims if dim.run))


def instance(operator: Operator, lengths: Mapping[str, int]) -> RankedCall | None:
    """The operator with ``lengths`` axes in its runs; None if it has no meaning there."""
    edges = edge_ranks(operator, lengths)
    ranks, outputs = edges[: operator.arity], edges[operator.arity :]
    symbols = {name: Poly.of(name) for name in (*operator.sizes, *operator.reals)}
    call = operator(**positions_at(operator.template, lengths), **symbols)
    try:
        call.instance(ranks)
    except (OperatorError, EquationError):
        return None
    return RankedCall(call, ranks, outputs)


def edge_ranks(operator: Operator, lengths: Mapping[str, int]) -> tuple[int, ...]:
    """The ranks of operands, then of outputs, with ``lengths`` axes in the runs."""
    return tuple(len(part) for part in labels(operator, lengths))


def labels(operator: Operator, lengths: Mapping[str, int]) -> tuple[tuple[DimLabel, ...], ...]:
    """The labels of the dimensions of each operand and output."""
    parts: list[tuple[DimLabel, ...]] = []
    for part in operator.template.placing:
        dims: list[DimLabel] = []
        for number, dim in enumerate(part.dims):
            run = dim.names[0] if dim.run else ""
            dims += [(run, i) for i in range(lengths[run])] if run else [("", number)]
        parts.append(tuple(dims))
    return tuple(parts)


def computing(operators: Mapping[str, Operator] = OPERATORS) -> list[Operator]:
    """The compute operators that have operands, and join."""
    return [o for o in operators.values() if o.parallel in (None, "join") and o.arity]


def moves(rank: int, degree: Poly | int) -> list[Call]:
    """Every parallel operator on a tensor of the given rank."""
    cutting = [OPERATORS[name] for name in ("partition", "combine", "pipeline", "batch")]
    copying = [OPERATORS[name] for name in ("replicate", "reduce")]
    calls = [o(dim=dim, degree=degree) for o in cutting for dim in range(rank)]
    return calls + [o(degree=degree) for o in copying]

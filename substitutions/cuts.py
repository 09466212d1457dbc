"""Which of the graphs with parallel operators around one operator have the same type.

Types are linear in logarithms. Around one operator, each parallel operator shifts one entry of the
type of an edge by log k, so the equations that typing imposes, and the type of the outputs, shift
by a vector that is the sum of one contribution per edge. Two graphs are typed alike, for all types
of their inputs, exactly when these vectors are equal: the parallel type in the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product

from pcg.graph import Graph, Node, Value, tensor
from pcg.operator import Call
from pcg.poly import Poly
from substitutions.enumerate import DEGREE, NAMES, Instance, moves
from verifier.trusted.degrees import Basis, Monomial, entries, input_degrees, typings

Shift = dict[str, int]
"""By how many powers of k each entry of a type grows."""
Number = Fraction | int
"""Whole numbers as integers, which hash faster."""
Vector = tuple[Number, ...]
Key = tuple[tuple[str, ...], Vector]


@dataclass(frozen=True)
class Edge:
    """An edge with at most one parallel operator on it, and what that does to its type."""

    move: Call | None
    shift: tuple[tuple[int, int], ...]
    """(entry, powers of k); entries are ordered as in ``verifier.trusted.degrees.entries``."""


def edges(rank: int) -> list[Edge]:
    """No operator, or each parallel operator of degree k."""
    return [Edge(None, ())] + [Edge(m, _shift(m, rank)) for m in moves(rank, Poly.of(DEGREE))]


def _shift(move: Call, rank: int) -> tuple[tuple[int, int], ...]:
    dim = move.values.get("dim", 0)
    assert isinstance(dim, int)
    entry, power = {
        "partition": (dim, 1),
        "combine": (dim, -1),
        "pipeline": (rank + dim, 1),
        "batch": (rank + dim, -1),
        "replicate": (2 * rank, 1),
        "reduce": (2 * rank + 1, -1),
    }[move.name]
    return ((entry, power),)


Word = tuple[tuple[int, int, int], ...]
"""The parallel operators of a graph as (edge, entry of its type, powers of k); operands first."""


@dataclass(frozen=True)
class Decorated:
    """One operator with parallel operators on its edges, and its key in one typing."""

    outputs: tuple[Value, ...]
    word: Word
    key: Key


@dataclass(frozen=True)
class _Linear:
    """A typing as linear forms: equations ``symbol = value`` and the entries of the outputs."""

    rows: tuple[tuple[str, Monomial], ...]
    outputs: tuple[tuple[Monomial, ...], ...]

    @cached_property
    def skeleton(self) -> tuple[str, ...]:
        return (
            *(f"{symbol}={value}" for symbol, value in self.rows),
            *("|".join(map(str, output)) for output in self.outputs),
        )


def decorations(instance: Instance) -> Iterator[Decorated]:
    """Every graph of the family around an instance, once for each typing that it has."""
    names = NAMES[: len(instance.ranks)]
    inputs = tuple(tensor(n, r) for n, r in zip(names, instance.ranks, strict=True))
    node = Node(instance.call, inputs)
    outputs = tuple(node.value(port) for port in range(len(instance.outputs)))
    before = [edges(rank) for rank in instance.ranks]
    after = [edges(rank) for rank in instance.outputs]
    for linear in _linear(outputs):
        into = [
            [_contribution(linear, name, rank, edge) for edge in options]
            for name, rank, options in zip(names, instance.ranks, before, strict=True)
        ]
        for choice in product(*(range(len(options)) for options in before)):
            shift = _add([into[i][c] for i, c in enumerate(choice)])
            if _impossible(linear, shift):
                continue
            built = _apply(instance.call, inputs, [before[i][c] for i, c in enumerate(choice)])
            word = tuple((i, *e) for i, c in enumerate(choice) for e in before[i][c].shift)
            yield from _after(linear, built, shift, after, word)


def _linear(outputs: tuple[Value, ...]) -> Iterator[_Linear]:
    for typing in typings(Graph(outputs).nodes, outputs):
        basis = Basis.of(typing.equations)
        reduced = tuple(tuple(basis.reduce(m) for m in entries(t)) for t in typing.types)
        yield _Linear(basis.rows, reduced)


def _contribution(linear: _Linear, name: str, rank: int, edge: Edge) -> Vector:
    """The shift of every equation and output entry by an operator on one input."""
    symbols = entries(input_degrees(name, rank))
    shift = {symbols[entry].powers[0][0]: power for entry, power in edge.shift}
    rows = [_dot(value, shift) - shift.get(symbol, 0) for symbol, value in linear.rows]
    outs = [_dot(entry, shift) for output in linear.outputs for entry in output]
    return (*rows, *outs)


def _dot(monomial: Monomial, shift: Shift) -> Number:
    total = sum((e * shift[s] for s, e in monomial.powers if s in shift), Fraction(0))
    return total.numerator if total.denominator == 1 else total


def _add(vectors: Sequence[Vector]) -> Vector:
    return tuple(map(sum, zip(*vectors, strict=True)))


def _impossible(linear: _Linear, shift: Vector) -> bool:
    """Whether an entry that has to be 1 would be a fraction of k."""
    return any(
        power < 0 and not value.powers
        for (_, value), power in zip(linear.rows, shift, strict=False)
    )


def _apply(call: Call, inputs: Sequence[Value], chosen: Sequence[Edge]) -> Node:
    operands = tuple(
        x if edge.move is None else Value(Node(edge.move, (x,)))
        for x, edge in zip(inputs, chosen, strict=True)
    )
    return Node(call, operands)


def _after(
    linear: _Linear, node: Node, shift: Vector, after: list[list[Edge]], word: Word
) -> Iterator[Decorated]:
    """The graphs that differ in what follows the operator."""
    rows = len(linear.rows)
    for chosen in product(*after):
        vector = list(shift)
        start = rows
        outputs: list[Value] = []
        full = list(word)
        for port, edge in enumerate(chosen):
            for entry, power in edge.shift:
                vector[start + entry] += power
                full.append((len(node.inputs) + port, entry, power))
            start += len(linear.outputs[port])
            value = node.value(port)
            outputs.append(value if edge.move is None else Value(Node(edge.move, (value,))))
        yield Decorated(tuple(outputs), tuple(full), (linear.skeleton, tuple(vector)))

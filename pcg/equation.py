"""An equation at concrete ranks: what the operands and outputs look like, and what each element is.

Sizes are symbols: ``|k|`` is the size of index ``k``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pcg.expr import Expr, indices, walk
from pcg.poly import Poly
from pcg.template import EquationError


@dataclass(frozen=True)
class Dimension:
    """One dimension of an operand or output: its index names (two or more when merged) and size."""

    names: tuple[str, ...]
    size: Poly

    @property
    def index(self) -> Poly:
        """The index into the dimension, in terms of its index names."""
        total = Poly()
        for name in self.names:
            total = total * size_of(name) + Poly.of(name)
        return total


@dataclass(frozen=True)
class Operand:
    name: str
    dims: tuple[Dimension, ...]


@dataclass(frozen=True)
class Output:
    name: str
    dims: tuple[Dimension, ...]
    body: Expr


@dataclass(frozen=True)
class Equation:
    """An equation at concrete ranks. ``bounds``: sizes stated with ``<``, by index name."""

    operands: tuple[Operand, ...]
    outputs: tuple[Output, ...]
    bounds: tuple[tuple[str, Poly], ...]


def size_of(name: str) -> Poly:
    """The size symbol of an index."""
    return Poly.of(f"|{name}|")


def run_names(run: str, length: int) -> tuple[str, ...]:
    return tuple(f"{run}{i}" for i in range(length))


def check_sizes(equation: Equation, attributes: frozenset[str]) -> None:
    """Raise EquationError where a size follows neither from the operands' shapes nor from the
    attributes that are sizes."""
    plain = [dim for operand in equation.operands for dim in operand.dims if len(dim.names) == 1]
    known = {f"|{dim.names[0]}|" for dim in plain} | attributes
    for name, bound in equation.bounds:
        _check_known(bound, known)
        known.add(f"|{name}|")
    for dims in (part.dims for part in (*equation.operands, *equation.outputs)):
        for dim in dims:
            _check_known(dim.size, known)
    for output in equation.outputs:
        for part in walk(output.body):
            for index in indices(part):
                _check_known(index, known)


def _check_known(index: Poly, known: set[str]) -> None:
    for symbol in sorted(index.symbols - known):
        if symbol.startswith("|"):
            raise EquationError(f"the size of index {symbol[1:-1]!r} does not follow")

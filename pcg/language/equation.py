"""An equation at concrete ranks: its operands, outputs and sizes.

Sizes are symbols: ``|k|`` is the size of index ``k``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pcg.language.expr import Expr, indices, walk
from pcg.language.poly import Poly, product
from pcg.language.template import EquationError


@dataclass(frozen=True)
class Dimension:
    """A dimension of an operand or output: its index names, several if it is merged, and its
    size."""

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
class Quotient:
    """States that the size of index ``name`` is that of an operand's dimension over ``divisor``."""

    name: str
    operand: int
    position: int
    divisor: Poly


@dataclass(frozen=True)
class Equation:
    """An equation at concrete ranks.

    ``bounds``: the sizes stated with ``<``, by index name. ``quotients``: for merged dimensions,
    the indices whose sizes follow from the other indices' sizes, in the order of their computation.
    """

    operands: tuple[Operand, ...]
    outputs: tuple[Output, ...]
    bounds: tuple[tuple[str, Poly], ...]
    quotients: tuple[Quotient, ...] = ()


def size_of(name: str) -> Poly:
    """Return the symbol for the size of an index."""
    return Poly.of(f"|{name}|")


def run_names(run: str, length: int) -> tuple[str, ...]:
    return tuple(f"{run}{i}" for i in range(length))


def find_quotients(
    operands: tuple[Operand, ...], bounds: Mapping[str, Poly]
) -> tuple[Quotient, ...]:
    """Return the indices of merged dimensions whose sizes follow from the other sizes."""
    dims = [(o, p, dim) for o, operand in enumerate(operands) for p, dim in enumerate(operand.dims)]
    known = {dim.names[0] for _, _, dim in dims if len(dim.names) == 1} | bounds.keys()
    merged = [place for place in dims if len(place[2].names) > 1]
    quotients: list[Quotient] = []
    while True:
        for operand, position, dim in merged:
            unknown = [name for name in dim.names if name not in known]
            if len(unknown) == 1:
                divisor = product(size_of(name) for name in dim.names if name in known)
                quotients.append(Quotient(unknown[0], operand, position, divisor))
                known.add(unknown[0])
                break
        else:
            return tuple(quotients)


def check_sizes(equation: Equation, attributes: frozenset[str]) -> None:
    """Raise EquationError if a size follows neither from the operands' shapes nor from the
    attributes that are sizes."""
    plain = [dim for operand in equation.operands for dim in operand.dims if len(dim.names) == 1]
    known = {f"|{dim.names[0]}|" for dim in plain} | attributes
    known |= {f"|{quotient.name}|" for quotient in equation.quotients}
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

"""Equations of functions that work slice by slice, about which nothing else is known.

Problem: a torch function without an equation may still be the same function of each slice of its
operands along a dimension, as a cumulative sum of rows is of each row. Then it can be cut there.

Method: an *axis* is an index at which results depend only on elements of operands at the same
index. Some operands may lack the axis; each slice then reads all of them. Let n be the indices that
are axes, r the other indices of a result, and e those of an operand. Such a function is

    out[n, r] = F(r; x[n, .], w[.])

Any F has the form G(r, sum over e: phi(e, x[n, e]) + sum over e: psi(e, w[e])) for some G, phi and
psi. For the real numbers, as a vector space over the rational numbers, have a basis as large as
themselves. So phi(e, .) can map them one to one onto a subset such that the subsets of different e
form a direct sum, and a sum determines all its summands. G then reads the summands. So an equation
in unknown functions states only which slices depend on which, and a proof of it holds for every
such function. ``any3`` stands for all of these functions, distinguished by its first argument, a
number. Several indices are passed one by one.

An equation that fixes the sizes of all indices but the axes is that of one function. Without these
sizes it is the *form*, which all functions with such axes share, and which rules are about. Exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from pcg.types.operator import Operator

MOST_AXES = 10
"""The most axes of a function."""
MOST_SLICED = 12
"""The most operands of a function, and the most results."""


@dataclass(frozen=True)
class SharedIndex:
    """An index as a dimension of each operand, None for one that lacks it, and of each result."""

    operands: tuple[int | None, ...]
    results: tuple[int, ...]

    def __str__(self) -> str:
        operands = (("-" if dim is None else str(dim)) for dim in self.operands)
        return f"{', '.join(operands)} -> {', '.join(map(str, self.results))}"


@dataclass(frozen=True, eq=False)
class SliceForm(Operator):
    """The stand-in for all functions with the same axes and operands of the same ranks."""


Shapes = Sequence[Sequence[int]]


def parse_axes(text: str) -> tuple[SharedIndex, ...]:
    """Read axes as they are printed, separated by semicolons. Raises ValueError for other texts."""
    return tuple(_axis(part) for part in text.split(";")[: MOST_AXES + 1])


def _axis(text: str) -> SharedIndex:
    operands, arrow, results = text.partition("->")
    try:
        if arrow:
            dims = tuple(None if d.strip() == "-" else _dim(d) for d in operands.split(","))
            return SharedIndex(dims, tuple(_dim(dim) for dim in results.split(",")))
    except ValueError:
        pass
    raise ValueError(f"expected dimensions as in '0, - -> 0', got {text.strip()[:40]!r}")


def _dim(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit() and len(text.strip()) < 3):
        raise ValueError
    return int(text)


def sliced_equation(reads: Shapes, writes: Shapes, axes: Sequence[SharedIndex]) -> str:
    """Return the equation of a function of tensors of these shapes, for any sizes of the axes."""
    return _equation(_named(reads, writes, axes, stated=True))


def form_of(reads: Shapes, writes: Shapes, axes: Sequence[SharedIndex]) -> SliceForm:
    """Return the form of a function of tensors of these shapes."""
    return _form(tuple(map(len, reads)), tuple(map(len, writes)), tuple(axes))


@lru_cache(maxsize=4096)
def _form(
    reads: tuple[int, ...], writes: tuple[int, ...], axes: tuple[SharedIndex, ...]
) -> SliceForm:
    operands, results = ([(0,) * rank for rank in ranks] for ranks in (reads, writes))
    named = _named(operands, results, axes, stated=False)
    sizes = tuple(dim.size for result in named.results for dim in result if not dim.is_axis)
    return SliceForm(_form_name(reads, writes, axes), _equation(named), sizes)


@dataclass(frozen=True)
class _Dim:
    """A dimension in an equation: its index and, if the equation states it, its size."""

    index: str
    size: str = ""
    is_axis: bool = False

    def __str__(self) -> str:
        return f"{self.index} < {self.size}" if self.size else self.index


@dataclass(frozen=True)
class _Named:
    """The dimensions of all operands and results."""

    operands: tuple[tuple[_Dim, ...], ...]
    results: tuple[tuple[_Dim, ...], ...]


def _named(reads: Shapes, writes: Shapes, axes: Sequence[SharedIndex], *, stated: bool) -> _Named:
    """Return the dimensions of a form or, with ``stated``, of an equation.

    An equation states the sizes of all indices but the axes. In a form, the sizes of results'
    indices are attributes.
    """

    def dims(kind: str, tensor: int, shape: Sequence[int], places: list[int | None]) -> list[_Dim]:
        names = [f"{kind}{tensor}_{dim}" for dim in range(len(shape))]
        size = [str(n) if stated else f"s{tensor}_{d}" * (kind == "o") for d, n in enumerate(shape)]
        return [
            _Dim(names[dim], size[dim])
            if (number := _number(dim, places)) is None
            else _Dim(f"n{number}", is_axis=True)
            for dim in range(len(shape))
        ]

    operands = (dims("i", i, s, [a.operands[i] for a in axes]) for i, s in enumerate(reads))
    results = (dims("o", i, s, [a.results[i] for a in axes]) for i, s in enumerate(writes))
    return _Named(tuple(map(tuple, operands)), tuple(map(tuple, results)))


def _equation(named: _Named) -> str:
    own = count()
    summands: list[str] = []
    operands: list[str] = []
    for i, dims in enumerate(named.operands):
        operands.append(f"x{i}[{', '.join(map(str, dims))}]")
        element = f"x{i}[{', '.join(dim.index for dim in dims)}]"
        inner = [dim.index for dim in dims if not dim.is_axis]
        taken = _taken(element, inner, own)
        summands.append(f"(sum {', '.join(inner)}: {taken})" if inner else taken)
    whole = " + ".join(summands)
    results: list[str] = []
    for i, dims in enumerate(named.results):
        value = _taken(whole, [dim.index for dim in dims if not dim.is_axis], own)
        results.append(f"out{i}[{', '.join(map(str, dims))}] = {value}")
    return f"{', '.join(operands)} -> {'; '.join(results)}"


def _taken(value: str, indices: Sequence[str], own: Iterator[int]) -> str:
    """Return the text of an unknown function of a value and some indices."""
    for index in reversed(indices or ("0",)):
        value = f"any3({next(own)}, {index}, {value})"
    return value


def _form_name(reads: Sequence[int], writes: Sequence[int], axes: Sequence[SharedIndex]) -> str:
    """Return a telling name: ``batched_01s_s_to_01s`` has two axes and a shared second operand."""
    operands = (_pattern(r, [a.operands[i] for a in axes]) for i, r in enumerate(reads))
    results = (_pattern(r, [a.results[i] for a in axes]) for i, r in enumerate(writes))
    return f"batched_{'_'.join(operands)}_to_{'_'.join(results)}"


def _pattern(rank: int, places: Sequence[int | None]) -> str:
    """Return the number of the axis at each dimension, or s for none; "number" for rank 0."""
    numbers = (_number(dim, places) for dim in range(rank))
    return "".join("s" if number is None else str(number) for number in numbers) or "number"


def _number(dim: int, places: Sequence[int | None]) -> int | None:
    return places.index(dim) if dim in places else None

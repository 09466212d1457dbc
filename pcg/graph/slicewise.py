"""Functions that work slice by slice: what is known of any of them, as one equation.

Problem: a torch function without an equation may still be the same function of each slice of its
operands along a dimension, as a cumulative sum of rows is of each row. Then it is cut there.

Method: an *axis* is an index at which results take what operands have at the same index, and
nothing from elsewhere. Some operands may lack it: each slice then takes all of them. With n for
the indices that are axes, r for those of a result that are none and e for those of an operand,
such a function is

    out[n, r] = F(r; x[n, .], w[.])

and any F is G(r, sum over e: phi(e, x[n, e]) + sum over e: psi(e, w[e])) for some G, phi and psi:
the real numbers, as a vector space over the rational ones, have a basis as large as themselves. So
phi(e, .) can map them one to one onto a part of them such that the parts of different e together
are a direct sum, whose elements tell all summands; G reads them. So an equation in functions of
which nothing is known says nothing but which slices depend on which, and what is proved for it
holds for every such function. ``any3`` is all of these functions, told apart by a number of their
own; several indices are taken in one by one.

An equation with sizes for all but the axes is that of one function; without them it is the *form*,
which all functions alike in this have in common, and which rules are about. Exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from pcg.types.operator import Operator

MOST_AXES = 10
"""Of one function."""
MOST_SLICED = 12
"""Operands of one function, and results."""


@dataclass(frozen=True)
class SharedIndex:
    """Where an index stands in each operand, or None where one lacks it, and in each result."""

    operands: tuple[int | None, ...]
    results: tuple[int, ...]

    def __str__(self) -> str:
        operands = (("-" if dim is None else str(dim)) for dim in self.operands)
        return f"{', '.join(operands)} -> {', '.join(map(str, self.results))}"


@dataclass(frozen=True, eq=False)
class SliceForm(Operator):
    """The stand-in for functions that have the same axes, of operands of the same ranks."""


Shapes = Sequence[Sequence[int]]


def parse_axes(text: str) -> tuple[SharedIndex, ...]:
    """Axes as printed, separated by semicolons. Raises ValueError."""
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
    """The equation of one function of tensors of these shapes; the sizes of axes may be others."""
    return _equation(_named(reads, writes, axes, stated=True))


def form_of(reads: Shapes, writes: Shapes, axes: Sequence[SharedIndex]) -> SliceForm:
    """The form of a function of tensors of these shapes."""
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
    """A dimension in an equation: its index, and what its size is said to be, if anything."""

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
    """``stated``: with the sizes of all that is no axis; else those of results are attributes."""

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
    """An unknown function of a value and of some indices."""
    for index in reversed(indices or ("0",)):
        value = f"any3({next(own)}, {index}, {value})"
    return value


def _form_name(reads: Sequence[int], writes: Sequence[int], axes: Sequence[SharedIndex]) -> str:
    """A name that says all: ``batched_01s_s_to_01s`` has two axes and a shared second operand."""
    operands = (_pattern(r, [a.operands[i] for a in axes]) for i, r in enumerate(reads))
    results = (_pattern(r, [a.results[i] for a in axes]) for i, r in enumerate(writes))
    return f"batched_{'_'.join(operands)}_to_{'_'.join(results)}"


def _pattern(rank: int, places: Sequence[int | None]) -> str:
    """The number of the axis at each dimension, and s where there is none; a number has no
    dimensions."""
    numbers = (_number(dim, places) for dim in range(rank))
    return "".join("s" if number is None else str(number) for number in numbers) or "number"


def _number(dim: int, places: Sequence[int | None]) -> int | None:
    return places.index(dim) if dim in places else None

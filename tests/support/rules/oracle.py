"""A second opinion on rules: their meaning, computed by numpy alone.

Nothing here imports the project. A side of a rule is read as a Python expression. Each operator is
a hand-written function of numpy arrays. Tensors that are cut are really cut: a tensor is a list of
its partials, and each partial is a grid of blocks. An undefined element is NaN or infinite. Raises
``NoMeaning`` if a side has no value for the given sizes, degrees and symbols.

Raises ``NoMeaning`` where a side has no value for the sizes, degrees and symbols at hand.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
ROUNDING = 1e-12
"""A sum may be a result of rounding if it is smaller than this part of what is added."""


class NoMeaning(Exception):
    """A side has no value at these types."""


@dataclass(frozen=True)
class Tensor:
    """``parts[sigma]`` is the whole array of the blocks of partial sigma."""

    parts: tuple[Array, ...]
    cuts: tuple[int, ...]
    slices: tuple[int, ...]
    copies: int = 1

    @staticmethod
    def whole(values: Array) -> Tensor:
        ones = (1,) * values.ndim
        return Tensor((values,), ones, ones)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parts[0].shape

    @property
    def type(self) -> tuple[Any, ...]:
        return self.shape, self.cuts, self.slices, self.copies, len(self.parts)

    @property
    def meaning(self) -> Array:
        return np.sum(np.stack(self.parts), axis=0)

    def is_plain(self) -> bool:
        return len(self.parts) == 1 and self.copies == 1 and set(self.cuts + self.slices) <= {1}


def need(condition: object) -> None:
    if not condition:
        raise NoMeaning


def grid(shape: tuple[int, ...], cuts: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """The blocks of a tensor that is cut."""
    for size, cut in zip(shape, cuts, strict=True):
        need(size % cut == 0)
    steps = [size // cut for size, cut in zip(shape, cuts, strict=True)]
    places = itertools.product(*map(range, cuts))
    return [tuple(slice(i * s, (i + 1) * s) for i, s in zip(p, steps, strict=True)) for p in places]


def pieces(x: Tensor) -> tuple[int, ...]:
    return tuple(c * s for c, s in zip(x.cuts, x.slices, strict=True))


# Operators that treat every element alike


def elementwise(function: Callable[..., Array], *, linear: bool = False) -> Callable[..., Tensor]:
    """All operands are cut alike. They have partials only if the function is linear."""

    def run(*xs: Tensor, **given: float) -> Tensor:
        need(all(x.type == xs[0].type for x in xs))
        need(linear or len(xs[0].parts) == 1)
        results: list[Array] = []
        for parts in zip(*(x.parts for x in xs), strict=True):
            out = np.zeros(xs[0].shape)
            for block in grid(xs[0].shape, pieces(xs[0])):
                of = [part[block] for part in parts]
                out[block] = defined(function(*of, **given), *of)
            results.append(out)
        return replace(xs[0], parts=tuple(results))

    return run


def defined(made: Array, *of: Array) -> Array:
    """A result with nan where it, or what it is computed from, is undefined."""
    return np.where(np.all([np.isfinite(x) for x in (made, *of)], axis=0), made, np.nan)


def settled(made: Array, x: Array, y: Array) -> Array:
    """A sum with zeros for what is left of rounding where x and y cancel. The root and the
    logarithm of that would be far from those of zero, or not exist."""
    return np.where(np.abs(made) < ROUNDING * np.maximum(np.abs(x), np.abs(y)), 0.0, made)


def multiply(x: Tensor, y: Tensor) -> Tensor:
    """Partials pass through one of the operands. The other has as many times more copies."""
    need((x.shape, x.cuts, x.slices) == (y.shape, y.cuts, y.slices))
    need(len(x.parts) == 1 or len(y.parts) == 1)
    need(x.copies * len(x.parts) == y.copies * len(y.parts))
    parts = tuple(a * b for a in x.parts for b in y.parts)
    return replace(x, parts=parts, copies=min(x.copies, y.copies))


def matmul(x: Tensor, w: Tensor) -> Tensor:
    """Whole operands, or plain ones with rows, columns or the sum cut."""
    need(x.parts[0].ndim >= 1 and w.parts[0].ndim == 2 and x.shape[-1] == w.shape[0])
    need(x.cuts[-1] == w.cuts[0] and x.slices[-1] == w.slices[0] and x.slices[-1] == 1)
    need(len(x.parts) == 1 and len(w.parts) == 1 and set(w.slices) == {1})
    rows = int(np.prod(x.cuts[:-1], dtype=int))
    columns, summed = w.cuts[1], x.cuts[-1]
    need(x.copies % columns == 0 and w.copies % rows == 0)
    need(x.copies // columns == w.copies // rows)
    step = x.shape[-1] // summed
    need(step * summed == x.shape[-1])
    parts = tuple(
        x.parts[0][..., i * step : (i + 1) * step] @ w.parts[0][i * step : (i + 1) * step]
        for i in range(summed)
    )
    cuts, slices = (*x.cuts[:-1], columns), (*x.slices[:-1], 1)
    return Tensor(parts, cuts, slices, x.copies // columns)


# Operators that move elements


def along(axis: int, *xs: Tensor) -> None:
    """An axis that the operator reads across may not be cut."""
    for x in xs:
        need(0 <= axis < len(x.shape) and x.cuts[axis] == 1 and x.slices[axis] == 1)


def shaped(x: Tensor, function: Callable[[Array], Array]) -> tuple[Array, ...]:
    return tuple(function(part) for part in x.parts)


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    need(0 <= dim0 < dim1 < len(x.shape))
    order = list(range(len(x.shape)))
    order[dim0], order[dim1] = dim1, dim0
    cuts, slices = (tuple(d[i] for i in order) for d in (x.cuts, x.slices))
    return replace(x, parts=shaped(x, lambda v: v.transpose(order)), cuts=cuts, slices=slices)


def concat(x: Tensor, y: Tensor, axis: int) -> Tensor:
    along(axis, x, y)
    need(len(x.shape) == len(y.shape) and len(x.parts) == len(y.parts))
    need((x.cuts, x.slices, x.copies) == (y.cuts, y.slices, y.copies))
    need(np.delete(x.shape, axis).tolist() == np.delete(y.shape, axis).tolist())
    pairs = zip(x.parts, y.parts, strict=True)
    return replace(x, parts=tuple(np.concatenate(pair, axis) for pair in pairs))


def cut_out(x: Tensor, axis: int, start: int, size: int) -> Tensor:
    """Elements outside are 0."""
    along(axis, x)
    need(start >= 0 and size >= 1)

    def taken(values: Array) -> Array:
        at = np.arange(start, start + size)
        inside = at < values.shape[axis]
        cut = np.take(values, np.where(inside, at, 0), axis)
        shape = [1] * values.ndim
        shape[axis] = size
        return np.where(inside.reshape(shape), cut, 0.0)

    return replace(x, parts=shaped(x, taken))


def sum_axis(x: Tensor, axis: int) -> Tensor:
    need(0 <= axis < len(x.shape) and x.slices[axis] == 1 and x.shape[axis] % x.cuts[axis] == 0)
    parts = [block.sum(axis) for part in x.parts for block in np.split(part, x.cuts[axis], axis)]
    cuts, slices = (d[:axis] + d[axis + 1 :] for d in (x.cuts, x.slices))
    return Tensor(tuple(parts), cuts, slices, x.copies)


def across(function: Callable[[Array, int], Array]) -> Callable[..., Tensor]:
    def run(x: Tensor, axis: int) -> Tensor:
        along(axis, x)
        need(len(x.parts) == 1)
        return replace(x, parts=shaped(x, lambda v: function(v, axis)))

    return run


def max_axis(x: Tensor, axis: int) -> Tensor:
    greatest = across(lambda v, a: v.max(a))(x, axis)
    cuts, slices = (d[:axis] + d[axis + 1 :] for d in (x.cuts, x.slices))
    return replace(greatest, cuts=cuts, slices=slices)


def softmax(values: Array, axis: int) -> Array:
    shares = np.exp(values)
    return shares / shares.sum(axis, keepdims=True)


# Operators that move pieces


def partition(x: Tensor, dim: int, degree: int) -> Tensor:
    need(0 <= dim < len(x.shape) and degree >= 2)
    cuts = (*x.cuts[:dim], x.cuts[dim] * degree, *x.cuts[dim + 1 :])
    need(x.shape[dim] % (cuts[dim] * x.slices[dim]) == 0)
    return replace(x, cuts=cuts)


def combine(x: Tensor, dim: int, degree: int) -> Tensor:
    need(0 <= dim < len(x.shape) and degree >= 2 and x.cuts[dim] % degree == 0)
    return replace(x, cuts=(*x.cuts[:dim], x.cuts[dim] // degree, *x.cuts[dim + 1 :]))


def replicate(x: Tensor, degree: int) -> Tensor:
    need(degree >= 2)
    return replace(x, copies=x.copies * degree)


def reduce(x: Tensor, degree: int) -> Tensor:
    need(degree >= 2 and len(x.parts) % degree == 0)
    groups = [x.parts[i : i + degree] for i in range(0, len(x.parts), degree)]
    return replace(x, parts=tuple(np.sum(np.stack(group), axis=0) for group in groups))


def join(x: Tensor, y: Tensor) -> Tensor:
    need(x.type[:4] == y.type[:4])
    return replace(x, parts=(*x.parts, *y.parts))


OPERATORS: Mapping[str, Callable[..., Tensor]] = {
    "add": elementwise(lambda x, y: settled(x + y, x, y), linear=True),
    "subtract": elementwise(lambda x, y: settled(x - y, x, y), linear=True),
    "negate": elementwise(lambda x: -x, linear=True),
    "scale": elementwise(lambda x, factor: factor * x, linear=True),
    "relu": elementwise(lambda x: np.where(np.isnan(x), x, np.maximum(x, 0.0))),
    "exp": elementwise(np.exp),
    "log": elementwise(np.log),
    "sqrt": elementwise(np.sqrt),
    "reciprocal": elementwise(lambda x: 1.0 / x),
    "maximum": elementwise(np.maximum),
    "multiply": multiply,
    "matmul": matmul,
    "transpose": transpose,
    "concat": concat,
    "slice": cut_out,
    "sum_axis": sum_axis,
    "max_axis": max_axis,
    "softmax": across(softmax),
    "partition": partition,
    "combine": combine,
    "replicate": replicate,
    "reduce": reduce,
    "join": join,
}


@dataclass
class Reading:
    """Computes a side from values of its inputs and symbols."""

    inputs: Mapping[str, Tensor]
    symbols: Mapping[str, float]
    known: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def value(self, node: ast.expr) -> Tensor:
        text = ast.unparse(node)
        if text not in self.known:
            self.known[text] = self._value(node)
        return self.known[text]

    def _value(self, node: ast.expr) -> Tensor:
        if isinstance(node, ast.Name):
            return self.inputs[node.id]
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        operands = [self.value(argument) for argument in node.args]
        given = {str(k.arg): self._number(k.value) for k in node.keywords}
        return OPERATORS[node.func.id](*operands, **given)

    def _number(self, node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name):
                return self.symbols[name]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._number(left) + self._number(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return self._number(left) * self._number(right)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self._number(inner)
            case _:
                raise NoMeaning


def read(side: str, inputs: Mapping[str, Tensor], symbols: Mapping[str, float]) -> Tensor:
    """The value of a side of a rule. Raises NoMeaning, also if arithmetic overflows, which is an
    effect of rounding."""

    def overflows(_kind: str, _flag: int) -> None:
        raise NoMeaning

    with np.errstate(divide="ignore", invalid="ignore", over="call", call=overflows):
        return Reading(inputs, symbols).value(ast.parse(side, mode="eval").body)


def agree(left: Tensor, right: Tensor) -> bool:
    """Whether two values of one type are finite at the same places and equal there. True for values
    of different types, of which a rule says nothing."""
    if left.type != right.type:
        return True
    a, b = left.meaning, right.meaning
    numbers = np.isfinite(a)
    same = np.array_equal(numbers, np.isfinite(b))
    return same and bool(np.allclose(a[numbers], b[numbers], 1e-6, 1e-9))

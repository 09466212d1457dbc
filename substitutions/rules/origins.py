"""Traces where the elements of a value come from: read from inputs, constant, or computed.

Method: the equations are evaluated over marks instead of numbers. Each element of an input has a
mark of its own. Operations that do not change an element keep its mark: times 1, plus 0, and the
choice of elements by index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Graph, Value
from pcg.language.poly import Poly
from pcg.readings.evaluate import evaluate_values
from pcg.readings.ring import Array, IndexArray
from pcg.types.operator import Attribute

OriginKind = Literal["rearranged", "padded", "constant", "computed"]
"""How the elements of a value depend on its inputs.

``rearranged``: each is an element of an input, and no such element occurs twice. ``padded``: the
same, with constants between. ``constant``: no element depends on an input. ``computed``: all other
values.
"""

ZERO, ONE, CONSTANT, COMPUTED, FIRST = 0, 1, -1, -2, 2
"""The marks of 0, of 1, of another constant, of a computed element, and of the first element of the
inputs."""


def kind_of(
    value: Value, shapes: Mapping[str, tuple[int, ...]], symbols: Mapping[str, int]
) -> OriginKind:
    """The kind of a value whose inputs have the given shapes. ``symbols``: values of attributes."""
    leaves: dict[str, Array] = {}
    first = FIRST
    nodes = Graph((value,)).nodes
    for leaf in (node.leaf for node in nodes if node.is_leaf):
        size = int(np.prod(shapes[leaf.name], dtype=np.int64))
        leaves[leaf.name] = np.arange(first, first + size, dtype=np.int64).reshape(
            shapes[leaf.name]
        )
        first += size
    (marks,) = evaluate_values((value,), nodes, leaves, _Marks(), symbols)
    read = marks[marks >= FIRST]
    if (marks == COMPUTED).any() or len(np.unique(read)) < read.size:
        return "computed"
    if read.size == 0:
        return "constant"
    return "rearranged" if read.size == marks.size else "padded"


class _Marks:
    """The marks of elements as a number system."""

    dtype: np.dtype[Any] = np.dtype(np.int64)

    def constant(self, value: Fraction) -> Array:
        return np.int64(value if value in (0, 1) else CONSTANT)

    def real(self, value: Attribute) -> Array:
        return self.constant(Fraction(value)) if not isinstance(value, Poly) else np.int64(CONSTANT)

    def numbers(self, values: IndexArray) -> Array:
        return np.where((values == 0) | (values == 1), values, CONSTANT)

    def gather(self, block: Array, index: Sequence[IndexArray], valid: NDArray[np.bool_]) -> Array:
        return np.where(valid, block[tuple(index)], ZERO)

    def take(self, block: Array, cut: tuple[slice, ...], order: tuple[int, ...]) -> Array:
        return block[cut].transpose(order)

    def plus(self, a: Array, b: Array) -> Array:
        return np.where(a == ZERO, b, np.where(b == ZERO, a, _mixed(a, b)))

    def times(self, a: Array, b: Array) -> Array:
        product = np.where(a == ONE, b, np.where(b == ONE, a, _mixed(a, b)))
        return np.where((a == ZERO) | (b == ZERO), ZERO, product)

    def chosen(self, values: Array, held: NDArray[np.bool_]) -> Array:
        return np.where(held, values, ZERO)

    def total(self, values: Array, axis: int) -> Array:
        marks: Array = np.full(np.delete(values.shape, axis), ZERO, np.int64)
        for i in range(values.shape[axis]):
            marks = self.plus(marks, values.take(i, axis))
        return marks

    def greatest(self, values: Array, axis: int, valid: NDArray[np.bool_]) -> Array:
        """The maximum: of one valid value that value, of several a computed or constant one, of
        none a constant."""
        several = valid.sum(axis=axis) > 1
        known = np.where(valid & (values >= FIRST) | (valid & (values == COMPUTED)), 1, 0)
        mixed = np.where(known.sum(axis=axis) > 0, COMPUTED, CONSTANT)
        only = np.where(valid, values, ZERO).sum(axis=axis)
        return np.where(several | ~valid.any(axis=axis), mixed, only)

    def apply(self, function: str, args: Sequence[Array]) -> Array:
        mark: Array = np.int64(CONSTANT)
        for arg in args:
            mark = _mixed(mark, arg)
        return mark

    def expand(self, values: Array, shape: tuple[int, ...]) -> Array:
        return np.broadcast_to(values, shape)

    def zeros(self, shape: tuple[int, ...]) -> Array:
        return np.full(shape, ZERO, np.int64)

    def concatenate(self, arrays: Sequence[Array]) -> Array:
        return np.concatenate(arrays)


def _mixed(a: Array, b: Array) -> Array:
    """The mark of a function of two values: constant if both are constant, else computed."""
    known = (a < FIRST) & (a != COMPUTED) & (b < FIRST) & (b != COMPUTED)
    return np.where(known, CONSTANT, COMPUTED)

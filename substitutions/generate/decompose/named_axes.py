"""Applies primitive operators to tensors whose dimensions have names: those of indices.

The compiler (``substitutions.generate.decompose.compiler``) works with the index names of an
equation. Here they become positions. Operands of an element-wise operator get the same axes in the
same order, by ``expand`` and ``transpose``. A sum of a product becomes a matrix product if it is
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from pcg.graph.graph import Graph, Value, apply
from pcg.language.poly import Poly
from pcg.ops.algebra import add, batch_matmul, matmul, multiply
from pcg.ops.elementwise import divide, reciprocal, subtract
from pcg.ops.groups import times_scalar
from pcg.ops.layers import embedding
from pcg.ops.lookup import gather, one_hot
from pcg.ops.reductions import max_axis, sum_axis
from pcg.ops.reindexing import expand, expand_as, expand_vector, permute, transpose
from pcg.types.operator import Call, Operator


@dataclass(frozen=True)
class NamedTensor:
    """A tensor, and for each of its dimensions the name of the index that runs over it."""

    value: Value
    axes: tuple[str, ...]

    def mapped(self, call: Call) -> NamedTensor:
        """The tensor after an element-wise operator."""
        return NamedTensor(apply(call, self.value), self.axes)

    def ordered(self, axes: Sequence[str]) -> NamedTensor:
        """The tensor with its axes in another order."""
        order = [self.axes.index(name) for name in axes]
        return NamedTensor(permute(self.value, order), tuple(axes))

    def last(self, *names: str) -> NamedTensor:
        """The tensor with the named axes last."""
        return self.ordered([*(a for a in self.axes if a not in names), *names])

    def without(self, operator: Operator, name: str) -> NamedTensor:
        """The tensor after a reduction that removes one axis."""
        axis = self.axes.index(name)
        left = tuple(a for a in self.axes if a != name)
        return NamedTensor(apply(operator(axis=axis), self.value), left)


Fold = Callable[[NamedTensor, NamedTensor], NamedTensor]


@dataclass(frozen=True)
class Primitives:
    """Primitive operators on tensors with named axes.

    ``sizes``: the size of each index, in terms of the sizes of inputs. ``order``: the axes of the
    result; where there is a choice, tensors have their axes in this order. ``runs``: the indices
    that are in runs, of which there may be any number.
    """

    sizes: Mapping[str, Poly]
    order: tuple[str, ...]
    runs: frozenset[str]
    _size_sources: dict[tuple[str, ...], Value] = field(
        default_factory=dict[tuple[str, ...], Value]
    )
    """For a tuple of axes, the first tensor with these axes, as the operand that gives the size to
    ``expand_as`` and ``expand_vector``."""

    def spread(self, tensor: NamedTensor, axes: Sequence[str]) -> NamedTensor:
        """The tensor with the given axes in order, repeated along those that it lacks."""
        kept = tensor.ordered([name for name in axes if name in tensor.axes])
        value = kept.value
        for position, name in enumerate(axes):
            if name not in tensor.axes:
                value = apply(expand(axis=position, size=self.sizes[name]), value)
        return NamedTensor(value, tuple(axes))

    def _binary(self, operator: Operator, left: NamedTensor, right: NamedTensor) -> NamedTensor:
        """An element-wise operator of two tensors. Its axes begin with those of the operand that
        has more."""
        swapped = len(left.axes) < len(right.axes)
        most, other = (right, left) if swapped else (left, right)
        axes = (*most.axes, *(name for name in other.axes if name not in most.axes))
        most = self.spread(most, axes)
        other = self._like(other, most)
        operands = (other, most) if swapped else (most, other)
        return NamedTensor(apply(operator(), *(side.value for side in operands)), axes)

    def _like(self, tensor: NamedTensor, target: NamedTensor) -> NamedTensor:
        """The tensor repeated along the axes of ``target`` that it lacks."""
        kept = tensor.ordered([name for name in target.axes if name in tensor.axes])
        lacking = [at for at, name in enumerate(target.axes) if name not in kept.axes]
        if not lacking:
            return kept
        vector = len(kept.axes) == 1
        if len(lacking) == 1 and not (vector and target.axes[lacking[0]] in self.runs):
            call = expand_as(axis=lacking[0])
        elif vector:
            # In the equation of expand_vector all other axes are runs, so any number of them fits.
            call = expand_vector(axis=target.axes.index(kept.axes[0]))
        else:
            return self.spread(kept, target.axes)
        like = self._size_sources.setdefault(target.axes, target.value)
        return NamedTensor(apply(call, like, kept.value), target.axes)

    def elementwise(self, operator: Operator, *operands: NamedTensor) -> NamedTensor:
        """An element-wise operator of one or two operands."""
        if len(operands) == 1:
            return operands[0].mapped(operator())
        left, right = operands
        return self._binary(operator, left, right)

    def times(self, left: NamedTensor, right: NamedTensor) -> NamedTensor:
        for x, scalar in ((left, right), (right, left)):
            if not scalar.axes and x.axes:
                return NamedTensor(apply(times_scalar(), x.value, scalar.value), x.axes)
        return self._binary(multiply, left, right)

    def over(self, left: NamedTensor, right: NamedTensor) -> NamedTensor:
        if left.axes and not right.axes:
            return self.times(left, right.mapped(reciprocal()))
        return self._binary(divide, left, right)

    def plus(self, left: NamedTensor, right: NamedTensor) -> NamedTensor:
        return self._binary(add, left, right)

    def minus(self, left: NamedTensor, right: NamedTensor) -> NamedTensor:
        return self._binary(subtract, left, right)

    def fold(self, operator: Fold, tensors: Sequence[NamedTensor]) -> NamedTensor:
        """Combine the tensors, at least one, by a binary operator. Tensors with the same axes are
        combined first, since they need not be repeated."""
        return reduce(operator, self.grouped(operator, tensors))

    def grouped(self, operator: Fold, tensors: Sequence[NamedTensor]) -> list[NamedTensor]:
        """The tensors with those of the same axes combined."""
        groups: dict[frozenset[str], NamedTensor] = {}
        for tensor in tensors:
            key = frozenset(tensor.axes)
            groups[key] = operator(groups[key], tensor) if key in groups else tensor
        return list(groups.values())

    def total(self, factors: Sequence[NamedTensor], over: str) -> NamedTensor:
        """The sum of a product over an index that all factors depend on."""
        groups = self._absorbed(self.grouped(self.times, factors))
        if len(groups) == 2:
            left, right = groups
            ways = (_contracted(left, right, over), _contracted(right, left, over))
            products = [way for way in ways if way is not None]
            if products:
                return min(products, key=self._turns)
        return reduce(self.times, groups).without(sum_axis, over)

    def _absorbed(self, groups: Sequence[NamedTensor]) -> list[NamedTensor]:
        """The factors of a product, after each factor whose axes are among those of another one has
        been multiplied into that."""
        kept: list[NamedTensor] = []
        for tensor in sorted(groups, key=lambda group: -len(group.axes)):
            host = next((i for i, t in enumerate(kept) if set(tensor.axes) < set(t.axes)), None)
            if host is None:
                kept.append(tensor)
            else:
                kept[host] = self.times(kept[host], tensor)
        return kept

    def _turns(self, tensor: NamedTensor) -> tuple[int, bool]:
        """The cost of a graph's form: the number of its transposes, and whether its axes are in
        another order than wanted."""
        turned = sum(node.name == transpose.name for node in Graph((tensor.value,)).nodes)
        wanted = [name for name in self.order if name in tensor.axes]
        return turned, [name for name in tensor.axes if name in wanted] != wanted

    def greatest(self, tensor: NamedTensor, over: str) -> NamedTensor:
        return tensor.without(max_axis, over)

    def looked_up(self, table: NamedTensor, ids: NamedTensor, row: str) -> NamedTensor:
        """``sum row: (ids == row) * table``, for a table that depends on ``row`` and ids that do
        not."""
        columns = [name for name in table.axes if name != row]
        if len(columns) == 1 and columns[0] not in ids.axes:
            rows = table.ordered([row, *columns])
            return NamedTensor(apply(embedding(), ids.value, rows.value), (*ids.axes, *columns))
        extra = [name for name in ids.axes if name not in columns]
        if len(extra) == 1 and set(columns) < set(ids.axes):
            rows_read = apply(
                gather(), table.last(row).value, ids.ordered([*columns, *extra]).value
            )
            return NamedTensor(rows_read, (*columns, *extra))
        # Each id gets a dimension of its own, which is summed away afterwards.
        shared = [*columns, *extra]
        rows = self.spread(table, [*shared, row])
        single = apply(expand(axis=len(shared), size=1), self.spread(ids, shared).value)
        rows_read = apply(gather(), rows.value, single)
        return NamedTensor(apply(sum_axis(axis=len(shared)), rows_read), tuple(shared))

    def picked(self, ids: NamedTensor, row: str) -> NamedTensor:
        """The tensor ``ids == row``, with 1 for true."""
        value = apply(one_hot(classes=self.sizes[row]), ids.value)
        return NamedTensor(value, (*ids.axes, row))


def _contracted(left: NamedTensor, right: NamedTensor, over: str) -> NamedTensor | None:
    """The sum of a product of two tensors over an index as a matrix product; None if it is none."""
    shared = [name for name in left.axes if name in right.axes and name != over]
    rows = [name for name in left.axes if name not in right.axes]
    columns = [name for name in right.axes if name not in left.axes]
    if len(columns) != 1 or not rows or (shared and len(rows) != 1):
        return None
    operator = batch_matmul if shared else matmul
    x = left.ordered([*shared, *rows, over])
    y = right.ordered([*shared, over, *columns])
    return NamedTensor(apply(operator(), x.value, y.value), (*shared, *rows, *columns))

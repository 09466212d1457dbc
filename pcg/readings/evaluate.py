"""Evaluate a graph exactly by its equations, whole or shard by shard, in one process.

``evaluate_whole`` computes G(x) of every tensor from the equations. ``evaluate_shards`` computes
what the devices compute: each task sees only its own blocks of its operands, with their halos. A
tensor is then V(sigma; x), an array of shape (partials, *shape), since copies are equal by type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Graph, Node, Value
from pcg.graph.opaque import refuse_opaque
from pcg.language import expr
from pcg.language.equation import Output
from pcg.language.expr import Expr
from pcg.language.poly import Poly
from pcg.readings.ring import Array, IndexArray, Ring
from pcg.types.halo import open_typing
from pcg.types.infer import bind_sizes, carriers_of
from pcg.types.local import LocalTyping
from pcg.types.operator import Attributes, Call
from pcg.types.tensor import ParallelTensor

T = TypeVar("T")
Range = tuple[int, int]
IndexRanges = tuple[tuple[str, Range], ...]
"""The indices in scope of an expression, each with its range."""


@dataclass(frozen=True)
class Block:
    """A piece of a tensor: its values, and the global index of its first element."""

    values: Array
    start: tuple[int, ...]


def evaluate_output(
    output: Output,
    operands: Sequence[Block],
    sizes: Mapping[str, int],
    ranges: Mapping[str, Range],
    attributes: Attributes,
    ring: Ring,
) -> Array:
    """Return one block of an output. ``ranges`` restricts indices to [start, stop)."""
    names = [name for dim in output.dims for name in dim.names]
    spans = {name: ranges.get(name, (0, sizes[f"|{name}|"])) for name in names}
    walker = _Walker(operands, sizes, ranges, dict(attributes), ring)
    values = walker.evaluate(output.body, tuple(spans.items()))
    full = ring.expand(values, tuple(stop - start for start, stop in spans.values()))
    shape = [1] * len(output.dims)
    for position, dim in enumerate(output.dims):
        for name in dim.names:
            shape[position] *= spans[name][1] - spans[name][0]
    return full.reshape(tuple(shape))


@dataclass
class _Walker:
    """Evaluates an expression on the grid of the indices in scope, by broadcasting."""

    operands: Sequence[Block]
    sizes: Mapping[str, int]
    ranges: Mapping[str, Range]
    attributes: Mapping[str, Any]
    ring: Ring

    def evaluate(self, value: Expr, scope: IndexRanges) -> Array:
        ring = self.ring
        match value:
            case expr.Const(number):
                return ring.constant(number)
            case expr.Real(name):
                return ring.real(self.attributes[name])
            case expr.IndexValue(index):
                return ring.numbers(self._index(index, scope))
            case expr.Guard(index):
                return ring.numbers((self._index(index, scope) >= 0).astype(np.int64))
            case expr.Access(operand, index):
                return self._access(operand, index, scope)
            case expr.Sum(var, size, body):
                span = self.ranges.get(var, (0, size.evaluate(self.sizes)))
                inner = (*scope, (var, span))
                values = ring.expand(
                    self.evaluate(body, inner), tuple(stop - start for _, (start, stop) in inner)
                )
                return ring.total(values, len(scope))
            case expr.Max():
                return self._max(value, scope)
            case expr.Add(parts):
                return self._fold(ring.plus, parts, scope)
            case expr.Mul(parts):
                return self._product(parts, scope)
            case expr.Apply(function, args):
                return ring.apply(function, [self._grid(arg, scope) for arg in args])

    def _max(self, value: expr.Max, scope: IndexRanges) -> Array:
        span = self.ranges.get(value.var, (0, value.size.evaluate(self.sizes)))
        inner = (*scope, (value.var, span))
        values = self._grid(value.body, inner)
        return self.ring.greatest(values, len(scope), self._held(value.guards, inner, values))

    def _grid(self, value: Expr, scope: IndexRanges) -> Array:
        shape = tuple(stop - start for _, (start, stop) in scope)
        return self.ring.expand(self.evaluate(value, scope), shape)

    def _product(self, parts: Sequence[Expr], scope: IndexRanges) -> Array:
        """Multiply. Where a guard does not hold the product is 0, even if a factor is undefined."""
        factors = [part for part in parts if not isinstance(part, expr.Guard)]
        guards = [part.index for part in parts if isinstance(part, expr.Guard)]
        values = self._fold(self.ring.times, factors or [expr.Const(Fraction(1))], scope)
        if not guards:
            return values
        return self.ring.chosen(values, self._held(guards, scope, values))

    def _held(self, guards: Iterable[Poly], scope: IndexRanges, values: Array) -> NDArray[np.bool_]:
        """Return where all guards hold, in the shape of ``values``."""
        held = np.ones((1,) * len(scope), np.bool_)
        for guard in guards:
            held = held & (self._index(guard, scope) >= 0)
        return np.broadcast_to(held, tuple(values.shape))

    def _fold(self, combine: Any, parts: Sequence[Expr], scope: IndexRanges) -> Array:
        total = self._grid(parts[0], scope)
        for part in parts[1:]:
            total = combine(total, self._grid(part, scope))
        return total

    def _index(self, index: Poly, scope: IndexRanges) -> IndexArray:
        """Return the values of an index, in a shape that broadcasts to the grid."""
        where = {name: (axis, span) for axis, (name, span) in enumerate(scope)}
        total: IndexArray = np.zeros((1,) * len(scope), np.int64)
        for monomial, coefficient in index.terms:
            term: IndexArray = np.full((1,) * len(scope), coefficient, np.int64)
            for symbol in monomial:
                if symbol not in where:
                    term = term * self.sizes[symbol]
                    continue
                axis, (start, stop) = where[symbol]
                shape = [1] * len(scope)
                shape[axis] = stop - start
                term = term * np.arange(start, stop, dtype=np.int64).reshape(shape)
            total = total + term
        return total

    def _access(self, operand: int, index: tuple[Poly, ...], scope: IndexRanges) -> Array:
        block = self.operands[operand]
        plain = self._plain(block, index, scope)
        if plain is not None:
            return plain
        local: list[IndexArray] = []
        valid = np.ones((1,) * len(scope), np.bool_)
        for position, start, size in zip(index, block.start, block.values.shape, strict=True):
            offset = self._index(position, scope) - start
            inside = (offset >= 0) & (offset < size)
            valid = valid & inside
            local.append(np.where(inside, offset, 0))
        shape = np.broadcast_shapes(valid.shape, *(offset.shape for offset in local))
        local = [np.broadcast_to(offset, shape) for offset in local]
        return self.ring.gather(block.values, local, np.broadcast_to(valid, shape))

    def _plain(self, block: Block, index: tuple[Poly, ...], scope: IndexRanges) -> Array | None:
        """Return an access by distinct indices of the scope within the block, as a transposed part
        of the block. None for any other access, which needs arrays of indices."""
        where = {Poly.of(name): axis for axis, (name, _) in enumerate(scope)}
        axes = [where[position] for position in index if position in where]
        if len(set(axes)) < len(index):
            return None
        cut: list[slice] = []
        shape = [1] * len(scope)
        for axis, first, size in zip(axes, block.start, block.values.shape, strict=True):
            start, stop = scope[axis][1]
            if start < first or stop > first + size:
                return None
            cut.append(slice(start - first, stop - first))
            shape[axis] = stop - start
        order = sorted(range(len(axes)), key=axes.__getitem__)
        return self.ring.take(block.values, tuple(cut), tuple(order)).reshape(tuple(shape))


def evaluate_whole(
    graph: Graph, leaves: Mapping[str, Array], ring: Ring, extra: Mapping[str, int] | None = None
) -> tuple[Array, ...]:
    """Return G of the outputs, given G of the leaves by name and values of symbolic attributes."""
    return evaluate_values(graph.outputs, graph.nodes, leaves, ring, extra or {})


def evaluate_values(
    outputs: Sequence[Value],
    nodes: Sequence[Node],
    leaves: Mapping[str, Array],
    ring: Ring,
    extra: Mapping[str, int],
) -> tuple[Array, ...]:
    """Return G of some values. ``nodes`` are all that they depend on, operands first."""

    def run(node: Node, inputs: list[Array]) -> tuple[Array, ...]:
        return evaluate_call(concrete(node.operator_call, extra), inputs, ring)

    return evaluate_nodes(outputs, nodes, leaves, run)


def evaluate_nodes(
    outputs: Sequence[Value],
    nodes: Iterable[Node],
    leaves: Mapping[str, T],
    run: Callable[[Node, list[T]], tuple[T, ...]],
) -> tuple[T, ...]:
    """Return some values, given the leaves by name and a function ``run`` from an operator and its
    operands to its results."""
    known: dict[Node, tuple[T, ...]] = {}
    for node in nodes:
        if node.is_leaf:
            known[node] = (leaves[node.leaf.name],)
        else:
            known[node] = run(node, [known[value.node][value.port] for value in node.inputs])
    return tuple(known[value.node][value.port] for value in outputs)


def concrete(call: Call, values: Mapping[str, int]) -> Call:
    """Return the call with symbolic sizes and degrees replaced by values. Other symbols stay."""
    if not values or not any(isinstance(v, Poly) for _, v in call.attributes):
        return call
    return Call(
        call.operator,
        tuple(
            (name, v.evaluate(values) if isinstance(v, Poly) and v.symbols <= values.keys() else v)
            for name, v in call.attributes
        ),
    )


def evaluate_call(call: Call, inputs: Sequence[Array], ring: Ring) -> tuple[Array, ...]:
    """Apply an operator to whole tensors, by its equation. Raises OperatorError for a torch
    function without one."""
    refuse_opaque(call.operator)
    equation = call.instance(tuple(x.ndim for x in inputs))
    sizes = bind_sizes(call, equation, [tuple(x.shape) for x in inputs])
    blocks = [Block(x, (0,) * x.ndim) for x in inputs]
    return by_equation(call, blocks, sizes, {}, ring)


RunTask = Callable[
    [Call, Sequence[Block], Mapping[str, int], Mapping[str, Range], Ring], tuple[Array, ...]
]
"""A function that returns the output blocks of a task, given the blocks of its operands, the sizes
of indices (named ``|i|``) and the ranges of cut indices."""


def by_equation(
    call: Call,
    operands: Sequence[Block],
    sizes: Mapping[str, int],
    ranges: Mapping[str, Range],
    ring: Ring,
) -> tuple[Array, ...]:
    """Run a task by the operator's equation."""
    equation = call.instance(tuple(block.values.ndim for block in operands))
    return tuple(
        evaluate_output(output, operands, sizes, ranges, call.attributes, ring)
        for output in equation.outputs
    )


def evaluate_shards(
    graph: Graph, leaves: Mapping[str, Array], ring: Ring, run: RunTask = by_equation
) -> tuple[Array, ...]:
    """Return V(sigma; x) of the outputs, shape (partials, *shape), from V of the leaves by name."""

    def shards(node: Node, inputs: list[Array]) -> tuple[Array, ...]:
        return _shards_of(node, inputs, ring, run)

    return evaluate_nodes(graph.outputs, graph.nodes, leaves, shards)


def meaning(values: Array, ring: Ring) -> Array:
    """Return G(x), the sum of V over the partials."""
    return ring.total(values, 0)


def _shards_of(node: Node, inputs: Sequence[Array], ring: Ring, run: RunTask) -> tuple[Array, ...]:
    call = node.operator_call
    match call.operator.parallel:
        case None:
            return _tasks(node, inputs, ring, run)
        case "reduce":
            (x,) = inputs
            left = node.types[0].degrees.partials
            return (ring.total(x.reshape((left, -1, *x.shape[1:])), 1),)
        case "join":
            return (ring.concatenate(inputs),)
        case _:
            return (inputs[0],)


def _tasks(node: Node, inputs: Sequence[Array], ring: Ring, run: RunTask) -> tuple[Array, ...]:
    """Run every task of a compute operator on its own blocks."""
    call = node.operator_call
    refuse_opaque(call.operator)
    types = [value.type for value in node.inputs]
    equation = call.instance(tuple(t.rank for t in types))
    sizes = bind_sizes(call, equation, [t.shape for t in types])
    carriers = carriers_of([t.degrees for t in types])
    axes = _typing(node).axes
    outputs = [ring.zeros((t.degrees.partials, *t.shape)) for t in node.types]
    for ranges, sigma, sums in task_grid(node, sizes):
        blocks: list[Block] = []
        for i, (x, t) in enumerate(zip(inputs, types, strict=True)):
            placed = [(axis.name, axis.operands[i]) for axis in axes]
            spans = _with_halos(_spans(placed, t.shape, ranges, sizes), t)
            values = x[sigma if i in carriers else 0][_cut(spans)]
            blocks.append(Block(values, tuple(start for start, _ in spans)))
        for o, result in enumerate(run(call, blocks, sizes, ranges, ring)):
            placed = [(axis.name, axis.outputs[o]) for axis in axes]
            spans = _spans(placed, node.types[o].shape, ranges, sizes)
            partial = sigma
            for name, position in placed:
                if position is None:
                    partial = partial * sums[name][1] + sums[name][0]
            outputs[o][(partial, *_cut(spans))] = result
    return tuple(outputs)


def _spans(
    placed: Sequence[tuple[str, int | None]],
    shape: tuple[int, ...],
    ranges: Mapping[str, Range],
    sizes: Mapping[str, int],
) -> list[Range]:
    """Return the part of a tensor that a task sees, given the dimensions of its indices."""
    spans = [(0, size) for size in shape]
    for name, position in placed:
        if position is not None:
            # A merged dimension is cut at its leading index, each value of which has a row. In a
            # dimension that windows slide over, the rows are their steps.
            row = shape[position] // sizes[f"|{name}|"]
            start, stop = ranges[name]
            spans[position] = (start * row, stop * row)
    return spans


def _with_halos(spans: list[Range], tensor: ParallelTensor) -> list[Range]:
    """Return a block extended by its halos, within the tensor."""
    for halo in tensor.degrees.halos:
        (start, stop), (before, after) = spans[halo.dim], halo.widths
        spans[halo.dim] = (max(0, start - before), min(tensor.shape[halo.dim], stop + after))
    return spans


def _typing(node: Node) -> LocalTyping:
    """Return the typing of a node, with the windows that its operands' halos allow."""
    types = [value.type for value in node.inputs]
    halos = [t.degrees.halos for t in types]
    return open_typing(node.operator_call, [t.rank for t in types], halos)


def _cut(spans: Sequence[Range]) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in spans)


def task_grid(
    node: Node, sizes: Mapping[str, int]
) -> Iterator[tuple[dict[str, Range], int, dict[str, tuple[int, int]]]]:
    """Yield every task, ignoring copies: the ranges of its indices, its partial, and (block,
    degree) of each index. Slices in time are further blocks."""
    types = [value.type for value in node.inputs]
    typing = _typing(node)
    carriers = carriers_of([t.degrees for t in types])
    passing = types[min(carriers)].degrees.partials if carriers else 1
    cuts: list[int] = []
    for axis in typing.axes:
        operand, position = axis.first_place
        degrees = types[operand].degrees
        cuts.append(degrees.dims[position] * degrees.slices[position])
    for digits in product(*(range(cut) for cut in cuts), range(passing)):
        ranges: dict[str, Range] = {}
        sums: dict[str, tuple[int, int]] = {}
        for axis, digit, cut in zip(typing.axes, digits, cuts, strict=False):
            length = sizes[f"|{axis.name}|"] // cut
            ranges[axis.name] = (digit * length, (digit + 1) * length)
            sums[axis.name] = (digit, cut)
        yield ranges, digits[-1], sums

"""A plan in which some operators are placed differently, and all others stay as they are.

Problem: build the same computation with other operand types and other devices for some operators,
such that a schedule of it can be priced. Method: the plan's graph is built anew, operands first. An
operand is brought to the type that the operator wants: by combining and reducing the tensor that is
there, then by cutting and copying it. How parallel operators are chained does not matter, since a
schedule sees only the two ends of a chain (``pcg.placement.schedule``). An operator that passed
partial sums on, but is not reached by partial sums any more, computes without them. Complexity: the
number of operators.

The graph means the same, since parallel operators never change the meaning of a tensor. But no
rules of a library led to it. So it may be priced, but not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Node, Value
from pcg.ops.parallel import batch, combine, partition, pipeline, reduce, replicate
from pcg.placement.schedule import trace
from pcg.placement.view import MachineView
from pcg.plan.plan import Plan
from pcg.types.infer import carriers_of
from pcg.types.operator import Attribute, Operator
from pcg.types.parallel_operators import PLACING
from pcg.types.tensor import ParallelTensor


@dataclass(frozen=True)
class OperatorPlacement:
    """A placement of an operator: the types of its operands, and the devices of its tasks."""

    operands: tuple[ParallelTensor, ...]
    view: MachineView


def replaced(plan: Plan, changes: Mapping[Node, OperatorPlacement]) -> Plan | None:
    """The plan with some operators of its graph placed differently. Its estimates and derivation
    stay those of the given plan. None if a tensor cannot be brought to the type that is wanted."""
    try:
        return _Rebuilder(plan, changes).plan()
    except (_Unreachable, OperatorError):
        return None


class _Unreachable(Exception):
    """A tensor cannot be brought to a type."""


class _Rebuilder:
    """The graph of a plan while it is built anew."""

    def __init__(self, plan: Plan, changes: Mapping[Node, OperatorPlacement]) -> None:
        self._plan, self._changes = plan, changes
        self._image: dict[Node, Node] = {}
        self._views: dict[Node, MachineView] = {}

    def plan(self) -> Plan:
        graph = self._plan.graph
        for node in graph.operators:
            if not node.is_parallel:
                self._place(node)
        made = Graph(tuple(self._fed(value, value.type) for value in graph.outputs))
        made.check()
        kept = set(made.nodes)
        # A tensor that is moved in a new way has no image, and is not recomputed.
        images = (self._image.get(node, node) for node in self._plan.recompute)
        again = kept.intersection(images)
        views = {node: view for node, view in self._views.items() if node in kept}
        issued = (self._image[node] for node in self._plan.order)
        order = tuple(node for node in issued if node in kept)
        return replace(self._plan, graph=made, views=views, recompute=again, order=order)

    def _place(self, node: Node) -> None:
        view = self._plan.views[node]
        wanted = OperatorPlacement(tuple(value.type for value in node.inputs), view)
        change = self._changes.get(node)
        try:
            made = self._made(node, change or wanted)
        except _Unreachable:
            if change is not None:
                raise
            wanted = without_partials(node, view)
            made = self._made(node, wanted)
        self._image[node] = made
        self._views[made] = (change or wanted).view

    def _made(self, node: Node, placed: OperatorPlacement) -> Node:
        pairs = zip(node.inputs, placed.operands, strict=True)
        inputs = tuple(self._fed(value, wanted) for value, wanted in pairs)
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        return node if same else Node(node.call, inputs)

    def _fed(self, value: Value, wanted: ParallelTensor) -> Value:
        """The value that is read in place of a value of the plan, with the wanted type."""
        source, chain = trace(value)
        now = source
        if not source.node.is_leaf and (image := self._image[source.node]) is not source.node:
            now = Value(image, source.port)
        if now is source and wanted == value.type:
            return value
        if now.type == source.type and wanted == value.type:
            return self._chained(now, chain)
        if source.node.is_leaf:
            stored = next((i for i, node in enumerate(chain) if node.name not in PLACING), None)
            # A leaf that is resharded in every step keeps its storage. Others are stored anew.
            now = source if stored is None else self._chained(source, chain[:stored])
        return converted(now, wanted)

    def _chained(self, value: Value, chain: tuple[Node, ...]) -> Value:
        for node in chain:
            made = self._image[node] = Node(node.call, (value,))
            value = made.value()
        return value


def without_partials(node: Node, view: MachineView) -> OperatorPlacement:
    """The placement of an operator of a plan if none of its operands is in partial sums any more:
    the devices that held one partial sum each repeat the same computation, if the view has room for
    copies."""
    types = [value.type for value in node.inputs]
    carriers = carriers_of([tensor.degrees for tensor in types])
    passing, copies = view.shape[-2:]
    operands = tuple(
        replace(t, degrees=replace(t.degrees, partials=1))
        if i in carriers
        else replace(t, degrees=replace(t.degrees, copies=t.degrees.copies // passing))
        for i, t in enumerate(types)
    )
    shape, strides = (*view.shape[:-2], 1, copies), (*view.strides[:-2], 0, view.strides[-1])
    if copies == 1:
        shape = (*view.shape[:-2], 1, passing)
        strides = (*view.strides[:-2], 0, view.strides[-2])
    return OperatorPlacement(operands, MachineView(view.start, shape, strides))


def converted(value: Value, wanted: ParallelTensor) -> Value:
    """A tensor, brought to another type of the same shape by parallel operators. Raises _NoWay if
    that is impossible."""
    has, wants = value.type.degrees, wanted.degrees
    if has.partials not in (1, wants.partials):
        value = _applied(value, reduce, degree=has.partials)
    for dim, (old, new) in enumerate(zip(has.dims, wants.dims, strict=True)):
        if old > 1 and (old != new or has.halo(dim) != wants.halo(dim)):
            value = _applied(value, combine, dim=dim, degree=old)
    for dim, (old, new) in enumerate(zip(has.slices, wants.slices, strict=True)):
        if old != new and old > 1:
            value = _applied(value, batch, dim=dim, degree=old)
        if old != new and new > 1:
            value = _applied(value, pipeline, dim=dim, degree=new)
    for dim, new in enumerate(wants.dims):
        if new > 1 and value.type.degrees.dims[dim] != new:
            value = _partitioned(value, wanted, dim)
    times, rest = divmod(wants.copies, has.copies)
    if times > 1 and not rest:
        value = _applied(value, replicate, degree=times)
    if value.type != wanted:
        raise _Unreachable
    return value


def _partitioned(value: Value, wanted: ParallelTensor, dim: int) -> Value:
    degree, halo = wanted.degrees.dims[dim], wanted.degrees.halo(dim)
    if halo is None:
        return _applied(value, partition, dim=dim, degree=degree)
    before, after = halo.widths
    return _applied(value, partition, dim=dim, degree=degree, before=before, after=after)


def _applied(value: Value, operator: Operator, **attributes: Attribute) -> Value:
    return Node(operator(**attributes), (value,)).value()

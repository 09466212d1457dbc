"""The tensors of a plan's graph, and the tasks by which each device computes them.

An instruction is identified by its call and by the tensors that it reads: operators of the graph
with the same call, on the same tensors of the same types, produce the same tensors. So validation
depends neither on the names of registers nor on the position that an instruction claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pcg.graph.graph import Leaf, Node, Signature, Value
from pcg.memo import Answers
from pcg.ops.norms import batch_norm, ghost_batch_norm
from pcg.placement.recomputation import can_be_recomputed
from pcg.placement.region import Region, region_text, whole_region
from pcg.placement.schedule import trace
from pcg.placement.view import MachineView
from pcg.plan.plan import Plan
from pcg.plan.text import node_names
from pcg.readings.differentiated import differentiated
from pcg.types.operator import Call
from pcg.types.tensor import ParallelTensor
from runtime.program.executable import concrete
from runtime.program.norms import FIRST_STATISTICS, GROUP_NORM, NORM, STATISTICS
from runtime.program.validate.content import Content, Place, Places, PlanTensor
from runtime.program.validate.errors import Unsound
from runtime.program.validate.theorem import Columns, Expected, columns, joined, tasks_of

NORMS = {NORM.name: (NORM, batch_norm), GROUP_NORM.name: (GROUP_NORM, ghost_batch_norm)}
"""By name, the norms that also return statistics, each with the plan's own norm."""


@dataclass(eq=False)
class ViewedSignature:
    """A signature on a machine view. ``partials``: those of the tensors behind the operands, before
    any reductions that lead to the operands."""

    signature: Signature
    partials: tuple[int, ...]
    view: MachineView
    places: Places

    def __post_init__(self) -> None:
        self._parts = Answers[int, dict[int, Expected]](self._tasks)
        self._columns = Answers[tuple[int, int], Columns](
            lambda key: columns(self._parts[key[0]], key[1])
        )

    def on(self, device: int, part: int) -> Expected | None:
        """The expected task of a device on a slice in time. None if it has no task."""
        return self._parts[part].get(device)

    def columns(self, part: int, ranks: int) -> Columns:
        """The expected tasks of ranks 0 to ``ranks`` - 1 on a slice in time, as columns."""
        return self._columns[part, ranks]

    def _tasks(self, part: int) -> dict[int, Expected]:
        return tasks_of(self.signature, self.partials, self.view, part, self.places)


@dataclass(frozen=True)
class Operation:
    """An operator of the graph: its tasks, its results, and whether it is recomputed."""

    name: str
    work: ViewedSignature
    results: tuple[PlanTensor, ...]
    recomputed: bool


@dataclass(frozen=True)
class JoinOperand:
    """An operand of a join. ``tasks``: the block of each device, and the partials of the result
    that it becomes."""

    result: PlanTensor
    tasks: Mapping[int, Expected]


@dataclass(frozen=True)
class CallMeaning:
    """A call in a program, and the plan's operators with that call."""

    call: Call
    plain: Call
    """The plan's call, which returns no statistics."""
    also: bool
    """Whether ``call`` also returns statistics."""
    only: bool
    """Whether ``call`` returns only statistics."""
    operations: dict[tuple[PlanTensor, ...], list[Operation]]
    """The plan's operators with the call ``plain``, by the tensors that they read."""


class PlanMeaning:
    """The tensors of a plan and the operators that produce them."""

    def __init__(self, plan: Plan, where: str) -> None:
        self.plan, self.places = plan, Places()
        self.leaves: dict[str, PlanTensor] = {}
        """Inputs and weights by name."""
        self.operations: dict[Call, dict[tuple[PlanTensor, ...], list[Operation]]] = {}
        """The operators by their call and the tensors that they read."""
        self.joins: dict[PlanTensor, list[JoinOperand]] = {}
        self._where = where
        self._called: dict[int, CallMeaning] = {}
        self._blocks: dict[tuple[int, Region], tuple[Leaf, Content]] = {}
        self._names = node_names(plan.graph)
        self._of: dict[Value, PlanTensor] = {}
        self._made: dict[object, tuple[PlanTensor, ...]] = {}
        self._works: dict[object, ViewedSignature] = {}
        for node in plan.graph.nodes:
            if node.is_leaf:
                self._leaf(node)
            elif not node.is_parallel:
                self._operator(node)

    def called(self, call: Call) -> CallMeaning:
        """The meaning of a call. The result is kept by the call's id, because programs share the
        objects of most calls."""
        meaning = self._called.get(id(call))
        if meaning is None or meaning.call is not call:
            norm = NORMS.get(call.operator.name)
            also = norm is not None and call.operator == norm[0]
            plain = norm[1](**call.values) if norm is not None and also else call
            only = call.operator in (STATISTICS, FIRST_STATISTICS)
            operations = self.operations.get(plain, {})
            meaning = CallMeaning(call, plain, also, only, operations)
            self._called[id(call)] = meaning
        return meaning

    def block(self, leaf: Leaf, region: Region) -> Content:
        """A block of a leaf. Raises Unsound if the plan has no such leaf, or the region is not
        inside of it."""
        key = id(leaf), region
        cached = self._blocks.get(key)
        if cached is not None and cached[0] is leaf:
            return cached[1]
        tensor = self.leaves.get(leaf.name)
        if tensor is None or tensor.value.node.leaf != leaf:
            raise Unsound(f"loads {leaf}, expected a leaf of the plan")
        sizes = tensor.shape
        inside = len(region) == len(sizes) and all(
            0 <= start < stop <= size for (start, stop), size in zip(region, sizes, strict=True)
        )
        if not inside:
            raise Unsound(f"loads {region_text(region)} of {tensor.name} {list(sizes)}")
        content = Content(tensor, self.places.of(0, 1, region))
        self._blocks[key] = leaf, content
        return content

    def tensor(self, value: Value) -> PlanTensor:
        """The tensor behind a value: the one before the parallel operators that lead to it."""
        tensor = self._of.get(value)
        if tensor is None:
            tensor = self._of[value] = self._of[trace(value)[0]]
        return tensor

    def whole(self, tensor: PlanTensor) -> Place:
        """The place of a whole tensor, all partials added up."""
        return self.places.of(0, tensor.partials, whole_region(tensor.shape))

    def _leaf(self, node: Node) -> None:
        value = node.value()
        name, shape = node.leaf.name, value.type.shape
        tensor = PlanTensor(name, value, 1, shape, node.leaf.kind == "weight")
        self._of[value] = self.leaves[name] = tensor

    def _operator(self, node: Node) -> None:
        call = concrete(node.operator_call, self._where)
        reads = tuple(self.tensor(value) for value in node.inputs)
        types = node.signature.operands
        results = self._results(node, call, reads, types)
        view = self.plan.views[node]
        if node.is_join:
            for index, read in enumerate(reads):
                tasks = joined(types[index], read.partials, view, index, self.places)
                self.joins.setdefault(read, []).append(JoinOperand(results[0], tasks))
            return
        key = node.signature, tuple(read.partials for read in reads), view
        work = self._works.get(key)
        if work is None:
            work = self._works[key] = ViewedSignature(*key, self.places)
        recomputed = node in self.plan.recompute and can_be_recomputed(node)
        operation = Operation(node.name, work, results, recomputed)
        self.operations.setdefault(call, {}).setdefault(reads, []).append(operation)

    def _results(
        self,
        node: Node,
        call: Call,
        reads: tuple[PlanTensor, ...],
        types: tuple[ParallelTensor, ...],
    ) -> tuple[PlanTensor, ...]:
        """The results of an operator. An operator with the same call, tensors and types shares
        them."""
        key = call, reads, types
        tensors = self._made.get(key)
        if tensors is None:
            trains = any(reads[at].trains for at in differentiated(node))
            tensors = self._made[key] = tuple(
                PlanTensor(name, value, value.type.degrees.partials, value.type.shape, trains)
                for port, name in enumerate(self._names[node])
                for value in (node.value(port),)
            )
        for port, made in enumerate(tensors):
            self._of[node.value(port)] = made
        return tensors

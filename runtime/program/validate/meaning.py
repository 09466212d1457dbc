"""Say what each tensor of a plan's graph is, and what each device computes of it.

An instruction is known by what it is and by what it reads: operators of the graph with the same
call, on the same tensors of the same types, make the same tensors. So nothing rests on the names of
registers, nor on which step of a schedule an instruction says that it is.
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
"""Norms that also give statistics, each with the one that the plan has."""


@dataclass(eq=False)
class ViewedSignature:
    """A signature on a machine view, and tensors of so many partials behind the operands."""

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
        """What a device does with a slice in time; None for one that does nothing."""
        return self._parts[part].get(device)

    def columns(self, part: int, ranks: int) -> Columns:
        """What each of some ranks does with a slice in time, as columns."""
        return self._columns[part, ranks]

    def _tasks(self, part: int) -> dict[int, Expected]:
        return tasks_of(self.signature, self.partials, self.view, part, self.places)


@dataclass(frozen=True)
class Operation:
    """An operator of the graph: what it makes, where, and whether it is recomputed."""

    name: str
    work: ViewedSignature
    results: tuple[PlanTensor, ...]
    recomputed: bool


@dataclass(frozen=True)
class Joining:
    """An operand of a join: which device's piece becomes which partial of the result."""

    result: PlanTensor
    tasks: Mapping[int, Expected]


@dataclass(frozen=True)
class Called:
    """A call of a program. ``plain``: the one that the plan has, where this one also gives
    statistics (``also``); ``only``: it gives nothing else."""

    call: Call
    plain: Call
    also: bool
    only: bool
    operations: dict[tuple[PlanTensor, ...], list[Operation]]
    """By the tensors that it reads."""


class PlanMeaning:
    """The tensors of a plan and the operators that make them."""

    def __init__(self, plan: Plan, where: str) -> None:
        self.plan, self.places = plan, Places()
        self.leaves: dict[str, PlanTensor] = {}
        """Inputs and weights by name."""
        self.operations: dict[Call, dict[tuple[PlanTensor, ...], list[Operation]]] = {}
        self.joins: dict[PlanTensor, list[Joining]] = {}
        self._where = where
        self._called: dict[int, Called] = {}
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

    def called(self, call: Call) -> Called:
        """What is known of a call. Calls are many and mostly the same objects, so that each is
        compared once."""
        known = self._called.get(id(call))
        if known is None or known.call is not call:
            norm = NORMS.get(call.operator.name)
            also = norm is not None and call.operator == norm[0]
            plain = norm[1](**call.values) if norm is not None and also else call
            only = call.operator in (STATISTICS, FIRST_STATISTICS)
            operations = self.operations.get(plain, {})
            known = Called(call, plain, also, only, operations)
            self._called[id(call)] = known
        return known

    def block(self, leaf: Leaf, region: Region) -> Content:
        """A block of a leaf. Raises Unsound where there is none such."""
        key = id(leaf), region
        known = self._blocks.get(key)
        if known is not None and known[0] is leaf:
            return known[1]
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
        """The tensor behind a value, and before the parallel operators that lead to it."""
        tensor = self._of.get(value)
        if tensor is None:
            tensor = self._of[value] = self._of[trace(value)[0]]
        return tensor

    def whole(self, tensor: PlanTensor) -> Place:
        """All of a tensor, added up."""
        return self.places.of(0, tensor.partials, whole_region(tensor.shape))

    def _leaf(self, node: Node) -> None:
        value = node.value()
        name, shape = node.leaf.name, value.type.shape
        made = PlanTensor(name, value, 1, shape, node.leaf.kind == "weight")
        self._of[value] = self.leaves[name] = made

    def _operator(self, node: Node) -> None:
        call = concrete(node.operator_call, self._where)
        reads = tuple(self.tensor(value) for value in node.inputs)
        types = node.signature.operands
        results = self._results(node, call, reads, types)
        view = self.plan.views[node]
        if node.is_join:
            for which, read in enumerate(reads):
                tasks = joined(types[which], read.partials, view, which, self.places)
                self.joins.setdefault(read, []).append(Joining(results[0], tasks))
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
        """The tensors that an operator makes, those of an equal one if there is such."""
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

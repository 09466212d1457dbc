"""The fastest plan of a small graph by exhaustive search, independent of the planner.

The search covers every graph that the library's rules about whole tensors reach from a model, with
at most ``growth`` operators more. For every operator it tries all degrees of its indices, of
partial sums that pass through and of copies, whose product divides the number of devices. For these
it tries all machine views with strides that divide the number of devices, with several devices for
a task too. With ``in_parts``, each weight is also stored in parts, along any of its dimensions, in
any number that divides the devices, and combined before it is read. Plans that need more memory
than there is do not count. Between two operators the parallel operators bring a tensor from one
type to the other. Copies and partial sums are not undone.

Operators are placed in their order, and the placed part is simulated without the gradients of
weights: the buffers that these share may still change. In the simulator, a task starts when the
last of its predecessors is done, so further operators delay a task or leave it as it was. Hence a
part of a plan that takes longer than a known plan needs no completion. The same holds for a part
that takes as long with the bounds of ``bounds`` for the rest, and for one whose weights do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf, prod

from support.plans.bounds import (
    NOTHING_YET,
    LeastSeconds,
    PlacedProgram,
    at_least,
    cut_as,
    fastest,
    needs,
)

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Node, Value, apply
from pcg.machine import Machine
from pcg.ops import OPERATORS
from pcg.placement.layout import grid
from pcg.placement.schedule import Schedule, schedule
from pcg.placement.view import MachineView
from pcg.plan.training import Training
from pcg.types.infer import bind_sizes
from pcg.types.local import LocalTyping
from pcg.types.tensor import Degrees, ParallelTensor
from search.cost.cost import SGD, CostModel
from search.cost.memory import peak_memory
from search.cost.simulate import price, simulate
from search.plan.finish import memory_limit
from search.substitute.algebra import Algebra
from substitutions.rules.match import rewrite
from substitutions.rules.store import Library


@dataclass(frozen=True)
class PartialPlan:
    """A plan of the exhaustive search, or a part of one."""

    values: Mapping[Value, Value]
    """The cut value of each value of the whole graph."""
    views: Mapping[Node, MachineView]
    begun: PlacedProgram
    seconds: float


Rest = Mapping[Node, LeastSeconds]
"""The operators without a placement, in order, with the least seconds of each."""


@dataclass
class Exhaustive:
    """A search for plans that are faster than a known one."""

    machine: Machine
    than: float
    """The seconds of a step that a plan has to beat: those of the best plan so far."""
    training: Training = SGD
    in_parts: bool = False
    """Whether weights may be stored in parts."""
    best: Graph | None = None
    views: Mapping[Node, MachineView] = field(default_factory=dict[Node, MachineView])
    simulated: int = 0

    def __post_init__(self) -> None:
        self._cost = CostModel(self.machine, self.training)

    def look(self, whole: Graph) -> None:
        """Try all plans of a graph, without rules about whole tensors."""
        rest, start = self.begin(whole), self.nothing_placed(whole)
        if at_least(start.begun, start.values, rest, self.machine.devices) >= self.than:
            return
        weights = [node.value() for node in whole.leaves if node.is_weight and self.in_parts]
        for stored in product(*(stored_ways(weight, self.machine.devices) for weight in weights)):
            values = {**start.values, **dict(zip(weights, stored, strict=True))}
            self._place(whole, rest, replace(start, values=values))

    def begin(self, whole: Graph) -> Rest:
        """The operators of a graph, none of them placed."""
        devices = self.machine.devices
        self._needs = needs(whole)
        return {
            node: fastest(
                cut_as(node, types, wanted, self._cost) for types in operand_types(node, devices)
            )
            for node, wanted in self._needs.items()
        }

    def nothing_placed(self, whole: Graph) -> PartialPlan:
        return PartialPlan(
            {node.value(): node.value() for node in whole.leaves}, {}, NOTHING_YET, 0.0
        )

    def _place(self, whole: Graph, rest: Rest, so_far: PartialPlan) -> None:
        if not rest:
            self.end(whole, so_far)
            return
        first, *others = rest
        after = {node: rest[node] for node in others}
        for made in sorted(self.ways(first, after, so_far), key=lambda placed: placed.seconds):
            if made.seconds < self.than:
                self._place(whole, after, made)

    def ways(self, node: Node, after: Rest, so_far: PartialPlan) -> Iterator[PartialPlan]:
        """The ways to place an operator that may still lead to a faster plan."""
        devices = self.machine.devices
        for wanted in operand_types(node, devices):
            own = cut_as(node, wanted, self._needs[node], self._cost)
            rest = {} if own is None else {node: own, **after}
            if not rest or at_least(so_far.begun, so_far.values, rest, devices) >= self.than:
                continue
            moved = [
                recut(so_far.values[value], to)
                for value, to in zip(node.inputs, wanted, strict=True)
            ]
            inputs = [value for value in moved if value is not None]
            if len(inputs) < len(moved):
                continue
            made = Node(node.call, tuple(inputs))
            values = dict(so_far.values)
            values.update({node.value(p): made.value(p) for p in range(len(node.types))})
            for view in views_of(made, devices):
                placed = self._placed(values, {**so_far.views, made: view}, after)
                if placed.seconds < self.than:
                    yield placed

    def _placed(
        self, values: Mapping[Value, Value], views: Mapping[Node, MachineView], after: Rest
    ) -> PartialPlan:
        """A part of a plan, with a lower bound on its seconds."""
        self.simulated += 1
        outputs = tuple(v for old, v in values.items() if not old.node.is_leaf)
        steps = schedule(Graph(outputs), views)
        begun = PlacedProgram.of(steps, self._cost)
        seconds = at_least(begun, values, after, self.machine.devices)
        if seconds < self.than and not self._fit_weights(steps, views):
            seconds = inf
        if seconds < self.than:
            seconds = max(seconds, price(begun.computing, self.machine.devices).step_seconds)
        return PartialPlan(values, views, begun, seconds)

    def _fit_weights(self, steps: Schedule, views: Mapping[Node, MachineView]) -> bool:
        """Whether the placed weights fit, with their optimizer states. They stay where they are for
        the whole step."""
        each = self.training.parameter_bytes + self.training.state_bytes
        held = [0] * self.machine.devices
        for home in steps.homes.values():
            for device in home.devices:
                held[device] += prod(home.type.held) * each
        return max(held) <= memory_limit(self.machine, views)

    def end(self, whole: Graph, placed: PartialPlan) -> None:
        """Keep a plan of a whole graph if it is faster."""
        if len(placed.views) < len(self._needs):
            return
        ends = [recut(placed.values[value], value.type) for value in whole.outputs]
        outputs = tuple(value for value in ends if value is not None)
        if len(outputs) < len(ends):
            return
        graph = Graph(outputs)
        steps = schedule(graph, placed.views)
        seconds = simulate(steps, self._cost).step_seconds
        limit = memory_limit(self.machine, placed.views)
        if seconds < self.than and peak_memory(steps, self.training).total <= limit:
            self.than, self.best, self.views = seconds, graph, placed.views


def closure(graph: Graph, library: Library, growth: int) -> list[Graph]:
    """All graphs that rules about whole tensors reach, each once, with at most ``growth`` operators
    more than the first."""
    most = sum(not node.is_leaf for node in graph.nodes) + growth
    reached = {graph.digest: graph}
    pending = [graph]
    while pending:
        base = pending.pop()
        algebra = Algebra.of(library.concrete(base))
        for node in base.nodes:
            for applied in () if node.is_leaf else algebra.applications(node, base):
                made = rewrite(base, applied.match, applied.made)
                size = sum(not n.is_leaf for n in made.nodes)
                if size <= most and made.digest not in reached:
                    reached[made.digest] = made
                    pending.append(made)
    return list(reached.values())


def stored_ways(weight: Value, devices: int) -> Iterator[Value]:
    """A weight as its readers have it: stored whole, or combined from parts."""
    yield weight
    for dim, size in enumerate(weight.type.shape):
        for degree in (d for d in range(2, devices + 1) if devices % d == 0 and size % d == 0):
            parts = apply(OPERATORS["partition"](dim=dim, degree=degree), weight)
            yield apply(OPERATORS["combine"](dim=dim, degree=degree), parts)


def operand_types(node: Node, devices: int) -> Iterator[tuple[ParallelTensor, ...]]:
    """The types that an operator on whole tensors may require of its operands."""
    ranks = tuple(value.rank for value in node.inputs)
    typing = node.operator_call.typing(ranks)
    shapes = [value.type.shape for value in node.inputs]
    sizes = bind_sizes(node.operator_call, node.operator_call.instance(ranks), shapes)
    counts = [d for d in range(1, devices + 1) if devices % d == 0]
    cuts = [[d for d in counts if sizes[f"|{axis.name}|"] % d == 0] for axis in typing.axes]
    for *degrees, passing, copies in product(*cuts, counts, counts):
        if devices % (prod(degrees) * passing * copies):
            continue
        for carriers in typing.carriers if passing > 1 else (frozenset[int](),):
            yield tuple(
                _operand(typing, i, shape, degrees, copies, passing if i in carriers else -passing)
                for i, shape in enumerate(shapes)
            )


def _operand(
    typing: LocalTyping,
    operand: int,
    shape: tuple[int, ...],
    degrees: list[int],
    copies: int,
    passing: int,
) -> ParallelTensor:
    """The type of an operand. ``passing``: the number of partial sums that the operand carries, or
    minus the number that others carry."""
    dims = [1] * len(shape)
    for axis, degree in zip(typing.axes, degrees, strict=True):
        at = axis.operands[operand]
        if at is None:
            copies *= degree
        else:
            dims[at] = degree
    copies, partials = (copies, passing) if passing > 0 else (copies * -passing, 1)
    return ParallelTensor(shape, Degrees(tuple(dims), (1,) * len(shape), copies, partials))


def recut(value: Value, wanted: ParallelTensor) -> Value | None:
    """The value with another type. None if parallel operators do not lead to this type."""
    have, want = value.type.degrees, wanted.degrees
    if want.copies % have.copies or have.partials % want.partials:
        return None
    calls: list[tuple[str, dict[str, int]]] = []
    calls.append(("reduce", {"degree": have.partials // want.partials}))
    for dim, (a, b) in enumerate(zip(have.dims, want.dims, strict=True)):
        if a % b == 0:
            calls.append(("combine", {"dim": dim, "degree": a // b}))
        else:
            calls.append(("combine", {"dim": dim, "degree": 1 if b % a == 0 else a}))
            calls.append(("partition", {"dim": dim, "degree": b // a if b % a == 0 else b}))
    calls.append(("replicate", {"degree": want.copies // have.copies}))
    for name, attributes in calls:
        if attributes["degree"] > 1:
            value = apply(OPERATORS[name](**attributes), value)
    assert value.type == wanted
    return value


def views_of(node: Node, devices: int) -> Iterator[MachineView]:
    """All views of an operator that is cut."""
    try:
        *cuts, copies = grid(node)
    except OperatorError:
        return
    strides = [d for d in range(1, devices + 1) if devices % d == 0]
    for times in range(1, devices // (prod(cuts) * copies) + 1):
        shape = (*cuts, copies * times)
        own = [strides if length > 1 else [0] for length in shape]
        for chosen in product(*own):
            last = sum((n - 1) * s for n, s in zip(shape, chosen, strict=True))
            if MachineView(0, shape, chosen).is_injective:
                yield from (MachineView(i, shape, chosen) for i in range(devices - last))

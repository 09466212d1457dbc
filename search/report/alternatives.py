"""The alternatives of an operator of a plan: its other placements, and the step time with each.

Problem: among all placements of one operator, find those with the fastest step, with all other
operators left as they are. Method: list the operator's strategies by its equation, with at most two
of its indices cut at a time, on the devices of its stage. Price each by itself: its own tasks, the
reshardings to and from its neighbours, and the exchange and update of its weights. If the
computation alone takes longer than other placements in all, the rest is not priced. The cheapest
placements are put into the plan and simulated, with memory. Complexity: strategies times
neighbours, and a simulation for each placement that is kept. The step times of simulated placements
are exact. That no other placement is faster is exact only if all are simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod

from pcg.errors import OperatorError
from pcg.graph.graph import Leaf, Node, Value
from pcg.language.poly import Poly
from pcg.machine import Machine
from pcg.placement.backward import gradients
from pcg.placement.layout import operand_layout, output_layout
from pcg.placement.schedule import Compute, Slot, trace
from pcg.placement.transfer import transfer
from pcg.plan.plan import Plan
from pcg.types.halo import least_halo, typing_of
from pcg.types.infer import bind_sizes, index_sizes
from pcg.types.local import Axis
from pcg.types.parallel_operators import PLACING
from pcg.types.tensor import Degrees, Halo, ParallelTensor
from search.cost.cost import CostModel
from search.cost.efficiency import Speed
from search.map.space.allow import batch_axes
from search.map.space.axes import Mesh, Strategy
from search.map.space.strategies import IDLE, REPLICATE, space, starts, view
from search.plan.finish import memory_limit
from search.report.describe import cut_text, span
from search.report.replaced import OperatorPlacement, replaced
from search.report.trace import SimulatedPlan, price_plan

MOST_CUT = 2
"""The most indices of an operator that are cut at once, as in the search."""
MOST_SIMULATED = 8
"""The number of placements of an operator that are simulated."""


@dataclass(frozen=True)
class Alternative:
    """Another placement of an operator, and the step with it, in seconds. ``memory``: bytes on the
    fullest device; ``over``: by how many bytes these exceed its memory, or 0."""

    cut: str
    devices: str
    step_seconds: float
    memory: int
    over: int


@dataclass(frozen=True)
class RankedPlacements:
    """The placements of an operator that were simulated, the fastest that fit first.
    ``placements``: the number of all; None if they were not listed."""

    simulated: tuple[Alternative, ...]
    placements: int | None


class Alternatives:
    """Prices other placements of the operators of one plan."""

    def __init__(self, base: SimulatedPlan, speed: Speed | None = None) -> None:
        self._base = base
        self._plan, self._machine = base.plan, base.machine
        self._cost = CostModel(base.machine, base.plan.training, speed)
        self._batch = batch_axes(base.plan.graph)

    def of(self, node: Node, most: int = MOST_SIMULATED) -> RankedPlacements:
        """Return the placements of an operator. The ``most`` promising ones are simulated."""
        if node.is_join or not most:
            return RankedPlacements((), 0 if node.is_join else None)
        placements = self.placements(node)
        promising = self._promising(node, placements, most)
        simulated = [made for p in promising if (made := self._simulated(node, p)) is not None]
        simulated.sort(key=lambda alternative: (alternative.over > 0, alternative.step_seconds))
        return RankedPlacements(tuple(simulated), len(placements))

    def placements(self, node: Node) -> list[OperatorPlacement]:
        """All placements of an operator except the plan's own, each once."""
        now = OperatorPlacement(tuple(value.type for value in node.inputs), self._plan.views[node])
        by_place = {_where(placed): placed for placed in self._strategies(node)}
        by_place.pop(_where(now), None)
        return list(by_place.values())

    def _promising(
        self, node: Node, offered: Sequence[OperatorPlacement], most: int
    ) -> list[OperatorPlacement]:
        """The ``most`` placements that take the least time by themselves, in order. A placement
        whose computation alone takes longer than ``most`` others in all is not priced further."""
        pairs = ((self._computing(node, placed), placed) for placed in offered)
        best: list[tuple[float, OperatorPlacement]] = []
        for computing, placed in sorted(pairs, key=lambda pair: pair[0]):
            bound = best[-1][0] if len(best) == most else inf
            if computing >= bound:
                break
            total = computing + self._around(node, placed, bound - computing)
            best = sorted([*best, (total, placed)], key=lambda pair: pair[0])[:most]
        return [placed for _, placed in best]

    def _strategies(self, node: Node) -> Iterator[OperatorPlacement]:
        """The placements that an operator's equation allows on the devices of its stage."""
        now, mesh = self._plan.views[node], self.mesh
        first = min(now.devices) // mesh.machine.devices * mesh.machine.devices
        whole = uncut(node)
        operator_space = space(whole, lengths(node), mesh, MOST_CUT)
        for strategy in map(operator_space.strategy, range(len(operator_space))):
            places = starts(strategy, mesh)
            begin = now.start - first if now.start - first in places else 0
            try:
                placed = _placed(node, operator_space.axes, strategy, mesh, begin)
                placed = replace(placed, view=replace(placed.view, start=first + begin))
                _ = _alone(node, placed).types
            except OperatorError:
                continue  # windows that don't fit their blocks
            yield placed

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh of the devices of a stage."""
        return stage_mesh(self._plan, self._machine)

    def _simulated(self, node: Node, placed: OperatorPlacement) -> Alternative | None:
        plan = replaced(self._plan, {node: placed})
        if plan is None:
            return None
        price = price_plan(plan, self._cost)
        made, batch = _alone(node, placed), self._batch.get(node)
        cut = cut_text(made, placed.view, batch, outermost_first=True)
        over = max(price.memory - memory_limit(self._machine, plan.views), 0)
        return Alternative(cut, span(placed.view), price.seconds, price.memory, over)

    def _computing(self, node: Node, placed: OperatorPlacement) -> float:
        """Seconds of an operator's computation, forward and backward."""
        needs = self._needs.get(node)
        each = self._cost.computation(_alone(node, placed), needs or frozenset(), placed.view)
        return sum(duration.longest for duration in (each if needs is not None else each[:1]))

    def _around(self, node: Node, placed: OperatorPlacement, bound: float) -> float:
        """Seconds of the communication to and from an operator, as if none were hidden. Infinite if
        they exceed the bound."""
        total = 0.0
        for seconds in self._moved(node, placed):
            total += seconds
            if total > bound:
                return inf
        return total

    def _moved(self, node: Node, placed: OperatorPlacement) -> Iterator[float]:
        """Seconds of each communication to and from an operator: the gradients of its weights, its
        operands, and its results."""
        made, cost, back = _alone(node, placed), self._cost, self._needs.get(node)
        moved: list[tuple[Value, int]] = []
        for position, value in enumerate(node.inputs):
            source, chain = trace(value)
            if not source.node.is_leaf or any(op.name not in PLACING for op in chain):
                moved.append((source, position))
            elif source.node.is_weight and back is not None:
                home = operand_layout(made, position, placed.view).without_halos
                yield sum(duration.longest for duration in cost.weight(home))
        for source, position in moved:
            wanted = operand_layout(made, position, placed.view)
            there = self._source(source)
            if there is not None:
                times = 2 if back is not None and position in back else 1
                yield times * cost.movement(transfer(there.layout, wanted)).longest
        for value in made.outputs:
            layout = output_layout(made, value.port, placed.view)
            for target in self._read.get(Value(node, value.port), ()):
                if target.layout.type.degrees.partials not in (1, layout.type.degrees.partials):
                    continue  # this reader passed on partial sums that are gone now
                seconds = cost.movement(transfer(layout, target.layout)).longest
                yield (2 if back is not None else 1) * seconds

    def _source(self, source: Value) -> Slot | None:
        if source.node.is_leaf:
            home = self._base.steps.homes.get(source.node)
            return None if home is None else Slot(source, home)
        views = self._plan.views
        return Slot(source, output_layout(source.node, source.port, views[source.node]))

    @cached_property
    def _needs(self) -> Mapping[Node, frozenset[int]]:
        """The operands that need a gradient, for each operator through which gradients pass."""
        steps = self._base.steps
        pairs = zip(steps.steps, gradients(steps).steps, strict=True)
        return {s.node: n for s, n in pairs if isinstance(s, Compute) and n is not None}

    @cached_property
    def _read(self) -> Mapping[Value, Sequence[Slot]]:
        """For each result of an operator, the layouts in which it is read."""
        read: dict[Value, dict[Slot, None]] = {}
        for step in self._base.steps.steps:
            for slot in step.operands if isinstance(step, Compute) else ():
                read.setdefault(slot.value, {})[slot] = None
        for slot in self._base.steps.outputs:
            read.setdefault(slot.value, {})[slot] = None
        return {value: tuple(slots) for value, slots in read.items()}


def stage_mesh(plan: Plan, machine: Machine) -> Mesh:
    """The mesh of the devices of a stage; of all devices if the plan has no pipeline."""
    stages = 1 if plan.pipeline is None else plan.pipeline.stages
    return Mesh(machine.with_devices(machine.devices // stages))


def _where(placed: OperatorPlacement) -> object:
    """A key that is equal for equal placements."""
    at = placed.view
    steps = (stride if n > 1 else 0 for n, stride in zip(at.shape, at.strides, strict=True))
    return placed.operands, at.start, at.shape, tuple(steps)


def uncut(node: Node) -> Node:
    """The operator of a plan on uncut operands."""
    return _on(node, tuple(ParallelTensor.whole(value.type.shape) for value in node.inputs))


def _alone(node: Node, placed: OperatorPlacement) -> Node:
    return _on(node, placed.operands)


def _on(node: Node, types: Sequence[ParallelTensor]) -> Node:
    """An operator on leaves of the given types."""
    kinds = (trace(value)[0].node.is_weight for value in node.inputs)
    leaves = (
        Leaf("weight" if is_weight else "input", f"x{i}", tensor.rank, tensor)
        for i, (tensor, is_weight) in enumerate(zip(types, kinds, strict=True))
    )
    return Node(node.call, tuple(Node(leaf).value() for leaf in leaves))


def all_axes(node: Node) -> tuple[Axis, ...]:
    """The indices of an operator that may be cut. Those over which windows slide come last."""
    typing = node.operator_call.typing(tuple(value.rank for value in node.inputs))
    return (*typing.axes, *(window.axis for window in typing.windows))


def lengths(node: Node) -> Mapping[str, int]:
    """The lengths of the indices of an operator that may be cut, on one slice of the batch."""
    call, types = node.operator_call, [value.type for value in node.inputs]
    sizes = index_sizes(call, types)
    extents: dict[str, int] = {}
    for axis in all_axes(node):
        operand, dim = axis.first_place
        extents[axis.name] = sizes[axis.name] // types[operand].degrees.slices[dim]
    return extents


def _placed(
    node: Node, axes: Sequence[Axis], strategy: Strategy, mesh: Mesh, start: int
) -> OperatorPlacement:
    """The placement of an operator by a strategy. Raises OperatorError if halos do not fit."""
    entries = list(zip(mesh.primes, strategy, strict=True))
    degrees = [prod(prime for prime, at in entries if at == place) for place in range(len(axes))]
    cut = {axis.name: degree for axis, degree in zip(axes, degrees, strict=True) if degree > 1}
    operands = tuple(_operand(node, i, axes, cut) for i in range(len(node.inputs)))
    names = [axis.name for axis in axes]
    typing = typing_of(node.operator_call, operands)
    places = [names.index(a.name) if a.name in names else IDLE for a in typing.axes]
    return OperatorPlacement(operands, view(strategy, [*places, IDLE, REPLICATE], mesh, start))


def _operand(
    node: Node, position: int, axes: Sequence[Axis], cut: Mapping[str, int]
) -> ParallelTensor:
    """The type of an operand if indices are cut in the given numbers of blocks."""
    tensor = node.inputs[position].type
    dims, copies, halos = [1] * tensor.rank, 1, list[Halo]()
    for axis in axes:
        degree, dim = cut.get(axis.name, 1), axis.operands[position]
        if dim is None:
            copies *= degree
            continue
        dims[dim] *= degree
        if degree > 1 and (halo := _halo(node, axis, position, dim)) is not None:
            halos.append(halo)
    ordered = tuple(sorted(halos, key=lambda halo: halo.dim))
    degrees = Degrees(tuple(dims), tensor.degrees.slices, copies, 1, ordered)
    return ParallelTensor(tensor.shape, degrees)


def _halo(node: Node, axis: Axis, operand: int, dim: int) -> Halo | None:
    """The halo of the blocks of an operand, if windows slide along an index there; else None."""
    call, types = node.operator_call, [value.type for value in node.inputs]
    ranks = tuple(tensor.rank for tensor in types)
    windows = (w for w in call.typing(ranks).windows if w.axis == axis)
    if not any((operand, dim) in window.places for window in windows):
        return None
    sizes = bind_sizes(call, call.instance(ranks), [tensor.shape for tensor in types])
    before, after = least_halo(call, ranks, sizes, operand, dim)
    return Halo(dim, Poly.of(before), Poly.of(after))


__all__ = [
    "MOST_SIMULATED",
    "Alternative",
    "Alternatives",
    "RankedPlacements",
    "all_axes",
    "lengths",
    "stage_mesh",
    "uncut",
]

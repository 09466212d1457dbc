"""From a model to a plan by strategies: the search's default engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol, TypeVar

from pcg.errors import InputError, NegativeAnswer
from pcg.graph import Graph, Node, Value
from pcg.machine import Machine
from pcg.plan import Application, EstimatesFile, Plan, machine_record
from pcg.schedule import Schedule, schedule
from search.cost import CostModel, communication_elements
from search.efficiency import Speed
from search.memory import peak_bytes
from search.mesh.allow import (
    Allowed,
    batch_axes,
    data_parallel,
    everything,
    expert,
    tensor_parallel,
)
from search.mesh.cuts import Cuts, unfolded
from search.mesh.engine import Choice, Cut, Engine, application
from search.simulate import simulate
from substitutions.rule import Rule
from substitutions.store import Library

T = TypeVar("T")


@dataclass(frozen=True)
class Strategies:
    """What a planner may use, to choose the best of."""

    mask: Allowed
    data_parallel: bool = False


Family = Callable[[Graph, Engine], Iterator[Strategies]]


def _joint(graph: Graph, engine: Engine) -> Iterator[Strategies]:
    # What others may find is tried too: the bound on strategies may leave it out.
    yield from _data(graph, engine)
    yield from _megatron(graph, engine)
    yield Strategies(everything)


def _data(graph: Graph, engine: Engine) -> Iterator[Strategies]:
    yield Strategies(data_parallel(graph), data_parallel=True)


def _expert(graph: Graph, engine: Engine) -> Iterator[Strategies]:
    yield Strategies(expert(graph))


def _megatron(graph: Graph, engine: Engine) -> Iterator[Strategies]:
    """Tensor parallelism within a node."""
    inside = engine.cost.machine.devices_per_node
    count, inner = len(engine.digits), 1
    while inner <= count and engine.digits.strides[count - inner] < inside:
        yield Strategies(tensor_parallel(graph, count, inner))
        inner += 1


PLANNERS: Mapping[str, Family] = {
    "joint": _joint,
    "data-parallel": _data,
    "expert": _expert,
    "megatron": _megatron,
}

PRICES = 12
"""How many prices of memory are tried to make a plan fit."""


@dataclass(frozen=True)
class Candidate:
    """A plan that was priced. ``seconds`` of a step, ``memory`` bytes on the fullest device."""

    cut: Cut
    steps: Schedule
    seconds: float
    memory: int
    strategies: int


@dataclass(frozen=True)
class Report:
    """What a search did: strategies of all operators, plans that were simulated, why it stopped,
    seconds by phase."""

    strategies: int
    simulated: int
    stop: str
    phases: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


@dataclass(frozen=True)
class Planned:
    plan: Plan
    report: Report
    data_parallel_seconds: float | None = None
    """Of the fastest data-parallel plan, whether it fits or not, where that was priced."""


class Planner(Protocol):
    """Anything that makes a plan of a graph."""

    def plan(self, name: str, graph: Graph) -> Planned:
        """The plan; raises NegativeAnswer where none fits the machine."""
        ...


@dataclass
class MeshPlanner:
    """Plans by one family of strategies on one machine; the fastest that fits its memory."""

    machine: Machine
    library: Library
    family: str = "joint"
    seconds: float = 600.0
    speed: Speed | None = None
    """How fast devices are; by default as the curves that come with Unity say."""
    _phases: dict[str, float] = field(init=False, default_factory=dict[str, float])

    def __post_init__(self) -> None:
        if self.family not in PLANNERS:
            expected = ", ".join(PLANNERS)
            raise InputError(f"planner {self.family}", f"unknown, expected one of {expected}")

    def plan(self, name: str, graph: Graph) -> Planned:
        start = perf_counter()
        graph.check()
        self._phases = {}
        cost = CostModel(self.machine, speed=self.speed)
        found: list[Candidate] = []
        data: list[float] = []
        stop = "exhausted"
        for variant, applied in self._variants(graph):
            engine = Engine(cost, self._cuts(variant))
            for allowed in PLANNERS[self.family](variant, engine):
                if found and perf_counter() - start > self.seconds:
                    stop = "time"
                    break
                made = list(self._fitting(engine, variant, allowed.mask, applied))
                found += made
                data += [made[0].seconds] if allowed.data_parallel else []
        fitting = [c for c in found if c.memory <= self._limit(c)]
        if not fitting:
            raise NegativeAnswer(self._misses(name, min(c.memory - self._limit(c) for c in found)))
        best = min(fitting, key=lambda c: c.seconds)
        return Planned(
            self._plan(name, graph, best, cost, perf_counter() - start),
            Report(sum(c.strategies for c in found), len(found), stop, self._phases),
            min(data, default=None),
        )

    def _cuts(self, graph: Graph) -> Cuts:
        return self._timed("rules", lambda: Cuts(self.library.concrete(graph)))

    def _variants(self, graph: Graph) -> Iterator[tuple[Graph, tuple[Application, ...]]]:
        """The graph, and with the operators unfolded that stand in the way of a cut of the batch
        since they reduce along it, if there are any."""
        yield graph, ()
        samples = batch_axes(graph)
        rules = self.library.concrete(graph)
        closed = [node for node in graph.nodes if _closed(node, samples)]
        if closed:
            opened = self._timed("rules", lambda: _unfolded(graph, closed, rules))
            if opened[1]:
                yield opened

    def _fitting(
        self, engine: Engine, graph: Graph, allowed: Allowed, applied: tuple[Application, ...]
    ) -> Iterator[Candidate]:
        """The best plan, and where it takes too much memory, plans that take less."""
        first = self._candidate(engine, graph, allowed, applied, 0.0)
        yield first
        limit = self._limit(first)
        if first.memory <= limit:
            return
        low, high = 0.0, first.seconds / limit
        for _ in range(PRICES):
            price = high if low == 0.0 else (low + high) / 2
            tried = self._candidate(engine, graph, allowed, applied, price)
            yield tried
            if tried.memory <= self._limit(tried):
                high = price
                if low > 0.0 and high < 1.5 * low:
                    return
                low = low or price / 4
            else:
                low, high = price, high if high > price else price * 4

    def _candidate(
        self,
        engine: Engine,
        graph: Graph,
        allowed: Allowed,
        applied: tuple[Application, ...],
        price: float,
    ) -> Candidate:
        choice: Choice = self._timed("choosing", lambda: engine.choose(graph, price, allowed))
        cut = self._timed("building", lambda: engine.cut(choice, applied))
        steps = self._timed("scheduling", lambda: schedule(cut.graph, cut.views))
        seconds = self._timed("simulating", lambda: simulate(steps, engine.cost)).step_seconds
        memory = peak_bytes(steps, engine.cost.itemsize)
        strategies = sum(len(engine.space(node)) for node in choice.codes)
        return Candidate(cut, steps, seconds, memory, strategies)

    def _timed(self, phase: str, work: Callable[[], T]) -> T:
        start = perf_counter()
        found = work()
        self._phases[phase] = self._phases.get(phase, 0.0) + perf_counter() - start
        return found

    def _limit(self, candidate: Candidate) -> int:
        """Bytes that each device has that a plan uses."""
        if len(self.machine.kinds) == 1:
            return self.machine.memory_limit()
        used = {device for view in candidate.cut.views.values() for device in view.devices}
        return self.machine.memory_limit(used)

    def _misses(self, name: str, over: int) -> str:
        return (
            f"{name} does not fit {self.machine.name}: the plan that takes least memory misses by"
            f" {over / 1e9:.2f} GB a device"
        )

    def _plan(
        self, name: str, graph: Graph, best: Candidate, cost: CostModel, seconds: float
    ) -> Plan:
        one = CostModel(self.machine.with_devices(1), speed=self.speed)
        whole = Engine(one, Cuts(()))
        alone = simulate(schedule(graph, whole.cut(whole.choose(graph)).views), whole.cost)
        estimates = EstimatesFile(
            step_seconds=best.seconds,
            one_device_seconds=alone.step_seconds,
            communication_elements=communication_elements(best.steps),
            search_seconds=seconds,
            peak_memory_bytes=best.memory,
        )
        cut, machine = best.cut, machine_record(self.machine)
        rules = self.library.hash
        return Plan(name, graph, cut.graph, cut.views, machine, rules, cut.applied, estimates)


def _closed(node: Node, samples: Mapping[Node, str]) -> bool:
    """Whether an operator reads samples along which it can't be cut."""
    reads = any(value.node in samples for value in node.inputs)
    return not node.is_leaf and reads and node not in samples


def _unfolded(
    graph: Graph, closed: list[Node], rules: tuple[Rule, ...]
) -> tuple[Graph, tuple[Application, ...]]:
    """The graph with some operators as graphs of simpler ones, where rules say so."""
    new: dict[Value, Value] = {}
    applied: list[Application] = []
    folded = set(closed)
    by_operator = unfolded(rules)
    for node in graph.nodes:
        made = node if node.is_leaf else Node(node.call, tuple(new[v] for v in node.inputs))
        outputs = tuple(made.value(port) for port in range(len(node.types)))
        if node in folded:
            for rule, opened in by_operator(made):
                applied.append(application(rule, made, {}))
                outputs = opened
                break
        new.update({node.value(port): value for port, value in enumerate(outputs)})
    return Graph(tuple(new[value] for value in graph.outputs)), tuple(applied)

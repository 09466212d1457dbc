"""The fastest pipeline of a small model by exhaustive search, independent of the planner.

The search covers every number of stages that divides the devices without straddling units, every
number of micro-batches and of chunks, all contiguous bounds of these, and both synchronous
schedules, 1F1B (interleaved if there are several chunks) and ZB-H1. Each pipeline is built and
priced as it would run. Strategies within a stage are the best ones for its micro-batches one by
one, on its own kind of devices. Nothing is recomputed, and pipelines that need more memory than
there is do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import inf
from random import Random
from typing import Any

from support.mixed import mixed

from pcg.device import Device
from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph, apply, leaf
from pcg.machine import Machine, load_machine
from pcg.ops import OPERATORS
from pcg.placement.schedule import schedule
from pcg.plan.pipeline import ScheduleKind
from pcg.plan.plan import Plan
from pcg.plan.training import Training
from search.choices import Recompute
from search.cost.cost import CostModel
from search.map.rules.cuts import Cuts
from search.map.space.axes import Strategy
from search.pipeline.built.build import PipelineParts
from search.pipeline.built.price import StageGroups, stage_bytes, stage_seconds
from search.pipeline.clock import step_seconds
from search.pipeline.crossing import Crossings
from search.pipeline.micro import GroupStrategies, MicroBatches
from search.pipeline.outline import micro_batch_counts, stage_counts
from search.pipeline.planner import PipelinePlanner
from search.pipeline.streams import streams
from substitutions.rules.store import Library

NOTHING: Any = None
BATCHES = (8, 12, 64, 243, 1024)
WIDTHS = (48, 192, 768, 1536, 3072)
MACHINES = (("summit", 2), ("dgx-a100", 2), ("p3-16xlarge", 2), ("summit", 3), ("dgx-a100", 4))


@dataclass(frozen=True)
class Pipeline:
    """A pipeline of a model. ``seconds``: seconds of a step."""

    seconds: float
    stages: int
    micro_batches: int
    bounds: tuple[int, ...]
    kind: ScheduleKind


@dataclass(frozen=True)
class Chain:
    """A model whose operators read one another in a row, and a machine."""

    graph: Graph
    machine: Machine
    training: Training
    share: float | None
    """The memory of a device, relative to that of the fastest pipeline. None for no limit."""

    def within(self, taken: int) -> Chain:
        """The chain with ``share`` of ``taken`` bytes as the memory of a device."""
        if self.share is None:
            return self
        return replace(self, machine=self.machine.with_memory(int(self.share * taken)))


def small_chain(seed: int) -> Chain:
    """A random chain: the same for the same seed."""
    random = Random(seed)
    name, devices = random.choice(MACHINES)
    return _on(load_machine(name).with_devices(devices), random)


def mixed_chain(seed: int) -> Chain:
    """A random chain on a machine with two kinds of devices: a V100 and an A100, or two of each."""
    random = Random(seed)
    kinds = [load_machine("p3-16xlarge"), load_machine("dgx-a100")]
    random.shuffle(kinds)
    return _on(mixed(*kinds, per_node=random.choice((1, 1, 2)), nodes=2), random)


def _on(machine: Machine, random: Random) -> Chain:
    value = leaf("input", "x", (random.choice(BATCHES), _wide(random)))
    for number in range(random.randint(2, 3)):
        weight = leaf("weight", f"w{number}", (value.type.shape[1], _wide(random)))
        value = apply(OPERATORS["matmul"](), value, weight)
        if random.random() < 0.6:
            value = apply(OPERATORS[random.choice(("relu", "gelu", "tanh"))](), value)
    graph = Graph((apply(OPERATORS["mean_loss"](), value),))
    share = random.choice((None, None, 0.9, 0.75))
    return Chain(graph, machine, Training("sgd"), share)


def _wide(random: Random) -> int:
    return random.choice(WIDTHS)


def pipeline_of_search(library: Library, chain: Chain) -> Plan | None:
    """The plan of the search. None if no plan fits."""
    given = chain.machine, library
    planner = PipelinePlanner(*given, training=chain.training, recompute=Recompute.NONE)
    try:
        return planner.plan("chain", chain.graph).plan
    except NegativeAnswer:
        return None


def beside_every(library: Library, chain: Chain) -> tuple[Plan | None, Pipeline | None]:
    """The plan of the search, and the best of all pipelines, within the chain's share of memory."""
    plan = pipeline_of_search(library, chain)
    assert plan is not None
    within = chain.within(plan.estimates.peak_memory_bytes)
    if within is not chain:
        plan = pipeline_of_search(library, within)
    return plan, EveryPipeline(within, library).best()


@dataclass
class EveryPipeline:
    """All pipelines of a model."""

    chain: Chain
    library: Library
    priced: int = 0

    def __post_init__(self) -> None:
        self._crossings = Crossings(CostModel(self.chain.machine, self.chain.training))

    def best(self) -> Pipeline | None:
        """The fastest pipeline that fits. None if none does."""
        return min(self._every(), key=lambda one: one.seconds, default=None)

    def _every(self) -> Iterator[Pipeline]:
        source = streams(self.chain.graph, self.library)
        cuts = Cuts(self.library.concrete(source.graph))
        count = len(source.graph.operators)
        for stages, size in stage_counts(self.chain.machine):
            for slices in micro_batch_counts(source.batch, stages):
                each = [
                    MicroBatches(source, self._cost_of_stage(stage, size), cuts, slices)
                    for stage in range(stages)
                ]
                strategies = [batches.choose().strategies for batches in each]
                for chunks in range(1, count // stages + 1 if stages > 1 else 2):
                    for inner in combinations(range(1, count), stages * chunks - 1):
                        bounds = (0, *inner, count)
                        chosen = tuple(
                            strategies[chunk % stages][operator]
                            for chunk, (a, b) in enumerate(pairwise(bounds))
                            for operator in range(a, b)
                        )
                        yield from self._priced(each[0], chosen, stages, bounds)

    def _cost_of_stage(self, stage: int, size: int) -> CostModel:
        """The cost model of a machine of one kind, whose links are those of a stage's devices."""
        machine = self.chain.machine
        kinds = machine.kinds_of(range(stage * size, (stage + 1) * size))
        slowest = min(kinds, key=lambda kind: kind.flops.float32)
        device = Device(**{name: getattr(slowest, name) for name in Device.model_fields})
        alone = machine.with_devices(size)
        alone = alone.model_copy(update={"device": device, "others": ()})
        return CostModel(alone, self.chain.training)

    def _fits(self, held: Sequence[int], size: int) -> bool:
        """Whether the devices of each stage have the bytes that the stage holds."""
        groups = [range(stage * size, (stage + 1) * size) for stage in range(len(held))]
        limits = [self.chain.machine.memory_limit(group) for group in groups]
        return all(own <= limit for own, limit in zip(held, limits, strict=True))

    def _priced(
        self,
        batches: MicroBatches,
        strategies: tuple[Strategy, ...],
        stages: int,
        bounds: tuple[int, ...],
    ) -> Iterator[Pipeline]:
        """The pipeline with each schedule by which it fits, priced."""
        machine, chunks = self.chain.machine, (len(bounds) - 1) // stages
        cost = self._crossings.cost
        chosen = GroupStrategies(strategies, NOTHING)
        made = PipelineParts(batches, chosen, bounds, chunks, 1, self._crossings).placed()
        steps = schedule(made.graph, made.views)
        groups = StageGroups(stages, machine.devices // stages, batches.slices, chunks)
        kinds: tuple[ScheduleKind, ...] = ("1f1b", "zb-h1") if chunks == 1 < stages else ("1f1b",)
        for kind in kinds:
            self.priced += 1
            if not self._fits(stage_bytes(steps, cost, groups, kind), groups.size):
                continue
            each = stage_seconds(steps, cost, groups, (), kind)
            seconds = step_seconds(each, batches.slices, kind, chunks)
            yield Pipeline(seconds, stages, batches.slices, bounds, kind)


def ratio(plan: Plan | None, best: Pipeline | None) -> float:
    """The seconds of the search relative to the best. 1 if neither has a plan that fits. Below 1 if
    a strategy with less memory fits, which the exhaustive search leaves out."""
    if best is None:
        return 1.0
    return (inf if plan is None else plan.estimates.step_seconds) / best.seconds

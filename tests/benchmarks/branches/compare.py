"""Compare plans of graphs with branches with the best plans of an independent annealing.

    PYTHONPATH=.:tests python tests/benchmarks/branches/compare.py --graphs 40

For each graph: the step of our plan, that of the best annealed one, their ratio, and the seconds of
our search by the clock, as it may use two processors. An annealing has ``--seconds`` of CPU in all,
with restarts. The results of annealings are written to the file ``--judged``, one a line, and read
from it in later runs. By default it is the one beside this module. It has the better of two
annealings for each of 40 graphs, one of 120 seconds and one of 600. Plans that are read are priced
again, as the cost model may have changed. ``--no-plans`` anneals without planning.
"""

from __future__ import annotations

import argparse
import gc
import json
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from random import Random
from time import perf_counter

from support.mixed import mixed
from support.plans.annealing import Annealing, best_of
from support.plans.branched import branched

from pcg.graph.graph import Graph
from pcg.machine import Machine, load_machine
from search.cost.cost import CostModel
from search.map.choose.choosing import Chooser
from search.map.rules.cuts import Cuts
from search.map.space.mapping import MappedAxis, OperatorMapping
from search.plan.planner import MeshPlanner
from search.substitute.algebra import Algebra
from substitutions.rules.match import rewrite
from substitutions.rules.store import Library, load_library

JUDGED = Path(__file__).with_name("judged.jsonl")
"""Results of annealings."""
REWRITES = 4
"""The largest number of random rewrites that lead to the other annealed graph."""


def machines() -> list[Machine]:
    """Five machines of 4 to 16 devices, the last two of two kinds."""
    v100, a100 = load_machine("p3-16xlarge"), load_machine("dgx-a100")
    return [
        load_machine("summit").with_devices(6),
        a100.with_nodes(1),
        v100.with_nodes(2),
        mixed(v100, a100, per_node=4, nodes=2),
        mixed(a100, v100, per_node=2, nodes=2),
    ]


@dataclass(frozen=True)
class Judged:
    """The result of annealing for the graph of a seed, in some CPU seconds. ``best``: seconds of a
    step. ``mappings``: for each operator the first device, and the place, degree and stride of each
    axis, of the model's graph or, with ``is_rewritten``, of the other graph."""

    seed: int
    seconds: float
    best: float
    runs: int
    states: int
    is_rewritten: bool
    mappings: list[tuple[int, list[tuple[int, int, int]]]]


@dataclass(frozen=True)
class Line:
    """One graph on one machine. ``ours``: seconds of a step."""

    kind: str
    operators: int
    machine: str
    ours: float
    took: float
    """Seconds of our search by the clock."""
    judged: Judged

    @property
    def ratio(self) -> float:
        return self.ours / self.judged.best

    def __str__(self) -> str:
        other = self.judged
        return (
            f"{other.seed:3} {self.kind:25} {self.operators:2} operators, {self.machine:28}"
            f" ours {self.ours * 1e6:8.1f} us, annealed {other.best * 1e6:8.1f} us, ratio"
            f" {self.ratio:.3f}, {self.took:.1f} s"
            f" ({other.runs} annealings, {other.states} states)"
        )


def machine_of(seed: int) -> Machine:
    """One of the machines, in turn."""
    every = machines()
    return every[seed % len(every)]


def planned(seed: int, library: Library) -> tuple[float, float]:
    """Seconds of a step of our plan, and seconds of the search. The search has no limit of
    time, so that a busy computer leads to the same plan."""
    kind, graph = branched(seed)
    gc.collect()  # what earlier searches left in memory would slow this one down
    begun = perf_counter()
    planned = MeshPlanner(machine_of(seed), library, seconds=inf).plan(kind, graph)
    return planned.plan.estimates.step_seconds, perf_counter() - begun


def both_graphs(seed: int, library: Library) -> list[tuple[Chooser, Graph]]:
    """The graph of a seed and a rewritten graph, each with its strategies."""
    graph, cost = branched(seed)[1], CostModel(machine_of(seed))
    graphs = [graph, rewritten(graph, library, Random(seed))]
    return [(Chooser.on(cost, Cuts(library.concrete(g), windows=True)), g) for g in graphs]


def priced_again(judged: Judged, library: Library) -> Judged:
    """A result with the seconds of its plan as they are now."""
    chooser, graph = both_graphs(judged.seed, library)[judged.is_rewritten]
    mappings = [
        OperatorMapping(start, tuple(MappedAxis(*axis) for axis in axes))
        for start, axes in judged.mappings
    ]
    mapped = dict(zip(graph.operators, mappings, strict=True))
    best = Annealing(chooser, graph, Random()).simulated(mapped)
    return replace(judged, best=best)


def judge(seed: int, seconds: float, library: Library) -> Judged:
    """Anneal the graph of a seed and a rewritten graph."""
    given = both_graphs(seed, library)
    best = best_of(given, None, seed, seconds)
    mappings = [
        (own.start, [(axis.place, axis.degree, axis.stride) for axis in own.axes])
        for own in (best.mapped[node] for node in given[best.graph][1].operators)
    ]
    rewrites = best.graph > 0
    return Judged(seed, seconds, best.seconds, best.runs, best.states, rewrites, mappings)


def judged(seed: int, seconds: float, library: Library, known: Path) -> Judged:
    """The result for a seed with at least these seconds, read from a file, or else computed and
    written to it."""
    for text in known.read_text().splitlines() if known.exists() else ():
        one = Judged(**json.loads(text))
        if one.seed == seed and one.seconds >= seconds:
            return priced_again(one, library)
    made = judge(seed, seconds, library)
    with known.open("a") as file:
        file.write(json.dumps(asdict(made)) + "\n")
    return made


def rewritten(graph: Graph, library: Library, random: Random) -> Graph:
    """A graph after some rewrites by rules about whole tensors that do not enlarge it."""
    for _ in range(REWRITES):
        algebra = Algebra.of(library.concrete(graph))
        ways = [a for n in graph.operators for a in algebra.applications(n, graph)]
        random.shuffle(ways)
        for way in ways:
            made = rewrite(graph, way.match, way.made)
            if len(made.operators) <= len(graph.operators):
                graph = made
                break
    return graph


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--graphs", type=int, default=40)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--seconds", type=float, default=120.0)
    options.add_argument("--judged", type=Path, default=JUDGED)
    options.add_argument("--no-plans", action="store_true")
    given = options.parse_args()
    library, ratios = load_library(), list[float]()
    for seed in range(given.first, given.first + given.graphs):
        other = judged(seed, given.seconds, library, given.judged)
        if given.no_plans:
            continue
        (kind, graph), machine = branched(seed), machine_of(seed)
        name = f"{machine.name} x {machine.devices}"
        one = Line(kind, len(graph.operators), name, *planned(seed, library), other)
        ratios.append(one.ratio)
        print(one, flush=True)
    if ratios:
        within = sum(ratio <= 1.01 for ratio in ratios)
        print(f"within 1%: {within} of {len(ratios)}; the worst is {max(ratios):.3f}")


if __name__ == "__main__":
    main()

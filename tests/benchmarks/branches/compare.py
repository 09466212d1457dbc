"""Plans of graphs that are no chains, beside what annealing apart from the search finds:

    PYTHONPATH=.:tests python tests/benchmarks/branches/compare.py --graphs 40 --seconds 600

For each graph: the step of our plan, that of the best annealed one, their ratio, and the CPU
seconds of our search. An annealing has ``--seconds`` of CPU in all, with restarts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from time import process_time

from support.plans.annealing import best_of
from support.plans.branched import branched

from pcg.graph.graph import Graph
from pcg.machine import Machine, load_machine
from search.cost.cost import CostModel
from search.map.choose.choosing import Chooser
from search.map.rules.cuts import Cuts
from search.plan.planner import MeshPlanner
from search.substitute.algebra import Algebra
from substitutions.rules.match import rewrite
from substitutions.rules.store import Library, load_library

REWRITES = 4
"""Random rewrites that lead to the other graph that is annealed, at most."""


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


def mixed(first: Machine, second: Machine, *, per_node: int, nodes: int) -> Machine:
    """Nodes of one machine's devices, the latter half of another's, over links of 25 GB/s."""
    links = [
        {"name": "node", "count": per_node, "latency": 3e-6, "bandwidth": 50e9},
        {"name": "cluster", "count": nodes, "latency": 8e-6, "bandwidth": 25e9},
    ]
    other = {**second.device.model_dump(exclude_none=True), "first_node": nodes // 2}
    return Machine.model_validate(
        {
            "schema_version": 1,
            "name": f"{first.name}-and-{second.name}",
            "device": first.device.model_dump(exclude_none=True),
            "other_device": (other,),
            "level": tuple(links),
        },
        strict=False,
    )


@dataclass(frozen=True)
class Line:
    """One graph on one machine. ``ours`` and ``best``: seconds of a step."""

    seed: int
    kind: str
    operators: int
    machine: str
    ours: float
    best: float
    took: float
    """CPU seconds of our search."""
    runs: int
    states: int

    def __str__(self) -> str:
        return (
            f"{self.seed:3} {self.kind:25} {self.operators:2} operators, {self.machine:28}"
            f" ours {self.ours * 1e6:8.1f} us, annealed {self.best * 1e6:8.1f} us, ratio"
            f" {self.ours / self.best:.3f}, {self.took:.1f} s"
            f" ({self.runs} annealings, {self.states} states)"
        )


def lines(seeds: range, seconds: float, library: Library) -> Iterator[Line]:
    """Each graph on one of the machines, in turn."""
    for seed in seeds:
        every = machines()
        yield line(seed, every[seed % len(every)], seconds, library)


def line(seed: int, machine: Machine, seconds: float, library: Library) -> Line:
    kind, graph = branched(seed)
    begun = process_time()
    ours = MeshPlanner(machine, library).plan(kind, graph).plan.estimates.step_seconds
    took = process_time() - begun
    cost = CostModel(machine)
    graphs = [graph, rewritten(graph, library, Random(seed))]
    given = [(Chooser.on(cost, Cuts(library.concrete(g), windows=True)), g) for g in graphs]
    best = best_of(given, None, seed, seconds)
    name = f"{machine.name} x {machine.devices}"
    operators = len(graph.operators)
    return Line(seed, kind, operators, name, ours, best.seconds, took, best.runs, best.states)


def rewritten(graph: Graph, library: Library, random: Random) -> Graph:
    """A graph after some rewrites by rules about whole tensors that leave it no larger."""
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
    options.add_argument("--seconds", type=float, default=600.0)
    given = options.parse_args()
    library, ratios = load_library(), list[float]()
    for one in lines(range(given.first, given.first + given.graphs), given.seconds, library):
        ratios.append(one.ours / one.best)
        print(one, flush=True)
    within = sum(ratio <= 1.01 for ratio in ratios)
    print(f"within 1%: {within} of {len(ratios)}; the worst is {max(ratios):.3f}")


if __name__ == "__main__":
    main()

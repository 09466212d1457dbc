"""Small graphs, each with all its plans, to compare the plan of the search with."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from support.graphs.behaviour import assert_same
from support.plans.exhaustive import Exhaustive, closure
from support.small.small_cases import SmallCase

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph, Node
from pcg.machine import Machine
from pcg.placement.schedule import schedule
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph
from pcg.plan.training import Training
from pcg.readings.evaluate import by_equation
from search.choices import Recompute
from search.cost.cost import SGD, CostModel
from search.cost.simulate import simulate
from search.plan.finish import memory_limit
from search.plan.planner import MeshPlanner
from substitutions.audit.replay import replay
from substitutions.rules.store import Library

GROWTH = 1
"""The number of operators that rules about whole tensors may add."""
LEAVES = "x = input[{b}, {h}]\nw = weight[{h}, {o}]\n"
GRAPHS = {
    "product": "return mean_loss(matmul(x, w))",
    "relu": "return mean_loss(relu(matmul(x, w)))",
    "softmax": "return mean_loss(softmax(matmul(x, w), axis=1))",
    "square": "t = matmul(x, w)\nreturn mean_loss(multiply(t, t))",
    "transpose": "return mean_loss(relu(transpose(matmul(x, w), dim0=0, dim1=1)))",
    "residual": "t = matmul(x, w)\nreturn mean_loss(gelu(add(relu(t), t)))",
    "two products": "v = weight[{o}, {h}]\nreturn mean_loss(relu(matmul(matmul(x, w), v)))",
    "layers": "v = weight[{o}, {h}]\nreturn mean_loss(matmul(relu(matmul(x, w)), v))",
    "shared": "v = weight[{h}, {o}]\nreturn mean_loss(add(matmul(x, w), matmul(x, v)))",
    "branches": "v = weight[{h}, {o}]\nreturn mean_loss(add(gelu(matmul(x, w)), matmul(x, v)))",
}
SIZES = ((12, 24, 12), (96, 384, 768), (4096, 1536, 48), (384, 1536, 1536))


def graph_of(name: str, sizes: tuple[int, int, int]) -> Graph:
    """A graph of the table for some samples, features and outputs."""
    return parse_graph((LEAVES + GRAPHS[name]).format(**dict(zip("bho", sizes, strict=True))))


@dataclass(frozen=True)
class Compared:
    """Seconds of a step of the plan of the search, and of the best of all plans. They are infinite
    if no plan fits. ``best``: the graph of the best plan, if it is another one."""

    found: float
    optimum: float
    best: Graph | None
    simulated: int
    gathers: bool = False
    """Whether the plan of the search stores weights in parts and combines them."""

    def __str__(self) -> str:
        ratio = 1.0 if self.found == self.optimum else self.found / self.optimum
        return f"found / optimum = {ratio:.6f}, {self.simulated} parts of plans simulated"


def compared(
    library: Library,
    machine: Machine,
    graph: Graph,
    training: Training = SGD,
    *,
    in_parts: bool = False,
) -> Compared:
    """The plan of the search, beside all plans there are. The plan is checked to be valid and to
    take the time that it states. ``in_parts``: whether weights may be stored in parts in all plans;
    then nothing is recomputed."""
    recompute = Recompute.NONE if in_parts else Recompute.AUTO
    planner = MeshPlanner(machine, library, training=training, recompute=recompute)
    seconds, found = _checked(planner, graph)
    every = Exhaustive(machine, seconds * (1 - 1e-9), training, in_parts)
    for equal in closure(graph, library, GROWTH):
        every.look(equal)
    best = seconds if every.best is None else every.than
    gathers = found is not None and any(map(is_gathered, found.graph.nodes))
    return Compared(seconds, best, every.best, every.simulated, gathers)


def compared_in_parts(library: Library, case: SmallCase) -> Compared:
    """The comparison with weights in parts, within a part of the memory of a known plan: of data
    parallelism with fully sharded weights, or of the fastest plan if that takes less."""
    taken: list[int] = []
    for family in ("zero", "joint"):
        planner = MeshPlanner(
            case.machine, library, family, training=case.training, recompute=Recompute.NONE
        )
        taken.append(planner.plan("small", case.graph).plan.estimates.peak_memory_bytes)
    machine = case.with_memory(min(taken))
    return compared(library, machine, case.graph, case.training, in_parts=True)


def is_gathered(node: Node) -> bool:
    """Whether a node combines the parts of a weight."""
    if node.name != "combine" or node.inputs[0].node.name != "partition":
        return False
    return node.inputs[0].node.inputs[0].node.is_weight


def _checked(planner: MeshPlanner, graph: Graph) -> tuple[float, Plan | None]:
    """Seconds of a step of the plan of the search. The plan is checked to be valid and to take the
    time that it states. Infinite if no plan fits."""
    try:
        plan = planner.plan("small", graph).plan
    except NegativeAnswer:
        return inf, None
    assert_same(graph, plan.graph, by_equation)
    assert not replay(plan, planner.library.rules).findings
    steps = schedule(plan.graph, plan.views, plan.order)
    seconds = simulate(steps, CostModel(planner.machine, planner.training)).step_seconds
    assert abs(plan.estimates.step_seconds - seconds) <= 1e-12 * seconds
    assert plan.estimates.peak_memory_bytes <= memory_limit(planner.machine, plan.views)
    return seconds, plan

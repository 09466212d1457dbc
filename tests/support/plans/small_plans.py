"""Small hand-written plans that cover every kind of transfer between devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from support.graphs.images import ONE_IMAGE, four_devices
from support.plans.by_hand import plan_with
from support.plans.pipelines import plan_of, planned

from pcg.placement.layout import grid
from pcg.placement.view import MachineView
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph
from search.map.rules.cuts import Cuts
from search.map.rules.fully_sharded import PlacedGraph, fully_sharded
from search.plan.planner import MeshPlanner
from substitutions.rules.store import load_library

MLP = """
x = input[8, 12]
w1 = weight[12, 16]
w2 = weight[16, 8]
y = matmul(relu(matmul(x, w1)), w2)
loss = mean_loss(scale(multiply(y, y), factor=0.5))
return loss, y
"""
_LEAVES = "x = input[8, 12]\nw1 = weight[12, 16]\nw2 = weight[16, 8]\n"

CUT: Mapping[str, str] = {
    "data": """
h = relu(matmul(partition(x, dim=0, degree=4), replicate(w1, degree=4)))
y = matmul(h, replicate(w2, degree=4))
return reduce(mean_loss(scale(multiply(y, y), factor=0.5)), degree=4), combine(y, dim=0, degree=4)
""",
    "columns then rows": """
h = relu(matmul(replicate(x, degree=4), partition(w1, dim=1, degree=4)))
y = replicate(reduce(matmul(h, partition(w2, dim=0, degree=4)), degree=4), degree=4)
return mean_loss(scale(multiply(y, y), factor=0.5)), y
""",
    "data and model": """
x2 = replicate(partition(x, dim=0, degree=2), degree=2)
h = relu(matmul(x2, replicate(partition(w1, dim=1, degree=2), degree=2)))
y = matmul(h, replicate(partition(w2, dim=0, degree=2), degree=2))
r = replicate(reduce(y, degree=2), degree=2)
out = combine(reduce(y, degree=2), dim=0, degree=2)
return reduce(mean_loss(scale(multiply(r, r), factor=0.5)), degree=2), out
""",
    "reduce_scatter": """
a = matmul(partition(x, dim=1, degree=4), partition(w1, dim=0, degree=4))
h = relu(partition(reduce(a, degree=4), dim=0, degree=4))
y = matmul(h, replicate(w2, degree=4))
return reduce(mean_loss(scale(multiply(y, y), factor=0.5)), degree=4), combine(y, dim=0, degree=4)
""",
    "all_to_all": """
a = relu(matmul(replicate(x, degree=4), partition(w1, dim=1, degree=4)))
rows = partition(combine(a, dim=1, degree=4), dim=0, degree=4)
y = matmul(rows, replicate(w2, degree=4))
return reduce(mean_loss(scale(multiply(y, y), factor=0.5)), degree=4), combine(y, dim=0, degree=4)
""",
    "fully sharded weights": """
all1 = replicate(combine(partition(w1, dim=0, degree=4), dim=0, degree=4), degree=4)
all2 = replicate(combine(partition(w2, dim=1, degree=4), dim=1, degree=4), degree=4)
h = relu(matmul(partition(x, dim=0, degree=4), all1))
y = matmul(h, all2)
return reduce(mean_loss(scale(multiply(y, y), factor=0.5)), degree=4), combine(y, dim=0, degree=4)
""",
    "messages": """
h = matmul(partition(x, dim=0, degree=2), replicate(w1, degree=2))
r = relu(partition(combine(h, dim=0, degree=2), dim=1, degree=2))
y = matmul(r, partition(w2, dim=0, degree=2))
s = reduce(y, degree=2)
return mean_loss(scale(multiply(s, s), factor=0.5)), s
""",
    "one device": """
y = matmul(relu(matmul(x, w1)), w2)
return mean_loss(scale(multiply(y, y), factor=0.5)), y
""",
}


def cut(name: str) -> Plan:
    """The perceptron on four devices, cut in one of the ways of ``CUT``."""
    graph = parse_graph(_LEAVES + CUT[name])
    nodes = [n for n in graph.nodes if not n.is_leaf and not n.is_parallel]
    views = {n: MachineView.packed(0, grid(n)) for n in nodes}
    if name == "messages":  # from devices 0 and 1 to 2 and 3
        firsts = (0, 2, 1, 3, 3, 3)
        views = {n: MachineView.packed(f, grid(n)) for n, f in zip(nodes, firsts, strict=True)}
    return plan_with(parse_graph(MLP), graph, views, 4)


def rows_of_an_image() -> Plan:
    """Convolutions whose rows are cut, with halos."""
    graph = parse_graph(ONE_IMAGE)
    return MeshPlanner(four_devices(), load_library()).plan("image", graph).plan


TWO_STAGES = """
x = input[8, 12]
w = weight[12, 6]
v = weight[6, 6]
u = weight[6, 4]
p = partition(pipeline(x, dim=0, degree=2), dim=0, degree=2)
h = relu(matmul(p, replicate(w, degree=2)))
y = matmul(relu(matmul(h, replicate(v, degree=2))), replicate(u, degree=2))
return sum_loss(combine(batch(y, dim=0, degree=2), dim=0, degree=2))
"""
THEIR_MODEL = """
x = input[8, 12]
w = weight[12, 6]
v = weight[6, 6]
u = weight[6, 4]
return sum_loss(matmul(relu(matmul(relu(matmul(x, w)), v)), u))
"""


def two_stages(kind) -> Plan:
    """Two stages of two devices each. Each device of a stage has half of the samples."""
    graph = parse_graph(TWO_STAGES)
    nodes = [n for n in graph.nodes if not n.is_leaf and not n.is_parallel]
    views = {n: MachineView.packed(0 if i < 2 else 2, grid(n)) for i, n in enumerate(nodes)}
    return plan_of(parse_graph(THEIR_MODEL), graph, views, 2, 2, kind)


IN_CHUNKS = """
x = input[8, 12]
w = weight[12, 6]
v = weight[6, 6]
u = weight[6, 4]
p = partition(pipeline(x, dim=0, degree=4), dim=0, degree=2)
h = relu(matmul(p, replicate(w, degree=2)))
g = matmul(h, replicate(v, degree=2))
y = matmul(add(relu(g), h), replicate(u, degree=2))
loss = sum_loss(combine(batch(multiply(y, y), dim=0, degree=4), dim=0, degree=2))
return loss, combine(batch(y, dim=0, degree=4), dim=0, degree=2)
"""
THEIR_CHUNKS = """
x = input[8, 12]
w = weight[12, 6]
v = weight[6, 6]
u = weight[6, 4]
h = relu(matmul(x, w))
y = matmul(add(relu(matmul(h, v)), h), u)
return sum_loss(multiply(y, y)), y
"""


def in_chunks() -> Plan:
    """Two stages of two chunks. The next chunk reads h, and so does the one after it."""
    graph = parse_graph(IN_CHUNKS)
    nodes = [n for n in graph.nodes if not n.is_leaf and not n.is_parallel]
    stages = (0, 0, 1, 0, 0, 1, 1, 1)
    views = {n: MachineView.packed(2 * s, grid(n)) for n, s in zip(nodes, stages, strict=True)}
    return plan_of(parse_graph(THEIR_CHUNKS), graph, views, 2, 4, interleave=2)


def again(plan: Plan) -> Plan:
    """A plan that recomputes all operators."""
    nodes = frozenset(node for node in plan.graph.nodes if not node.is_leaf)
    return replace(plan, recompute=nodes)


def again_between_products(plan: Plan) -> Plan:
    """A plan that recomputes all operators but its products. The operands of products are
    recomputed."""
    nodes = [node for node in plan.graph.nodes if not node.is_leaf and node.name != "matmul"]
    return replace(plan, recompute=frozenset(nodes))


def gathered(plan: Plan, devices: int) -> Plan:
    """A plan with its weights fully sharded on ``devices`` devices each, gathered again in the
    backward pass."""
    weights = {leaf.leaf.name for leaf in plan.graph.leaves}
    parts = Cuts.of_rules(load_library().concrete(plan.graph)).parting
    made = fully_sharded(PlacedGraph(plan.graph, plan.views), weights, devices, parts, None)
    nodes = frozenset(node for node in made.graph.nodes if node.name == "combine")
    return replace(plan, graph=made.graph, views=made.views, recompute=nodes)


AGAIN = ("again", "1f1b gathered", "2bw again", "interleaved gathered")
NAMES = (*CUT, "halos", "1f1b", "2bw", "zb-h1", "zb-h1 again", "tail", "interleaved", *AGAIN)


@lru_cache
def small_plan(name: str) -> Plan:
    """The plan of one of ``NAMES``, made when it is asked for."""
    match name:
        case "halos":
            return rows_of_an_image()
        case "1f1b" | "2bw" | "zb-h1":
            return two_stages(name)
        case "zb-h1 again":
            return again_between_products(two_stages("zb-h1"))
        case "interleaved":
            return in_chunks()
        case "tail":
            return planned("tied", load_library(), 4, 2, "1f1b")
        case "again":
            return again(cut("fully sharded weights"))
        case "1f1b gathered":
            return gathered(two_stages("1f1b"), 2)
        case "2bw again":
            return again(gathered(two_stages("2bw"), 2))
        case "interleaved gathered":
            return again(gathered(in_chunks(), 2))
        case _:
            return cut(name)

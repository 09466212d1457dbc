"""Hand-written plans of a few operators on the local machine, and their simulation."""

from __future__ import annotations

from support.plans.by_hand import Views, make_plan

from pcg.machine import Machine, load_machine
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph
from search.report.trace import SimulatedPlan, simulate_plan

MODEL = """
x = input[48, 12]
w1 = weight[12, 24]
w2 = weight[24, 10]
return mean_loss(softmax(matmul(relu(matmul(x, w1)), w2), axis=1))
"""
DATA = """
x = input[48, 12]
w1 = weight[12, 24]
w2 = weight[24, 10]
h = relu(matmul(partition(x, dim=0, degree=4), replicate(w1, degree=4)))
s = softmax(matmul(h, replicate(w2, degree=4)), axis=1)
return reduce(mean_loss(s), degree=4)
"""
TENSOR = """
x = input[48, 12]
w1 = weight[12, 24]
w2 = weight[24, 10]
h = relu(matmul(replicate(x, degree=4), partition(w1, dim=1, degree=4)))
y = reduce(matmul(h, partition(w2, dim=0, degree=4)), degree=4)
s = softmax(partition(y, dim=0, degree=4), axis=1)
return reduce(mean_loss(s), degree=4)
"""
SHARDED = DATA.replace(
    "replicate(w2, degree=4)",
    "replicate(combine(partition(w2, dim=0, degree=4), dim=0, degree=4), degree=4)",
)
"""DATA, with a weight that is fully sharded."""
PASSING = """
x = input[48, 12]
w1 = weight[12, 24]
w2 = weight[24, 10]
p = matmul(partition(x, dim=1, degree=4), partition(w1, dim=0, degree=4))
h = relu(reduce(p, degree=4))
q = matmul(partition(h, dim=1, degree=4), partition(w2, dim=0, degree=4))
s = softmax(reduce(q, degree=4), axis=1)
return mean_loss(s)
"""
LINEAR_MODEL = """
x = input[48, 12]
w1 = weight[12, 24]
w2 = weight[24, 10]
return mean_loss(matmul(matmul(x, w1), w2))
"""
LINEAR = """
x = input[48, 12]
w1 = weight[12, 24]
w2 = weight[24, 10]
p = matmul(partition(x, dim=1, degree=4), partition(w1, dim=0, degree=4))
q = matmul(p, replicate(w2, degree=4))
return mean_loss(reduce(q, degree=4))
"""
"""Partial sums pass through the second product."""
CUTS = {"data": DATA, "tensor": TENSOR, "sharded": SHARDED, "partial": PASSING}


def machine(devices: int = 4) -> Machine:
    """The local machine with ``devices`` devices."""
    return load_machine("local").with_devices(devices)


def plan_of(graph: str, model: str = MODEL, views: Views | None = None, devices: int = 4) -> Plan:
    """A plan of a graph that is cut by hand."""
    return make_plan(parse_graph(model), parse_graph(graph), devices, views or {})


def simulated(plan: Plan) -> SimulatedPlan:
    """A plan on the local machine, simulated."""
    return simulate_plan(plan, machine(plan.machine.devices))

"""The products whose weight has a late gradient, found alike by search and runtime."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from support.plans.small_plans import NAMES, small_plan

from pcg.graph.graph import Node
from pcg.machine import load_machine
from pcg.placement.late import late_gradients, late_steps
from pcg.placement.layout import grid
from pcg.placement.schedule import Compute, LeafAtHome, Reshard, Schedule, Step, schedule
from pcg.placement.view import MachineView
from pcg.plan.text import parse_graph
from runtime.program.lower import Lowering
from search.cost.cost import CostModel
from search.cost.simulate import run
from search.cost.tasks import BACKWARD, COMMUNICATE, program, tasks

NONE = frozenset[Node]()


def made(text: str) -> Schedule:
    graph = parse_graph(text)
    nodes = [node for node in graph.operators if not node.is_parallel]
    return schedule(graph, {node: MachineView.packed(0, grid(node)) for node in nodes})


SEQUENCE = """
x = input[8, 6]
u = weight[6, 6]
w = weight[6, 4]
h = relu(matmul(partition(x, dim=0, degree=2), replicate(u, degree=2)))
y = matmul(replicate(combine(h, dim=0, degree=2), degree=2), partition(w, dim=1, degree=2))
return reduce(mean_loss(y), degree=2)
"""


def test_gradient_of_the_gathered_operand_is_sent_first():
    steps = made(SEQUENCE)
    late = late_gradients(steps)
    ((number, own),) = late.items()
    product, move = steps.steps[number], steps.steps[own.beside]
    assert isinstance(product, Compute)
    assert product.operands[own.operand].value.node.leaf.name == "w"
    assert isinstance(move, Reshard)
    assert move.transfer.kind == "all_gather"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("relu(matmul(x, w))", "data has no gradient"),
        ("matmul(matmul(x, w), w)", "both read one weight"),
        ("matmul(matmul(x, w), transpose(v, dim0=0, dim1=1))", "what is read is not the weight"),
        ("matmul(tanh(matmul(x, w)), matmul(v, v))", "no operand is a weight"),
        ("add(matmul(x, w), v)", "a sum has one gradient"),
    ],
)
def test_other_operators_have_no_late_gradients(text, why):
    steps = made(f"x = input[6, 6]\nw = weight[6, 6]\nv = weight[6, 6]\nreturn mean_loss({text})")
    assert not late_steps(steps), why


def test_recomputed_products_have_no_late_gradients():
    steps = made(SEQUENCE)
    assert late_steps(steps)
    assert not late_steps(steps, late_steps(steps).keys())


@pytest.mark.parametrize("name", NAMES)
def test_the_price_and_the_programs_part_the_same_products(name):
    """In the schedule that is priced, and in the one that is lowered."""
    plan = small_plan(name)
    steps, lowering = schedule(plan.graph, plan.views), Lowering(replace(plan, recompute=NONE))
    cost = CostModel(load_machine("dgx-a100").with_devices(plan.machine.devices))
    back = Counter(t.what for t in tasks(program(steps, cost)) if t.phase == BACKWARD)
    computed = [step for step in steps.steps if not isinstance(step, LeafAtHome)]
    parted = {nodes_of(computed[number]) for number, count in back.items() if count == 2}
    own = lowering.schedule
    assert {nodes_of(own.steps[number]) for number in late_steps(own)} == parted


def nodes_of(step: Step) -> Node:
    assert isinstance(step, Compute)
    return step.node


def test_sending_overlaps_the_late_product_in_the_price():
    steps = made(SEQUENCE)
    done = run(tasks(program(steps, CostModel(load_machine("dgx-a100").with_devices(2)))), 2)
    timed = list(zip(done.tasks, done.starts, strict=True))
    back = [(task, start) for task, start in timed if task.phase == BACKWARD]
    ((sent, at),) = [pair for pair in back if pair[0].stream == COMMUNICATE]
    number = done.tasks.index(sent)
    late = done.tasks[number - 1]
    assert late.duration.longest > 0
    assert at == done.starts[number - 1], "both start when the first product has ended"

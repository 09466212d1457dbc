"""The recomputed steps, and the steps whose backward pass they precede."""

from __future__ import annotations

import pytest
from support.plans.small_plans import small_plan

from pcg.graph.graph import Graph
from pcg.placement.layout import grid
from pcg.placement.recomputation import RecomputedSteps, recomputed_steps
from pcg.placement.saved import saved_tensors
from pcg.placement.schedule import Compute, Reshard, Schedule, schedule
from pcg.placement.view import MachineView
from pcg.plan.chunks import chunks_of
from pcg.plan.text import parse_graph


def steps_of(graph: Graph, starts: dict[str, int] | None = None) -> Schedule:
    graph.check()
    views = {
        node: MachineView.packed((starts or {}).get(node.name, 0), grid(node))
        for node in graph.operators
        if not node.is_parallel
    }
    return schedule(graph, views)


def names(steps: Schedule, numbers) -> list[str]:
    return [
        step.node.name if isinstance(step, Compute) else f"move {step.results[0].value.node.name}"
        for step in (steps.steps[number] for number in numbers)
    ]


def done(steps: Schedule, wanted: set[str], stage: int | None = None) -> RecomputedSteps:
    every = {n for s in steps.steps if isinstance(s, Compute) for n in (s.node, *ups(s))}
    assert {node.name for node in every} >= wanted
    nodes = [node for node in every if node.name in wanted]
    return recomputed_steps(saved_tensors(steps), nodes, stage)


def ups(step: Compute):
    """The parallel operators before a computation."""
    for value in step.node.inputs:
        while value.node.is_parallel:
            yield value.node
            value = value.node.inputs[0]


def shown(steps: Schedule, remade: RecomputedSteps) -> dict[str, list[str]]:
    return {names(steps, [reader])[0]: names(steps, own) for reader, own in remade.before.items()}


CHAIN = """
x = input[8, 4]
w = weight[4, 4]
v = weight[4, 4]
h = gelu(sigmoid(matmul(x, w)))
return mean_loss(matmul(h, v))
"""


def test_chain_is_recomputed_before_its_first_reader():
    steps = steps_of(parse_graph(CHAIN))
    remade = done(steps, {"gelu", "sigmoid"})
    # The second product reads gelu of sigmoid of a saved tensor.
    ((reader, made),) = remade.before.items()
    assert names(steps, [reader]) == ["matmul"]
    assert names(steps, made) == ["sigmoid", "gelu"]
    assert reader > max(made)


def test_unread_operator_is_recomputed_before_its_own_backward_pass():
    text = "x = input[8, 4]\nw = weight[4, 4]\nreturn mean_loss(scale(matmul(x, w), factor=2.0))"
    steps = steps_of(parse_graph(text))
    assert shown(steps, done(steps, {"scale"})) == {"scale": ["scale"]}


def test_views_are_not_recomputed():
    text = "x = input[8, 4]\nw = weight[4, 4]\nt = transpose(matmul(x, w), dim0=0, dim1=1)\n"
    steps = steps_of(parse_graph(f"{text}return mean_loss(gelu(t))"))
    assert not done(steps, {"transpose"}).steps


GATHERED = """
x = input[8/4, 4]
w1 = weight[4, 4]
w2 = weight[4, 4]
w3 = weight[4, 4]
a = replicate(combine(partition(w1, dim=0, degree=4), dim=0, degree=4), degree=4)
b = replicate(combine(partition(w2, dim=0, degree=4), dim=0, degree=4), degree=4)
c = replicate(combine(partition(w3, dim=0, degree=4), dim=0, degree=4), degree=4)
h = matmul(gelu(matmul(x, a)), b)
return reduce(mean_loss(matmul(gelu(h), c)), degree=4)
"""


def test_a_weight_is_gathered_ahead():
    steps = steps_of(parse_graph(GATHERED))
    remade = done(steps, {"combine"})
    # The gradient of the first product is of data, so nothing reads the first weight. The last two
    # weights are gathered at once, because the second one is needed next.
    ((reader, made),) = remade.before.items()
    assert names(steps, made) == ["move w2", "move w3"]
    # No other communication takes place between the last product and the loss.
    assert names(steps, [reader]) == ["mean_loss"]


def test_any_of_the_parallel_operators_stands_for_the_resharding():
    steps = steps_of(parse_graph(GATHERED))
    assert done(steps, {"combine"}) == done(steps, {"replicate"}) == done(steps, {"partition"})


SLICED = """
x = input[8, 4]
w = weight[4, 4]
v = weight[4, 4]
p = pipeline(x, dim=0, degree=2)
a = replicate(combine(partition(w, dim=0, degree=2), dim=0, degree=2), degree=2)
b = replicate(combine(partition(v, dim=0, degree=2), dim=0, degree=2), degree=2)
h = gelu(matmul(partition(p, dim=0, degree=2), a))
y = matmul(relu(h), b)
return sum_loss(combine(batch(y, dim=0, degree=2), dim=0, degree=2))
"""


@pytest.mark.parametrize("apart", [False, True])
def test_weights_are_gathered_again_for_each_micro_batch(apart: bool):
    steps = steps_of(parse_graph(SLICED), {"relu": 2} if apart else None)
    remade = done(steps, {"combine", "gelu"}, 4 if not apart else 2)
    gathers = {i for i in remade.steps if not isinstance(steps.steps[i], Compute)}
    assert remade.moved == gathers
    assert len(remade.moved) == 2
    # Tensors that are sent from stage to stage are kept.
    for number in remade.steps:
        step = steps.steps[number]
        devices = {d for s in (*step.operands, *step.results) for d in s.layout.devices}
        assert len({device // (2 if apart else 4) for device in devices}) == 1


def test_no_choice_means_no_recomputation():
    steps = steps_of(parse_graph(CHAIN))
    assert not recomputed_steps(saved_tensors(steps), ()).before


def test_chains_may_be_as_long_as_graphs():
    chain = "matmul(x, w)"
    lines = ["x = input[2, 2]", "w = weight[2, 2]", f"h0 = {chain}"]
    lines += [f"h{i + 1} = gelu(h{i})" for i in range(3000)]
    steps = steps_of(parse_graph("\n".join([*lines, "return mean_loss(h3000)"])))
    ((_, made), *others) = done(steps, {"gelu"}).before.items()
    assert len(made) == 3000
    assert not others


def test_recomputation_stays_within_a_chunk():
    plan = small_plan("interleaved gathered")
    steps = schedule(plan.graph, plan.views)
    chunks = chunks_of(steps, 2, 2, 2)
    remade = recomputed_steps(saved_tensors(steps), plan.recompute, 2, chunks.numbers)
    assert remade.moved
    every = chunks.with_moved(steps, remade.moved)
    number = {at: ends.source for at, ends in every.steps.items()}
    for reader, own in remade.before.items():
        assert {number.get(made) for made in own} == {number.get(reader)}
    # Tensors that the next chunk reads are kept: here h, which two later chunks read.
    for at in remade.steps:
        made = set(steps.steps[at].results)
        readers = [n for n, step in enumerate(steps.steps) if not made.isdisjoint(step.operands)]
        assert {number.get(n) for n in readers} <= {number.get(at)}
    # Each weight is gathered by the chunk that reads it, and all weights are needed again.
    gathers = {at for at in remade.moved if isinstance(steps.steps[at], Reshard)}
    assert len({number[at] for at in gathers}) == 3
    assert gathers <= remade.held_from().keys()

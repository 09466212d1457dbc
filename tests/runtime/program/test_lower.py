from __future__ import annotations

import pytest
from support.plans.by_hand import make_plan

from pcg.errors import InputError
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph
from runtime.program.lower import Lowering
from runtime.program.program import AllReduce, Exchange

MODEL = """
x = input[8, 12]
w1 = weight[12, 16]
w2 = weight[16, 8]
return mean_loss(matmul(relu(matmul(x, w1)), w2))
"""

REDUCTION_PARALLEL = """
x = input[8, 12]
w1 = weight[12, 16]
w2 = weight[16, 8]
a = matmul(partition(x, dim=1, degree=2), partition(w1, dim=0, degree=2))
hidden = relu(replicate(reduce(a, degree=2), degree=2))
return reduce(mean_loss(matmul(hidden, partition(w2, dim=1, degree=2))), degree=2)
"""


def plan_of(graph: str, devices: int = 2, model: str = MODEL) -> Plan:
    return make_plan(parse_graph(model), parse_graph(graph), devices, {})


def test_program_prints_the_steps_of_a_device():
    program = Lowering(plan_of(REDUCTION_PARALLEL)).program(1)
    assert str(program).splitlines() == [
        "rank 1 of 2",
        "  x = load input x[0:8, 6:12]  [8, 6]",
        "  w1 = load weight w1[6:12, 0:16]  [6, 16]",
        "  t2 = matmul(x, w1)  [8, 16]",
        "  t2.1 = all_reduce(t2) over 0, 1  [8, 16]",
        "  t5 = relu(t2.1)  [8, 16]",
        "  w2 = load weight w2[0:16, 4:8]  [16, 4]",
        "  t7 = matmul(t5, w2)  [8, 4]",
        "  t8 = mean_loss(t7)  []",
        "  gradient(t8) = 1",
        "  backward: the same in reverse, every move as its adjoint",
        "  w1 -= lr * gradient(w1)",
        "  w2 -= lr * gradient(w2)",
    ]


def test_reduce_and_replicate_are_one_all_reduce():
    for rank in range(2):
        program = Lowering(plan_of(REDUCTION_PARALLEL)).program(rank)
        moves = [i for i in program.instructions if isinstance(i, AllReduce | Exchange)]
        assert [type(move) for move in moves] == [AllReduce]
        assert program.groups == ((0, 1),)


def test_only_the_first_holder_of_a_piece_counts_the_loss():
    copies = MODEL.replace(
        "matmul(x, w1)", "matmul(replicate(x, degree=2), replicate(w1, degree=2))"
    )
    copies = copies.replace(", w2)", ", replicate(w2, degree=2))")
    lowering = Lowering(plan_of(copies))
    assert [lowering.program(rank).loss for rank in range(2)] == [
        lowering.register(lowering.loss),
        None,
    ]


def test_copies_of_a_weight_share_their_gradient():
    data_parallel = MODEL.replace(
        "(x, w1)", "(partition(x, dim=0, degree=2), replicate(w1, degree=2))"
    )
    data_parallel = data_parallel.replace(", w2)", ", replicate(w2, degree=2))")
    program = Lowering(plan_of(data_parallel)).program(0)
    assert [weight.group for weight in program.trained] == [(0, 1), (0, 1)]


def test_every_message_that_is_sent_is_received():
    moved = """
    x = input[8, 12]
    w1 = weight[12, 16]
    w2 = weight[16, 8]
    a = relu(matmul(replicate(x, degree=4), partition(w1, dim=1, degree=4)))
    rows = partition(combine(a, dim=1, degree=4), dim=0, degree=2)
    return reduce(mean_loss(matmul(rows, replicate(w2, degree=2))), degree=2)
    """
    lowering = Lowering(plan_of(moved, devices=4))
    exchanges = {
        rank: [i for i in lowering.program(rank).instructions if isinstance(i, Exchange)]
        for rank in range(4)
    }
    sent = [
        (rank, part.peer, shape(part.region))
        for rank, messages in exchanges.items()
        for exchange in messages
        for part in exchange.sends
    ]
    received = [
        (part.peer, rank, shape(part.region))
        for rank, messages in exchanges.items()
        for exchange in messages
        for part in exchange.receives
    ]
    assert sorted(sent) == sorted(received)
    assert len(sent) == 2 * 3
    for messages in exchanges.values():
        for exchange in messages:
            assert exchange.adjoint.adjoint == exchange


def shape(region):
    return tuple(stop - start for start, stop in region)


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        (
            MODEL.replace(
                "relu(matmul(x, w1))",
                "batch(relu(matmul(pipeline(x, dim=0, degree=2), w1)), dim=0, degree=2)",
            ),
            "plan.json: pipeline: slices in time, expected decisions.pipeline to say how they run",
        ),
        (
            MODEL.replace("mean_loss(", "relu("),
            "plan.json: the first output is [8, 8], expected the loss, one number",
        ),
        (
            MODEL.replace("x = input", "z = input").replace("(x,", "(z,"),
            "plan.json: the plan reads input z [8, 12], the model has no such leaf",
        ),
        (
            MODEL.replace("return ", "loss = ") + "return replicate(loss, degree=4)",
            "plan.json: mean_loss: [] copies=4 takes 4 devices, the machine has 2",
        ),
    ],
)
def test_plans_that_cannot_be_executed_are_refused(graph, problem):
    with pytest.raises(InputError) as caught:
        Lowering(plan_of(graph), "plan.json")
    assert str(caught.value) == problem


def test_a_leaf_of_partial_sums_is_refused():
    graph = MODEL.replace("x = input[8, 12]", "x = input[8, 12] partials=2").replace(
        "relu(matmul(x, w1))", "relu(reduce(matmul(x, replicate(w1, degree=2)), degree=2))"
    )
    with pytest.raises(InputError, match="x: stored as partial sums"):
        Lowering(plan_of(graph))


def test_ids_too_large_for_float32_are_refused():
    graph = (
        f"ids = input[4] below {2**24 + 1}\n"
        f"table = weight[{2**24 + 1}, 2]\n"
        "return mean_loss(embedding(ids, table))"
    )
    with pytest.raises(InputError, match="ids: integers below 16777217, expected 16777216"):
        Lowering(plan_of(graph, model=graph))

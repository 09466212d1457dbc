"""Plans by hand: the meaning of degrees, on a small decoder."""

from __future__ import annotations

from functools import lru_cache

import pytest
from fidelity.models import Gpt
from fidelity.price import graph_of

from pcg.errors import InputError, NegativeAnswer
from pcg.machine import load_machine
from pcg.placement.schedule import Compute, Reshard
from pcg.plan.plan import Plan, load_plan, save_plan
from pcg.plan.training import Training
from search.by_hand.degrees import HandDegrees, parse_degrees
from search.by_hand.planner import HandPlan, HandPlanner
from search.by_hand.recomputed import between_products
from search.cost.liveness import liveness
from substitutions.rules.store import load_library

SMALL = Gpt(4, 64, 8, 128, 64)
BATCH = 16
ADAM = Training("adam", "bf16")


@lru_cache(maxsize=32)
def planner(text: str, devices: int = 8) -> HandPlanner:
    machine = load_machine("dgx-a100").with_devices(devices)
    return HandPlanner(machine, load_library(), parse_degrees(text), ADAM)


@lru_cache(maxsize=32)
def made(text: str) -> HandPlan:
    return planner(text).priced(graph_of(SMALL, BATCH))


def moves(plan: HandPlan) -> list[str]:
    """The collectives of activations, in the order of the forward pass."""
    steps = [step for step in plan.steps.steps if isinstance(step, Reshard)]
    return [s.transfer.kind for s in steps if len(s.source.value.type.shape) == 3]


def test_tensor_parallelism_sums_up_twice_a_layer():
    kinds = moves(made("tensor=8"))
    # One more for the table of tokens, of which each device has some rows.
    assert kinds.count("all_reduce") == 2 * SMALL.layers + 1
    assert "all_gather" not in kinds


def test_sequence_parallelism_gathers_and_scatters():
    plan = made("tensor=8,sequence")
    kinds = moves(plan)
    assert kinds.count("reduce_scatter") == 2 * SMALL.layers + 1
    assert kinds.count("all_gather") == 2 * SMALL.layers + 1
    norms = [s for s in plan.steps.steps if isinstance(s, Compute) and s.node.name == "layer_norm"]
    assert {step.node.inputs[0].type.degrees.dims for step in norms} == {(1, 8, 1)}


def test_remaining_devices_are_cut_by_samples():
    for text, data in (("", 8), ("tensor=2", 4), ("tensor=4,pipeline=2,micro-batches=2", 1)):
        plan = made(text)
        norms = [
            s for s in plan.steps.steps if isinstance(s, Compute) and s.node.name == "layer_norm"
        ]
        assert {step.node.inputs[0].type.degrees.dims[0] for step in norms} == {data}


def test_recomputation_takes_time_and_saves_memory():
    none, selective, full = (
        made(f"tensor=2,recompute={how}") for how in ("none", "selective", "full")
    )
    assert none.seconds < selective.seconds < full.seconds
    assert none.memory > selective.memory > full.memory
    assert not none.recompute
    assert selective.recompute < full.recompute


def test_operators_between_products_of_attention_are_selected():
    graph = graph_of(SMALL, BATCH)
    names = [node.name for node in graph.operators if node in between_products(graph)]
    assert names[0] == "batch_matmul"
    assert names.count("batch_matmul") == SMALL.layers
    assert {"softmax", "dropout"} < set(names)
    assert "matmul" not in names


def test_sharded_weights_are_gathered_again():
    whole, sharded = made("micro-batches=2"), made("micro-batches=2,sharded")
    assert sharded.memory < whole.memory
    gathered = [node for node in sharded.recompute if node.name == "combine"]
    assert gathered
    assert not whole.recompute


@pytest.mark.parametrize(
    "text",
    [
        "tensor=8,sequence",
        "micro-batches=2,sharded",
        "pipeline=2,micro-batches=4,tensor=2,schedule=zb-h1",
        pytest.param(
            "pipeline=2,interleave=2,micro-batches=4,tensor=4,sequence", marks=pytest.mark.soak
        ),
    ],
)
def test_a_plan_by_hand_is_a_plan_like_any_other(text: str, tmp_path):
    """The plan is derived by rules of the library, and has the same price when it is read again."""
    planned = planner(text).plan("small", graph_of(SMALL, BATCH))
    save_plan(planned.plan, tmp_path / "plan.json")
    read: Plan = load_plan(tmp_path / "plan.json")
    assert read.graph == planned.plan.graph
    assert read.recompute == planned.plan.recompute
    assert planned.plan.estimates.step_seconds == made(text).seconds


def test_degrees_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="expected a divisor of 8 devices"):
        made("tensor=3")
    with pytest.raises(InputError, match="schedule=zb-h1, expected pipeline=2 or more with it"):
        made("micro-batches=4,schedule=zb-h1")
    with pytest.raises(InputError, match="with interleave=2, expected one of the two"):
        made("pipeline=2,interleave=2,micro-batches=4,schedule=zb-h1")
    with pytest.raises(NegativeAnswer, match="expected a divisor of the model's 4 repeated blocks"):
        made("pipeline=8,micro-batches=8")


@pytest.mark.parametrize(
    "text",
    [
        "tensor=0",
        "tensor",
        "recompute=half",
        "schedule=gpipe",
        "other=1",
        "tensor=2,tensor=4",
        "sequence=maybe",
    ],
)
def test_wrong_degrees_are_refused(text: str):
    with pytest.raises(InputError, match="--degrees"):
        parse_degrees(text)


def test_degrees_are_read():
    text = "tensor=8, pipeline=4,micro-batches=16,sequence,recompute=full"
    wanted = HandDegrees(tensor=8, pipeline=4, micro_batches=16, sequence=True, recompute="full")
    assert parse_degrees(text) == wanted
    assert parse_degrees("") == HandDegrees()


def test_a_part_of_data_that_is_there_takes_nothing():
    """The causal mask is repeated for heads, of which each device takes its own, and then for the
    samples of each micro-batch. It is a view of the mask, as in the runtime."""
    steps = made("tensor=8,micro-batches=2").steps
    moved = [
        s for s in steps.steps if isinstance(s, Reshard) and s.source.value.node.name == "expand"
    ]
    assert len(moved) == SMALL.layers
    parts = {step.target for step in moved}
    assert all(slot.layout.type.degrees.dims == (8, 1, 1) for slot in parts)
    assert parts.isdisjoint(life.slot for life in liveness(steps).lifetimes)

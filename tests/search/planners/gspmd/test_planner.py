"""Plans from annotations: those of Megatron, of dense layers in two dimensions, of experts, and of
images."""

from __future__ import annotations

from math import prod

import pytest
from fidelity.models import Gpt
from fidelity.price import graph_of
from support.plans.sharded_by_users import (
    EVERY,
    EXPERTS,
    MEGATRON,
    SPATIAL,
    TWO_DIMENSIONS,
    ShardedByUsers,
)

from pcg.errors import InputError
from pcg.graph.graph import Node
from pcg.machine import load_machine
from pcg.placement.schedule import schedule
from pcg.plan.training import Training
from search.by_hand.degrees import parse_degrees
from search.by_hand.planner import HandPlanner
from search.planners.common import PlannerSetting
from search.planners.gspmd.planner import GspmdPlanner
from substitutions.audit.replay import replay
from substitutions.rules.store import load_library


def computed(graph, name: str) -> list[Node]:
    return [node for node in graph.operators if node.name == name]


@pytest.mark.parametrize("name", EVERY)
def test_plans_follow_from_the_rules(name: str):
    own = EVERY[name]
    plan = own.planner.plan(name, own.graph).plan
    assert not replay(plan, load_library().rules).findings


def test_columns_that_are_annotated_make_megatrons_plan():
    """The strategies are those of tensor parallelism by hand, up to the loss."""
    graph = graph_of(Gpt(1, 64, 8, 128, 64), 16)
    machine, training = load_machine("dgx-a100").with_devices(4), Training("adam", "bf16")
    by_hand = HandPlanner(machine, load_library(), parse_degrees("tensor=2"), training)
    shards = ("tokens=data,-", "table_weight=model,-")
    shards += ("*_three_weight=-,model", "*_expand_weight=-,model")
    setting = PlannerSetting(machine, load_library(), training)
    made = GspmdPlanner(setting, "data=2,model=2", shards).made(graph)
    wanted = by_hand.priced(graph)
    ours, others = (
        [node for node in one.operators if not node.is_parallel]
        for one in (made.priced.cut.graph, wanted.cut.graph)
    )
    logits = max(i for i, node in enumerate(ours) if node.name == "matmul")
    assert [node.name for node in ours] == [node.name for node in others]
    for own, other in zip(ours[: logits + 1], others, strict=False):
        if own.name == "expand":
            continue  # gathers of the mask, which is whole in the plan by hand
        assert [v.type.degrees for v in own.inputs] == [v.type.degrees for v in other.inputs]
    assert made.priced.seconds == pytest.approx(wanted.seconds, rel=0.02)


def homes(own: ShardedByUsers) -> dict[str, tuple[int, ...]]:
    cut = own.planner.made(own.graph).priced.cut
    kept = schedule(cut.graph, cut.views).homes
    return {node.leaf.name: layout.type.degrees.dims for node, layout in kept.items()}


def test_weights_are_stored_as_users_say():
    """Weights are stored in parts along both axes, though a product reads them along one."""
    made = TWO_DIMENSIONS.planner.made(TWO_DIMENSIONS.graph)
    assert homes(TWO_DIMENSIONS)["w1"] == homes(TWO_DIMENSIONS)["w2"] == (2, 2)
    first, second = computed(made.priced.cut.graph, "matmul")
    assert first.inputs[1].type.degrees.dims == (1, 2)
    assert second.inputs[1].type.degrees.dims == (2, 1)
    gathers = {one.tensor: one.kind for one in made.reshards}
    assert gathers["w1"] == "all_gather"
    assert made.elsewhere == ("w2",)
    assert homes(MEGATRON) == {"w1": (1, 2), "b1": (2,), "w2": (2, 1), "b2": (1,)}


def test_activations_in_two_dimensions_are_gathered_and_scattered():
    made = TWO_DIMENSIONS.planner.made(TWO_DIMENSIONS.graph)
    kinds = [one.kind for one in made.reshards if one.tensor not in ("w1", "w2")]
    assert kinds.count("all_gather") == 1
    assert kinds.count("reduce_scatter") == 1


def test_tokens_go_to_experts_and_back_all_to_all():
    made = EXPERTS.planner.made(EXPERTS.graph)
    assert [one.kind for one in made.reshards] == ["all_to_all", "all_to_all"]
    for node in computed(made.priced.cut.graph, "batch_matmul"):
        assert [value.type.degrees.dims for value in node.inputs] == [(4, 1, 1)] * 2
    whole = prod((4, 8, 3, 6))
    assert {one.moved for one in made.reshards} == {whole * 3 // 4 * 4}


def test_rows_of_images_have_halos():
    made = SPATIAL.planner.made(SPATIAL.graph)
    convolutions = computed(made.priced.cut.graph, "conv2d")
    assert [node.inputs[0].type.degrees.dims for node in convolutions] == [(2, 1, 2, 1)] * 2
    assert all(node.inputs[0].type.degrees.halos for node in convolutions)


def test_without_annotations_samples_are_sharded():
    machine = load_machine("tests/data/four-devices.toml").with_devices(4)
    graph = MEGATRON.graph
    made = GspmdPlanner(PlannerSetting(machine, load_library())).made(graph)
    for node in computed(made.priced.cut.graph, "matmul"):
        assert [value.type.degrees.dims for value in node.inputs] == [(4, 1, 1), (1, 1)]


def test_the_report_names_every_reshard():
    planned = MEGATRON.planner.plan("layers", MEGATRON.graph)
    first, *others = planned.notes
    assert first.startswith("propagation causes 1 reshard, ")
    assert any("partial sums over model" in line and "all_reduce" in line for line in others)


def test_mesh_of_another_number_of_devices_is_refused():
    machine = load_machine("tests/data/four-devices.toml").with_devices(4)
    with pytest.raises(InputError, match="--mesh: 3 devices, expected 4"):
        GspmdPlanner(PlannerSetting(machine, load_library()), "data=3").plan("x", MEGATRON.graph)

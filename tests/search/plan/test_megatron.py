"""Data x tensor parallelism as by hand: its cuts, and that no such plan is faster than the
search's."""

from __future__ import annotations

import pytest
from benchmarks.plans_by_hand import best_by_hand
from support.graphs.behaviour import assert_same

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.models import build_model
from pcg.models.mlp import MlpSize, mlp
from pcg.readings.evaluate import by_equation
from search.cost.cost import CostModel
from search.map.building import Builder, Cut
from search.map.choose.choosing import Chooser
from search.map.rules.cuts import Cuts
from search.map.space.allow import batch_axes
from search.plan.megatron import ColumnsThenRows
from search.plan.planner import MeshPlanner
from search.report.describe import cut_text
from substitutions.rules.store import load_library

COLUMNS, ROWS, HEADS = "data 2 x model 2", "data 2 x reduction 2", "data 2 x head 2"


def cut_by_hand(graph: Graph, mesh_axes: range = range(1, 2)) -> Cut | None:
    """A graph on 2 x 2 devices."""
    machine = load_machine("dgx-a100").with_devices(4)
    chooser = Chooser.on(CostModel(machine), Cuts.of_rules(load_library().concrete(graph)))
    mask = ColumnsThenRows(graph, chooser.spaces.of).along(mesh_axes)
    return (
        None if mask is None else Builder(chooser.spaces).cut(chooser.choose(graph, allowed=mask))
    )


def words(cut: Cut | None, *names: str) -> list[str]:
    """The cuts of the operators with these names, in order."""
    assert cut is not None
    batch = batch_axes(cut.graph)
    nodes = [node for node in cut.graph.nodes if node.name in names]
    return [cut_text(node, cut.views[node], batch.get(node)) for node in nodes]


@pytest.mark.parametrize("mesh_axes", [range(1), range(1, 2)])
def test_every_second_product_leaves_partial_sums(mesh_axes):
    graph = mlp(8, (8, 12, 8, 12, 8), prediction=True)
    cut = cut_by_hand(graph, mesh_axes)
    assert words(cut, "matmul") == [COLUMNS, ROWS, COLUMNS, ROWS]
    assert words(cut, "relu") == [COLUMNS, "data 2 x copies 2", COLUMNS]
    assert cut is not None
    assert_same(graph, cut.graph, by_equation)


def test_transformer_is_cut_by_heads_and_between_two_products():
    cut = cut_by_hand(build_model("bert-large-tiny", None, 4))
    layer = [*[COLUMNS] * 3, HEADS, ROWS, COLUMNS, ROWS]
    lines = words(cut, "matmul", "attention")
    assert lines[:14] == layer * 2
    assert set(words(cut, "layer_norm")) == {"data 2 x copies 2"}
    assert set(words(cut, "gelu")) == {COLUMNS}


def test_models_that_mix_samples_or_do_not_divide_have_no_plan_by_hand():
    assert cut_by_hand(build_model("resnext50-tiny", None, 4)) is None
    assert cut_by_hand(mlp(8, (9, 9, 9))) is None


@pytest.mark.parametrize(
    ("preset", "devices", "width", "batch"),
    [
        ("summit", 6, 4096, 192),
        ("summit", 12, 8192, 384),
        ("dgx-a100", 8, 8192, 256),
        ("local", 4, 512, 64),
    ],
)
def test_no_plan_by_hand_is_faster(preset, devices, width, batch):
    """The best of all degrees by hand, with the devices of a layer next to each other or far
    apart."""
    machine, size = load_machine(preset), MlpSize((width,) * 7)
    nodes = max(1, devices // machine.devices_per_node)
    machine = machine.with_nodes(nodes).with_devices(devices)
    by_hand, _ = best_by_hand(machine, size, batch, on_all=True)
    planner = MeshPlanner(machine, load_library(), "megatron")
    plan = planner.plan("mlp", mlp(batch, size.widths)).plan
    assert plan.estimates.step_seconds <= by_hand

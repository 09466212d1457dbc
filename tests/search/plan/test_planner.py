"""Plans by strategies: as fast as the best there is, and priced as they run."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
import torch
from support.cases import a_third
from support.graphs.behaviour import assert_same
from support.graphs.images import ONE_IMAGE, four_devices
from support.mixed import mixed
from support.plans.tries import fastest_try

from pcg.capture import capture
from pcg.errors import InputError, NegativeAnswer
from pcg.graph.graph import Graph
from pcg.machine import Machine, load_machine
from pcg.models import build_model
from pcg.models.bert import SIZES, Bert
from pcg.placement.schedule import schedule
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph
from pcg.plan.training import Training
from pcg.readings.evaluate import by_equation
from search.choices import IndexRole, Mode
from search.cost.collectives import BUCKET
from search.cost.cost import SGD, CostModel
from search.cost.derivation import Derivation
from search.cost.memory import peak_memory
from search.cost.planned import SearchReport
from search.cost.simulate import simulate
from search.map.building import Builder
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.cuts import Cuts
from search.map.space.allow import Allowed, batch_axes
from search.plan.families import PLANNERS, TURNED
from search.plan.fewer_devices import fewer
from search.plan.planner import MeshPlanner
from search.refine.overlap import Trial
from search.report.describe import cut_text, rows
from substitutions.audit.replay import replay
from substitutions.rules.store import load_library

SMALL = {
    "matmul": "x = input[{b}, {h}]\nw = weight[{h}, {o}]\nreturn mean_loss(matmul(x, w))",
    "perceptron": (
        "x = input[{b}, {h}]\nw = weight[{h}, {o}]\nv = weight[{o}, {h}]\n"
        "return mean_loss(matmul(relu(matmul(x, w)), v))"
    ),
    "branches": (
        "x = input[{b}, {h}]\nw = weight[{h}, {o}]\nv = weight[{h}, {o}]\n"
        "return mean_loss(add(matmul(x, w), matmul(x, v)))"
    ),
    "residual": (
        "x = input[{b}, {h}]\nw = weight[{h}, {h}]\nt = matmul(x, w)\n"
        "return mean_loss(add(relu(t), t))"
    ),
}


def engine_of(machine: Machine, graph: Graph) -> Chooser:
    return Chooser.on(
        CostModel(machine), Cuts.of_rules(load_library().concrete(graph)), most=1 << 30
    )


def simulated(chooser: Chooser, choice: Choice, *, overlap: bool = True) -> float:
    cut = Builder(chooser.spaces).cut(choice)
    return simulate(
        schedule(cut.graph, cut.views), chooser.pricing.cost, overlap=overlap
    ).step_seconds


def few_choices(chooser: Chooser, graph: Graph, random: Random, most: int) -> list[Choice]:
    """All choices of strategies of a graph, or random ones if there are too many."""
    nodes = [node for node in graph.nodes if not node.is_leaf]
    rows = [
        [tuple(int(c) for c in row) for row in chooser.spaces.of(node).strategies] for node in nodes
    ]
    every = list(product(*rows)) if np.prod([len(r) for r in rows]) <= most else None
    chosen = every or [tuple(random.choice(r) for r in rows) for _ in range(most)]
    return [Choice(graph, dict(zip(nodes, strategies, strict=True)), 0.0) for strategies in chosen]


MACHINES = [("summit", 2), ("summit", 3), ("dgx-a100", 4)]
SIZED = [(12, 24, 12), (96, 384, 768), (4096, 1536, 48)]
CASES = list(product(SMALL, MACHINES, SIZED))
"""In each run, each graph meets each machine and each size. `make soak` has the rest."""


@pytest.mark.parametrize(
    ("name", "machine", "sizes"),
    [
        pytest.param(*case, marks=() if (i + i // 3 + i // 9) % 12 == 0 else pytest.mark.soak)
        for i, case in enumerate(CASES)
    ],
)
def test_no_choice_of_strategies_is_faster(name, machine, sizes):
    """Choices are simulated, not estimated: all of them if there are few, else a thousand."""
    target = load_machine(machine[0]).with_devices(machine[1])
    graph = parse_graph(SMALL[name].format(**dict(zip("bho", sizes, strict=True))))
    chooser = engine_of(target, graph)
    trial = Trial(chooser, graph, Derivation.start(graph), lambda made: None)
    fastest = fastest_try(trial).seconds
    others = few_choices(chooser, graph, Random(name), 100)
    # The estimate leaves out copies within a device, and equal transfers are shared.
    assert fastest <= 1.02 * min(simulated(chooser, choice) for choice in others)


@pytest.mark.parametrize("model", ["mlp-mnist", "xdl-tiny", "bert-large-tiny"])
@pytest.mark.parametrize("machine", ["summit", pytest.param("dgx-h100", marks=pytest.mark.soak)])
def test_estimate_is_within_10_percent_of_the_simulation(model, machine, monkeypatch):
    # The estimate takes all buffers of gradients to be as small as the first.
    monkeypatch.setattr("search.cost.tasks.FULL", BUCKET)
    target = load_machine(machine).with_nodes(2)
    graph = build_model(model, None, target.devices)
    chooser = engine_of(target, graph)
    choice = chooser.choose(graph)
    assert simulated(chooser, choice, overlap=False) == pytest.approx(choice.seconds, rel=0.1)


@pytest.mark.parametrize(
    ("model", "devices"),
    [
        ("mlp-tiny", 2),
        pytest.param("mlp-mnist", 2, marks=pytest.mark.soak),
        pytest.param("mlp-mnist", 4, marks=pytest.mark.soak),
        pytest.param("mlp-tiny", 12, marks=pytest.mark.soak),
        pytest.param("dlrm-tiny", 12, marks=pytest.mark.soak),
    ],
)
def test_the_joint_plan_is_never_slower(model, devices):
    """Never slower than plans of other planners and of other modes."""
    machine = load_machine("summit").with_nodes(2).with_devices(devices)
    library = load_library()
    graph = build_model(model, None, machine.devices)
    joint = MeshPlanner(machine, library).plan(model, graph).plan.estimates
    others = [MeshPlanner(machine, library, family) for family in PLANNERS if family != "joint"]
    others += [MeshPlanner(machine, library, mode=mode) for mode in Mode if mode is not Mode.JOINT]
    for other in others:
        assert joint.step_seconds <= other.plan(model, graph).plan.estimates.step_seconds


@pytest.mark.parametrize(
    ("dimension", "others"),
    a_third(
        [
            (IndexRole.DATA, {"model"}),
            (IndexRole.MODEL, {"data", "reduction"}),
            (IndexRole.REDUCTION, {"data", "model"}),
        ]
    ),
)
def test_only_allowed_dimensions_are_cut(dimension, others):
    machine = load_machine("dgx-a100").with_devices(2)
    graph = build_model("mlp-tiny", None, machine.devices)
    planner = MeshPlanner(machine, load_library(), dimensions=frozenset({dimension}))
    described = rows(planner.plan("mlp-tiny", graph).plan)
    cuts = {part.split()[0] for row in described for part in row.cut.split(" x ")}
    assert cuts.isdisjoint(others)


@pytest.mark.parametrize(
    "dimensions",
    [
        pytest.param({IndexRole.MODEL}, marks=pytest.mark.soak),
        pytest.param({IndexRole.MODEL, IndexRole.REDUCTION}, marks=pytest.mark.soak),
    ],
)
def test_plans_are_compared_with_data_parallelism_even_where_that_is_not_allowed(dimensions):
    machine, library = load_machine("local").with_devices(2), load_library()
    graph = build_model("mlp-tiny", None, machine.devices)
    plain = MeshPlanner(machine, library, mode=Mode.PARALLEL).plan("mlp-tiny", graph)
    allowed = frozenset(dimensions)
    planner = MeshPlanner(machine, library, mode=Mode.PARALLEL, dimensions=allowed)
    planned = planner.plan("mlp-tiny", graph)
    assert planned.data_parallel_seconds == plain.data_parallel_seconds
    assert planned.plan.estimates.step_seconds > plain.plan.estimates.step_seconds


def test_tensor_parallelism_has_the_degrees_that_a_node_has():
    """Two of the six devices of a node share a product. Three such pairs share the samples."""
    graph = parse_graph(SMALL["perceptron"].format(b=96, h=384, o=768))
    cost = CostModel(load_machine("summit").with_devices(6))
    usual = Chooser.on(cost, Cuts.of_rules(load_library().concrete(graph)))
    assert not list(TURNED["megatron"](graph, usual))
    chooser = Chooser.on(cost, usual.spaces.cuts, turned=True)
    by_hand, best = (family.mask for family in TURNED["megatron"](graph, chooser))
    assert set(products_cut(graph, chooser, by_hand)) == {
        "data 3 x model 2",
        "data 3 x reduction 2",
    }
    assert set(products_cut(graph, chooser, best)) <= {"data 3 x model 2", "data 3 x reduction 2"}


def products_cut(graph: Graph, chooser: Chooser, mask: Allowed) -> list[str]:
    """The cuts of the products of a graph by the best of some strategies, in words."""
    cut = Builder(chooser.spaces).cut(chooser.choose(graph, allowed=mask))
    assert_same(graph, cut.graph, by_equation)
    batch = batch_axes(cut.graph)
    products = [node for node in cut.graph.nodes if node.name in ("matmul", "batched_matmul")]
    return [cut_text(node, cut.views[node], batch.get(node)) for node in products]


@pytest.mark.soak
def test_sizes_not_divisible_by_3_are_cut_by_2_on_fewer_devices():
    text = SMALL["perceptron"].format(b=8192, h=8192, o=8192)
    graph, machine = parse_graph(text), load_machine("summit").with_devices(6)
    library, four = load_library(), machine.with_devices(4)
    plan, on_four = (MeshPlanner(m, library).plan("small", graph).plan for m in (machine, four))
    used = {device for view in plan.views.values() for device in view.devices}
    assert used == set(range(4))
    assert plan.estimates.step_seconds == on_four.estimates.step_seconds


@pytest.mark.parametrize(
    ("preset", "devices", "expected"),
    [
        ("summit", 192, [128, 96, 2]),
        ("summit", 6, [4, 3, 2]),
        ("summit", 2, [1]),
        ("summit", 1, []),
        ("dgx-a100", 8, [4]),
        ("dgx-a100", 7, [4]),
    ],
)
def test_smaller_numbers_of_devices_to_try(preset, devices, expected):
    assert fewer(load_machine(preset).with_nodes(32).with_devices(devices)) == expected


def halos(plan: Plan) -> list[tuple[int, int]]:
    """The widths of halos, in the order of the graph."""
    tensors = [t for node in plan.graph.nodes for t in node.types]
    return [halo.widths for t in tensors for halo in t.degrees.halos]


@pytest.mark.soak
def test_images_are_cut_in_rows_where_there_are_fewer_than_devices():
    graph, machine, library = parse_graph(ONE_IMAGE), four_devices(), load_library()
    plan = MeshPlanner(machine, library).plan("image", graph).plan
    assert halos(plan) == [(1, 1), (1, 0)]
    assert_same(graph, plan.graph, by_equation)
    assert not replay(plan, library.rules).findings
    seconds = simulate(schedule(plan.graph, plan.views), CostModel(machine)).step_seconds
    assert plan.estimates.step_seconds == pytest.approx(seconds, rel=1e-12)
    other = frozenset(IndexRole) - {IndexRole.SPATIAL}
    without = MeshPlanner(machine, library, dimensions=other).plan("image", graph).plan
    assert halos(without) == []
    assert plan.estimates.step_seconds < 0.9 * without.estimates.step_seconds
    assert "spatial 4" in [row.cut for row in rows(plan)]


@pytest.mark.soak
def test_images_for_all_devices_are_cut_in_rows_where_that_is_asked_for():
    graph = parse_graph(ONE_IMAGE.replace("input[1,", "input[4,"))
    machine, library = four_devices(), load_library()
    assert halos(MeshPlanner(machine, library).plan("images", graph).plan) == []
    asked = frozenset({IndexRole.SPATIAL})
    plan = MeshPlanner(machine, library, dimensions=asked).plan("images", graph).plan
    assert halos(plan) == [(1, 1), (1, 0)]


@pytest.mark.soak
def test_more_layers_are_no_more_plans():
    """Equal blocks are priced once, and bounds rule out as many plans of a graph twice as deep."""
    machine, library = load_machine("dgx-h100").with_nodes(1), load_library()

    def report(layers: int) -> SearchReport:
        size = replace(SIZES["bert-large-tiny"], layers=layers)
        with torch.device("meta"):
            ids = [torch.empty(4 * machine.devices, size.sequence, dtype=torch.int64)] * 3
            graph = capture(Bert(size), tuple(ids)).graph
        return MeshPlanner(machine, library).plan("bert", graph).report

    few, many = report(2), report(4)
    assert many.simulated <= few.simulated
    assert many.strategies <= 2 * few.strategies


def test_weights_in_parts_take_a_part_of_the_memory_of_copies():
    """Each of four devices keeps a quarter of weights, gradients and optimizer states."""
    machine = load_machine("dgx-a100").with_devices(4)
    graph = build_model("mlp", 64, machine.devices)
    kept: dict[str, int] = {}
    grads: dict[str, int] = {}
    for family in ("data-parallel", "zero"):
        plan = (
            MeshPlanner(machine, load_library(), family, training=Training("adam"))
            .plan("mlp", graph)
            .plan
        )
        memory = peak_memory(schedule(plan.graph, plan.views), Training("adam"))
        kept[family], grads[family] = memory.parameters + memory.optimizer, memory.gradients
    assert kept["zero"] == kept["data-parallel"] // 4
    # Gradients of copies are in buffers all the time, those of parts when the peak comes.
    assert grads["zero"] <= grads["data-parallel"] // 4


def test_a_price_of_memory_makes_plans_that_take_less():
    machine = load_machine("dgx-a100").with_nodes(1)
    less = 0
    for text in SMALL.values():
        graph = parse_graph(text.format(b=4096, h=1536, o=384))
        chooser = engine_of(machine, graph)
        free, dear = (
            peak_memory(schedule(cut.graph, cut.views), SGD).total
            for cut in (
                Builder(chooser.spaces).cut(chooser.choose(graph, price)) for price in (0.0, 1e-3)
            )
        )
        # The estimate counts the outputs of operators, and not the tensors that reshardings make.
        assert dear <= 1.1 * free
        less += dear < free
    assert less


def test_error_states_the_bytes_that_a_plan_lacks():
    machine = load_machine("summit").with_nodes(32)
    graph = build_model("dlrm", None, machine.devices)
    expert = MeshPlanner(machine, load_library(), "expert").plan("dlrm", graph).plan.estimates
    assert expert.peak_memory_bytes <= machine.device.memory_bytes
    with pytest.raises(NegativeAnswer, match=r"misses by \d+\.\d\d GB a device"):
        MeshPlanner(machine, load_library(), "data-parallel").plan("dlrm", graph)


def test_a_plan_has_to_fit_the_smallest_device_that_it_uses():
    """The second node has a hundredth of the memory. The first node's devices do not need it."""
    large = load_machine("dgx-a100")
    machine = mixed(large, large.with_memory(1_000_000), per_node=2, nodes=2)
    graph = build_model("mlp-tiny", None, machine.devices)
    library = load_library()
    with pytest.raises(NegativeAnswer, match="does not fit"):
        MeshPlanner(machine, library, "data-parallel").plan("mlp-tiny", graph)
    plan = MeshPlanner(machine, library, mode=Mode.PARALLEL).plan("mlp-tiny", graph).plan
    used = {device for view in plan.views.values() for device in view.devices}
    assert plan.estimates.peak_memory_bytes <= machine.memory_limit(used)


def test_an_unknown_planner_is_refused():
    with pytest.raises(InputError, match="expected one of joint"):
        MeshPlanner(load_machine("local"), load_library(), "alpa")

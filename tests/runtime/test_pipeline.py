"""Pipelines on simulated ranks, against models of their update rules in one process."""

from __future__ import annotations

from threading import Event
from typing import Literal

import pytest
import torch
from simulated import on_ranks

from pcg.errors import InputError
from pcg.graph import Graph
from pcg.layout import grid
from pcg.machine import load_machine
from pcg.models import build_model
from pcg.pipeline import PipelineFile
from pcg.plan import EstimatesFile, Plan, machine_record
from pcg.text import parse_graph
from pcg.view import MachineView
from runtime import sync
from runtime.check import evaluate
from runtime.collectives import World
from runtime.data import initial_weight, input_batch
from runtime.executor import Executor
from runtime.job import Checkpoints, Options, Report
from runtime.lower import Lowering
from runtime.recipe import Recipe
from runtime.worker import run_plan
from search.cost import CostModel
from search.mesh.cuts import Cuts
from search.pipeline.build import build
from search.pipeline.micro import MicroBatches
from search.pipeline.streams import streams
from substitutions.store import load_library

TIED = (
    "x = input[8, 6] below 12\nt = weight[12, 4]\nlabels = input[8] below 12\n"
    "h = mean_axis(embedding(x, t), axis=1)\n"
    "return cross_entropy(matmul(relu(h), transpose(t, dim0=0, dim1=1)), labels)"
)
"""Two stages read the same weight."""
DEVICES = 4
Kind = Literal["1f1b", "2bw"]
RATE = 0.1


@pytest.fixture(scope="module")
def library():
    return load_library()


def model_graph(name: str) -> Graph:
    return parse_graph(TIED) if name == "tied" else build_model(name, 8, 1)


def planned(name: str, library, slices: int, stages: int, kind: Kind) -> Plan:
    """The search's pipeline with stages of equally many operators, for 4 devices."""
    graph = model_graph(name)
    cost = CostModel(load_machine("dgx-a100").with_devices(DEVICES // stages))
    source = streams(graph, library)
    batches = MicroBatches(source, cost, Cuts(library.concrete(source.graph)), slices)
    count = len(batches.nodes)
    cut = build(batches, batches.choose(), [count * s // stages for s in range(stages + 1)])
    return plan_of(graph, cut.graph, cut.views, stages, slices, kind)


def plan_of(model, graph, views, stages, slices, kind: Kind = "1f1b", devices=DEVICES) -> Plan:
    estimates = EstimatesFile(
        step_seconds=1.0,
        one_device_seconds=1.0,
        communication_elements=0,
        peak_memory_bytes=0,
    )
    machine = machine_record(load_machine("local").with_devices(devices))
    pipeline = PipelineFile(stages=stages, micro_batches=slices, schedule=kind)
    return Plan("test", model, graph, views, machine, "", (), estimates, pipeline=pipeline)


def trained(plan: Plan, steps: int = 3, batches: int = 1, *, ordered: bool = False) -> Report:
    lowering = Lowering(plan)
    recipe = Recipe(rate=RATE, accumulate=batches)
    options = Options(steps=steps, recipe=recipe, dtype="float64", check=True)
    report = on_ranks(
        plan.machine.devices,
        lambda world: run_plan(lowering, options, world, lambda step: None),
        ordered=ordered,
    )[0]
    assert report is not None
    return report


@pytest.mark.parametrize(
    ("name", "slices", "stages"),
    [
        ("mlp-mnist", 8, 2),
        ("candle-uno-tiny", 4, 4),
        ("xdl-tiny", 2, 2),
        ("xdl-tiny", 4, 1),
        ("tied", 2, 2),
        ("tied", 4, 4),
    ],
)
def test_1f1b_computes_what_the_model_does(name, slices, stages, library):
    report = trained(planned(name, library, slices, stages, "1f1b"))
    assert not [c for c in report.comparisons if not c.passes]


@pytest.mark.parametrize(
    ("name", "slices", "stages", "kind"),
    [
        ("mlp-mnist", 8, 2, "1f1b"),
        ("mlp-mnist", 8, 4, "1f1b"),
        ("mlp-mnist", 8, 4, "2bw"),
        ("xdl-tiny", 4, 2, "1f1b"),
        ("tied", 4, 4, "1f1b"),
        ("tied", 4, 2, "2bw"),
    ],
)
def test_no_group_has_to_do_two_things_at_once(name, slices, stages, kind, library, monkeypatch):
    """Where a group does all that is posted to it in order, as with NCCL; every gradient is sent
    when it is complete."""
    monkeypatch.setattr(sync, "FIRST_BYTES", 1)
    monkeypatch.setattr(sync, "BUCKET_BYTES", 1)
    report = trained(planned(name, library, slices, stages, kind), ordered=True)
    assert not [c for c in report.comparisons if not c.passes]


@pytest.mark.parametrize("kind", ["1f1b", "2bw"])
def test_what_is_sent_is_not_held_until_the_batch_ends(kind, library):
    def most(slices: int) -> list[int]:
        lowering = Lowering(planned("mlp-mnist", library, slices, 2, kind))

        def work(world):
            held: list[int] = []
            exchange = world.exchange

            def noted(*given):
                found = exchange(*given)
                held.append(world.held)
                return found

            world.exchange = noted
            executor = Executor(lowering.program(world.rank), world, "float64")
            for step in range(3):
                executor.step(step, lambda gradients: None, more=step < 2)
            return max(held, default=0)

        return on_ranks(DEVICES, work)

    assert most(8) == most(4)


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


def two_stages(kind: Kind) -> Plan:
    """Two devices each, of which either has half of the samples."""
    graph = parse_graph(TWO_STAGES)
    nodes = [n for n in graph.nodes if not n.is_leaf and not n.is_parallel]
    views = {n: MachineView.packed(0 if i < 2 else 2, grid(n)) for i, n in enumerate(nodes)}
    return plan_of(parse_graph(THEIR_MODEL), graph, views, 2, 2, kind)


@pytest.mark.parametrize("kind", ["1f1b", "2bw"])
@pytest.mark.parametrize("ordered", [False, True])
def test_gradients_are_added_up_while_the_last_slice_goes_back(kind, ordered, monkeypatch):
    monkeypatch.setattr(sync, "FIRST_BYTES", 1)
    monkeypatch.setattr(sync, "BUCKET_BYTES", 1)
    plan = two_stages(kind)
    lowering = Lowering(plan)

    def work(world):
        events: list[str] = []
        exchange, start = world.exchange, world.start_all_reduce

        def exchanged(outgoing, incoming, dtype, channel="forward"):
            events.append(channel)
            return exchange(outgoing, incoming, dtype, channel)

        def started(values, group):
            events.append("sum")
            return start(values, group)

        world.exchange, world.start_all_reduce = exchanged, started
        executor = Executor(lowering.program(world.rank), world, "float64")
        executor.step(0, lambda gradients: None)
        return " ".join(events)

    # The gradients of u and v are there before that of h is sent, for the last time.
    for events in on_ranks(DEVICES, work, ordered=ordered)[2:]:
        assert "backward sum sum backward" in events
    assert not [c for c in trained(plan, ordered=ordered).comparisons if not c.passes]


def delayed_gradients(graph: Graph, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights by the rule of PipeDream-2BW (Narayanan et al., ICML 2021):
    W(t + 1) = W(t) - rate * gradient of batch t at W(t - 1), with W(-1) = W(0)."""
    leaves = [node.leaf for node in graph.leaves]
    now = {leaf.name: initial_weight(leaf, 0) for leaf in leaves if leaf.kind == "weight"}
    before, losses = now, []
    for step in range(steps):
        inputs = {leaf.name: input_batch(leaf, 0, step) for leaf in leaves if leaf.kind == "input"}
        used = {name: weight.detach().requires_grad_() for name, weight in before.items()}
        loss = evaluate(graph, inputs | used)[0].sum()
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, list(used.values()))
        changed = zip(now.items(), gradients, strict=True)
        before, now = now, {name: weight - RATE * gradient for (name, weight), gradient in changed}
    return losses, now


def test_2bw_is_checked_against_its_own_rule(library):
    report = trained(planned("mlp-mnist", library, 4, 4, "2bw"))
    assert not [c for c in report.comparisons if not c.passes]


@pytest.mark.parametrize("name", ["mlp-mnist", "tied"])
def test_2bw_takes_gradients_of_one_update_before(name, library):
    plan = planned(name, library, 4, 2, "2bw")
    lowering, steps = Lowering(plan), 4
    wanted, weights = delayed_gradients(plan.model, steps)

    def work(world):
        executor = Executor(lowering.program(world.rank), world, "float64")

        def update(gradients):
            for register, gradient in gradients.items():
                executor.weights[register].sub_(gradient, alpha=RATE)

        losses = [executor.step(n, update, more=n + 1 < steps).loss for n in range(steps)]
        pieces = [
            (weight.leaf.name, weight.region, executor.weights[weight.register])
            for weight in lowering.program(world.rank).weights
        ]
        return losses, pieces

    found = on_ranks(DEVICES, work)
    for losses, pieces in found:
        assert losses == pytest.approx(wanted, abs=1e-10)
        for leaf, region, piece in pieces:
            cut = tuple(slice(start, stop) for start, stop in region)
            assert torch.allclose(piece, weights[leaf][cut], atol=1e-10)
    held = {leaf for _, pieces in found for leaf, _, _ in pieces}
    assert held == set(weights)


def test_2bw_does_not_wait_between_steps(library):
    """The first stage sends the first slices of a step before the last ones of the step before have
    come back to it; and the last stage ends a step that the first one does not go on with."""
    lowering = Lowering(planned("mlp-mnist", library, 4, 4, "2bw"))
    program = lowering.program(0).pipeline
    assert program is not None
    assert (program.runs_on, program.lead) == (True, 3)
    turns: list[str] = []
    ended = Event()

    def work(world):
        if world.rank == 0:
            exchange = world.exchange

            def noted(outgoing, incoming, dtype, channel="forward"):
                turns.append(f"{'F' if channel == 'forward' else 'B'}{world.batch}")
                if turns[-1] == "B1":
                    assert ended.wait(60)
                return exchange(outgoing, incoming, dtype, channel)

            world.exchange = noted
        executor = Executor(lowering.program(world.rank), world, "float64")
        for step in range(3):
            executor.step(step, lambda gradients: None, more=step < 2)
            if (world.rank, step) == (DEVICES - 1, 1):
                ended.set()

    on_ranks(DEVICES, work)
    first, last = "F0 F0 F0 F0 B0 F1 B0 F1 B0 F1 B0", "F2 B2 B2 B2 B2"
    assert " ".join(turns) == f"{first} F1 B1 F2 B1 F2 B1 F2 B1 {last}"


SENT_BACK = """
x = input[8, 12]
w = weight[12, 6]
v = weight[6, 4]
h = relu(matmul(pipeline(x, dim=0, degree=2), w))
y = matmul(h, v)
loss = sum_loss(batch(y, dim=0, degree=2))
return loss, batch({shown}, dim=0, degree=2)
"""
ITS_MODEL = """
x = input[8, 12]
w = weight[12, 6]
v = weight[6, 4]
h = relu(matmul(x, w))
y = matmul(h, v)
return sum_loss(y), {shown}
"""


@pytest.mark.parametrize(("shown", "goes_on"), [("h", True), ("y", False)])
def test_no_batch_begins_early_where_an_earlier_stage_waits_for_a_later_one(shown, goes_on):
    """Outputs are brought to the first device."""
    graph = parse_graph(SENT_BACK.format(shown=shown))
    first, second, *rest = (n for n in graph.nodes if not n.is_leaf and not n.is_parallel)
    stages = {first: 0, second: 0} | dict.fromkeys(rest, 1)
    views = {node: MachineView.packed(stage, grid(node)) for node, stage in stages.items()}
    model = parse_graph(ITS_MODEL.format(shown=shown))
    lowering = Lowering(plan_of(model, graph, views, 2, 2, "2bw", devices=2))
    program = lowering.program(0).pipeline
    assert program is not None
    assert program.runs_on == goes_on


def by_hand(graph: str, **pipeline) -> Plan:
    """All on one device."""
    cut = parse_graph(graph)
    nodes = [node for node in cut.nodes if not node.is_leaf and not node.is_parallel]
    views = {node: MachineView.packed(0, grid(node)) for node in nodes}
    return plan_of(parse_graph(MODEL), cut, views, 1, 2, devices=1)


MODEL = """
x = input[8, 12]
w = weight[12, 6]
v = weight[6]
h = relu(matmul(x, w))
return sum_loss(matmul(h, unflatten(v, axis=0, outer=6, inner=1)))
"""


def test_the_tail_may_have_weights_of_its_own():
    """Its gradients for slices are taken with zeros, those for its own weights with the values."""
    plan = by_hand(
        """
        x = input[8, 12]
        w = weight[12, 6]
        v = weight[6]
        h = batch(relu(matmul(pipeline(x, dim=0, degree=2), w)), dim=0, degree=2)
        return sum_loss(matmul(h, unflatten(v, axis=0, outer=6, inner=1)))
        """
    )
    pipeline = Lowering(plan).program(0).pipeline
    assert pipeline is not None
    assert pipeline.tail_trains
    assert not [c for c in trained(plan).comparisons if not c.passes]


def test_a_tail_that_is_not_linear_is_refused():
    plan = by_hand(
        """
        x = input[8, 12]
        w = weight[12, 6]
        v = weight[6]
        h = relu(batch(matmul(pipeline(x, dim=0, degree=2), w), dim=0, degree=2))
        return sum_loss(matmul(h, unflatten(v, axis=0, outer=6, inner=1)))
        """
    )
    with pytest.raises(InputError, match="relu: joins slices and is not linear in them"):
        Lowering(plan).program(0)


def test_a_program_shows_slices_and_their_order(library):
    plan = planned("mlp-mnist", library, 4, 2, "2bw")
    shown = str(Lowering(plan).program(0))
    assert "in the order F0 F1 B0 F2 B1 F3 B2 B3" in shown
    assert "with the weights of one update before" in shown


@pytest.mark.parametrize(("kind", "batches"), [("2bw", 1), ("2bw", 2), ("1f1b", 2)])
def test_updates_agree_with_one_process(library, kind, batches):
    """Also with gradients of several batches, which for 2bw are all of the same older weights."""
    plan = planned("mlp-mnist", library, 4, 2, kind)
    report = trained(plan, steps=4, batches=batches)
    assert not [c for c in report.comparisons if not c.passes]


SLICED = """
x = input[8, 6]
w = weight[6, 4]
h = batch(relu(matmul(pipeline(x, dim=0, degree=2), w)), dim=0, degree=2)
return mean_loss(h)
"""


def test_a_checkpoint_has_the_older_weights_of_2bw(tmp_path):
    model = parse_graph(
        "x = input[8, 6]\nw = weight[6, 4]\nh = relu(matmul(x, w))\nreturn mean_loss(h)"
    )
    graph = parse_graph(SLICED)
    views = {
        node: MachineView.packed(0, (1,) * len(grid(node)))
        for node in graph.nodes
        if not (node.is_leaf or node.is_parallel)
    }
    lowering = Lowering(plan_of(model, graph, views, 1, 2, "2bw", devices=1))

    def run(folder: str, steps: int, *, resume: bool) -> Report:
        kept = Checkpoints(str(tmp_path / folder), resume=resume)
        options = Options(steps, Recipe(rate=RATE), "float64", check=True, checkpoints=kept)
        report = run_plan(lowering, options, World(), lambda step: None)
        assert report is not None
        assert not [c for c in report.comparisons if not c.passes]
        return report

    whole = run("whole", 4, resume=False)
    parts = run("parts", 2, resume=False), run("parts", 4, resume=True)
    losses = [step.loss for part in parts for step in part.steps]
    assert losses == [step.loss for step in whole.steps]

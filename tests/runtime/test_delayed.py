"""Pipelines with gradients at weights one update old, as in PipeDream-2BW."""

from __future__ import annotations

from threading import Event

import pytest
import torch
from support.plans.pipelines import DEVICES, RATE, plan_of, planned, trained
from support.runs.simulated import on_ranks

from pcg.graph.graph import Graph
from pcg.placement.layout import grid
from pcg.placement.view import MachineView
from pcg.plan.text import parse_graph
from runtime.execute.executor import Executor
from runtime.inputs.seeded import initial_weight, input_batch
from runtime.job.job import Checkpoints, RunReport, TrainingOptions
from runtime.job.recipe import Recipe
from runtime.program.lower import Lowering
from runtime.train.check import evaluate
from runtime.train.worker import run_plan
from runtime.world.collectives import World
from substitutions.rules.store import load_library


@pytest.fixture(scope="module")
def library():
    return load_library()


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
        executor = Executor(lowering.program(world.rank), world, "fp64")

        def update(gradients):
            for register, gradient in gradients.items():
                executor.weights[register].sub_(gradient, alpha=RATE)

        losses = [executor.step(n, update, more=n + 1 < steps).loss for n in range(steps)]
        pieces = [
            (weight.leaf.name, weight.region, executor.weights[weight.register])
            for weight in lowering.program(world.rank).weights
        ]
        return losses, pieces

    actual = on_ranks(DEVICES, work)
    for losses, pieces in actual:
        assert losses == pytest.approx(wanted, abs=1e-10)
        for leaf, region, piece in pieces:
            cut = tuple(slice(start, stop) for start, stop in region)
            assert torch.allclose(piece, weights[leaf][cut], atol=1e-10)
    held = {leaf for _, pieces in actual for leaf, _, _ in pieces}
    assert held == set(weights)


def test_2bw_does_not_wait_between_steps(library):
    """The first stage sends the first slices of a step before the last slices of the step before
    have come back. The last stage ends a step that the first one does not go on with."""
    lowering = Lowering(planned("mlp-mnist", library, 4, 4, "2bw"))
    program = lowering.program(0).pipeline
    assert program is not None
    assert (program.overlaps_batches, program.lead) == (True, 3)
    turns: list[str] = []
    ended = Event()

    def work(world):
        if world.rank == 0:
            exchange = world.exchange

            def noted(outgoing, incoming, dtype, channel="forward", *rest):
                turns.append(f"{'F' if channel == 'forward' else 'B'}{world.batch}")
                if turns[-1] == "B1":
                    assert ended.wait(60)
                return exchange(outgoing, incoming, dtype, channel, *rest)

            world.exchange = noted
        executor = Executor(lowering.program(world.rank), world, "fp64")
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
def test_batches_do_not_overlap_if_an_earlier_stage_waits_for_a_later(shown, goes_on):
    """Outputs are sent to the first device."""
    graph = parse_graph(SENT_BACK.format(shown=shown))
    first, second, *rest = (n for n in graph.nodes if not n.is_leaf and not n.is_parallel)
    stages = {first: 0, second: 0} | dict.fromkeys(rest, 1)
    views = {node: MachineView.packed(stage, grid(node)) for node, stage in stages.items()}
    model = parse_graph(ITS_MODEL.format(shown=shown))
    lowering = Lowering(plan_of(model, graph, views, 2, 2, "2bw", devices=2))
    program = lowering.program(0).pipeline
    assert program is not None
    assert program.overlaps_batches == goes_on


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

    def run(folder: str, steps: int, *, resume: bool) -> RunReport:
        kept = Checkpoints(str(tmp_path / folder), resume=resume)
        options = TrainingOptions(steps, Recipe(rate=RATE), "fp64", check=True, checkpoints=kept)
        report = run_plan(lowering, options, World(), lambda step: None)
        assert report is not None
        assert not [c for c in report.comparisons if not c.passes]
        return report

    whole = run("whole", 4, resume=False)
    parts = run("parts", 2, resume=False), run("parts", 4, resume=True)
    losses = [step.loss for part in parts for step in part.steps]
    assert losses == [step.loss for step in whole.steps]

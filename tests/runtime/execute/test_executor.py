"""A plan for one device, executed in this process."""

from __future__ import annotations

import math

import pytest
import torch
from support.plans.by_hand import make_plan
from support.runs.simulated import on_ranks

from pcg.graph.graph import Leaf
from pcg.models.mlp import mlp
from pcg.plan.text import parse_graph
from pcg.types.tensor import ParallelTensor
from runtime.inputs.seeded import initial_weight, input_batch
from runtime.job.job import Comparison, FinishedStep, RunReport, TrainingOptions
from runtime.job.recipe import Recipe
from runtime.program.lower import Lowering
from runtime.train.check import Outcome, compare
from runtime.train.worker import run_plan
from runtime.world.collectives import World


@pytest.fixture
def plan():
    graph = mlp(8, (12, 16, 4), prediction=True)
    return make_plan(graph, graph, 1, {})


def run(plan, **options):
    seen = []
    report = run_plan(Lowering(plan), TrainingOptions(**options), World(), seen.append)
    assert report is not None
    assert list(report.steps) == seen
    return report


def test_one_device_needs_no_other_process(plan):
    report = run(plan, steps=3, recipe=Recipe(rate=0.1), precision="fp64", check=True)
    assert report.passes
    kinds = [c.kind for c in report.comparisons]
    assert kinds == ["loss"] * 3 + ["output"] * 2 + ["weight"] * 2


def test_single_precision_is_close_to_double(plan):
    single, double = run(plan, steps=3), run(plan, steps=3, precision="fp64")
    for a, b in zip(single.steps, double.steps, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-5)
        assert a.loss != b.loss


def test_the_seed_decides_weights_and_data(plan):
    losses = [[s.loss for s in run(plan, steps=2, seed=seed).steps] for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


def test_the_learning_rate_counts(plan):
    """Without the rate, each step would see the first weights. The first loss is the same either
    way."""
    still, moving = (
        run(plan, steps=2, recipe=Recipe(rate=0.0)),
        run(plan, steps=2, recipe=Recipe(rate=0.5)),
    )
    assert still.steps[0].loss == moving.steps[0].loss
    assert still.steps[1].loss != moving.steps[1].loss


def whole_leaf(kind, shape, below=None):
    return Leaf(kind, "a", len(shape), ParallelTensor.whole(shape), below)


def test_data_differs_from_step_to_step_and_ids_stay_below_their_bound():
    leaf = whole_leaf("input", (500,), below=3)
    first, second = input_batch(leaf, 0, 0), input_batch(leaf, 0, 1)
    assert set(first.tolist()) == {0.0, 1.0, 2.0}
    assert not torch.equal(first, second)
    assert torch.equal(first, input_batch(leaf, 0, 0))


def test_weights_are_scaled_by_fan_in():
    values = initial_weight(whole_leaf("weight", (400, 50)), 0)
    assert values.std().item() == pytest.approx(1 / 20, rel=0.05)


def outcome(weight, loss=1.0):
    return Outcome((loss,), ((torch.tensor(loss),),), {"w": weight})


def test_every_copy_is_compared():
    good, bad = torch.tensor([1.0, 100.0]), torch.tensor([1.0, 101.0])
    *_, weight = compare(outcome((good,)), outcome((good, bad)))
    assert (weight.absolute, weight.relative, weight.passes) == (1.0, 0.01, False)


def test_not_a_number_never_passes():
    nan = math.nan
    for difference in compare(outcome((torch.ones(1),), nan), outcome((torch.tensor([nan]),), nan)):
        assert not difference.passes


def test_a_step_takes_the_median_without_the_first():
    steps = tuple(FinishedStep(i, 0.0, seconds) for i, seconds in enumerate((9.0, 1.0, 3.0, 2.0)))
    assert RunReport(steps).step_seconds == 2.0
    assert RunReport(steps[:1]).step_seconds == 9.0
    assert RunReport(steps).passes
    assert not RunReport(steps, (Comparison("loss", "", 1.0, 1.0),)).passes


def test_gradients_of_several_batches_are_exchanged_once():
    """Every rank sums its own gradients. The result is the mean over all batches."""
    model = "x = input[8, 6]\nw = weight[6, 4]\nv = weight[4, 4]\n{}\nreturn mean_loss(y)"
    cut = "h = relu(matmul(partition(x, dim=0, degree=2), replicate(w, degree=2)))\n"
    cut += "y = combine(matmul(h, replicate(v, degree=2)), dim=0, degree=2)"
    whole = parse_graph(model.format("y = matmul(relu(matmul(x, w)), v)"))
    lowering = Lowering(make_plan(whole, parse_graph(model.format(cut)), 2, {}))
    recipe = Recipe(rate=0.1, accumulate=3)

    def work(world):
        sent: list[int] = []
        start = world.start_all_reduce

        def counted(values, group):
            sent.append(len(values))
            return start(values, group)

        world.start_all_reduce = counted
        options = TrainingOptions(2, recipe, "fp64", check=True)
        report = run_plan(lowering, options, world, lambda step: None)
        return len(sent), report

    (first, report), (second, _) = on_ranks(2, work)
    assert first == second == 2
    assert report is not None
    assert not [c for c in report.comparisons if not c.passes]

"""Running statistics of batch norms, equal to those of the module of the plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from support.plans.by_hand import make_plan
from support.runs.simulated import on_ranks
from torch import nn

from pcg.capture import capture
from pcg.machine import load_machine
from pcg.plan.plan import load_plan, save_plan
from runtime.checkpoints.checkpoint import newest_manifest
from runtime.execute.executor import Executor
from runtime.inputs.seeded import input_batch
from runtime.job.job import Checkpoints, TrainingOptions
from runtime.job.recipe import Recipe
from runtime.program.lower import Lowering
from runtime.train.plain import state_dict, write_state_dict
from runtime.train.training import TrainingRun
from runtime.train.worker import run_plan
from runtime.world.collectives import World
from search.choices import Mode
from search.cost.cost import CostModel
from search.map.building import Builder
from search.map.choose.choosing import Chooser
from search.map.rules.cuts import Cuts
from search.map.space.allow import data_parallel
from search.substitute.rewrites import Limits
from search.substitute.variants import variants
from substitutions.audit.locate import of_module
from substitutions.rules.store import load_library

BATCH, STEPS, RATE, NEAR = 8, 3, 0.1, 1e-9


class Images(nn.Module):
    """A batch norm of a convolution, one that is used twice, and norms with different momenta."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.first = nn.BatchNorm2d(4, momentum=0.3)
        self.twice = nn.BatchNorm2d(4)

    def forward(self, x):
        x = torch.relu(self.first(self.conv(x)))
        return self.twice(torch.sigmoid(self.twice(x))).square().mean(), x


class Rows(nn.Module):
    """A batch norm without weights, and one without running statistics."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 6)
        self.norm = nn.BatchNorm1d(6)
        self.plain = nn.BatchNorm1d(6, affine=False)
        self.forgets = nn.BatchNorm1d(6, track_running_stats=False)

    def forward(self, x):
        x = torch.sigmoid(self.plain(torch.relu(self.norm(self.linear(x)))))
        return self.forgets(x * x).sigmoid().mean(), x


INPUTS = {Images: (BATCH, 3, 4, 6), Rows: (BATCH, 5)}


@pytest.fixture(scope="module")
def library():
    return load_library()


@cache
def captured_of(kind):
    module = kind()
    return capture(module, (torch.empty(INPUTS[kind]),))


def plan_of(kind, graph, steps, devices, library):
    captured = captured_of(kind)
    plan = make_plan(captured.graph, graph, devices, {})
    return of_module(replace(plan, derivation=tuple(steps)), captured, library.rules)


def plans(kind, library):
    """Plans of the module as it is, of its batch cut with batch norms of the whole batch, and of
    decomposed norms."""
    graph = captured_of(kind).graph
    yield plan_of(kind, graph, (), 1, library)
    machine = load_machine("dgx-a100").with_devices(2)
    alone = Chooser.on(CostModel(machine.with_devices(1)), Cuts())
    for variant in variants(graph, library, Mode.PARALLEL, alone, Limits(tries=0)):
        engine = Chooser.on(CostModel(machine), Cuts.of_rules(library.concrete(variant.graph)))
        chosen = engine.choose(variant.graph, 0.0, data_parallel(variant.graph))
        cut = Builder(engine.spaces).cut(chosen, variant.derivation)
        yield plan_of(kind, cut.graph, cut.steps, 2, library)


def started(kind, folder):
    """A module with random weights and statistics, and the file that has them."""
    torch.manual_seed(1)
    module = kind().double()
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5)
    write_state_dict(module.state_dict(), folder / "initial.pt")
    return module


def trained(module, plan, steps, accumulate=1):
    """The module after some steps of torch's own training on the data that the runtime draws."""
    (leaf,) = [node.leaf for node in plan.model.leaves if node.leaf.kind == "input"]
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            x = input_batch(leaf, 0, step * accumulate + part)
            (module(x)[0] / accumulate).backward()
        optimizer.step()
    return module


def options_of(steps, initial=None, accumulate=1, **given):
    recipe = Recipe(rate=RATE, accumulate=accumulate)
    return TrainingOptions(steps, recipe, "fp64", initial=initial, **given)


def kept(plan, options):
    """The running statistics of each rank after a run, by their names in the module."""
    lowering = Lowering(plan)

    def work(world):
        executor = Executor(lowering.program(world.rank), world, "fp64")
        TrainingRun(lowering, options, world, executor).run(lambda _: None)
        return executor.running.tensors

    return on_ranks(plan.machine.devices, work)


def assert_close(found, wanted):
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=NEAR, atol=NEAR)


@pytest.mark.parametrize("kind", INPUTS)
def test_running_statistics_equal_those_of_the_module(kind, library, tmp_path):
    seen = set()
    for plan in plans(kind, library):
        save_plan(plan, tmp_path / "plan.json")
        loaded = load_plan(tmp_path / "plan.json")
        assert loaded.statistics == plan.statistics
        seen.add((plan.machine.devices, "batch_norm" in {n.name for n in plan.graph.nodes}))
        wanted = trained(started(kind, tmp_path), plan, STEPS)
        for actual in kept(loaded, options_of(STEPS, str(tmp_path / "initial.pt"))):
            assert actual.keys() == dict(wanted.named_buffers()).keys()
            for name, buffer in wanted.named_buffers():
                assert_close(actual[name], buffer)
    assert seen >= {(1, True), (2, True), (2, False)}


def run(plan, folder, steps, initial, resume=False, accumulate=1):
    """The state dict of the checkpoint of a run on one device."""
    checkpoints = Checkpoints(str(folder), resume=resume)
    options = options_of(steps, initial, accumulate, checkpoints=checkpoints)
    run_plan(Lowering(plan), options, World(), lambda _: None)
    return state_dict(newest_manifest(folder))


def whole(kind, library):
    return next(plans(kind, library))


@pytest.mark.parametrize("kind", INPUTS)
def test_a_checkpoint_loads_into_the_module_which_then_evaluates_alike(kind, library, tmp_path):
    """Each pass of a step counts, as in torch. A resumed run goes on with the counts."""
    plan = whole(kind, library)
    module = trained(started(kind, tmp_path), plan, STEPS, accumulate=2)
    initial = str(tmp_path / "initial.pt")
    run(plan, tmp_path / "run", 1, initial, accumulate=2)
    state = run(plan, tmp_path / "run", STEPS, None, resume=True, accumulate=2)
    again = kind().double()
    again.load_state_dict(state, strict=True)
    for name, tensor in module.state_dict().items():
        assert_close(state[name], tensor)
    x = torch.rand(INPUTS[kind], dtype=torch.float64)
    assert_close(again.eval()(x)[0], module.eval()(x)[0])


def test_statistics_that_a_plan_does_not_compute_are_kept_and_named(library, tmp_path, capsys):
    plan = whole(Rows, library)
    first, *others = plan.statistics
    assert first.mean == ("norm.running_mean",)
    plan = replace(plan, statistics=(first.model_copy(update={"at": None}), *others))
    started(Rows, tmp_path)
    state = run(plan, tmp_path / "run", 1, str(tmp_path / "initial.pt"))
    (told,) = capsys.readouterr().err.splitlines()
    assert "warning: running statistics norm.running_mean: not followed" in told
    before = torch.load(tmp_path / "initial.pt")
    assert torch.equal(state["norm.running_mean"], before["norm.running_mean"])
    assert not torch.equal(state["plain.running_mean"], before["plain.running_mean"])


def test_checkpoint_without_running_statistics_is_resumed(library, tmp_path, capsys):
    plan = whole(Rows, library)
    started(Rows, tmp_path)
    run(replace(plan, statistics=()), tmp_path / "run", 1, str(tmp_path / "initial.pt"))
    state = run(plan, tmp_path / "run", 2, None, resume=True)
    assert "has no running statistics, they begin anew" in capsys.readouterr().err
    assert state["norm.num_batches_tracked"] == 1


def test_running_statistics_stay_float32_in_narrow_formats(library):
    plan = whole(Images, library)
    (wanted,) = kept(plan, options_of(1))
    for number_format in ("fp32", "bf16"):
        executor = Executor(Lowering(plan).program(0), World(), number_format)
        executor.step(0, lambda gradients: None)
        for name, tensor in executor.running.tensors.items():
            assert tensor.dtype in (torch.float32, torch.int64)
            torch.testing.assert_close(tensor.double(), wanted[name].double(), rtol=0.02, atol=0.02)

"""Initial values: equal to those of the module to the last bit, for any plan."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from support.graphs.own_model import eager, write_own
from support.runs.simulated import on_ranks

from pcg.errors import InputError, NegativeAnswer
from pcg.machine import load_machine
from pcg.models import MODELS, capture_model
from runtime.inputs.seeded import input_batch
from runtime.job.job import Checkpoints, TrainingOptions
from runtime.job.recipe import Recipe
from runtime.program.lower import Lowering
from runtime.train.initial import seeded
from runtime.train.worker import prepare, run_plan
from runtime.world.collectives import World
from search.cost.cost import SGD
from substitutions.audit.locate import of_module
from substitutions.rules.store import load_library
from unity.support.planners import planner_of

SEED, RATE, NEAR = 7, 0.1, 1e-9
PLANNERS = ((1, "joint"), (2, "data-parallel"), (2, "megatron"), (4, "zero"), (4, "joint"))
SOME = [
    pytest.param(*case, marks=() if case == (4, "zero") else pytest.mark.soak) for case in PLANNERS
]
"""The case that covers the most. The others add little to it."""


@lru_cache(maxsize=16)
def planned(name, planner, devices, batch=8):
    machine = load_machine("dgx-a100").with_devices(devices)
    captured, library = capture_model(name, batch, 1), load_library()
    try:
        answer = planner_of(planner, machine, library, 20.0, SGD, None).plan(name, captured.graph)
    except NegativeAnswer as none:
        pytest.skip(str(none))
    return of_module(answer.plan, captured, library.rules)


def module_of(name):
    if name not in MODELS:
        return eager(name, SEED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return MODELS[name].make(1)[0]


def begun(plan, options):
    """The pieces of weights of each rank, by leaf and region, and running statistics, before a
    step."""
    lowering = Lowering(plan)

    def work(world):
        made = prepare(lowering, options, world)
        made.training.run(lambda _: None)
        weights = lowering.program(world.rank).weights
        pieces = [(w.leaf.name, w.region, made.executor.weights[w.register]) for w in weights]
        return pieces, made.executor.running.tensors

    return on_ranks(plan.machine.devices, work)


def assert_own(plan, found, state):
    seen = set()
    for pieces, running in found:
        for leaf, region, piece in pieces:
            parameter = plan.naming.parameter(leaf)
            whole = state[parameter.names[0]]
            whole = whole.mT if parameter.transposed else whole
            assert piece.dtype == whole.dtype
            assert torch.equal(piece, whole[tuple(slice(*span) for span in region)])
            seen.add(leaf)
        for name, tensor in running.items():
            assert torch.equal(tensor, state[name])
    assert seen == {n.leaf.name for n in plan.model.leaves if n.leaf.kind == "weight"}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return write_own(tmp_path_factory.mktemp("own"))


@pytest.mark.parametrize(("devices", "planner"), SOME)
def test_a_users_model_begins_with_its_own_values(own, devices, planner):
    plan = planned(own, planner, devices)
    weights = begun(plan, TrainingOptions(steps=0, seed=SEED, model=own))
    assert_own(plan, weights, module_of(own).state_dict())


@pytest.mark.parametrize(
    ("name", "devices", "planner"),
    [
        ("dlrm-tiny", 4, "expert"),
        ("mlp-tiny", 3, "zero"),
        pytest.param("bert-large-tiny", 2, "pipeline", marks=pytest.mark.soak),
        *(
            pytest.param(name, devices, planner, marks=pytest.mark.soak)
            for name in MODELS
            if name.endswith("-tiny")
            for devices, planner in PLANNERS
        ),
    ],
)
def test_models_of_the_zoo_begin_with_their_own_values(name, devices, planner):
    plan = planned(name, planner, devices, 4 * devices)
    weights = begun(plan, TrainingOptions(steps=0, seed=SEED, model=name))
    assert_own(plan, weights, module_of(name).state_dict())


def eager_losses(plan, module, steps):
    """The losses of torch's own loop, in double precision, on the data that the runtime draws."""
    leaves = {node.leaf.name: node.leaf for node in plan.model.leaves}
    module = module.double()
    # `double` does not convert plain attributes.
    module.factor = module.factor.double()
    optimizer = torch.optim.SGD(
        [p for p in module.parameters() if p.requires_grad], lr=RATE, weight_decay=0.01
    )
    losses = []
    for step in range(steps):
        x, labels = (input_batch(leaves[name], SEED, step) for name in ("x", "labels"))
        optimizer.zero_grad()
        loss = module(x, labels.long())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("devices", "planner"), SOME)
def test_plan_trains_as_the_module_itself(own, devices, planner):
    plan = planned(own, planner, devices)
    recipe = Recipe(rate=RATE, weight_decay=0.01)
    options = TrainingOptions(3, recipe, "fp64", SEED, check=True, model=own)
    lowering = Lowering(plan)
    report = on_ranks(devices, lambda world: run_plan(lowering, options, world, lambda _: None))[0]
    assert report is not None
    assert report.passes
    wanted = eager_losses(plan, module_of(own), 3)
    assert [step.loss for step in report.steps] == pytest.approx(wanted, rel=NEAR)


def test_missing_name_of_the_module_is_reported(own, capsys):
    plan = planned("mlp-tiny", "data-parallel", 1)
    begun(plan, TrainingOptions(steps=0))
    assert "expected --model" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"reads factor of the module: expected --model"):
        prepare(Lowering(planned(own, "data-parallel", 1)), TrainingOptions(steps=0), World())


def test_another_module_is_refused(own, tmp_path):
    lowering = Lowering(planned(own, "data-parallel", 2))
    other = tmp_path / "other.py"
    (tmp_path / "constant.txt").write_text("1.0")
    changed = (
        Path(own.partition(":")[0]).read_text().replace("nn.Linear(16, 4)", "nn.Linear(16, 5)")
    )
    other.write_text(changed)
    options = TrainingOptions(steps=0, model=f"{other}:make")

    def work(world):
        with pytest.raises(InputError, match=r"last\.(weight|bias).* expected \[4"):
            prepare(lowering, options, world).training.run(lambda _: None)

    on_ranks(2, work)
    other.write_text("def make():\n    raise OSError('no data here')\n")

    def fails(world):
        with pytest.raises(InputError, match="line 2: make raised OSError: no data here"):
            prepare(lowering, options, world).training.run(lambda _: None)

    on_ranks(2, fails)


def test_a_run_that_goes_on_does_not_begin_again(own, tmp_path):
    plan = planned("mlp-tiny", "data-parallel", 1)
    folder = Checkpoints(str(tmp_path / "kept"))
    run_plan(
        Lowering(plan),
        TrainingOptions(2, checkpoints=folder, model="mlp-tiny"),
        World(),
        lambda _: None,
    )
    again = Checkpoints(str(tmp_path / "kept"), resume=True)
    alone = run_plan(Lowering(plan), TrainingOptions(4, model="mlp-tiny"), World(), lambda _: None)
    went_on = run_plan(
        Lowering(plan),
        TrainingOptions(4, checkpoints=again, model="mlp-tiny"),
        World(),
        lambda _: None,
    )
    assert alone is not None
    assert went_on is not None
    assert [s.loss for s in went_on.steps] == [s.loss for s in alone.steps[2:]]


def drawn_by_numpy() -> list[int]:
    """The state of numpy's generator."""
    return np.random.get_state(legacy=False)["state"]["key"].tolist()


def test_generators_are_left_as_they_were():
    torch.manual_seed(3)
    before = torch.get_rng_state(), drawn_by_numpy()
    with seeded(5):
        torch.rand(3)
        np.random.rand(3)
        torch.set_default_dtype(torch.float64)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert drawn_by_numpy() == before[1]
    assert torch.get_default_dtype() == torch.float32

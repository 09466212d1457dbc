"""Plans of every planner for the models of the zoo, against the modules themselves.

Losses, gradients and parameters after three steps agree with the torch module of the model, trained
in double precision. Ranks are threads of one process. For all plans they are processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import pytest
import torch
from support.runs.plain_steps import RATE, STEPS, Stepped, stepped
from support.runs.rank_group import connected
from support.runs.simulated import on_ranks

from pcg.capture import Captured
from pcg.errors import NegativeAnswer
from pcg.machine import load_machine
from pcg.models import MODELS, capture_model
from pcg.plan.plan import Plan
from pcg.plan.training import Training
from runtime.execute.precision import in_float64
from runtime.inputs.seeded import initial_weight, input_batch
from runtime.program.lower import Lowering
from search.choices import PLANNER_NAMES
from substitutions.audit.locate import of_module
from substitutions.rules.store import load_library
from unity.support.planners import planner_of

TINY = [name for name in MODELS if name.endswith(("-tiny", "-mnist"))]
NEAR = 1e-9
SECONDS = 20.0
"""The time limit of a search."""


@dataclass(frozen=True)
class Trained:
    """The losses of all steps; by leaf, the weights after them and the gradients of the last step;
    and running statistics by name."""

    losses: tuple[float, ...]
    weights: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]
    running: dict[str, torch.Tensor]


def fed(captured: Captured, example, step: int):
    """The inputs of a step, in the form that the module takes."""
    leaves = {node.leaf.name: node.leaf for node in captured.graph.leaves}
    names = iter(captured.inputs)

    def filled(value):
        if isinstance(value, (list, tuple)):
            return type(value)(filled(part) for part in value)
        name = next(names)
        if name is None:
            return torch.zeros_like(value)
        return input_batch(leaves[name], 0, step).to(value.dtype)

    return filled(example)


@lru_cache(maxsize=32)
def module_trained(name: str, batch: int, *, delayed: bool) -> Trained:
    """The results of torch's training of the module. ``delayed``: with updates as in
    PipeDream-2BW."""
    captured = capture_model(name, batch, 1)
    leaves = {node.leaf.name: node.leaf for node in captured.graph.leaves}
    with in_float64():
        module, example = MODELS[name].make(batch)
        parameters = dict(module.named_parameters())
        own = {w.leaf: (w, parameters[w.parameter]) for w in captured.weights}
        now = {leaf: initial_weight(leaves[leaf], 0) for leaf in own}
        used, losses, gradients = now, [], {}
        for step in range(STEPS):
            with torch.no_grad():
                for leaf, (weight, parameter) in own.items():
                    parameter.copy_(weight.of(used[leaf]))
            module.zero_grad()
            result = module(*fed(captured, example, step))
            loss = result[0] if isinstance(result, tuple) else result
            loss.backward()
            losses.append(loss.item())
            gradients = {leaf: w.of(parameter.grad) for leaf, (w, parameter) in own.items()}
            before = now
            now = {leaf: now[leaf] - RATE * gradient for leaf, gradient in gradients.items()}
            used = before if delayed else now
    last = {leaf: g.clone() for leaf, g in gradients.items()}
    return Trained(tuple(losses), now, last, dict(module.named_buffers()))


def planned(name: str, planner: str, devices: int) -> Plan:
    """A plan by a planner. Skips the test if the planner has none."""
    # Six devices a node, or eight.
    machine = load_machine("dgx-a100" if devices % 3 else "summit").with_devices(devices)
    captured = capture_model(name, batch_of(name, devices), 1)
    library, training = load_library(), Training(MODELS[name].optimizer)
    try:
        chosen = planner_of(planner, machine, library, SECONDS, training, None)
        plan = chosen.plan(name, captured.graph).plan
    except NegativeAnswer as none:
        pytest.skip(str(none))
    return of_module(plan, captured, library.rules)


def batch_of(name: str, devices: int) -> int:
    return 8 * devices if "bert" in name or "-tiny" not in name else 24


def check(plan: Plan, stepped: list[Stepped]) -> None:
    """Check that all ranks have the results of the module."""
    devices = plan.machine.devices
    delayed = plan.pipeline is not None and plan.pipeline.schedule == "2bw"
    wanted = module_trained(plan.model_name, batch_of(plan.model_name, devices), delayed=delayed)
    assert len(stepped) == devices
    assert {piece.leaf for rank in stepped for piece in rank.pieces} == wanted.weights.keys()
    for rank in stepped:
        for name, running in rank.running.items():
            torch.testing.assert_close(running, wanted.running[name], rtol=NEAR, atol=NEAR)
        assert rank.running.keys() >= {n for n in wanted.running if "running" in n}
        assert rank.losses == pytest.approx(wanted.losses, rel=NEAR, abs=NEAR)
        for piece in rank.pieces:
            part = tuple(slice(*span) for span in piece.region)
            assert piece.gradient is not None
            for own, whole in (
                (piece.weight, wanted.weights[piece.leaf]),
                (piece.gradient, wanted.gradients[piece.leaf]),
            ):
                torch.testing.assert_close(own, whole[part], rtol=NEAR, atol=NEAR)


@pytest.mark.parametrize(
    ("name", "planner", "devices"),
    [
        ("mlp-mnist", "megatron", 6),
        ("xdl-tiny", "expert", 4),
        ("mlp-mnist", "pipeline-2bw", 3),
        pytest.param("candle-uno-tiny", "pipeline-2bw", 3, marks=pytest.mark.soak),
    ],
)
def test_plans_train_as_the_module(name, planner, devices):
    plan = planned(name, planner, devices)
    lowering = Lowering(plan)
    check(plan, on_ranks(devices, lambda world: stepped(lowering, world)))


@pytest.fixture(scope="module", params=[1, 2, 4, 6, 8])
def group(request):
    """Connected processes, one for each device."""
    with connected(request.param) as processes:
        yield processes


@pytest.mark.soak
@pytest.mark.distributed
@pytest.mark.parametrize("planner", PLANNER_NAMES)
@pytest.mark.parametrize("name", TINY)
def test_all_plans_train_as_the_module(name, planner, group):
    plan = planned(name, planner, group.size)
    check(plan, group.steps(plan))

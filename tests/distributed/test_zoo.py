"""Plans of every planner for the models of the zoo, against the modules themselves.

Ranks are threads of one process. Losses, gradients (as the updates show them) and parameters after
three steps agree with the torch module that the model is, trained in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import pytest
import torch
from simulated import on_ranks

from pcg.capture import Captured
from pcg.errors import NegativeAnswer
from pcg.machine import load_machine
from pcg.models import MODELS, capture_model
from pcg.plan import Plan
from runtime.data import initial_weight, input_batch
from runtime.executor import Executor
from runtime.lower import Lowering
from runtime.precision import in_float64
from substitutions.store import load_library
from unity.planners import NAMES, planner_of

TINY = [name for name in MODELS if name.endswith(("-tiny", "-mnist"))]
STEPS, RATE, NEAR = 3, 0.05, 1e-9
SECONDS = 20.0
"""That a search may take."""


@dataclass(frozen=True)
class Trained:
    """Losses of all steps, and weights by leaf."""

    losses: tuple[float, ...]
    weights: dict[str, torch.Tensor]


def batch_of(captured: Captured, example, step: int):
    """The inputs of a step, as the module takes them."""
    leaves = {node.leaf.name: node.leaf for node in captured.graph.leaves}
    names = iter(captured.inputs)

    def fed(value):
        if isinstance(value, (list, tuple)):
            return type(value)(fed(part) for part in value)
        name = next(names)
        if name is None:
            return torch.zeros_like(value)
        return input_batch(leaves[name], 0, step).to(value.dtype)

    return fed(example)


@lru_cache(maxsize=4)
def module_trained(name: str, batch: int, *, delayed: bool) -> Trained:
    """What torch makes of the module. ``delayed``: as PipeDream-2BW updates weights."""
    captured = capture_model(name, batch, 1)
    leaves = {node.leaf.name: node.leaf for node in captured.graph.leaves}
    with in_float64():
        module, example = MODELS[name].make(batch)
        parameters = dict(module.named_parameters())
        own = {w.leaf: (w, parameters[w.parameter]) for w in captured.weights}
        now = {leaf: initial_weight(leaves[leaf], 0) for leaf in own}
        used, losses = now, []
        for step in range(STEPS):
            with torch.no_grad():
                for leaf, (weight, parameter) in own.items():
                    parameter.copy_(weight.of(used[leaf]))
            module.zero_grad()
            result = module(*batch_of(captured, example, step))
            loss = result[0] if isinstance(result, tuple) else result
            loss.backward()
            losses.append(loss.item())
            before = now
            now = {
                leaf: now[leaf] - RATE * weight.of(parameter.grad)
                for leaf, (weight, parameter) in own.items()
            }
            used = before if delayed else now
    return Trained(tuple(losses), now)


def plan_trained(plan: Plan) -> list[tuple[list[float], list[tuple[str, tuple, torch.Tensor]]]]:
    """Of every rank, the losses and the pieces of weights that it ends with."""
    lowering = Lowering(plan)

    def work(world):
        program = lowering.program(world.rank)
        executor = Executor(program, world, "float64")

        def update(gradients):
            for register, gradient in gradients.items():
                executor.weights[register].sub_(gradient, alpha=RATE)

        losses = [executor.step(step, update).loss for step in range(STEPS)]
        pieces = [(w.leaf.name, w.region, executor.weights[w.register]) for w in program.weights]
        return losses, pieces

    return on_ranks(plan.machine.devices, work)


def check(name: str, planner: str, devices: int) -> None:
    # Six devices a node, or eight.
    machine = load_machine("dgx-a100" if devices % 3 else "summit").with_devices(devices)
    model, batch = MODELS[name], 8 * devices if "bert" in name or "-tiny" not in name else 24
    graph = capture_model(name, batch, 1).graph
    try:
        library = load_library()
        searched = planner_of(planner, machine, library, SECONDS, model.optimizer, None)
        plan = searched.plan(name, graph).plan
    except NegativeAnswer as none:
        pytest.skip(str(none))
    delayed = plan.pipeline is not None and plan.pipeline.schedule == "2bw"
    wanted = module_trained(name, batch, delayed=delayed)
    for losses, pieces in plan_trained(plan):
        assert losses == pytest.approx(wanted.losses, rel=NEAR, abs=NEAR)
        for leaf, region, piece in pieces:
            whole = wanted.weights[leaf][tuple(slice(*span) for span in region)]
            torch.testing.assert_close(piece, whole, rtol=NEAR, atol=NEAR)


@pytest.mark.parametrize(
    ("name", "planner", "devices"),
    [
        ("mlp-mnist", "megatron", 6),
        ("xdl-tiny", "expert", 4),
        ("candle-uno-tiny", "pipeline-2bw", 3),
    ],
)
def test_plans_train_as_the_module(name, planner, devices):
    check(name, planner, devices)


@pytest.mark.soak
@pytest.mark.parametrize("devices", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("planner", NAMES)
@pytest.mark.parametrize("name", TINY)
def test_all_plans_train_as_the_module(name, planner, devices):
    check(name, planner, devices)

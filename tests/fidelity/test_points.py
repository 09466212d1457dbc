"""The published points, as they are read; ``make fidelity`` prices them."""

from __future__ import annotations

from math import inf

import pytest
import torch
from fidelity.data import held_out, points
from fidelity.models import Gpt, Llama, decoder_of
from fidelity.price import Priced

from pcg.capture import capture
from pcg.machine import load_machine
from runtime.train.eager import compare_module


def test_points_are_read():
    every = points()
    assert len(every) > 50
    assert len({(p.run, p.name, p.gpus, p.degrees) for p in every}) == len(every)
    for point in every:
        machine = load_machine(point.machine)
        nodes = -(-point.gpus // machine.devices_per_node)
        assert point.gpus == machine.with_nodes(nodes).with_devices(point.gpus).devices
        data = point.degrees.data(point.gpus)
        assert point.batch % (data * point.degrees.micro_batches) == 0
        assert point.model.hidden % point.model.heads == 0
        assert 0 < point.seconds < inf


def test_most_points_judge():
    every = points()
    calibrating = [p for p in every if p.calibrates]
    assert len(held_out(every)) + len(calibrating) == len(every)
    for run in {p.run for p in every}:
        own = [p for p in every if p.run == run]
        assert len(held_out(own)) > sum(p.calibrates for p in own)


def test_seconds_follow_from_what_is_published():
    """Of Megatron's 1.7B the paper says 137 TFLOP/s a GPU; of MPT-7B 4,641 tokens a second."""
    found = {(p.run, p.name): p for p in points()}
    small = found["Megatron 2021", "1.7B"]
    parameters = 12 * 24 * 2304**2 + 51200 * 2304
    least = 8 * parameters * 512 * 2048 / 32 / 137e12
    assert least < small.seconds < 1.2 * least
    mosaic = found["MosaicML, A100", "7b 2048"]
    assert mosaic.seconds == pytest.approx(6 * 2 * 2048 / 4641)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        # As llm-foundry's table has them, and the model cards of Llama 3.
        (Gpt(32, 4096, 32, 2048, 50368), 6_658_859_008),
        (Gpt(48, 7168, 56, 2048, 50368), 29_975_214_080),
        (Llama(32, 4096, 32, 8, 14336, 8192, 128256), 8_030_261_248),
        (Llama(80, 8192, 64, 8, 28672, 8192, 128256), 70_553_706_496),
    ],
)
def test_models_have_as_many_parameters_as_is_published(model, parameters):
    with torch.device("meta"):
        module = decoder_of(model)
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters


def test_a_small_llama_attends_to_what_came_before():
    """And its graph computes what it does."""
    model = Llama(2, 32, 4, 2, 48, 12, 20)
    torch.manual_seed(0)
    module = decoder_of(model).double()
    ids = torch.randint(20, (3, 12))
    ends: list[torch.Tensor] = []
    hook = module.get_submodule("last").register_forward_hook(lambda *given: ends.append(given[2]))
    for tokens in (ids, torch.cat((ids[:, :8], ids[:, 8:].flip(1)), 1)):
        module(tokens, ids)
    hook.remove()
    first, second = ends
    assert torch.equal(first[:, :8], second[:, :8])
    assert not torch.allclose(first[:, 8:], second[:, 8:])
    found = compare_module(module, (ids, ids), capture(module, (ids, ids)), "llama")
    assert found.error is not None, found.reason
    assert found.error < 1e-9


def test_what_is_published_of_memory_is_compared():
    (point,) = (p for p in points() if p.run == "Alpa")
    assert point.memory == 8.745e9
    assert point.precision == "fp16"
    found = Priced(point, point.seconds, round(1.1 * 8.745e9))
    assert found.memory_error == pytest.approx(0.1)
    assert not found.is_refused
    assert Priced(point, point.seconds, 17_000_000_000).is_refused

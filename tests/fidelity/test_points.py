"""The published points as data. ``make fidelity`` prices them."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
import torch
from fidelity.bert import Bert
from fidelity.data import held_out, points
from fidelity.models import Gpt, Llama, decoder_of, module_of
from fidelity.price import Priced, graph_of, of_two_recomputations, priced
from fidelity.resnet import ResNet

from pcg.capture import capture
from pcg.machine import load_machine
from pcg.readings.kind import work_of
from runtime.train.eager import compare_module
from search.by_hand.recomputed import alternate
from search.split.blocks import blocks_of


def test_points_are_read():
    every = points()
    assert len(every) > 50
    assert len({(p.run, p.name, p.gpus, p.degrees, p.compiled) for p in every}) == len(every)
    for point in every:
        machine = load_machine(point.machine)
        nodes = -(-point.gpus // machine.devices_per_node)
        assert point.gpus == machine.with_nodes(nodes).with_devices(point.gpus).devices
        data = point.degrees.data(point.gpus)
        assert point.batch % (data * point.degrees.micro_batches) == 0
        if not isinstance(point.model, ResNet):
            assert point.model.hidden % point.model.heads == 0
        assert 0 < point.seconds < inf


def test_most_points_of_each_run_are_held_out():
    every = points()
    calibrating = [p for p in every if p.calibrates]
    assert len(held_out(every)) + len(calibrating) == len(every)
    assert not any(p.calibrates for p in every if p.run.startswith(("NVIDIA", "torchtitan")))
    for run in {p.run for p in every}:
        own = [p for p in every if p.run == run]
        assert len(held_out(own)) > sum(p.calibrates for p in own)


def test_seconds_follow_from_what_is_published():
    """Megatron's paper states 137 TFLOP/s a GPU for the 1.7B model, and the source of MPT-7B 4,641
    tokens a second."""
    by_name = {(p.run, p.name): p for p in points()}
    small = by_name["Megatron 2021", "1.7B"]
    parameters = 12 * 24 * 2304**2 + 51200 * 2304
    least = 8 * parameters * 512 * 2048 / 32 / 137e12
    assert least < small.seconds < 1.2 * least
    mosaic = by_name["MosaicML, A100", "7b 2048"]
    assert mosaic.seconds == pytest.approx(6 * 2 * 2048 / 4641)
    assert by_name["NVIDIA ResNet-50, V100", "fp32"].seconds == pytest.approx(896 / 2855)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        # As llm-foundry's table has them, and the model cards of Llama 3.
        (Gpt(32, 4096, 32, 2048, 50368), 6_658_859_008),
        (Gpt(48, 7168, 56, 2048, 50368), 29_975_214_080),
        (Llama(32, 4096, 32, 8, 14336, 8192, 128256), 8_030_261_248),
        (Llama(80, 8192, 64, 8, 28672, 8192, 128256), 70_553_706_496),
        # As torchvision counts ResNet-50, and Hugging Face bert-large's pre-training, whose table
        # has 30,522 rows.
        (ResNet((3, 4, 6, 3), 1000, 224), 25_557_032),
        (Bert(24, 1024, 16, 512, 30522), 336_226_108),
    ],
)
def test_models_have_as_many_parameters_as_is_published(model, parameters):
    with torch.device("meta"):
        module, _ = module_of(model, 1)
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters


def test_a_small_llama_attends_to_what_came_before():
    """Its graph computes the same."""
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
    comparison = compare_module(module, (ids, ids), capture(module, (ids, ids)), "llama")
    assert comparison.error is not None, comparison.reason
    assert comparison.error < 1e-9


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(Bert(2, 32, 4, 12, 20, 0, 0.0), marks=pytest.mark.soak),
        Bert(2, 32, 4, 12, 20, 3, 0.0),
        pytest.param(ResNet((1, 2, 1, 1), 7, 32), marks=pytest.mark.soak),
        ResNet((1, 1, 1, 1), 7, 32),
    ],
)
def test_small_encoders_and_residual_networks_are_captured_as_they_compute(model):
    torch.manual_seed(0)
    module, inputs = module_of(model, 4)
    drawn = tuple(
        torch.randint(2, x.shape) if x.dtype == torch.long else torch.randn_like(x).double()
        for x in inputs
    )
    comparison = compare_module(module.double(), drawn, capture(module, drawn), "model")
    assert comparison.error is not None, comparison.reason
    assert comparison.error < 1e-9


def test_alternate_recomputation_keeps_attention_and_every_second_product():
    blocks = blocks_of(graph_of(Llama(2, 32, 4, 2, 48, 12, 20), 2))
    assert blocks is not None
    kinds = [work_of(node) for node in alternate(blocks)]
    assert kinds.count("attention") == blocks.count
    assert kinds.count("contraction") == 4 * blocks.count


def test_divided_updates_are_less_memory():
    """Of a parameter's 18 bytes, 16 are divided between two GPUs: all but the narrow copy."""
    (point,) = (p for p in points() if p.run == "Alpa")
    small = replace(point, model=Gpt(2, 64, 4, 16, 64, dropout=0.0), batch=8)
    shared, whole = priced(small), priced(replace(small, shares_updates=False))
    held = whole.memory - shared.memory
    assert held % 8 == 0
    assert 0 < held < whole.memory / 2


@pytest.mark.soak
def test_full_recomputation_costs_as_much_more_than_selective_as_published():
    """Megatron-LM's four models of 2022, each with both: 1.29 to 1.32 times as long."""
    pairs = of_two_recomputations([priced(p) for p in points() if p.run == "Megatron 2022"])
    assert len(pairs) == 4
    for full, selective in pairs:
        published = full.point.seconds / selective.point.seconds
        assert full.seconds / selective.seconds == pytest.approx(published, abs=0.05)


def test_published_memory_is_compared():
    (point,) = (p for p in points() if p.run == "Alpa")
    assert point.memory == 8.745e9
    assert point.precision == "fp16"
    priced_point = Priced(point, point.seconds, round(1.1 * 8.745e9))
    assert priced_point.memory_error == pytest.approx(0.1)
    assert not priced_point.is_refused
    assert Priced(point, point.seconds, 17_000_000_000).is_refused

"""The arithmetic of torch functions without an equation, counted as torch counts it."""

from __future__ import annotations

import pytest
import torch
from support.graphs.torch_cases import CASES, TorchCase
from torch.utils.flop_counter import FlopCounterMode

from pcg.graph.graph import Node, leaf
from pcg.graph.opaque import TensorType, batched, whole_or_batched
from pcg.graph.torch_calls import parse_call
from pcg.ops.parallel import partition, replicate
from pcg.readings.kind import kind_of
from pcg.readings.torch_work import PRODUCTS, is_contraction, products
from pcg.readings.work import work

RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
COUNTED = [case for case in CASES if case.name in PRODUCTS or case.name in RECURRENT]
UNKNOWN = RECURRENT | {"scaled_dot_product_attention"}
"""Functions whose CPU kernels torch may not count."""


def lengths_of(case: TorchCase) -> dict[str, int]:
    reads, writes = case.types()
    operator = whole_or_batched(case.function, reads, writes)
    axes = getattr(operator, "axes", ())
    return {f"n{i}": writes[0].shape[axis.results[0]] for i, axis in enumerate(axes)}


@pytest.mark.parametrize("case", COUNTED, ids=str)
def test_counts_are_those_of_torch(case: TorchCase) -> None:
    reads, writes = case.types()
    operator = whole_or_batched(case.function, reads, writes)
    assert is_contraction(operator)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        case.run(case.drawn())
    counted = counter.get_total_flops()
    assert counted or case.name in UNKNOWN
    if counted:
        assert 2 * products(operator, lengths_of(case)) == pytest.approx(counted, rel=0.3)


def test_every_entry_is_tried() -> None:
    names = {case.name for case in CASES}
    names |= {f"{case.name}.{parse_call(case.function).overload}" for case in CASES}
    assert names >= PRODUCTS.keys()


def test_a_block_has_its_part() -> None:
    x, w = TensorType((8, 4, 9), "float32"), TensorType((5, 4, 3), "float32")
    y = TensorType((8, 5, 7), "float32")
    call = batched("aten.conv1d.default(x0, x1)", [x, w], [y])()
    image, weight = leaf("input", "x", (8, 4, 9)), leaf("weight", "w", (5, 4, 3))
    whole = Node(call, (image, weight))
    block = Node(
        call,
        (
            Node(partition(dim=0, degree=4), (image,)).value(),
            Node(replicate(degree=4), (weight,)).value(),
        ),
    )
    needs = frozenset({0, 1})
    one, part = work(whole, needs), work(block, needs)
    assert one.flops_forward >= 2 * 8 * 5 * 7 * 4 * 3
    assert 0.2 < part.flops_forward / one.flops_forward < 0.3
    assert one.flops_backward > 1.5 * one.flops_forward
    assert kind_of(whole) == kind_of(block) == "contraction"
    other = batched("aten.cumsum.default(x0, 1)", [x], [x])
    assert products(other, {}) == 0

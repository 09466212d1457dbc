"""The saved tensors of a transformer's layer, by the formulas of Korthikanti et al.

Their section 4 counts bytes of 16-bit activations and of one-byte masks, for a sequence s, a micro-
batch b, a hidden size h, a heads and t tensor-parallel devices (table 2).
"""

from __future__ import annotations

from math import prod

import pytest
from fidelity.models import Gpt
from fidelity.price import TRAINING, graph_of

from pcg.machine import load_machine
from search.by_hand.degrees import parse_degrees
from search.by_hand.planner import HandPlanner
from search.cost.liveness import liveness
from search.cost.memory import itemsizes
from substitutions.rules.store import load_library

H, A, S, B, T = 64, 8, 16, 2, 4
QUADRATIC = 5 * A * S / H
"""The bytes saved of scores, in units of s b h; the paper's 5 a s / h."""


@pytest.mark.parametrize(
    ("degrees", "units"),
    [
        ("tensor=1", 34 + QUADRATIC),
        pytest.param(f"tensor={T}", 10 + 24 / T + QUADRATIC / T, marks=pytest.mark.soak),
        (f"tensor={T},sequence", 34 / T + QUADRATIC / T),
        pytest.param(f"tensor={T},recompute=selective", 10 + 24 / T, marks=pytest.mark.soak),
        (f"tensor={T},sequence,recompute=selective", 34 / T),
        (f"tensor={T},recompute=full", 2),
    ],
)
def test_a_layer_keeps_as_much_as_the_paper_says(degrees: str, units: float):
    more, fewer = (_kept(layers, degrees) for layers in (3, 2))
    assert more - fewer == units * S * B * H


def _kept(layers: int, degrees: str) -> int:
    """Bytes that a device holds when the forward pass ends, without weights and data."""
    machine = load_machine("dgx-a100").with_devices(parse_degrees(degrees).tensor)
    graph = graph_of(Gpt(layers, H, A, S, 64), B)
    plan = HandPlanner(machine, load_library(), parse_degrees(degrees), TRAINING).priced(graph)
    living = liveness(plan.steps, plan.recompute)
    itemsize, turn = itemsizes(plan.steps, TRAINING), living.end // 2
    return sum(
        prod(life.layout.type.held) * itemsize(life)
        for life in living.lifetimes
        if 0 < life.first < turn <= life.last and 0 in life.layout.devices
    )

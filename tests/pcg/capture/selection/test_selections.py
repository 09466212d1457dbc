"""Elements that a mask of data selects: the graph computes all places, and its loss and gradients
are those of the selection."""

from __future__ import annotations

import pytest
import torch
from support import selections
from support.graphs.torch_functions import default_dtype

from pcg.capture import capture
from pcg.errors import InputError
from pcg.plan.text import parse_graph, print_graph
from runtime.train.eager import compare_module

NEAR = 1e-9
EVERY = 4
"""One in this many is tried in every run. Long runs try all."""


def cases() -> list[object]:
    names = enumerate(selections.EXACT)
    return [pytest.param(n, marks=pytest.mark.soak if i % EVERY else ()) for i, n in names]


@pytest.mark.parametrize("name", cases())
def test_values_and_gradients_are_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        module, inputs = selections.Layers(selections.EXACT[name]), selections.inputs()
        captured = capture(module, inputs)
        comparison = compare_module(module, inputs, captured, "model")
    assert comparison.error is not None, comparison.reason
    assert comparison.error < NEAR
    assert not captured.opaque
    assert parse_graph(print_graph(captured.graph)) == captured.graph


@pytest.mark.parametrize("name", selections.REFUSED)
def test_what_has_no_form_at_all_places_is_refused_by_its_line(name: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(InputError, match=r"selections\.py: line \d+: ") as raised:
        capture(selections.Layers(selections.REFUSED[name]), selections.inputs())
    assert "\n" not in str(raised.value)

"""Features of torch that models use: the captured graph has equal values and gradients, or one line
refuses them."""

from __future__ import annotations

import pytest
import torch
from support.graphs import tricky
from support.graphs.torch_functions import default_dtype
from support.graphs.tricky import ROWS, WIDTH, Parts
from support.tricky_values import UNHELD, VALUES

from pcg.capture import capture
from pcg.errors import InputError
from pcg.plan.text import parse_graph, print_graph
from runtime.train.eager import compare_module

EXACT = tricky.EXACT | VALUES
REFUSED = tricky.REFUSED | UNHELD
NEAR = 1e-9
SLOW = "a choice by torch.cond"
"""Torch compiles both branches, which takes long."""
EVERY = 20
"""One in this many is tried in every run, beside those of values. Long runs try all."""
EXAMPLE = (torch.zeros(ROWS, WIDTH),)


def cases() -> list[object]:
    names = enumerate(EXACT)
    long = pytest.mark.soak
    return [pytest.param(n, marks=long if i % EVERY and n not in VALUES else ()) for i, n in names]


@pytest.mark.parametrize("name", cases())
def test_gradients_are_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        module = Parts(EXACT[name]).double()
        captured = capture(module, (EXAMPLE[0].double(),))
        comparison = compare_module(module, EXAMPLE, captured, "model")
    assert comparison.error is not None, comparison.reason
    assert comparison.error < NEAR
    assert parse_graph(print_graph(captured.graph)) == captured.graph


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.soak if n == SLOW else ()) for n in REFUSED]
)
def test_model_that_no_graph_holds_is_refused_by_its_line(name: str) -> None:
    with pytest.raises(InputError, match=r"py: line \d+: |^model: torch\.export: ") as raised:
        capture(Parts(REFUSED[name]), EXAMPLE)
    assert "\n" not in str(raised.value)


def test_an_input_that_is_given_twice_is_two() -> None:
    """For example, ids that are labels too: torch takes them for one tensor."""
    ids = torch.randint(0, 7, (ROWS,))

    class Language(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(7, WIDTH)
            self.head = torch.nn.Linear(WIDTH, 7)

        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.head(self.table(ids)), labels)

    captured = capture(module := Language(), (ids, ids))
    assert captured.inputs == ("ids", "labels")
    assert (comparison := compare_module(module, (ids, ids), captured, "model")).error is not None
    assert comparison.error < NEAR

"""The comparison of the graph of a user's model with the module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.graphs.own_model import write_own
from torch import Tensor

from pcg.capture import Captured
from pcg.errors import InputError
from pcg.graph.graph import Graph
from pcg.models import capture_model
from runtime.train import eager
from runtime.train.check import evaluate
from runtime.train.eager import compare_with_module

SOURCE = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.second = nn.Linear(5, 3, bias=False)

    def forward(self, x, labels):
        hidden = torch.relu(self.norm(self.first(x)))
        scores = self.second(nn.functional.dropout(hidden, 0.25))
        return nn.functional.cross_entropy(scores, labels), {EXTRA}

def make():
    return Net(), (torch.zeros(8, 6), torch.zeros(8, dtype=torch.long))
"""
PARAMETERS = ("first.weight", "first.bias", "norm.weight", "norm.bias", "second.weight")


def write(folder: Path, extra: str = "scores") -> str:
    path = folder / "net.py"
    path.write_text(SOURCE.replace("{EXTRA}", extra))
    return f"{path}:make"


@pytest.fixture(scope="module")
def name(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("eager"))


@pytest.fixture(scope="module", autouse=True)
def _captured_once(name: str):
    """Capture once: a capture costs more than all that the tests do with it."""
    captured = capture_model(name, None, 1)

    def capture(model: str, batch: int | None, devices: int) -> Captured:
        return captured if model == name else capture_model(model, batch, devices)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eager, "capture_model", capture)
        yield


Leaves = Mapping[str, Tensor]


def disturb(
    patch: pytest.MonkeyPatch,
    leaves: Callable[[Leaves], Leaves] = lambda given: given,
    outputs: Callable[[list[Tensor]], list[Tensor]] = lambda found: found,
) -> None:
    """Make the graph compute another function, with other leaves or other outputs."""

    def other(graph: Graph, given: Leaves) -> tuple[Tensor, ...]:
        return tuple(outputs(list(evaluate(graph, leaves(given)))))

    patch.setattr(eager, "evaluate", other)


def with_gradient(leaf: str, change: Callable[[Tensor], Tensor]) -> Callable[[Leaves], Leaves]:
    """A leaf of the same values with another gradient."""

    def changed(given: Leaves) -> Leaves:
        read = given[leaf].clone()
        read.register_hook(change)
        return {**given, leaf: read}

    return changed


def refused(name: str) -> str:
    with pytest.raises(InputError) as caught:
        compare_with_module(name)
    message = str(caught.value)
    assert "\n" not in message
    assert name in message
    assert "--no-self-check" in message
    return message


def test_a_graph_that_is_the_module_agrees(name: str, tmp_path: Path):
    for model, wanted in ((name, len(PARAMETERS)), (write_own(tmp_path), 11)):
        actual = compare_with_module(model)
        assert actual.error is not None
        assert actual.error <= eager.NEAR
        assert not actual.reason
        assert actual.gradients == wanted
        assert f"{wanted} gradients agree to {actual.error:.1e}" in str(actual)


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_another_gradient_is_refused_by_its_parameter(
    name: str, parameter: str, monkeypatch: pytest.MonkeyPatch
):
    weights = {w.parameter: w.leaf for w in eager.capture_model(name, None, 1).weights}
    assert set(weights) == set(PARAMETERS)
    for change in (lambda grad: grad + 1e-3, lambda grad: grad * torch.nan):
        disturb(monkeypatch, with_gradient(weights[parameter], change))
        assert f"the gradient of {parameter} differs by " in refused(name)


@pytest.mark.parametrize("number", [0, 1])
def test_another_output_is_refused_by_its_number(
    name: str, number: int, monkeypatch: pytest.MonkeyPatch
):
    for factor in (1.0001, torch.nan):

        def outputs(given: list[Tensor], factor: float = factor) -> list[Tensor]:
            given[number] = given[number] * factor
            return given

        disturb(monkeypatch, outputs=outputs)
        assert f"output {number} differs by " in refused(name)


def test_an_output_of_another_shape_is_refused(name: str, monkeypatch: pytest.MonkeyPatch):
    # Both would broadcast to the shape of the module's output, with the same numbers.
    for number, other in ((0, lambda loss: loss[None]), (1, lambda scores: scores[None])):

        def outputs(given: list[Tensor], number: int = number, other: Any = other) -> list[Tensor]:
            given[number] = other(given[number])
            return given

        disturb(monkeypatch, outputs=outputs)
        assert f"output {number} has shape [1" in refused(name)


def test_a_module_that_is_not_finite_is_not_compared(tmp_path: Path):
    """NaN on both sides shows neither that the graph agrees nor that it does not."""
    cases = {
        "loss": (
            "scores * 0 + 1, ",
            "cross_entropy(scores, labels)",
            "cross_entropy(scores.sqrt(), labels)",
        ),
        "output 1": ("scores.log()", "", ""),
        "the gradient of first.weight": (
            "scores",
            "torch.relu(self.norm(self.first(x)))",
            "(self.norm(self.first(x)) * 0).abs().sqrt()",
        ),
    }
    for what, (extra, old, new) in cases.items():
        model = write(tmp_path, extra)
        path = Path(model.rpartition(":")[0])
        path.write_text(path.read_text().replace(old, new) if old else path.read_text())
        comparison = compare_with_module(model)
        assert comparison.error is None, what
        assert what in comparison.reason
        assert "not finite" in str(comparison)


def test_module_that_raises_on_random_inputs_is_not_compared(tmp_path: Path):
    model = write(tmp_path, "self.only_examples(x)")
    path = Path(model.rpartition(":")[0])
    path.write_text(
        path.read_text()
        + """
def only_examples(self, x):
    if x.device.type != "meta":
        raise RuntimeError("two\\nlines")
    return x * 2

Net.only_examples = only_examples
"""
    )
    comparison = compare_with_module(model)
    assert comparison.error is None
    assert "RuntimeError: two" in comparison.reason
    assert "\n" not in str(comparison)


def test_too_large_a_model_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch):
    graph = eager.capture_model(name, None, 1).graph
    weights = [node.leaf.type for node in graph.leaves if node.leaf.kind == "weight"]
    count = sum(own.elements for own in weights if own is not None)
    for limit, said in (
        ("MOST_PARAMETERS", f"it has {count} parameters, more than {count - 1}"),
        ("MOST_OPERATIONS", "a step takes "),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(eager, limit, count - 1)
            comparison = compare_with_module(name)
        assert (comparison.error, comparison.gradients) == (None, 0)
        assert comparison.reason.startswith(said)
        assert str(comparison).startswith("not compared with the module itself")
    monkeypatch.setattr(eager, "MOST_PARAMETERS", count)
    assert compare_with_module(name).error is not None


def test_a_large_model_is_never_made(tmp_path: Path):
    path = tmp_path / "large.py"
    path.write_text(
        """\
import torch
from torch import nn

class Large(nn.Module):
    def __init__(self):
        super().__init__()
        assert torch.empty(1).is_meta, "is made for real"
        self.wide = nn.Linear(5000, 5000)

    def forward(self, x):
        return self.wide(x).mean()

def make():
    return Large(), (torch.zeros(2, 5000),)
"""
    )
    comparison = compare_with_module(f"{path}:make")
    assert comparison.reason == "it has 25,005,000 parameters, more than 20,000,000"

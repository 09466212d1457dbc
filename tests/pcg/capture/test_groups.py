"""Modules captured with their batch norms in groups of samples."""

from __future__ import annotations

import pytest
import torch
from support.cases import a_third
from torch import nn

from pcg.capture import capture
from pcg.errors import InputError
from pcg.plan.statistics import groups_of
from runtime.train.check import evaluate

BATCH = 12


class Net(nn.Module):
    """Samples are joined with another axis between norms, and separated again."""

    def __init__(self):
        super().__init__()
        self.widen = nn.Linear(2, 3)
        self.first = nn.BatchNorm1d(3)
        self.linear = nn.Linear(3, 4)
        self.second = nn.BatchNorm1d(4, affine=False)

    def forward(self, x):
        x = torch.relu(self.first(self.widen(x).transpose(1, 2)))
        rows = self.linear(x.transpose(1, 2)).reshape(-1, 4)
        rows = self.second(rows + torch.arange(4.0)).reshape(x.shape[0], -1)
        return torch.sigmoid(rows).square().mean()


def captured(module, groups, *shape):
    given = torch.empty(*(shape or (BATCH, 5, 2)))
    return capture(module, (given,), "net", groups)


@pytest.mark.parametrize("groups", a_third([1, 2, 3, 4, 6, 12]))
def test_values_and_gradients_are_those_of_a_module_for_each_group(groups):
    torch.manual_seed(0)
    module, x = Net().double(), torch.randn(BATCH, 5, 2, dtype=torch.float64)
    actual = captured(Net(), groups)
    assert actual.norm_groups == groups
    assert groups_of(actual.graph) == ({groups} if groups > 1 else set())
    wanted = torch.stack([module(part) for part in x.chunk(groups)]).mean()
    expected = torch.autograd.grad(wanted, list(module.parameters()))
    state = dict(module.named_parameters())
    leaves = {leaf.leaf.name: x for leaf in actual.graph.leaves if leaf.leaf.kind == "input"}
    for weight in actual.weights:
        parameter = state[weight.parameter].detach()
        given = parameter.mT if weight.transposed else parameter
        leaves[weight.leaf] = given.clone().requires_grad_()
    for name, buffer in actual.buffers.items():
        leaves[name] = torch.arange(4.0, dtype=torch.float64)
        assert buffer
    loss, *_ = evaluate(actual.graph, leaves)
    torch.testing.assert_close(loss, wanted)
    gradients = torch.autograd.grad(loss, [leaves[w.leaf] for w in actual.weights])
    pairs = zip(actual.weights, gradients, strict=True)
    by_name = {w.parameter: g.mT if w.transposed else g for w, g in pairs}
    for name, gradient in zip(state, expected, strict=True):
        torch.testing.assert_close(by_name[name], gradient)


def refusal(module, groups, *shape):
    with pytest.raises(InputError) as caught:
        captured(module, groups, *shape)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize("groups", a_third([5, 7, 8, 24, 1 << 20]))
def test_groups_that_are_not_equal_are_refused(groups):
    assert f"12 samples cannot take them in {groups} equal groups" in refusal(Net(), groups)


class Turned(nn.Module):
    """A norm of rows in which the samples are the inner digit, so groups would mix them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.linear(x.transpose(0, 1)).reshape(-1, 4)).sigmoid().mean()


class Mixed(Turned):
    """A norm of values that depend on all samples."""

    def forward(self, x):
        x = self.linear(x) - self.linear(x).mean(dim=0, keepdim=True)
        return self.norm(x.reshape(-1, 4)).sigmoid().mean()


class Apart(Turned):
    """A norm that reads no sample."""

    def forward(self, x):
        return (self.norm(self.linear.weight.repeat(1, 2)).sum() * x).mean()


@pytest.mark.parametrize("kind", [Turned, Mixed, Apart])
def test_a_norm_whose_rows_are_not_the_samples_in_order_is_refused(kind):
    assert captured(kind(), 1, BATCH, 4, 2).norm_groups == 1
    assert "first dimension is not known to be the samples in order" in refusal(
        kind(), 2, BATCH, 4, 2
    )


def test_a_module_without_norms_has_no_groups():
    module = nn.Sequential(nn.Linear(2, 3), nn.Flatten(0), nn.Softmax(0))
    loss = capture(_Mean(module), (torch.empty(7, 2),), "net", 4)
    assert loss.norm_groups == 1


class _Mean(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).mean()

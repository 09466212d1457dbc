"""Placements of DTensors, as another package finds them, become annotations and plans."""

from __future__ import annotations

import pytest
import torch
from support.peers.autoparallel import shardings_of
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard

from pcg.capture import capture
from pcg.machine import load_machine
from search.planners.common import PlannerSetting
from search.planners.gspmd.planner import GspmdPlanner
from substitutions.rules.store import load_library


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(64, 256)
        self.back = nn.Linear(256, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(torch.relu(self.wide(x))).square().mean()


MEGATRON = {
    "wide.weight": (Replicate(), Shard(0)),
    "wide.bias": (Replicate(), Shard(0)),
    "back.weight": (Replicate(), Shard(1)),
}
AXES = "data", "model"


def captured():
    return capture(Perceptron(), (torch.zeros(16, 64),))


def test_dimensions_are_those_of_the_graph():
    """A linear layer's weight is [out, in] in torch, and [in, out] in the graph."""
    told = shardings_of(captured(), MEGATRON, AXES)
    assert sorted(told) == [
        "back_weight=model,-",
        "wide_bias=model",
        "wide_weight=-,model",
        "x=data,-",
    ]
    both = {"back.weight": (Shard(0), Shard(0))}
    assert shardings_of(captured(), both, AXES)[0] == "back_weight=-,data+model"


def test_a_plan_places_parameters_as_they_were_placed():
    own = captured()
    setting = PlannerSetting(load_machine("dgx-a100").with_devices(4), load_library())
    told = tuple(shardings_of(own, MEGATRON, AXES))
    plan = GspmdPlanner(setting, "data=2,model=2", told).plan("perceptron", own.graph).plan
    products = [node for node in plan.graph.operators if node.name == "matmul"]
    cut = [tuple(value.type.degrees.dims for value in node.inputs) for node in products]
    assert cut == [((2, 1), (1, 2)), ((2, 2), (2, 1))]


def test_partial_placement_of_a_parameter_is_refused():
    with pytest.raises(ValueError, match="expected Shard or Replicate along model"):
        shardings_of(captured(), {"wide.bias": (Replicate(), Partial())}, AXES)

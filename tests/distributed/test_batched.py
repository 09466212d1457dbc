"""Functions that work slice by slice, in plans of data parallelism: cut, audited, trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.graphs.capturing import assert_agrees
from support.graphs.torch_functions import default_dtype
from support.runs.plain_steps import stepped
from support.runs.simulated import on_ranks
from torch import Tensor, nn
from torch.nn import functional as f

from pcg.graph.graph import Graph
from pcg.graph.opaque import Batched, opaque_nodes, torch_functions
from pcg.machine import load_machine
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph, print_graph
from runtime.program.lower import Lowering
from runtime.program.validate import validate_lowered
from search.cost.cost import SGD
from substitutions.audit.proofs import check_proofs
from substitutions.audit.replay import replay
from substitutions.rules.store import load_library
from unity.support.planners import planner_of
from verifier.bundle import Bundle
from verifier.solvers import SOLVERS

DEVICES = 4
EMPTY = Bundle((), {})


class Sliced(nn.Module):
    """Functions that work slice by slice, with weights, indices and several results."""

    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(6, 12), nn.Linear(4, 3)
        self.norm = nn.GroupNorm(3, 12)
        self.register_buffer("order", torch.tensor([3, 1, 0, 2]))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.norm(torch.logcumsumexp(self.into(x), 1))
        best, places = torch.topk(h, 4)
        h = best + h.gather(1, places.flip(1)) + h.kthvalue(2, 1, keepdim=True)[0]
        chosen = torch.cumprod(h, 1).cummax(1)[0].index_select(1, self.order)
        return f.cross_entropy(self.out(chosen), labels)


class Pictures(nn.Module):
    """Convolutions, pools and grid samples of images."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Conv2d(2, 4, 3, dilation=2, padding=2)
        self.out = nn.Linear(4 * 5 * 5, 3)

    def forward(self, x: Tensor, grid: Tensor, labels: Tensor) -> Tensor:
        h = f.max_pool2d(self.near(x), 2, ceil_mode=True)
        h = f.grid_sample(f.pad(h, (1, 1, 1, 1), "reflect"), grid, align_corners=False)
        h = f.interpolate(h, size=(5, 5), mode="bilinear")
        return f.cross_entropy(self.out(h.flatten(1)), labels)


def sliced() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Sliced(), (torch.randn(8, 6), torch.randint(3, (8,)))


def pictures() -> tuple[nn.Module, tuple[Tensor, ...]]:
    grid = torch.rand(8, 4, 4, 2) * 2 - 1
    return Pictures(), (torch.randn(8, 2, 7, 7), grid, torch.randint(3, (8,)))


def captured(make: Any) -> Graph:
    torch.manual_seed(1)
    with default_dtype(torch.float64):
        return assert_agrees(*make()).graph


def planned(graph: Graph, devices: int) -> Plan:
    machine = load_machine("dgx-a100").with_devices(devices)
    planner = planner_of("data-parallel", machine, load_library(), 20.0, SGD, None)
    return planner.plan("sliced", graph).plan


def trained(plan: Plan) -> tuple[list[float], dict[str, Tensor]]:
    """The losses of some steps, and the weights after them."""
    lowering = Lowering(plan)
    validate_lowered(lowering)
    ranks = on_ranks(plan.machine.devices, lambda world: stepped(lowering, world))
    weights: dict[str, Tensor] = {}
    for rank in ranks:
        for piece in rank.pieces:
            assert piece.gradient is not None
            weights[piece.leaf] = piece.weight
    return ranks[0].losses, weights


@pytest.mark.parametrize(
    ("make", "least"), [(sliced, 4), pytest.param(pictures, 2, marks=pytest.mark.soak)]
)
def test_data_parallelism_cuts_batched_functions(make: Any, least: int) -> None:
    graph = captured(make)
    assert not opaque_nodes(graph)
    assert sum(isinstance(function, Batched) for function in torch_functions(graph)) >= least
    plan = planned(parse_graph(print_graph(graph)), DEVICES)
    for node in plan.graph.operators:
        for operand in (v.node for v in node.inputs if v.node.name == "combine"):
            # The same blocks again: no gather.
            assert node.name == "partition"
            assert node.operator_call.values == operand.operator_call.values
    for node in plan.graph.operators:
        if isinstance(node.operator_call.operator, Batched):
            assert DEVICES in node.types[0].degrees.dims
    alone, together = trained(planned(graph, 1)), trained(plan)
    assert together[0] == pytest.approx(alone[0], rel=1e-11)
    assert together[1].keys() == alone[1].keys()
    for name, weight in together[1].items():
        torch.testing.assert_close(weight, alone[1][name], rtol=1e-10, atol=1e-12)


def test_audit_follows_the_plan_and_proves_its_rules_again() -> None:
    followed = replay(planned(captured(sliced), DEVICES), load_library().rules)
    assert followed.findings == ()
    own = {name: rule for name, rule in followed.rules.items() if name.startswith("batched_")}
    assert len(own) >= 3
    checked = check_proofs(own, EMPTY, {"z3": SOLVERS["z3"]})
    assert checked.findings == ()
    assert checked.conditions > len(own)

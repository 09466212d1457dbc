"""Running statistics of batch norms, captured and written in a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.plans.by_hand import make_plan
from torch import nn

from pcg.capture import capture
from pcg.errors import InputError
from pcg.files import read_json
from pcg.plan.plan import altered_parts, load_plan, save_plan
from pcg.plan.schema import PlanFile


class Net(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4, **settings)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x))).mean()


def captured(**settings):
    return capture(Net(**settings), (torch.empty(6, 4),))


def test_statistics_of_a_batch_norm_are_of_its_operand():
    graph = captured(momentum=0.3)
    (record,) = graph.statistics
    (norm,) = [node for node in graph.graph.nodes if node.name == "batch_norm"]
    (before,) = [v for v in norm.inputs if not v.node.is_leaf]
    assert before.node.name == "add"
    assert record.momentum == 0.3
    assert record.mean == ("norm.running_mean",)
    assert record.variance == ("norm.running_var",)
    assert record.count == ("norm.num_batches_tracked",)


def test_norms_in_evaluation_or_without_statistics_keep_none():
    assert captured(track_running_stats=False).statistics == ()
    assert capture(Net().eval(), (torch.empty(6, 4),)).statistics == ()


def test_an_average_over_all_batches_is_refused():
    with pytest.raises(InputError, match="norm: batch norm with momentum=None, expected a number"):
        captured(momentum=None)


def plan_with(statistics):
    graph = captured().graph
    return replace(make_plan(graph, graph, 1, {}), statistics=statistics)


def test_plan_without_statistics_is_read_as_before(tmp_path):
    path = tmp_path / "plan.json"
    save_plan(plan_with(()), path)
    text = path.read_text()
    path.write_text(text.replace(',\n "statistics": null', ""))
    assert path.read_text() != text
    assert altered_parts(read_json(path, PlanFile)) == ()
    assert load_plan(path).statistics == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"value": "no"}, "value no: no tensor of the model with channels"),
        ({"value": "linear_bias"}, "value linear_bias: no tensor of the model with channels"),
        ({"at": "no"}, "at no: no such tensor in the plan's graph"),
        ({"at": "linear_bias"}, "at linear_bias: another shape than t2 of the model"),
    ],
)
def test_statistics_of_a_plan_are_checked(tmp_path, change, problem):
    (record,) = captured().statistics
    save_plan(plan_with((record.model_copy(update=change),)), tmp_path / "plan.json")
    with pytest.raises(InputError, match=rf"statistics\[0\]: {problem}"):
        load_plan(tmp_path / "plan.json")

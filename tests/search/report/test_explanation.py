"""The explanation of an operator: its cost, its placement, and why it is not cut otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.plans.cut_by_hand import CUTS, DATA, SHARDED, TENSOR, plan_of, simulated

from pcg.errors import InputError
from pcg.plan.naming import NamingFile, ParameterFile
from pcg.plan.text import node_names
from search.report.explanation import PlanExplainer, find
from search.report.spending import representative, spent


def explained(text: str, name: str, **changes: object):
    plan = replace(plan_of(text), **changes)
    explainer = PlanExplainer(simulated(plan))
    return explainer.explain(find(plan, name, "plan.json"))


@pytest.mark.parametrize("name", CUTS)
def test_every_task_is_charged_once(name):
    """The time charged to operators is all the work of their device."""
    base = simulated(plan_of(CUTS[name]))
    costs = spent(base)
    devices = {representative(base, node) for node in costs}
    assert devices == {base.busiest.device}
    use = base.busiest
    assert sum(c.computing for c in costs.values()) == pytest.approx(use.computing)
    communicated = sum(c.resharding + c.exchange for c in costs.values())
    assert communicated == pytest.approx(use.communicating)
    exposed = sum(c.resharding_exposed + c.exchange_exposed for c in costs.values())
    assert exposed == pytest.approx(use.exposed, abs=1e-15)


def test_placements_are_stated_in_words_of_the_glossary():
    explanation = explained(TENSOR, "w2")
    assert explanation.row.cut == "reduction 4"
    assert explanation.row.devices == "0-3"
    assert [placed for _, placed in explanation.operands] == ["Shard(1) over 4", "Shard(0) over 4"]
    assert [placed for _, placed in explanation.results] == ["Partial over 4"]
    (index,) = [index for index in explanation.indices if index.name == "n"]
    assert (index.length, index.degree) == (10, 1)
    assert index.refused == "10 elements cannot be cut in 4 equal blocks, at most in 2"
    assert [i.refused for i in explanation.indices if i.name != "n"] == [None, None]


def test_explanation_states_where_a_weight_is_stored():
    explanation = explained(SHARDED, "w2")
    assert explanation.operands[1][1] == "Replicate over 4 (stored: Shard(0) over 4)"
    assert explained(DATA, "w2").operands[1][1] == "Replicate over 4"


def test_index_reduced_inside_a_function_is_never_cut():
    explanation = explained(DATA, "softmax")
    refused = {index.length: index.refused for index in explanation.indices}
    assert refused[48] is None
    assert "10 elements" not in (refused[10] or "")
    assert "other blocks" in (refused[10] or "") or "reduced inside" in (refused[10] or "")


def test_operators_go_by_many_names():
    plan = plan_of(DATA)
    named = NamingFile(parameters={"w1": ParameterFile(names=("layers.0.weight",))})
    plan = replace(plan, naming=named)
    names = node_names(plan.graph)
    first, relu, second = list(plan.views)[:3]
    assert find(plan, names[relu][0], "p") == find(plan, "relu", "p") == (relu,)
    assert find(plan, "w1", "p") == find(plan, "layers.0.weight", "p") == (first,)
    assert find(plan, "matmul", "p") == (first, second)
    with pytest.raises(InputError, match=r"near it are softmax"):
        find(plan, "sofmax", "p")
    with pytest.raises(InputError, match=r"no such operator in the plan \(there are "):
        find(plan, "\u2603" * 9, "p")


def test_equal_operators_are_explained_together():
    text = """
x = input[48, 12]
w1 = weight[12, 12]
w2 = weight[12, 12]
w3 = weight[12, 12]
return mean_loss(matmul(matmul(matmul(x, w1), w2), w3))
"""
    plan = plan_of(text, text)
    groups = list(PlanExplainer(simulated(plan)).groups())
    assert sorted(len(group) for group in groups) == [1, 1, 1, 1]
    more = text.replace("matmul(x, w1)", "matmul(matmul(x, w0), w1)").replace(
        "w1 =", "w0 = weight[12, 12]\nw1 ="
    )
    groups = list(PlanExplainer(simulated(plan_of(more, more))).groups())
    assert sorted(len(group) for group in groups) == [1, 1, 1, 2]

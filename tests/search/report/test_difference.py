"""The difference of two plans: empty for equal plans, and complete for others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.plans.cut_by_hand import CUTS, DATA, MODEL, SHARDED, TENSOR, plan_of, simulated

from pcg.errors import InputError
from pcg.plan.training import Training
from search.report.difference import check_comparable, difference


@pytest.mark.parametrize("name", CUTS)
def test_a_plan_does_not_differ_from_itself(name):
    base = simulated(plan_of(CUTS[name]))
    differences = difference(base, base)
    assert differences.is_none
    assert differences.same == len(base.plan.views)
    assert differences.a == differences.b


@pytest.mark.parametrize(("a", "b"), [(DATA, TENSOR), (DATA, SHARDED), (TENSOR, SHARDED)])
def test_difference_of_swapped_plans_is_the_swapped_difference(a, b):
    one, other = simulated(plan_of(a)), simulated(plan_of(b))
    there, back = difference(one, other), difference(other, one)
    assert {(c.operator, c.count, c.a, c.b) for c in there.changes} == {
        (c.operator, c.count, c.b, c.a) for c in back.changes
    }
    assert (there.a, there.b, there.same) == (back.b, back.a, back.same)
    counted = there.same + sum(change.count for change in there.changes)
    assert counted == len(one.plan.views)


def test_operators_that_are_cut_otherwise():
    differences = difference(simulated(plan_of(DATA)), simulated(plan_of(TENSOR)))
    changed = {(c.operator, c.a and c.a.cut, c.b and c.b.cut) for c in differences.changes}
    assert ("matmul", "data 4", "model 4") in changed
    assert ("matmul", "data 4", "reduction 4") in changed
    assert ("relu", "data 4", "model 4") in changed
    assert differences.same == 2  # the softmax and the loss
    assert differences.a.memory_bytes > differences.b.memory_bytes


def test_weights_that_are_stored_otherwise():
    differences = difference(simulated(plan_of(DATA)), simulated(plan_of(SHARDED)))
    (change,) = differences.changes
    assert change.b is not None
    assert change.b.cut == "data 4 (weights stored: Shard(0) over 4)"


def test_rewrites_make_and_leave_out_operators():
    fused = MODEL.replace("relu(matmul(x, w1))", "matmul_relu(x, w1)")
    actual = difference(simulated(plan_of(MODEL)), simulated(plan_of(fused)))
    only = {(c.operator, c.a is None, c.b is None) for c in actual.changes}
    expected = {("matmul", False, True), ("relu", False, True), ("matmul_relu", True, False)}
    assert only == expected


def test_decisions_about_the_whole_plan():
    plan = plan_of(DATA)
    relu = next(node for node in plan.views if node.name == "relu")
    other = replace(plan, training=Training("adam", "bf16"), recompute=frozenset([relu]))
    differences = difference(simulated(plan), simulated(other))
    settings = {(setting.what, setting.a, setting.b) for setting in differences.settings}
    assert settings == {
        ("recomputation", "none", "1 operator"),
        ("optimizer", "sgd", "adam"),
        ("precision", "fp32", "bf16"),
    }
    assert differences.b.memory_bytes > differences.a.memory_bytes


def test_plans_of_other_models_and_machines_are_refused():
    plan = plan_of(DATA)
    check_comparable(plan, plan, "a", "b")
    larger = MODEL.replace("48", "96")
    other = plan_of(larger, larger)
    with pytest.raises(InputError, match="a: is of test, and b of another graph"):
        check_comparable(plan, other, "a", "b")
    with pytest.raises(InputError, match="and b of you: expected plans of one model"):
        check_comparable(plan, replace(other, model_name="you"), "a", "b")
    alone = plan_of(MODEL, devices=1)
    with pytest.raises(InputError, match="is for 4 x local, and b for 1 x local"):
        check_comparable(plan, alone, "a", "b")

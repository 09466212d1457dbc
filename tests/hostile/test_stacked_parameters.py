"""Plans that falsely state that a weight is a stack of several parameters."""

from __future__ import annotations

import json

import pytest
from support.plans.forged_plans import must_refuse, sign

from pcg.plan.plan import load_plan

SIX = [f"layers.{i}.weight" for i in range(6)]
STACKED = {
    "too few": (
        {"names": ["w"], "stacked": SIX[:5]},
        "5 stacked parameters for a weight of [6, 6]",
    ),
    "too many": (
        {"names": ["w"], "stacked": [*SIX, "more"]},
        "7 stacked parameters for a weight of [6, 6]",
    ),
    "one twice": ({"names": ["w"], "stacked": [*SIX[:5], SIX[0]]}, "expected distinct names"),
    "its own part": ({"names": [SIX[0]], "stacked": SIX}, "expected distinct names"),
    "two names for all": ({"names": ["w", "v"], "stacked": SIX}, "expected distinct names"),
    "turned vectors": (
        {"names": ["w"], "stacked": SIX, "transposed": True},
        "transposed matrices need 3 dimensions, got [6, 6]",
    ),
    "numbers": ({"names": ["w"], "stacked": [1, 2, 3, 4, 5, 6]}, "stacked"),
    "an escape": ({"names": ["w"], "stacked": [*SIX[:5], "\u001b[2J"]}, "control character"),
}


@pytest.mark.parametrize("name", STACKED)
def test_wrong_stacks_are_refused(plan_path, name):
    parameter, said = STACKED[name]
    content = json.loads(plan_path.read_text())
    content["naming"] = {"parameters": {"w1": parameter}}
    sign(content)
    plan_path.write_text(json.dumps(content))
    assert said in must_refuse(plan_path)


def test_possible_stack_is_read(plan_path):
    content = json.loads(plan_path.read_text())
    content["naming"] = {"parameters": {"w1": {"names": ["w"], "stacked": SIX}}}
    sign(content)
    plan_path.write_text(json.dumps(content))
    assert load_plan(plan_path).naming.parameter("w1").stacked == tuple(SIX)

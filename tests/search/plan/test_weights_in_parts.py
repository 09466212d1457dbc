"""Plans of small graphs, against all plans with weights in parts too, with little memory."""

from __future__ import annotations

from math import isfinite

import pytest
from support.plans.small_graphs import compared_in_parts
from support.small.small_cases import SmallCase, mixed_case, small_case

from pcg.machine import load_machine
from pcg.plan.text import parse_graph
from pcg.plan.training import Training
from substitutions.rules.store import Library, load_library

FEW = (2, 15, 30)
"""Quick cases. In the last one, the fastest plan that fits has not the best sum of costs."""
FEW_MIXED = (8,)
"""The same on a V100 and an A100."""
PRODUCT = """
x = input[1536, 96]
w = weight[96, 1536]
return mean_loss(gelu(matmul(x, w)))
"""
ONE_PRODUCT = SmallCase(
    parse_graph(PRODUCT), load_machine("p3-16xlarge").with_devices(2), Training("adam"), 1.0
)
GATHERS = [ONE_PRODUCT, pytest.param(small_case(16), marks=pytest.mark.soak)]
"""In these cases, a plan that fits has weights in parts that are combined before use. The second
has two products, and a hundred times as many plans."""
LONG = (0, 21, 25, 33, 37, 47)
"""These cases have more plans than can be tried in seconds."""
SEEDS = [n for n in range(49) if n not in LONG]


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=() if n in FEW else pytest.mark.soak) for n in SEEDS]
)
def test_no_plan_with_weights_in_parts_is_faster(library, seed):
    """If no plan fits, neither search finds one."""
    made = compared_in_parts(library, small_case(seed))
    print(made)
    assert isfinite(made.found) or not isfinite(made.optimum)
    assert made.found <= made.optimum, made.best


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=() if n in FEW_MIXED else pytest.mark.soak) for n in range(20)]
)
def test_no_plan_with_weights_in_parts_on_two_kinds_of_devices_is_faster(library, seed):
    made = compared_in_parts(library, mixed_case(seed))
    print(made)
    assert isfinite(made.found) or not isfinite(made.optimum)
    assert made.found <= made.optimum, made.best


@pytest.mark.parametrize("case", GATHERS, ids=["one product", "two products"])
def test_weights_are_in_parts_if_no_other_plan_fits(library, case):
    made = compared_in_parts(library, case)
    assert made.gathers
    assert made.best is None

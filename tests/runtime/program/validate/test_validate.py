"""Programs that are lowered from plans are found to be those of their plans."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans.pipelines import planned
from support.plans.random_plans import drawn_plan
from support.plans.small_plans import NAMES, small_plan

from runtime.program.lower import Lowering
from runtime.program.validate import validate_lowered
from substitutions.rules.store import load_library


@pytest.mark.parametrize("name", NAMES)
def test_small_plans(name):
    validate_lowered(Lowering(small_plan(name)))


@pytest.mark.parametrize(
    ("name", "slices", "stages", "kind"),
    [
        ("mlp-mnist", 4, 2, "1f1b"),
        ("xdl-tiny", 4, 1, "1f1b"),
        ("tied", 4, 2, "2bw"),
    ],
)
def test_pipelines(name, slices, stages, kind):
    validate_lowered(Lowering(planned(name, load_library(), slices, stages, kind)))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_random_plans(data):
    validate_lowered(Lowering(drawn_plan(data)))


@pytest.mark.soak
@settings(max_examples=1000, deadline=None)
@given(data=st.data())
def test_many_random_plans(data):
    validate_lowered(Lowering(drawn_plan(data)))

"""Why a plan has rewrites of the algebra, or why it has none, in one line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pcg.machine import load_machine
from pcg.models import build_model
from pcg.plan.pipeline import PipelineFile
from pcg.plan.text import parse_graph
from search.choices import Mode
from search.cost.planned import Planned
from search.cost.survey import NearestRewrite, RewriteSurvey
from search.plan.planner import MeshPlanner
from search.report.rewriting_text import NAMED, algebra_used, rewriting_text
from substitutions.rules.store import Library, load_library

SUM = """
x = weight[24, 36]
y = weight[24, 36]
return sum_loss({})
"""


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def planned(library: Library, text: str, mode: Mode = Mode.JOINT, devices: int = 1) -> Planned:
    machine = load_machine("dgx-a100").with_devices(devices)
    return MeshPlanner(machine, library, mode=mode).plan("sum", parse_graph(SUM.format(text)))


@pytest.fixture(scope="module")
def scaled(library: Library) -> Planned:
    """The plan of a sum that is scaled twice."""
    return planned(library, "scale(scale(add(x, y), factor=0.5), factor=3.0)")


def test_rewrites_that_pay_are_named_with_what_they_save(scaled):
    survey = scaled.report.rewriting
    assert survey is not None
    assert scaled.plan.estimates.step_seconds == pytest.approx(survey.rewritten)
    line = rewriting_text(scaled)
    assert line is not None
    part = 1 - survey.rewritten / survey.plain
    assert line.startswith(f"rewrites save {part:.1%} of a step")
    rules = algebra_used(scaled.plan.derivation)
    assert line.count(" == ") == min(len(rules), NAMED) > 0


def test_nearest_rewrite_is_named_if_no_rewrite_pays(library):
    mlp = build_model("mlp", None, 8)
    plain = MeshPlanner(load_machine("dgx-a100").with_devices(8), library).plan("mlp", mlp)
    survey, line = plain.report.rewriting, rewriting_text(plain)
    assert survey is not None
    assert line is not None
    assert line.startswith(f"no rewrite pays: of {survey.matched} that match, the nearest, ")
    assert not algebra_used(plain.plan.derivation)


def test_line_states_that_no_rewrite_matches(library):
    machine = load_machine("dgx-a100").with_devices(1)
    nothing = MeshPlanner(machine, library).plan(
        "nothing", parse_graph("x = input[4, 4]\nreturn x")
    )
    assert rewriting_text(nothing) == "no rewrite of the algebra matches"


def test_no_line_is_printed_if_no_rewrites_were_tried(library, scaled):
    parallel = planned(library, "add(x, y)", Mode.PARALLEL)
    assert rewriting_text(parallel) is None
    pipeline = PipelineFile(stages=2, micro_batches=4, schedule="1f1b")
    piped = replace(scaled, plan=replace(scaled.plan, pipeline=pipeline))
    assert rewriting_text(piped) is None


@pytest.mark.parametrize(
    ("gain", "effect"),
    [
        (-0.25, "makes a step 25.00% slower"),
        (0.0, "makes no difference"),
        (0.001, "saves 0.10% of a step, which is too little"),
        (0.01, "saves 1.00% of the work, but not of a step in which exchanges overlap with it"),
    ],
)
def test_effect_of_a_rewrite_is_stated_by_its_sign(scaled, gain, effect):
    nearest = NearestRewrite(("f(x, top=top) == g(x, top=2)",), 1, gain)
    survey = RewriteSurvey(1, 0, nearest, plain=1.0)
    line = rewriting_text(replace(scaled, report=replace(scaled.report, rewriting=survey)))
    assert line == (f"no rewrite pays: the one that matches, f(x) == g(x, top=2), once, {effect}")


def test_surveys_of_several_graphs_are_joined():
    near, far = (NearestRewrite(("r",), 1, gain) for gain in (0.1, -0.1))
    of_both = RewriteSurvey(2, 1, far, 3.0).beside(RewriteSurvey(1, 4, near, 2.0, 5.0))
    assert of_both == RewriteSurvey(3, 5, near, 2.0, 5.0)
    assert RewriteSurvey().beside(RewriteSurvey()) == RewriteSurvey()

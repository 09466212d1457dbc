"""The gain of algebraic rewrites in a plan, in one line; or why there is none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import inf

from pcg.plan.derivation import Application
from pcg.types.parallel_operators import PARALLEL
from search.cost.planned import Planned
from search.cost.survey import NearestRewrite, RewriteSurvey
from search.report.describe import rules_used
from search.report.text import seconds_text
from search.substitute.rewrites import LEAST_GAIN

_IS_PARALLEL = re.compile(rf"\b({'|'.join(PARALLEL)})\(")
_SAME = re.compile(r", (\w+)=\1\b")
NEGLIGIBLE = 5e-5
"""The fraction of a step's seconds below which a gain is shown as none."""
NAMED = 3
"""The most rules of a plan that are named."""


def rewriting_text(planned: Planned) -> str | None:
    """The effect of rewrites as text, such as ``no rewrite pays: ...``. None if the search looked
    for none, as for pipelines."""
    survey, plan = planned.report.rewriting, planned.plan
    if survey is None or plan.pipeline is not None:
        return None
    if survey.rewritten < survey.plain:
        return f"{_saved(survey)}: {_named(algebra_used(plan.derivation))}"
    if not survey.matched:
        return "no rewrite of the algebra matches"
    if survey.nearest is None:
        return f"none of the {survey.matched} rewrites that match were priced"
    return f"no rewrite pays: {_nearest(survey.matched, survey.nearest)}{_planned(survey)}"


def _saved(survey: RewriteSurvey) -> str:
    if survey.plain == inf:
        return "without rewrites no plan fits"
    part = 1 - survey.rewritten / survey.plain
    return f"rewrites save {part:.1%} of a step, which takes {seconds_text(survey.plain)} without"


def _nearest(matched: int, nearest: NearestRewrite) -> str:
    of = "the one that matches" if matched == 1 else f"of {matched} that match, the nearest"
    where = "once" if nearest.places == 1 else f"at {nearest.places} places"
    return (
        f"{of}, {' and then '.join(map(_brief, nearest.rules))}, {where}, {_effect(nearest.gain)}"
    )


def _effect(gain: float) -> str:
    if abs(gain) < NEGLIGIBLE:
        return "makes no difference"
    if gain < 0:
        return f"makes a step {-gain:.2%} slower"
    if gain < LEAST_GAIN:
        return f"saves {gain:.2%} of a step, which is too little"
    return f"saves {gain:.2%} of the work, but not of a step in which exchanges overlap with it"


def _planned(survey: RewriteSurvey) -> str:
    if survey.rewritten == inf:
        return ""
    best, plain = seconds_text(survey.rewritten), seconds_text(survey.plain)
    return f"; rewritten, the model takes {best} a step at best, and {plain} without"


def _named(rules: list[tuple[str, int]]) -> str:
    named = [f"{_brief(text)} ({_times(count)})" for text, count in rules[:NAMED]]
    more = [] if len(rules) <= NAMED else [f"{len(rules) - NAMED} more rules"]
    return ", ".join((*named, *more))


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _brief(rule: str) -> str:
    """A rule's text without attributes that equal their name, such as ``top=top``."""
    return _SAME.sub("", rule)


def algebra_used(derivation: Iterable[Application]) -> list[tuple[str, int]]:
    """The rules of a derivation without parallel operators: the text of each, and the number of its
    applications, the most used first."""
    rules = rules_used(tuple(step for step in derivation if not _IS_PARALLEL.search(step.text)))
    return [(text, count) for _, text, count in rules]

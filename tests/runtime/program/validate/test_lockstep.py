"""Following ranks in lockstep gives the same result as following each rank by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import pytest
from support.cases import a_third
from support.plans.by_hand import make_plan
from support.plans.program_mutants import mutants
from support.plans.small_plans import NAMES, small_plan

from pcg.plan.plan import Plan
from pcg.plan.statistics import RunningFile, named_values
from pcg.plan.text import parse_graph
from runtime.program.lower import Lowering
from runtime.program.program import Program
from runtime.program.validate import ProgramError, follow_each
from runtime.program.validate.alike import Forms
from runtime.program.validate.ends import check_ends
from runtime.program.validate.local import Holdings
from runtime.program.validate.lockstep import ClassLanes, NamedGroups, follow_together
from runtime.program.validate.meaning import PlanMeaning

EACH = 40
"""The number of mutants of a plan that are tried, evenly spread over all."""


LEAVES = "x = input[8, 4]\nw = weight[4]\nb = weight[4]\nv = weight[4, 8]\n"
MODEL = """
y = batch_norm(sigmoid(x), w, b, eps=0.1)
return mean_loss(multiply(y, y))
"""
BY_CHANNEL = """
x2 = sigmoid(partition(x, dim=1, degree=4))
y = batch_norm(x2, partition(w, dim=0, degree=4), partition(b, dim=0, degree=4), eps=0.1)
return reduce(mean_loss(multiply(y, y)), degree=4)
"""
SQUARES = """
h = matmul(x, v)
return mean_loss(multiply(h, h))
"""
BY_COLUMNS = """
h = matmul(replicate(x, degree=4), partition(v, dim=1, degree=4))
whole = replicate(combine(h, dim=1, degree=4), degree=4)
return mean_loss(multiply(whole, whole))
"""


def with_statistics() -> Plan:
    """A plan in which each rank norms its own channels and takes their statistics."""
    model, graph = parse_graph(LEAVES + MODEL), parse_graph(LEAVES + BY_CHANNEL)
    (value,) = (n for n, v in named_values(model).items() if v.node.name == "sigmoid")
    (at,) = (n for n, v in named_values(graph).items() if v.node.name == "sigmoid")
    kept = RunningFile(value=value, at=at, mean=("m",), variance=("v",), momentum=1.0)
    return replace(make_plan(model, graph, 4, {}), statistics=(kept,))


def with_copies() -> Plan:
    """A plan in which all ranks have the loss, and one of them counts."""
    model, graph = parse_graph(LEAVES + SQUARES), parse_graph(LEAVES + BY_COLUMNS)
    return make_plan(model, graph, 4, {})


OWN = {"statistics": with_statistics, "copies": with_copies}
"""Plans that are followed in lockstep, beside the small ones."""
ALL = (*NAMES, *OWN)


def lowered(name: str) -> tuple[Plan, tuple[Program, ...]]:
    plan = OWN[name]() if name in OWN else small_plan(name)
    lowering = Lowering(plan)
    return plan, tuple(lowering.program(rank) for rank in range(lowering.ranks))


def in_lockstep(plan: Plan, programs: Sequence[Program]) -> list[Holdings] | None:
    return follow_together(PlanMeaning(plan, "plan"), programs, Forms(), "plan", 4)


def each_alone(plan: Plan, programs: Sequence[Program]) -> list[Holdings]:
    return follow_each(PlanMeaning(plan, "plan"), programs, Forms(), "plan", 4)


def shown(kept: Holdings, program: Program) -> dict[str, str]:
    """The final values of a rank that the checks of a program read."""
    names = {*program.outputs, *([program.loss] if program.loss else [])}
    held = {name: str(kept.contents.get(name)) for name in names}
    return held | {name: str(content) for name, content in kept.statistics.items()}


@pytest.mark.parametrize("name", a_third(ALL))
def test_lockstep_result_equals_that_of_following_each_rank(name):
    plan, programs = lowered(name)
    followed = in_lockstep(plan, programs)
    if followed is None:
        assert name not in (*OWN, "columns then rows"), "expected to be followed in lockstep"
        return
    alone = each_alone(plan, programs)
    for program, one, other in zip(programs, followed, alone, strict=True):
        assert shown(one, program) == shown(other, program)


@pytest.mark.parametrize("name", [*OWN, "columns then rows", "data"])
def test_mutants_accepted_in_lockstep_are_accepted_rank_by_rank(name):
    """If lockstep accepts a mutant, following each rank by itself accepts it too."""
    plan, programs = lowered(name)
    mutations = list(mutants(programs))
    for mutant in islice(mutations, 0, None, max(1, len(mutations) // EACH)):
        meaning = PlanMeaning(plan, "plan")
        try:
            made = follow_together(meaning, mutant.programs, Forms(), "plan", 4)
        except ProgramError:
            continue
        if made is None:
            continue
        try:
            check_ends(meaning, mutant.programs, made, "plan")
        except ProgramError:
            continue
        each_alone(plan, mutant.programs)


def test_classes_meet_the_like():
    """Ranks 0 and 3 have the loss. Pairs meet, then all ranks in a circle of three."""
    pairs = NamedGroups([(0, 1), (0, 1), (2, 5), (3, 4), (3, 4), (2, 5)])
    lanes = ClassLanes(["loss", None, None, "loss", None, None], [pairs])
    assert lanes.stands_for == [0, 1, 2, 0, 1, 2]
    assert lanes.followed == (0, 1, 2)
    apart = NamedGroups([(0, 1), (0, 1), (2, 3), (2, 3), (4,), (5,)])
    assert ClassLanes(["loss", None, None, "loss", None, None], [pairs, apart]).stands_for == [
        *range(6)
    ]

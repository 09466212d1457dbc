"""Programs with one mistake are refused, in a line that names its place."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice

import pytest
from support.cases import a_third
from support.plans.program_mutants import Mutant, mutants
from support.plans.small_plans import NAMES, small_plan

from pcg.plan.plan import Plan
from runtime.program.lower import Lowering
from runtime.program.validate import ProgramError, validate

EACH = 20
"""The number of mutants of a plan that are tried, evenly spread over all."""


def caught(plan: Plan, mutant: Mutant) -> bool:
    try:
        validate(plan, mutant.programs, "plan.json")
    except ProgramError as error:
        return re.fullmatch(r"plan\.json: rank \d+: [^\n]+: [^\n]+", str(error)) is not None
    return False


def all_mutants(name: str) -> list[Mutant]:
    lowering = Lowering(small_plan(name))
    return list(mutants(tuple(lowering.program(rank) for rank in range(lowering.ranks))))


@pytest.mark.parametrize("name", a_third(NAMES))
def test_mutants_are_caught(name):
    mutations = all_mutants(name)
    some = list(islice(mutations, 0, None, max(1, len(mutations) // EACH)))
    assert len(some) >= 20
    left = [f"{m.kind}: {m.at}" for m in some if not caught(small_plan(name), m)]
    assert not left


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_all_mutants_are_caught(name):
    mutations = all_mutants(name)
    print(name, Counter(mutant.kind for mutant in mutations))
    left = [f"{m.kind}: {m.at}" for m in mutations if not caught(small_plan(name), m)]
    assert not left

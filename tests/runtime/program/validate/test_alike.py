"""Rows of operators are followed together for equal ranks, with the same result as one by one."""

from __future__ import annotations

import pytest
from support.cases import a_third
from support.plans.small_plans import NAMES, small_plan

from pcg.plan.plan import Plan
from runtime.program.lower import Lowering
from runtime.program.validate import alike
from runtime.program.validate.frame import RankState
from runtime.program.validate.local import DeviceCheck
from runtime.program.validate.meaning import PlanMeaning
from runtime.program.validate.order import Lanes, run
from runtime.program.validate.passes import PassesCheck, Sync


def held(plan: Plan, readings: int, monkeypatch) -> tuple[list[dict[str, str]], int]:
    """The values that each rank holds in the end, by register, and the number of operators
    followed."""
    lowering = Lowering(plan)
    programs = [lowering.program(rank) for rank in range(lowering.ranks)]
    meaning, forms, lanes = PlanMeaning(plan, "plan"), alike.Forms(), Lanes()
    looked: list[object] = []
    single = DeviceCheck.run
    with monkeypatch.context() as patched:
        patched.setattr(alike, "MATCHES", readings)
        patched.setattr(DeviceCheck, "run", lambda *given: (looked.append(1), single(*given))[1])
        ranks = [RankState(DeviceCheck(p, meaning, forms), lanes, "plan") for p in programs]
        passes = [PassesCheck(rank, Sync(rank, 4)) for rank in ranks]
        run({rank: own.steps() for rank, own in enumerate(passes)}, lanes)
    kept = [own.made.contents for own in passes]
    return [{name: str(own.get(name)) for name in own.tensors} for own in kept], len(looked)


@pytest.mark.parametrize("name", a_third(NAMES))
def test_rows_of_equal_operators_make_the_same_values_as_one_by_one(name, monkeypatch):
    plan = small_plan(name)
    each, all_of_them = held(plan, 0, monkeypatch)
    at_once, some = held(plan, alike.MATCHES, monkeypatch)
    assert at_once == each
    assert some < all_of_them or name in ("one device", "messages")

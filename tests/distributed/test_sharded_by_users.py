"""Plans from users' annotations, run on four processes."""

from __future__ import annotations

import pytest
from support.plans.sharded_by_users import EVERY

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("name", EVERY)
def test_plans_from_annotations_agree_with_one_process(agree, name: str):
    own = EVERY[name]
    agree.of(own.planner.plan(name, own.graph).plan)

"""Buffers that every step changes, under torchrun: they are those of torch on each rank."""

from __future__ import annotations

from os import pathsep
from pathlib import Path

import pytest
from support.pages import ROOT
from support.runs import averages
from support.runs.own_loop import BATCH, STEPS
from support.runs.programs import answer_of
from support.runs.torchrun import environment, torchrun

import unity

pytestmark = [pytest.mark.distributed, pytest.mark.soak]


@pytest.mark.parametrize("planner", ["joint", "zero"])
def test_buffers_are_those_of_torch(planner: str, tmp_path: Path) -> None:
    module, batch = averages.averages(), averages.batch_of(0)
    plan = unity.optimize(
        module, batch, devices=4, batch=BATCH, planner=planner, precision="fp64", quiet=True
    )
    plan.save(path := tmp_path / "plan.json")
    command = [*torchrun(averages.__file__, 4), str(path)]
    paths = [environment()["PYTHONPATH"], str(ROOT / "tests")]
    there = environment() | {"PYTHONPATH": pathsep.join(paths)}
    assert answer_of(command, 120, there) == {"steps": STEPS}

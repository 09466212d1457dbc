"""Lowering and validating the programs of all ranks at 192 devices, for the paper's models and for
the plans of other planners: `make bench`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from time import process_time

import pytest

from pcg.machine import load_machine
from pcg.models import build_model
from pcg.plan.plan import Plan
from runtime.program.lower import Lowering
from runtime.program.program import Program
from runtime.program.validate import validate
from search.cost.cost import SGD
from substitutions.rules.store import load_library
from unity.support.planners import planner_of

pytestmark = pytest.mark.benchmark

ZOO = ("mlp", "dlrm", "xdl", "candle-uno", "bert-large", "resnext50", "inception-v3")
PLANS = (
    *((model, "joint") for model in ZOO),
    *(("bert-large", planner) for planner in ("megatron", "zero", "pipeline")),
    *(("dlrm", planner) for planner in ("megatron", "zero", "expert", "pipeline")),
)
LIMIT = 60.0
"""Seconds of validation after which it counts as hanging."""


def planned(model: str, planner: str) -> Plan:
    machine = load_machine("summit").with_nodes(32)
    graph = build_model(model, None, machine.devices)
    made = planner_of(planner, machine, load_library(), 600.0, SGD, None)
    return made.plan(model, graph).plan


def instructions(program: Program) -> int:
    pipeline = program.pipeline
    slices = (*pipeline.slices, pipeline.tail) if pipeline else ()
    return len(program.instructions) + sum(map(len, slices))


def measured(model: str, planner: str) -> tuple[int, float, float]:
    """The number of instructions of all ranks, and CPU seconds to lower and to validate them."""
    plan = planned(model, planner)
    gc.collect()
    start = process_time()
    lowering = Lowering(plan)
    programs = [lowering.program(rank) for rank in range(lowering.ranks)]
    lowered = process_time()
    validate(plan, programs)
    end = process_time()
    return sum(map(instructions, programs)), lowered - start, end - lowered


def lines() -> Iterator[str]:
    heads = ("instructions", "lowered", "validated", "ratio")
    yield f"{'model':14}{'planner':10}{heads[0]:>14}{heads[1]:>9}{heads[2]:>11}{heads[3]:>7}"
    for model, planner in PLANS:
        count, lowering, validation = measured(model, planner)
        assert validation < LIMIT, f"{model}, {planner}"
        yield (
            f"{model:14}{planner:10}{count:14,}{lowering:9.1f}{validation:11.1f}"
            f"{validation / lowering:7.2f}"
        )


def test_validation_of_large_programs_takes_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print()
        for line in lines():
            print(line, flush=True)

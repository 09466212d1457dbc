"""Validating the programs of all ranks, for the paper's models at 192 devices: `make bench`."""

from __future__ import annotations

from time import process_time

import pytest

from pcg.machine import load_machine
from pcg.models import build_model
from runtime.lower import Lowering
from runtime.validate import validate
from search.describe import pipeline_text
from substitutions.store import load_library
from unity.planners import planner_of

pytestmark = pytest.mark.benchmark

MODELS = ("mlp", "dlrm", "xdl", "candle-uno", "bert-large", "resnext50", "inception-v3")


@pytest.mark.parametrize("model", MODELS)
def test_programs(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    machine = load_machine("summit").with_nodes(32)
    graph = build_model(model, None, machine.devices)
    planner = planner_of("joint", machine, load_library(), 600.0, "sgd", None)
    plan = planner.plan(model, graph).plan
    start = process_time()
    lowering = Lowering(plan)
    programs = [lowering.program(rank) for rank in range(lowering.ranks)]
    lowered = process_time()
    validate(plan, programs)
    seconds = process_time() - lowered
    count = sum(len(program.instructions) for program in programs)
    with capsys.disabled():
        print(
            f"\n{model}, {pipeline_text(plan) or 'no pipeline'}: {count:,} instructions once a"
            f" step, lowered in {lowered - start:.1f} s, validated in {seconds:.1f} s"
        )

"""Alpa's plan of GPT 2.6B on 8 V100, beside the degrees in its authors' script.

Their script has data 2 x operator 2 x pipeline 2 with recomputation, in micro-batches of 8
sequences (alpa-projects/alpa, benchmark/alpa/suite_manual_gpt.py).
"""

from __future__ import annotations

from collections import Counter
from time import process_time

import pytest
from fidelity.models import Gpt
from fidelity.price import graph_of

from pcg.machine import load_machine
from pcg.plan.training import Training
from search.pipeline.built.pricer import BuiltPipeline
from search.planners.alpa.planner import AlpaPlanner
from search.planners.common import PlannerSetting
from search.planners.ilp import Tally
from substitutions.rules.store import load_library

pytestmark = pytest.mark.benchmark

GPT = Gpt(32, 2560, 32, 1024, 51200, dropout=0.0)


def degrees(made: BuiltPipeline) -> Counter[tuple[int, int]]:
    """The cuts of products of tokens with weights: along samples, and along another axis."""
    batches, counted = made.outline.batches, Counter[tuple[int, int]]()
    for node, strategy in zip(batches.nodes, made.outline.chosen.strategies, strict=True):
        if node.name != "matmul":
            continue
        cut = {"data": 1, "operator": 1}
        for prime, entry in zip(batches.spaces.mesh.primes, strategy, strict=True):
            if entry >= 0:
                own = batches.spaces.of(node).axes[entry].name
                is_data = own == batches.streams.axes.get(node)
                cut["data" if is_data else "operator"] *= prime
        counted[cut["data"], cut["operator"]] += 1
    return counted


@pytest.mark.parametrize(("batch", "micro_batches"), [(1024, 128), (32, 4)])
def test_gpt_has_operator_and_pipeline_degrees(batch: int, micro_batches: int):
    machine = load_machine("p3-16xlarge")
    training = Training("adam", "fp16", compiled=True)
    setting = PlannerSetting(machine, load_library(), training)
    search = AlpaPlanner(setting, micro_batches=(micro_batches,)).search(Tally())
    begin = process_time()
    pipelines = search.found("gpt-2.6b", graph_of(GPT, batch)).pipelines
    seconds = process_time() - begin
    fitting = [one for one in pipelines if one.memory <= machine.memory_limit()]
    for one in sorted(fitting, key=lambda one: one.seconds):
        counted = ", ".join(f"{n} of data {d} x operator {o}" for (d, o), n in degrees(one).items())
        print(f"{batch} in {micro_batches}: {one.outline.stages} stages, {one.seconds:.3g} s")
        print(f"  products: {counted}")
    print(f"  {seconds:.0f} s of CPU to choose")
    by_stages = {one.outline.stages: one for one in fitting}
    assert degrees(by_stages[2]).most_common(1)[0][0] == (2, 2)

"""The operations of a recorded step."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import torch
from support.plans.by_hand import make_plan

from pcg.plan.pipeline import PipelineFile
from pcg.plan.text import parse_graph
from runtime.execute.executor import Executor
from runtime.program.lower import Lowering
from runtime.train.profiler import recorded
from runtime.world.collectives import World

MODEL = "x = input[8, 6]\nw = weight[6, 4]\nh = relu(matmul(x, w))\nreturn mean_loss(h)"
SLICED = """
x = input[8, 6]
w = weight[6, 4]
h = batch(relu(matmul(pipeline(x, dim=0, degree=2), w)), dim=0, degree=2)
return mean_loss(h)
"""


def phases(graph: str, pipeline: PipelineFile | None) -> list[str]:
    plan = make_plan(parse_graph(MODEL), parse_graph(graph), 1, {})
    plan = replace(plan, pipeline=pipeline)
    world = World()
    executor = Executor(Lowering(plan).program(0), world)
    optimizer = torch.optim.SGD(list(executor.weights.values()), lr=0.1)

    def update(gradients) -> None:
        for register, gradient in gradients.items():
            executor.weights[register].grad = gradient
        optimizer.step()

    marks = recorded(world, lambda: executor.step(0, update))
    assert not [mark for mark in marks if mark.name.startswith("unity")]
    return [phase for phase, _ in groupby(mark.phase for mark in marks)]


def test_a_step_goes_forward_and_back_and_updates():
    assert phases(MODEL, None) == ["forward", "backward", "update"]


def test_slices_go_forward_after_others_have_gone_back():
    pipeline = PipelineFile(stages=1, micro_batches=2, schedule="1f1b")
    # The first operation joins slices, with zeros; the values follow at the end.
    ways = ["forward", "backward"]
    assert phases(SLICED, pipeline) == [*ways, *ways, *ways, "forward", "update"]

"""Pipelines by hand and by the search, and their training on simulated ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
from fidelity.models import Gpt
from fidelity.price import graph_of
from support.graphs.labels import with_ignored_labels
from support.plans.by_hand import plan_with
from support.runs.simulated import on_ranks

from pcg.graph.graph import Graph
from pcg.machine import Machine, load_machine
from pcg.models import build_model
from pcg.plan.pipeline import PipelineFile, ScheduleKind, misfit
from pcg.plan.plan import Plan, load_plan, save_plan
from pcg.plan.text import parse_graph
from runtime.job.job import RunReport, TrainingOptions
from runtime.job.recipe import Recipe
from runtime.program.lower import Lowering
from runtime.program.validate import validate_lowered
from runtime.train.worker import run_plan
from search.by_hand.degrees import parse_degrees
from search.by_hand.planner import HandPlanner
from search.cost.cost import CostModel
from search.map.rules.cuts import Cuts
from search.pipeline.built.build import PipelineParts
from search.pipeline.micro import MicroBatches
from search.pipeline.streams import streams
from search.report.trace import price_plan

TIED = (
    "x = input[8, 6] below 12\nt = weight[12, 4]\nlabels = input[8] below 12\n"
    "h = mean_axis(embedding(x, t), axis=1)\n"
    "return cross_entropy(matmul(relu(h), transpose(t, dim0=0, dim1=1)), labels)"
)
"""Two stages read the same weight."""
DECODER = Gpt(layers=2, hidden=32, heads=4, sequence=20, vocabulary=12, dropout=0.0)
"""One layer for each of two stages."""
DEVICES = 4
RATE = 0.1


def model_graph(name: str) -> Graph:
    """A model with eight samples."""
    if name == "labels":
        return with_ignored_labels(8)
    return parse_graph(TIED) if name == "tied" else build_model(name, 8, 1)


def layers(count: int, batch: int, width: int) -> Graph:
    """Equal layers, so that stages can be even."""
    lines = [f"h0 = input[{batch}, {width}]"]
    for i in range(count):
        lines += [f"w{i} = weight[{width}, {width}]", f"h{i + 1} = relu(matmul(h{i}, w{i}))"]
    return parse_graph("\n".join([*lines, f"return mean_loss(h{count})"]))


def skipping(drawn: Random, count: int) -> Graph:
    """Layers that read a late layer and any one before it."""
    lines = ["h0 = input[8, 6]"]
    for i in range(count):
        late, early = drawn.randrange(max(i - 1, 0), i + 1), drawn.randrange(i + 1)
        lines.append(f"w{i} = weight[6, 6]")
        lines.append(f"h{i + 1} = add(tanh(matmul(h{late}, w{i})), h{early})")
    return parse_graph("\n".join([*lines, f"return mean_loss(h{count})"]))


def planned(
    name: str, library, slices: int, stages: int, kind: ScheduleKind = "1f1b", interleave: int = 1
) -> Plan:
    """The search's pipeline with chunks of equally many operators, for 4 devices."""
    return in_stages(model_graph(name), library, slices, stages, kind, interleave)


def in_stages(
    graph: Graph,
    library,
    slices: int,
    stages: int,
    kind: ScheduleKind = "1f1b",
    interleave: int = 1,
    devices: int = DEVICES,
    drawn: Random | None = None,
) -> Plan:
    """The same pipeline of a graph. ``drawn``: cut anywhere."""
    cost = CostModel(load_machine("dgx-a100").with_devices(devices // stages))
    source = streams(graph, library)
    batches = MicroBatches(source, cost, Cuts.of_rules(library.concrete(source.graph)), slices)
    count, chunks = len(batches.nodes), stages * interleave
    bounds = [count * chunk // chunks for chunk in range(chunks + 1)]
    if drawn is not None:
        bounds = [0, *sorted(drawn.sample(range(1, count), chunks - 1)), count]
    cut = PipelineParts(batches, batches.choose(), bounds, interleave).derived()
    return plan_of(graph, cut.graph, cut.views, stages, slices, kind, devices, interleave)


def plan_of(
    model, graph, views, stages, slices, kind: ScheduleKind = "1f1b", devices=DEVICES, interleave=1
) -> Plan:
    pipeline = PipelineFile(
        stages=stages, micro_batches=slices, schedule=kind, interleave=interleave
    )
    assert misfit(pipeline, graph, views, devices) is None
    return replace(plan_with(model, graph, views, devices), pipeline=pipeline)


def two_nodes(bandwidth: float) -> Machine:
    """Two nodes of two devices each, with a link of ``bandwidth`` bytes a second between them."""
    machine = load_machine("dgx-a100")
    node, cluster = machine.levels
    slow = {"count": 2, "bandwidth": bandwidth, "all_reduce": (), "all_gather": ()}
    levels = node.model_copy(update={"count": 2}), cluster.model_copy(update=slow)
    return machine.model_copy(update={"levels": levels})


@cache
def by_degrees(text: str, library) -> Plan:
    """A plan by hand of a small decoder on two nodes with a slow link between them."""
    degrees = parse_degrees(text)
    decoder = replace(DECODER, layers=DECODER.layers * degrees.interleave)
    planner = HandPlanner(two_nodes(1e7), library, degrees)
    return planner.plan("decoder", graph_of(decoder, 8)).plan


def trained(
    plan: Plan,
    steps: int = 3,
    batches: int = 1,
    *,
    ordered: bool = False,
    data: str | None = None,
) -> RunReport:
    lowering = Lowering(plan)
    recipe = Recipe(rate=RATE, accumulate=batches)
    options = TrainingOptions(steps=steps, recipe=recipe, precision="fp64", check=True, data=data)
    report = on_ranks(
        plan.machine.devices,
        lambda world: run_plan(lowering, options, world, lambda step: None),
        ordered=ordered,
    )[0]
    assert report is not None
    return report


def check_read_back(plan: Plan, machine: Machine, path: Path) -> None:
    """Write a plan of a pipeline to a file and read it. Its programs have to be valid, and its
    price the plan's estimate."""
    save_plan(plan, path)
    again = load_plan(path)
    assert again.pipeline == plan.pipeline
    validate_lowered(Lowering(again))
    price = price_plan(again, CostModel(machine, again.training))
    assert price.seconds == pytest.approx(plan.estimates.step_seconds)
    assert price.memory == plan.estimates.peak_memory_bytes

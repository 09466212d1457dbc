"""Measurements of FlexFlow's walk: delta simulation beside full simulation, and the gain of the
walk.

The gain is over data parallelism, on models of the paper's kind and the first of its clusters (Jia
et al., 2019, section 8.1), for a batch of 64 on all devices together. Seconds are those of the
processor, of proposals that are drawn alike.
"""

from __future__ import annotations

from random import Random
from time import process_time

import pytest
from support.translation import translation

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.models import build_model
from search.cost.simulate import price
from search.map.choose.choosing import Choice, Chooser
from search.map.space.allow import data_parallel
from search.planners.common import PlannerSetting
from search.planners.flexflow.configurations import configurations
from search.planners.flexflow.planner import FlexFlowPlanner
from search.planners.flexflow.walk import Walk, by_delta, in_full
from substitutions.rules.store import load_library

pytestmark = pytest.mark.benchmark

WALKED = 60
"""The number of changes that are simulated in both ways."""


MODELS = ("mlp", "dlrm", "xdl", "candle-uno", "bert-large", "resnext50", "inception-v3")


def graph_of(model: str, batch: int | None, devices: int) -> Graph:
    if model == "translation":
        return translation(batch or 64)
    return build_model(model, batch, devices)


def setting() -> PlannerSetting:
    return PlannerSetting(load_machine("dgx-a100").with_devices(8), load_library())


def changes(chooser: Chooser, first: Choice) -> list[Choice]:
    """Choices, each of which differs from the one before in one operator and in those like it."""
    own, random = configurations(first.graph, chooser), Random(0)
    walk = Walk(chooser, own, in_full(chooser), 1.0, 0)
    made = [first]
    for _ in range(WALKED):
        made.append(walk.proposal(made[-1], random, list(own)))
    return made


@pytest.mark.parametrize("model", [*MODELS, "translation"])
def test_delta_simulation_is_faster(model: str):
    graph, own = graph_of(model, None, 8), setting()
    chooser = own.chooser(graph)
    first = chooser.choose(graph, allowed=data_parallel(graph))
    choices = changes(chooser, first)
    seconds: dict[str, float] = {}
    steps: dict[str, list[float]] = {}
    for name, programs in (("delta", by_delta(chooser, first)), ("full", in_full(chooser))):
        programs(first)
        begin = process_time()
        steps[name] = [price(programs(choice), 8).step_seconds for choice in choices]
        seconds[name] = (process_time() - begin) / len(choices)
    assert steps["delta"] == steps["full"]
    ratio = seconds["full"] / seconds["delta"]
    each = ", ".join(f"{name} {1e3 * one:.1f} ms" for name, one in seconds.items())
    print(f"{model}: {each} a proposal, delta {ratio:.2f} times as fast")
    assert ratio > 1


@pytest.mark.parametrize(
    ("model", "nodes"),
    [("translation", 1), ("translation", 4), ("inception-v3", 2), ("inception-v3", 4)],
)
def test_a_walk_gains_over_data_parallelism(model: str, nodes: int):
    machine = load_machine("tests/data/p100-cluster.toml").with_nodes(nodes)
    graph = graph_of(model, 64, machine.devices)
    planned = FlexFlowPlanner(PlannerSetting(machine, load_library()), proposals=3000).plan(
        model, graph
    )
    data, own = planned.data_parallel_seconds, planned.plan.estimates.step_seconds
    assert data is not None
    gain = data / own
    print(f"{model} on {machine.devices}: {1e3 * own:.4g} ms, {gain:.2f} times as fast")
    assert gain > 1.02

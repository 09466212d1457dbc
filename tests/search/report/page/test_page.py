"""The page about a plan: it shows the plan, and works in a real browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from support.chromium import needs_browser, seen_by_browser
from support.plans.cut_by_hand import CUTS, DATA, machine, plan_of, simulated

from pcg.plan.naming import NamingFile, ParameterFile
from pcg.plan.pipeline import PipelineFile
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph
from search.cost.cost import CostModel
from search.report.page.devices import devices_of
from search.report.page.drawing import drawn
from search.report.page.page import page
from search.report.rivals import Rival

PIPELINE = """
x = input[48, 12]
w1 = weight[12, 24]
w2 = weight[24, 10]
h = relu(matmul(pipeline(x, dim=0, degree=4), w1))
s = softmax(matmul(h, w2), axis=1)
return mean_loss(batch(s, dim=0, degree=4))
"""


def pipelined() -> Plan:
    views = {"t1": 0, "t2": 0, "t3": 1, "t4": 1, "t6": 1}
    pipeline = PipelineFile(stages=2, micro_batches=4, schedule="1f1b")
    return replace(plan_of(PIPELINE, views=views, devices=2), pipeline=pipeline)


PLANS = {name: plan_of(text) for name, text in CUTS.items()} | {"pipeline": pipelined()}


class Words(HTMLParser):
    """The text of a page, and its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words, self.scripts, self.tags = list[str](), list[str](), list[str]()
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        (self.scripts if self._inside == "script" else self.words).append(data)


def made(plan: Plan, **options: Any) -> str:
    return page(plan, machine(plan.machine.devices), **options)


def data_of(text: str) -> Any:
    return json.loads(Words(text).scripts[0])


@pytest.mark.parametrize("name", PLANS)
def test_page_shows_the_plan_its_operators_and_devices(name):
    plan = PLANS[name]
    text = made(plan)
    words = " ".join(Words(text).words)
    for wanted in ("this plan", "data parallelism", "one device", "samples a step"):
        assert wanted in words
    data = data_of(text)
    told = " ".join(box for box, _ in data["after"]["boxes"])
    for node in plan.views:
        assert node.name in told
    assert len(data["machine"]["numbers"]) == plan.machine.devices
    assert data["timeline"]["rows"]
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:|//)""", text)


@pytest.mark.parametrize("name", PLANS)
def test_figures_of_devices_equal_the_simulation(name):
    base = simulated(PLANS[name])
    rows = devices_of(base, CostModel(base.machine))
    assert sorted(d for own in rows.classes for d in own.devices) == list(
        range(base.machine.devices)
    )
    of_busiest = rows.classes[rows.numbers[base.busiest.device]]
    assert of_busiest.usage.computing == pytest.approx(base.busiest.computing)
    assert of_busiest.usage.hidden == pytest.approx(base.busiest.hidden, abs=1e-12)
    assert max(own.memory.total for own in rows.classes) == base.memory.total
    for node, classes in rows.of.items():
        devices = {d for number in classes for d in rows.classes[number].devices}
        assert devices == set(base.plan.views[node].devices)


@pytest.mark.parametrize("name", PLANS)
def test_the_timeline_has_all_that_a_device_does(name):
    base = simulated(PLANS[name])
    data = data_of(made(PLANS[name]))["timeline"]
    for row in data["rows"]:
        events = [event for event in base.events(row["device"]) if event.seconds]
        for stream in (0, 1):
            own = [bar for bar in row["bars"] if bar[0] == stream]
            wanted = sum(e.seconds for e in events if e.task.stream == stream)
            assert sum(bar[3] for bar in own) == pytest.approx(wanted * 1e6, rel=0.02, abs=0.01)
            assert all(a[2] + a[3] <= b[2] + 0.01 for a, b in pairwise(own))


def deep(layers: int) -> str:
    """A model of equal layers."""
    weights = "\n".join(f"w{i} = weight[12, 12]" for i in range(layers))
    lines = [f"h{i} = relu(matmul({'x' if not i else f'h{i - 1}'}, w{i}))" for i in range(layers)]
    body = "\n".join(lines)
    return f"x = input[48, 12]\n{weights}\n{body}\nreturn mean_loss(h{layers - 1})\n"


def test_equal_layers_are_folded_and_all_are_found():
    graph = parse_graph(deep(40))
    folded = drawn(graph, {})
    assert len(folded.picture.boxes) == 4  # the input, two operators of a layer, the loss
    assert sorted(len(members) for members in folded.members) == [0, 1, 40, 40]
    stood_for = [node for members in folded.members for node in members]
    assert sorted(n.digest for n in stood_for) == sorted(n.digest for n in graph.operators)


def test_a_deep_plan_makes_no_large_page():
    few, many = (made(plan_of(deep(layers), deep(layers)), explained=1) for layers in (3, 100))
    assert len(many) < 2 * len(few)


def test_page_lists_other_plans():
    text = made(PLANS["data"], others=[Rival("other <b>.json", 1e9, 10**15, 10**14)])
    assert "other &lt;b&gt;.json" in text
    assert "does not fit, 100000.00 GB too many" in text


USE = """
const field = document.getElementById("search");
const type = (text) => { field.value = text; field.dispatchEvent(new Event("input")); };
const rows = () => [...document.querySelectorAll("#operators tbody tr")].filter((r) => !r.hidden);
const all = rows().length;
type("layers.0.weight");
const found = [rows().length, document.querySelectorAll("#after .found").length];
const count = document.getElementById("count").textContent;
type("nothing is called so");
const none = [rows().length, document.querySelectorAll(".found").length];
type("");
rows()[0].click();
return { all, found, count, none, again: rows().length,
  lit: document.querySelectorAll(".device.chosen").length,
  bars: document.querySelectorAll("#events rect[data-at]").length,
  boxes: document.querySelectorAll("#after g.box").length,
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth };
"""


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_page_works_in_a_browser(width, tmp_path):
    named = NamingFile(parameters={"w1": ParameterFile(names=("layers.0.weight",))})
    plan = replace(plan_of(DATA), naming=named)
    seen = seen_by_browser(made(plan), USE, tmp_path, width)
    assert (seen["errors"], seen["refused"], seen["loaded"]) == ([], [], [])
    result = seen["result"]
    assert result["all"] == result["again"] == len(plan.views) == result["boxes"]
    assert result["found"] == [1, 1]
    assert result["count"] == "3 found"  # a row, and a box in each graph
    assert result["none"] == [0, 0]
    assert result["lit"] == 4
    assert result["bars"] > 10
    assert result["wide"] <= 0

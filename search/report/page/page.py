"""Renders the page about a plan: predictions, time, memory, graphs, rules, machine and timeline.

All text in a plan counts as hostile. Templates escape their values. Data is JSON in a script
element that no text in it can close. Scripts insert text as text. The page's own content policy
lets nothing be loaded from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from pcg.errors import InputError
from pcg.graph.graph import Node
from pcg.machine import Machine
from pcg.plan.naming import batch_of
from pcg.plan.plan import Plan
from pcg.plan.text import node_names
from search.cost.cost import CostModel
from search.cost.efficiency import Speed
from search.map.space.allow import batch_axes
from search.plan.finish import memory_limit
from search.report.describe import cut_text, overall, pipeline_text, rules_used, span
from search.report.explanation import OperatorExplanation, PlanExplainer, parameters_of
from search.report.page.devices import DeviceClass, Devices, devices_of
from search.report.page.drawing import DrawnGraph, drawn
from search.report.page.events import timeline
from search.report.rivals import Rival, rivals
from search.report.text import bytes_text, ranges_text, seconds_text
from search.report.trace import SimulatedPlan, simulate_plan
from substitutions.browse.page import drawing, embedded, environment, sides_of, style
from substitutions.rules.store import RuleFile, is_library, parse_entry, rule_files

PACKAGE = "search.report.page"
GROUPS_EXPLAINED = 8
"""The number of groups of operators whose other placements are simulated: those of highest cost."""
MOST_SIMULATED_EACH = 2
"""The number of other placements that are simulated of each group."""
MOST_ROWS = 200
"""The most rows of the table of operators."""
MOST_BARS = 24
"""The most classes of devices with a bar of their own."""
MOST_TIMES_AS_LONG = 6
"""The most times by which another bar is longer than that of the plan."""
MOST_TIMES_AS_LARGE = 20
"""A memory more than this many times as large as the bytes that it holds is not drawn."""
MOST_NAMES = 12
"""The most operators that are named in a row."""


@dataclass(frozen=True)
class Bar:
    """A row of a chart. Each part is a class of style, a share of the chart's width in percent, and
    a text."""

    label: str
    parts: tuple[tuple[str, float, str], ...]
    text: str
    mark: float | None = None
    """The place of a line across the chart, in percent, such as the memory of a device."""


def page(
    plan: Plan,
    machine: Machine,
    speed: Speed | None = None,
    others: Sequence[Rival] = (),
    rules: str | Path | None = None,
    explained: int = GROUPS_EXPLAINED,
    remarks: Sequence[str] = (),
) -> str:
    """Return the page about a plan, as HTML. ``machine``: that of the plan; ``speed``: of its
    devices, by default by the efficiency curves of Unity; ``others``: further plans to compare
    with; ``rules``: the rule library, by default that of Unity; ``explained``: the number of groups
    of operators whose other placements are simulated; ``remarks``: those of the search. Raises
    InputError for bad ``rules``."""
    simulated, cost = simulate_plan(plan, machine, speed), CostModel(machine, plan.training, speed)
    devices = devices_of(simulated, cost)
    explainer = PlanExplainer(simulated, speed)
    applied = list(_rules(plan, rules))
    limit = memory_limit(machine, plan.views)
    compared = [*rivals(plan, cost), *others]
    return (
        environment(PACKAGE)
        .get_template("page.html.jinja")
        .render(
            plan=plan,
            **_heading(simulated, limit, compared),
            rivals=list(_rival_bars(simulated, compared)),
            time=_time_bars(simulated, devices),
            phases={name: seconds_text(s) for name, s in simulated.phases.items()},
            memories=_memory_bars(devices, limit),
            classes=len(devices.classes),
            operators=_table(explainer, devices, explained),
            groups=len(list(explainer.groups())),
            rules=applied,
            remarks=remarks,
            style=style() + _resource("page.css"),
            script=drawing() + _resource("page.js"),
            data=embedded(_data(simulated, devices, applied)),
        )
    )


def _heading(
    simulated: SimulatedPlan, limit: int, compared: Sequence[Rival]
) -> Mapping[str, object]:
    """The figures at the head of the page."""
    plan = simulated.plan
    return {
        "batch": batch_of(plan.model, plan.naming),
        "pipeline": pipeline_text(plan),
        "overall": overall(plan),
        "step": seconds_text(simulated.step_seconds),
        "speedup": _speedup(simulated, compared),
        "memory": bytes_text(simulated.memory.total),
        "limit": bytes_text(limit),
    }


def _resource(name: str) -> str:
    return files(PACKAGE).joinpath(name).read_text(encoding="utf-8")


def _speedup(simulated: SimulatedPlan, compared: Sequence[Rival]) -> str | None:
    """The speedup over data parallelism, if that is possible for the model."""
    other = next((r for r in compared if r.name == "data parallelism"), None)
    if other is None or not simulated.step_seconds:
        return None
    return f"{other.seconds / simulated.step_seconds:.2f}"


def _rival_bars(simulated: SimulatedPlan, compared: Sequence[Rival]) -> Iterator[Bar]:
    this_plan = Rival("this plan", simulated.step_seconds, simulated.memory.total)
    plans = [this_plan, *sorted(compared, key=lambda rival: rival.seconds)]
    # A plan that takes far longer than all others would leave no room for their bars.
    longest = (
        min(max(rival.seconds for rival in plans), MOST_TIMES_AS_LONG * this_plan.seconds) or 1.0
    )
    for rival in plans:
        kind = "own" if rival is this_plan else "over" if rival.over else "other"
        text = seconds_text(rival.seconds)
        if rival is not this_plan and this_plan.seconds:
            text += f", {rival.seconds / this_plan.seconds:.2f} times as long"
        if rival.over:
            text += f"; does not fit, {bytes_text(rival.over)} too many on a device"
        part = (kind, min(100 * rival.seconds / longest, 100.0), text)
        yield Bar(rival.name, (part,), f"{text}; {bytes_text(rival.memory)} on a device")


def _time_bars(simulated: SimulatedPlan, devices: Devices) -> list[Bar]:
    """The time use of the devices of each class."""
    step = simulated.step_seconds or 1.0

    def bar(device_class: DeviceClass) -> Bar:
        use = device_class.usage
        idle = max(simulated.step_seconds - use.busy, 0.0)
        kinds = (
            ("computing", use.computing),
            ("exposed", use.exposed),
            ("idle", idle),
        )
        parts = tuple((k, 100 * s / step, f"{k}: {seconds_text(s)}") for k, s in kinds)
        words = [f"computing {use.computing / step:.1%}", f"exposed {use.exposed / step:.1%}"]
        words += [f"idle {idle / step:.1%}", f"hidden communication {seconds_text(use.hidden)}"]
        return Bar(_label(device_class), parts, ", ".join(words))

    return [bar(device_class) for device_class in devices.classes[:MOST_BARS]]


def _label(device_class: DeviceClass) -> str:
    stage = "" if device_class.stage is None else f"stage {device_class.stage}: "
    return f"{stage}{ranges_text(device_class.devices)}"


def _memory_bars(devices: Devices, limit: int) -> list[Bar]:
    """The memory of the devices of each class at the time when they hold most."""
    most = max(device_class.memory.total for device_class in devices.classes) or 1
    # If the devices have far more memory than they hold, a line of the limit would hide the bars.
    longest = max(limit, most) if MOST_TIMES_AS_LARGE * most > limit else most
    mark = 100 * limit / longest if MOST_TIMES_AS_LARGE * most > limit else None
    bars: list[Bar] = []
    for device_class in devices.classes[:MOST_BARS]:
        held = device_class.memory
        kinds = {
            "parameters": held.parameters,
            "gradients": held.gradients,
            "optimizer": held.optimizer,
            "activations": held.activations,
        }
        parts = tuple((k, 100 * n / longest, f"{k}: {bytes_text(n)}") for k, n in kinds.items())
        words = ", ".join(f"{kind} {bytes_text(n)}" for kind, n in kinds.items())
        text = f"{bytes_text(held.total)}: {words}"
        bars.append(Bar(_label(device_class), parts, text, mark))
    return bars


def _table(
    explainer: PlanExplainer, devices: Devices, explained: int
) -> list[Mapping[str, object]]:
    """The rows of groups of operators. Other placements of the first groups are simulated."""
    rows: list[Mapping[str, object]] = []
    for number, nodes in enumerate(explainer.groups()):
        if number < MOST_ROWS:
            explanation = explainer.explain(nodes, MOST_SIMULATED_EACH if number < explained else 0)
            rows.append(_row(explanation, explainer.simulated, devices, nodes[0]))
    return rows


def _row(
    explanation: OperatorExplanation, simulated: SimulatedPlan, devices: Devices, node: Node
) -> Mapping[str, object]:
    """A row of the table of operators."""
    cost, step = explanation.spent, simulated.step_seconds or 1.0
    best = next((other for other in explanation.ranked.simulated if not other.over), None)
    more = None if best is None else best.step_seconds - simulated.step_seconds
    names = [name for name in explanation.alike if name != explanation.row.name]
    rest = len(names) - MOST_NAMES
    return {
        "name": explanation.row.name,
        "call": explanation.row.call,
        "kind": node.name,
        "count": len(explanation.alike),
        "alike": ", ".join(names[:MOST_NAMES]) + (f" and {rest} more" if rest > 0 else ""),
        "parameters": ", ".join(explanation.parameters),
        "cut": explanation.row.cut,
        "devices": explanation.row.devices,
        "classes": " ".join(map(str, devices.of[node])),
        "seconds": seconds_text(cost.total * len(explanation.alike)),
        "share": f"{cost.total * len(explanation.alike) / step:.1%}",
        "computing": seconds_text(cost.computing),
        "resharding": seconds_text(cost.resharding),
        "exchange": seconds_text(cost.exchange),
        "next": None if best is None else f"{best.cut}, devices {best.devices}",
        "more": None if more is None else f"{'-' if more < 0 else '+'}{seconds_text(abs(more))}",
        "refused": [
            f"{i.name} ({i.length} long): {i.refused}"
            for i in explanation.indices
            if i.refused is not None
        ],
    }


def _rules(plan: Plan, path: str | Path | None) -> Iterator[Mapping[str, object]]:
    """The rules that a plan applies, each with its proof and picture if the library is
    available."""
    origins = {step.applied.text: step.applied.rule for step in plan.derivation}
    entries = _entries(plan, path, set(origins.values()))
    for name, text, count in rules_used(plan.derivation):
        entry = entries.get(origins[text])
        yield {
            "name": name,
            "text": text,
            "count": count,
            "statement": None if entry is None else parse_entry(entry).statement,
            "proof": None if entry is None else entry.proof,
            "conditions": () if entry is None else (*entry.requires, *entry.conditions),
            "picture": None if entry is None else _picture(entry),
        }


def _picture(entry: RuleFile) -> Mapping[str, object]:
    rule = parse_entry(entry)
    ways = [{"applicable": direction.applicable} for direction in entry.directions]
    return {"statement": rule.statement, "sides": sides_of(rule), "ways": ways}


def _entries(plan: Plan, path: str | Path | None, names: set[str]) -> Mapping[str, RuleFile]:
    """The entries of the given rules in the library; none if the plan is from another library."""
    try:
        same = is_library(plan.library_hash, path)
        return rule_files(names, path) if names and same else {}
    except InputError:
        if path is not None:
            raise
        return {}  # the plan holds the texts of its rules


def _data(
    simulated: SimulatedPlan, devices: Devices, rules: Sequence[Mapping[str, object]]
) -> Mapping[str, object]:
    """The data that the page's scripts draw."""
    plan = simulated.plan
    batch = batch_axes(plan.graph)
    cuts = {node: cut_text(node, view, batch.get(node)) for node, view in plan.views.items()}
    all_devices = simulated.machine.devices
    shown = {
        node: cuts[node] if view.size == all_devices else f"{cuts[node]} on {span(view)}"
        for node, view in plan.views.items()
    }
    before, after = drawn(plan.model, {}), drawn(plan.graph, shown, plan.views)
    return {
        "before": _graph(plan, before, {}, devices, node_names(plan.model)),
        "after": _graph(plan, after, cuts, devices, node_names(plan.graph)),
        "rules": [rule["picture"] for rule in rules],
        "machine": {
            "per_node": simulated.machine.devices_per_node,
            "numbers": devices.numbers,
            "labels": [_label(device_class) for device_class in devices.classes],
        },
        "timeline": timeline(simulated, devices) | {"step": simulated.step_seconds * 1e6},
    }


def _graph(
    plan: Plan,
    drawing: DrawnGraph,
    cuts: Mapping[Node, str],
    devices: Devices,
    names: Mapping[Node, tuple[str, ...]],
) -> Mapping[str, object]:
    """A picture, with a line of text and the classes of devices for each of its boxes."""

    def box_data(nodes: tuple[Node, ...]) -> list[object]:
        if not nodes:
            return ["", []]
        listed = [names[node][0] for node in nodes]
        parameters = [name for node in nodes for name in parameters_of(plan, node)]
        words = [f"{nodes[0].name} {', '.join(listed)}"]
        words += [f"{cuts[nodes[0]]}, devices {span(plan.views[nodes[0]])}"] if cuts else []
        words += [f"reads {', '.join(dict.fromkeys(parameters))}"] if parameters else []
        return ["; ".join(words), list(devices.of.get(nodes[0], ()))]

    return {
        "picture": drawing.picture.record(),
        "boxes": [box_data(nodes) for nodes in drawing.members],
    }

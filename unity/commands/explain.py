"""Says why the operators of a plan are placed as they are, and what other placements cost."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict

from pcg.graph.graph import Node
from pcg.plan.plan import load_plan
from search.report.alternatives import MOST_SIMULATED, Alternative
from search.report.describe import overall, pipeline_text
from search.report.explanation import OperatorExplanation, PlanExplainer, find
from search.report.text import bytes_text, on_devices, seconds_text
from search.report.trace import SimulatedPlan, simulate_plan
from unity.explain import Options
from unity.support.cli import say, say_json
from unity.support.declarations import load_user_operators
from unity.support.origin import machine_and_speed

SHOWN = 3
"""The most other placements of an operator that are printed. JSON has all simulated ones."""
SHOWN_NAMES = 6
COSTLIEST = 12
"""Groups of operators with IN_OVERVIEW simulated placements, if a whole plan is explained. For the
other groups one placement is simulated."""
IN_OVERVIEW = 3


def run(options: Options) -> None:
    """Explain all operators of a plan, or the given ones. Raises InputError."""
    load_user_operators(options.operators)
    where = str(options.plan)
    plan = load_plan(options.plan)
    chosen = None if options.operator is None else find(plan, options.operator, where)
    machine, speed = machine_and_speed(plan, where, options.machine, options.nodes, options.profile)
    simulated = simulate_plan(plan, machine, speed)
    explainer = PlanExplainer(simulated, speed)
    told = _told(explainer, chosen, options.alternatives)
    if options.as_json:
        say_json(_record(simulated, list(told)))
        return
    for line in _heading(simulated):
        say(line)
    for explanation in told:
        say("")
        for line in lines(explanation, simulated.step_seconds):
            say(line)


def _told(
    explainer: PlanExplainer, chosen: Collection[Node] | None, most: int | None
) -> Iterator[OperatorExplanation]:
    """Yield the explanation of each group of like operators. ``most``: placements to simulate."""
    groups = explainer.groups()
    if chosen is not None:
        named = (tuple(node for node in nodes if node in chosen) for nodes in groups)
        tries = MOST_SIMULATED if most is None else most
        yield from (explainer.explain(nodes, tries) for nodes in named if nodes)
        return
    for number, nodes in enumerate(groups):
        few = IN_OVERVIEW if number < COSTLIEST else 1
        yield explainer.explain(nodes, few if most is None else most)


def _heading(simulated: SimulatedPlan) -> Iterator[str]:
    plan = simulated.plan
    pipeline = pipeline_text(plan)
    title = f"{plan.model_name} on {plan.machine.devices} x {plan.machine.name}"
    yield f"{title}, {pipeline}" if pipeline else title
    yield f"{seconds_text(simulated.step_seconds)} a step; {overall(plan)}"
    yield (
        "Other placements are simulated one operator at a time; all other operators stay where they"
        " are."
    )


def lines(one: OperatorExplanation, step: float) -> Iterator[str]:
    """The lines about a group of like operators. ``step``: seconds of the plan's step."""
    like = len(one.alike) - 1
    names = ", ".join(one.alike[1 : SHOWN_NAMES + 1]) + (", ..." if like > SHOWN_NAMES else "")
    yield f"{one.row.name} = {one.row.call}" + (f"  and {like} like it: {names}" if like else "")
    if one.parameters:
        yield f"  reads {', '.join(one.parameters)}"
    yield f"  placement: {one.row.cut}, {on_devices(one.row.devices)}"
    for name, placed in one.operands:
        yield f"    {name}: {placed}"
    for name, placed in one.results:
        yield f"    {name}, its result: {placed}"
    yield f"  cost on device {one.device}: {_cost(one)}"
    yield from _alternatives(one, step)
    for index in one.indices:
        if index.refused is not None:
            kind = f"{index.kind}, " if index.kind else ""
            what = "not cut" if index.degree == 1 else f"cut in {index.degree}"
            yield f"  index {index.name} ({kind}{index.length} long, {what}): {index.refused}"


def _cost(one: OperatorExplanation) -> str:
    cost = one.spent
    words = [f"{seconds_text(cost.forward)} forward, {seconds_text(cost.backward)} backward"]
    if cost.recomputation:
        words.append(f"{seconds_text(cost.recomputation)} recomputation")
    for seconds, exposed, what in (
        (cost.resharding, cost.resharding_exposed, "resharding"),
        (cost.exchange, cost.exchange_exposed, "exchange of gradients"),
    ):
        if seconds:
            words.append(f"{seconds_text(seconds)} {what} ({seconds_text(exposed)} exposed)")
    if cost.update:
        words.append(f"{seconds_text(cost.update)} update")
    return ", ".join(words)


def _alternatives(one: OperatorExplanation, step: float) -> Iterator[str]:
    ranked = one.ranked
    if ranked.placements is None:
        return
    if not ranked.placements:
        yield "  no other placement is possible"
        return
    tried = len(ranked.simulated)
    yield f"  next best of {ranked.placements} other placements, {tried} of which were simulated:"
    for other in ranked.simulated[:SHOWN]:
        yield f"    {other.cut}, {on_devices(other.devices)}: {_worth(other, step)}"
    full = [other for other in ranked.simulated[SHOWN:] if other.over]
    if full:
        least = min(other.over for other in full)
        yield f"    {len(full)} more do not fit, by at least {bytes_text(least)} a device"


def _worth(other: Alternative, step: float) -> str:
    more = other.step_seconds - step
    part = f"{more / step:+.2%}" if step else "+0%"
    sign = "-" if more < 0 else "+"
    text = f"{sign}{seconds_text(abs(more))} a step ({part})"
    if other.over:
        return f"{text}, but does not fit: {bytes_text(other.over)} too many on a device"
    return text


def _record(simulated: SimulatedPlan, told: list[OperatorExplanation]) -> dict[str, object]:
    plan = simulated.plan
    return {
        "model": plan.model_name,
        "machine": plan.machine.name,
        "devices": plan.machine.devices,
        "step_seconds": simulated.step_seconds,
        "alternatives_are_priced": "one operator at a time, all others as they are",
        "operators": [_explained(one, simulated.step_seconds) for one in told],
    }


def _explained(one: OperatorExplanation, step: float) -> dict[str, object]:
    return {
        "operator": one.row.name,
        "call": one.row.call,
        "cut": one.row.cut,
        "devices": one.row.devices,
        "parameters": list(one.parameters),
        "alike": list(one.alike),
        "operands": [{"operand": name, "placement": placed} for name, placed in one.operands],
        "results": [{"tensor": name, "placement": placed} for name, placed in one.results],
        "seconds": {"device": one.device} | one.spent.record(),
        "placements": one.ranked.placements,
        "alternatives": [
            asdict(other) | {"more_seconds": other.step_seconds - step}
            for other in one.ranked.simulated
        ],
        "indices": [asdict(index) for index in one.indices],
    }

"""Says how two plans of a model differ, in decisions, seconds and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from pcg.plan.plan import load_plan
from search.report.difference import Change, PlanDifference, Side, check_comparable, difference
from search.report.text import bytes_text, on_devices, seconds_text
from search.report.trace import simulate_plan
from unity.diff import Options
from unity.support.cli import say, say_json
from unity.support.declarations import load_user_operators
from unity.support.origin import machine_and_speed

MAX_CHANGES = 40
"""The most changes that are printed. JSON has all."""
MAX_NAMES = 4
NOTHING = 1e-9
"""Seconds. Smaller times are rounding errors."""
LEAST = 5e-4
"""The least relative difference that is printed in percent."""


def run(options: Options) -> None:
    """Compare two plans. Raises InputError for plans of different models or machines."""
    load_user_operators(options.operators)
    where = str(options.a), str(options.b)
    plans = load_plan(options.a), load_plan(options.b)
    check_comparable(*plans, *where)
    machine, speed = machine_and_speed(
        plans[0], where[0], options.machine, options.nodes, options.profile
    )
    differences = difference(*(simulate_plan(plan, machine, speed) for plan in plans))
    if options.as_json:
        say_json(
            {"model": plans[0].model_name, "a": where[0], "b": where[1]} | _record(differences)
        )
        return
    say(f"A: {where[0]}")
    say(f"B: {where[1]}")
    for line in lines(differences):
        say(line)


def lines(difference: PlanDifference) -> Iterator[str]:
    """The lines about a difference."""
    if difference.is_none:
        yield "both plans decide the same"
    for setting in difference.settings:
        yield f"{setting.what}: {setting.a} in A, {setting.b} in B"
    if difference.changes:
        yield f"{difference.same} operators are placed alike; the others, most expensive first:"
    for change in difference.changes[:MAX_CHANGES]:
        yield from _change_lines(change)
    if len(difference.changes) > MAX_CHANGES:
        yield f"  ... and {len(difference.changes) - MAX_CHANGES} more; --json has all"
    for rule, text, a, b in difference.rules:
        yield f"rule {rule}: {a} times in A, {b} in B: {text}"
    yield from _figures(difference)


def _change_lines(change: Change) -> Iterator[str]:
    name = change.operator if change.count == 1 else f"{change.count} x {change.operator}"
    if change.a is None or change.b is None:
        side, other = ("B", change.b) if change.a is None else ("A", change.a)
        yield f"  {name}, in {side} only: {_side(other)}"
        return
    yield f"  {name}: {seconds_text(change.a.seconds)} in A, {seconds_text(change.b.seconds)} in B"
    yield f"    A: {_side(change.a)}"
    yield f"    B: {_side(change.b)}"


def _side(side: Side | None) -> str:
    assert side is not None
    names = ", ".join(side.names[:MAX_NAMES]) + (", ..." if len(side.names) > MAX_NAMES else "")
    return f"{side.cut}, {on_devices(side.devices)} ({names})"


def _figures(difference: PlanDifference) -> Iterator[str]:
    """The figures of both plans, with their relative differences."""
    for name, what in (
        ("step_seconds", "a step"),
        ("computing", "  computing, the busiest device"),
        ("communication_hidden", "  its hidden communication"),
        ("communication_exposed", "  its exposed communication"),
        ("idle", "  idle"),
    ):
        a, b = getattr(difference.a, name), getattr(difference.b, name)
        yield f"{what}: {seconds_text(a)} in A, {seconds_text(b)} in B{_by(a, b)}"
    a, b = difference.a.memory_bytes, difference.b.memory_bytes
    yield f"memory of the fullest device: {bytes_text(a)} in A, {bytes_text(b)} in B{_by(a, b)}"
    a, b = difference.a.communication_elements, difference.b.communication_elements
    yield f"elements communicated: {a:,} in A, {b:,} in B{_by(a, b)}"


def _by(a: float, b: float) -> str:
    more = b / a - 1 if a and max(a, b) > NOTHING else 0.0
    return f" ({more:+.1%})" if abs(more) >= LEAST else ""


def _record(difference: PlanDifference) -> dict[str, object]:
    return {
        "same": difference.is_none,
        "placed_alike": difference.same,
        "settings": [asdict(setting) for setting in difference.settings],
        "operators": [asdict(change) for change in difference.changes],
        "rules": [
            {"rule": rule, "text": text, "a": a, "b": b} for rule, text, a, b in difference.rules
        ],
        "figures": {"a": asdict(difference.a), "b": asdict(difference.b)},
    }

"""Prints the result of a run, as tables or JSON: steps, times and check."""

from __future__ import annotations

import os
from dataclasses import asdict
from math import isfinite
from pathlib import Path

from rich.table import Table

from pcg.plan.naming import batch_of
from pcg.plan.plan import Plan
from pcg.plan.timeline import event, names, write_timeline
from runtime.job.job import TOLERANCE, Comparison, FinishedStep, RunReport
from unity.support.batch_norm import groups_text
from unity.support.cli import say_json
from unity.support.console import PlainConsole

MAX_ROWS = 20
"""The most rows of a table. Longer tables are thinned out."""


def write_trace(report: RunReport, path: Path) -> None:
    """Write the timeline of all ranks, in the format of the simulator's."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(len(report.timeline) or 1)))
    nodes = {rank: rank // local for rank in range(len(report.timeline))}
    entries = [
        event(mark.name, mark.phase, rank, nodes[rank], mark.stream, mark.start, mark.seconds)
        for rank, marks in enumerate(report.timeline)
        for mark in marks
    ]
    write_timeline([*names(nodes), *entries], path)


def print_json(plan: Plan, report: RunReport) -> None:
    """Print the result of a run as a JSON object."""
    content = {
        "model": plan.model_name,
        "devices": plan.machine.devices,
        "steps": [asdict(step) | {"loss": _number(step.loss)} for step in report.steps],
        "step_seconds": {
            "predicted": plan.estimates.step_seconds,
            "measured": report.step_seconds,
        },
        "samples_per_second": _throughput(plan, report),
        "norm_groups": plan.norm_groups,
        "check": _check_record(report.comparisons) if report.comparisons else None,
    }
    say_json(content)


def _throughput(plan: Plan, report: RunReport) -> float | None:
    """Samples a second."""
    seconds = report.step_seconds
    return batch_of(plan.model, plan.naming) * report.batches / seconds if seconds else None


def _check_record(comparisons: tuple[Comparison, ...]) -> dict[str, object]:
    return {
        "passes": all(comparison.passes for comparison in comparisons),
        "comparisons": [
            asdict(c) | {"absolute": _number(c.absolute), "relative": _number(c.relative)}
            for c in comparisons
        ],
    }


def _number(value: float) -> float | None:
    """JSON has no infinity and no NaN."""
    return value if isfinite(value) else None


def print_report(plan: Plan, report: RunReport) -> None:
    """The result of a run as tables."""
    console = PlainConsole()
    losses = Table("step", "loss", "seconds", title=f"{plan.model_name}, training")
    for step in _thinned(report.steps):
        losses.add_row(str(step.number), f"{step.loss:.10g}", f"{step.seconds:.4f}")
    console.print(losses)
    predicted, measured = plan.estimates.step_seconds, report.step_seconds
    if measured is None:
        compared = ", so only weights are compared" if report.comparisons else ""
        console.print(f"no steps were left{compared}")
    else:
        console.print(
            f"seconds a step: predicted {predicted:.4g}, measured {measured:.4g} (median),"
            f" {_throughput(plan, report):.4g} samples a second",
            soft_wrap=True,
        )
    if plan.norm_groups > 1:
        console.print(
            groups_text(plan.norm_groups, batch_of(plan.model, plan.naming)), soft_wrap=True
        )
    if left_out := sum(step.left_out for step in report.steps):
        console.print(f"{left_out} updates were left out until the scaled loss fitted fp16")
    if report.comparisons:
        console.print(_check_table(report))
        verdict = "agrees" if report.passes else "does not agree"
        console.print(f"check: {verdict} with one process to {TOLERANCE:g} (relative, float64)")


def _thinned(steps: tuple[FinishedStep, ...]) -> list[FinishedStep]:
    """Evenly chosen steps, the first and the last among them."""
    if len(steps) <= MAX_ROWS:
        return list(steps)
    last = len(steps) - 1
    return [steps[round(i * last / (MAX_ROWS - 1))] for i in range(MAX_ROWS)]


def _check_table(report: RunReport) -> Table:
    """The table of the check: the worst loss, and every output and weight."""
    table = Table("quantity", "largest error", "relative", "", title="against one process")
    losses = [c for c in report.comparisons if c.kind == "loss"]
    rows = sorted(losses, key=lambda c: (c.passes, -c.relative))[:1]
    rows += [c for c in report.comparisons if c.kind != "loss"]
    for c in rows:
        name = f"loss, {len(losses)} steps" if c.kind == "loss" else f"{c.kind} {c.name}"
        mark = "ok" if c.passes else "WRONG"
        table.add_row(name, f"{c.absolute:.2e}", f"{c.relative:.2e}", mark)
    return table

"""A plan in words: tables of its operators and rules, and remarks about it."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from rich.table import Table

from pcg.plan.naming import batch_of
from pcg.plan.plan import Plan
from search.cost.kept_whole import KeptWhole
from search.cost.planned import Planned
from search.report.describe import overall, pipeline_text, recomputed_text, rows, rules_used
from search.report.rewriting_text import rewriting_text
from unity.support.batch_norm import groups_text
from unity.support.console import PlainConsole

MAX_ROWS = 40
"""The most rows of a table. The plan file has everything."""


def speedup_of(planned: Planned) -> float | None:
    """The speedup over data parallelism; None if that was not priced."""
    data = planned.data_parallel_seconds
    return None if data is None else data / planned.plan.estimates.step_seconds


def print_plan(console: PlainConsole, planned: Planned, whole: Sequence[KeptWhole]) -> None:
    """Print a plan as tables, with its predictions."""
    plan = planned.plan
    console.print(_operators_table(plan))
    console.print(overall(plan), soft_wrap=True)
    console.print(_rules_table(plan))
    for line in remarks(planned, whole):
        console.print(line, soft_wrap=True)


def _operators_table(plan: Plan) -> Table:
    """A table of a plan's operators, with their cuts and devices."""
    title = f"{plan.model_name} on {plan.machine.devices} x {plan.machine.name}"
    pipeline = pipeline_text(plan)
    table = Table(title=f"{title}, {pipeline}" if pipeline else title)
    for heading in ("tensor", "operator", "cut", "devices"):
        table.add_column(heading)
    for row in rows(plan, MAX_ROWS):
        table.add_row(row.name, row.call, row.cut, row.devices)
    if len(plan.views) > MAX_ROWS:
        table.add_row("...", f"{len(plan.views) - MAX_ROWS} more", "", "")
    return table


def _rules_table(plan: Plan) -> Table:
    table = Table(title="Rules applied")
    for heading in ("rule", "times", "left == right"):
        table.add_column(heading, overflow="fold")
    for name, text, count in rules_used(plan.derivation):
        table.add_row(name, str(count), text)
    return table


def remarks(planned: Planned, whole: Sequence[KeptWhole]) -> Generator[str]:
    """Lines about a plan: its predictions, and what users should know."""
    plan, estimates = planned.plan, planned.plan.estimates
    if plan.norm_groups > 1:
        yield groups_text(plan.norm_groups, batch_of(plan.model, plan.naming))
    if whole:
        yield f"kept whole, as they have no equation: {', '.join(map(str, whole))}"
    compiled = ", compiled" if plan.training.compiled else ""
    yield (
        f"predicted {estimates.step_seconds * 1e3:.3g} ms a step,"
        f" {estimates.one_device_seconds / estimates.step_seconds:.2f} times as fast as one device"
        f" ({estimates.one_device_seconds * 1e3:.3g} ms);"
        f" {estimates.communication_elements:,} elements communicated,"
        f" at most {estimates.peak_memory_bytes / 1e9:.2f} GB on a device with"
        f" {plan.training.optimizer} in {plan.training.precision}{compiled}"
    )
    if plan.recompute:
        yield f"recomputed in the backward pass: {recomputed_text(plan)}"
    if plan.order:
        yield "operators are issued as listed, in an order of the plan's own"
    if planned.data_parallel is not None and (speedup := speedup_of(planned)) is not None:
        fits = "" if planned.data_parallel.fits else ", which does not fit in memory"
        yield f"{speedup:.2f} times as fast as data parallelism{fits}"
    if (rewriting := rewriting_text(planned)) is not None:
        yield rewriting

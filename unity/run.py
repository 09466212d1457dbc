"""`unity run`: train by a plan on the processes of this computer, or as one that torchrun started.

python -m unity.run plan.json --steps 10 --check
torchrun --nproc-per-node 4 -m unity.run plan.json --steps 10
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import isfinite
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Table

from pcg.errors import InputError, NegativeAnswer
from pcg.plan import Plan, load_plan
from pcg.user import load_operators
from runtime.job import TOLERANCE, Comparison, Options, Report, Step
from runtime.launch import check_computer, launch
from runtime.lower import Lowering
from unity.cli import new_app, run_app
from unity.declarations import load_user_operators

MAX_ROWS = 20
"""Longer tables are thinned out."""

MAX_PROGRAMS = 8
"""Programs that are shown; other ranks' differ in their regions and peers only."""

app = new_app()


class DType(StrEnum):
    """The number formats of a run."""

    float32 = "float32"
    float64 = "float64"


@dataclass(frozen=True)
class Job:
    """What each process is asked to do; it reads the plan itself."""

    path: str
    options: Options
    timeout: float
    as_json: bool
    operators: str | None


@app.command()
def run(
    plan: Annotated[str, typer.Argument(help="Plan file, from unity optimize.")],
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 5,
    lr: Annotated[float, typer.Option(help="Learning rate of SGD.")] = 0.01,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with one process, in float64.")
    ] = False,
    dtype: Annotated[DType | None, typer.Option(help="Default: float32.")] = None,
    seed: Annotated[int, typer.Option(help="Fixes weights and synthetic data.")] = 0,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that a communication may take.")
    ] = 120.0,
    operators: Annotated[
        str | None, typer.Option(help="A Python file that declares further operators.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    show_program: Annotated[
        bool, typer.Option("--show-program", help="First print what each process does.")
    ] = False,
) -> None:
    """Train by PLAN, one process a device, on synthetic data."""
    if check and dtype is DType.float32:
        raise InputError("--dtype", "float32, expected float64, in which --check compares")
    if not isfinite(lr):
        raise InputError("--lr", f"expected a finite number, got {lr}")
    name = "float64" if check or dtype is DType.float64 else "float32"
    job = Job(plan, Options(steps, lr, name, seed, check), timeout, as_json, operators)
    if operators is not None:
        load_user_operators(operators)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        _as_rank(job, show_program=show_program)
        return
    lowering = Lowering(load_plan(plan), plan)
    machine = lowering.plan.machine
    check_computer(machine.kind, machine.devices)
    if show_program:
        _print_programs(lowering)
    if machine.devices == 1:
        work(job)
    else:
        launch(work, (job,), machine.devices)


def _as_rank(job: Job, *, show_program: bool) -> None:
    """Work as one of torchrun's processes. What all ranks would complain about, rank 0 does."""
    rank = os.environ["RANK"]
    try:
        if show_program and rank == "0":
            _print_programs(Lowering(load_plan(job.path), job.path))
        work(job)
    except InputError as error:
        if rank != "0" and error.where.startswith(job.path):
            sys.exit(error.exit_status)
        raise


def work(job: Job) -> None:
    """One process's part of a run; rank 0 prints."""
    # Here because the parent, which also imports this module, can do without torch for long.
    from runtime.worker import train

    if job.operators is not None:
        load_operators(job.operators)  # which `run` has checked
    plan = load_plan(job.path)
    is_first = os.environ.get("RANK", "0") == "0"
    with Progress(
        *Progress.get_default_columns(),
        TextColumn("loss {task.fields[loss]}"),
        console=Console(stderr=True),
        transient=True,
        disable=job.as_json or not is_first or not sys.stderr.isatty(),
    ) as progress:
        bar = progress.add_task("training", total=job.options.steps, loss="")

        def observe(step: Step) -> None:
            progress.update(bar, advance=1, loss=f"{step.loss:.6g}")

        report = train(plan, job.options, job.timeout, observe, job.path)
    if report is None:
        return
    if job.as_json:
        _print_json(plan, report)
    else:
        _print_report(plan, report)
    worst = max(report.comparisons, key=lambda c: (not c.passes, c.relative), default=None)
    if worst is not None and not worst.passes:
        what = f"{worst.kind} {worst.name} differs by {worst.relative:.1e} (relative)"
        raise NegativeAnswer(f"{job.path}: check failed: {what}")


def _print_programs(lowering: Lowering) -> None:
    """What each process does, on the standard error so that --json stays readable."""
    for rank in range(min(lowering.ranks, MAX_PROGRAMS)):
        print(lowering.program(rank), file=sys.stderr)
    if lowering.ranks > MAX_PROGRAMS:
        print(f"... and {lowering.ranks - MAX_PROGRAMS} more ranks", file=sys.stderr)


def _print_json(plan: Plan, report: Report) -> None:
    content = {
        "model": plan.model_name,
        "devices": plan.machine.devices,
        "steps": [asdict(step) | {"loss": _number(step.loss)} for step in report.steps],
        "step_seconds": {
            "predicted": plan.estimates.step_seconds,
            "measured": report.step_seconds,
        },
        "check": _check_record(report.comparisons) if report.comparisons else None,
    }
    print(json.dumps(content, indent=1))


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


def _print_report(plan: Plan, report: Report) -> None:
    console = Console()
    losses = Table("step", "loss", "seconds", title=f"{plan.model_name}, training")
    for step in _thinned(report.steps):
        losses.add_row(str(step.number), f"{step.loss:.10g}", f"{step.seconds:.4f}")
    console.print(losses)
    predicted, measured = plan.estimates.step_seconds, report.step_seconds
    console.print(f"seconds a step: predicted {predicted:.4g}, measured {measured:.4g} (median)")
    if report.comparisons:
        console.print(_check_table(report))
        verdict = "agrees" if report.passes else "does not agree"
        console.print(f"check: {verdict} with one process to {TOLERANCE:g} (relative, float64)")


def _thinned(steps: tuple[Step, ...]) -> list[Step]:
    """Evenly chosen steps, the first and the last among them."""
    if len(steps) <= MAX_ROWS:
        return list(steps)
    last = len(steps) - 1
    return [steps[round(i * last / (MAX_ROWS - 1))] for i in range(MAX_ROWS)]


def _check_table(report: Report) -> Table:
    """The worst loss, and every output and weight."""
    table = Table("quantity", "largest error", "relative", "", title="against one process")
    losses = [c for c in report.comparisons if c.kind == "loss"]
    rows = [max(losses, key=lambda c: (not c.passes, c.relative))]
    rows += [c for c in report.comparisons if c.kind != "loss"]
    for c in rows:
        name = f"loss, {len(losses)} steps" if c.kind == "loss" else f"{c.kind} {c.name}"
        mark = "ok" if c.passes else "WRONG"
        table.add_row(name, f"{c.absolute:.2e}", f"{c.relative:.2e}", mark)
    return table


if __name__ == "__main__":
    run_app(app, "run")

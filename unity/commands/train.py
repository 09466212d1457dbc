"""The work of one process of a run: it trains. Rank 0 shows each step and prints the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

from rich.progress import Progress, TextColumn

from pcg.errors import NegativeAnswer
from pcg.ops.user import load_operators
from pcg.plan.naming import batch_of
from pcg.plan.plan import Plan, load_plan
from runtime.job.job import Begins, FinishedStep, NotFinite, Observer, RunReport
from runtime.program.lower import Lowering
from unity.commands.job import Job
from unity.support.cli import say
from unity.support.console import PlainConsole
from unity.support.losses_file import losses_file
from unity.support.report import print_json, print_report, write_trace

PARTS = 10
"""The number of lines of progress if the standard error is not a terminal."""


def is_first() -> bool:
    """Whether this is rank 0, or the command that starts all ranks."""
    return os.environ.get("RANK", "0") == "0"


def work(job: Job, lowering: Lowering | None = None) -> None:
    """Train as one of the processes. ``lowering``: the lowered plan, if this process has it
    already. Raises NotFinite and NegativeAnswer."""
    # Imported here because the parent, which also imports this module, does not need torch.
    from runtime.train.worker import train

    options = job.options
    if options.operators is not None:
        load_operators(options.operators)  # the parent has checked them
    lowering = lowering or Lowering(load_plan(options.plan), options.plan)
    plan = lowering.plan
    with _observed(job, plan) as (observe, begins):
        report = train(lowering, job.settings, options.timeout, observe, begins)
    if report is None:
        return
    if options.trace is not None:
        write_trace(report, options.trace)
    if options.as_json:
        print_json(plan, report)
    else:
        print_report(plan, report)
    _judge(job, report)


def _judge(job: Job, report: RunReport) -> None:
    """Raise NotFinite if losses are not finite, and NegativeAnswer if the check fails."""
    path, kept = job.options.plan, job.settings.checkpoints
    if report.not_finite:
        where = "" if kept is None else f"; {kept.folder} has the last good checkpoint, if any"
        raise NotFinite(path, f"trained, but {report.not_finite}{where}")
    worst = max(report.comparisons, key=lambda c: (not c.passes, c.relative), default=None)
    if worst is not None and not worst.passes:
        what = f"{worst.kind} {worst.name} differs by {worst.relative:.1e} (relative)"
        raise NegativeAnswer(f"{path}: check failed: {what}")


@contextmanager
def _observed(job: Job, plan: Plan) -> Generator[tuple[Observer, Begins]]:
    """Show every step on a terminal, else some steps as lines, and write all to the losses file."""
    is_shown = is_first() and not job.options.as_json
    steps = job.settings.steps
    samples = batch_of(plan.model, plan.naming) * job.settings.recipe.accumulate
    tell = _lines(steps, plan) if is_shown and not sys.stderr.isatty() else None
    with (
        Progress(
            *Progress.get_default_columns(),
            TextColumn("loss {task.fields[loss]} {task.fields[speed]}"),
            console=PlainConsole(stderr=True),
            transient=True,
            disable=not is_shown or tell is not None,
        ) as progress,
        losses_file(job.options.log if is_first() else None) as log,
    ):
        bar = progress.add_task("training", total=steps, loss="", speed="")

        def observe(step: FinishedStep) -> None:
            speed = f"{step.seconds:.3g} s a step, {samples / step.seconds:.4g} samples/s"
            progress.update(bar, completed=step.number, loss=f"{step.loss:.6g}", speed=speed)
            log.write(step)
            if tell is not None:
                tell(step)

        yield observe, log.begin


def _lines(steps: int, plan: Plan) -> Observer:
    """Return a function that prints ``PARTS`` evenly chosen steps, and the last step, as lines."""
    predicted = f"{plan.estimates.step_seconds:.3g} s predicted"

    def tell(step: FinishedStep) -> None:
        if step.number * PARTS // steps == (step.number - 1) * PARTS // steps:
            return
        text = f"step {step.number} of {steps}: loss {step.loss:.6g}, {step.seconds:.3g} s"
        say(f"unity: {text} ({predicted})", error=True)

    return tell

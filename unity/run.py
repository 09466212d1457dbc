"""`unity run`: train by a plan on the processes of this computer, or as one that torchrun started.

python -m unity.run plan.json --steps 10 --check
python -m unity.run plan.json --model my_model.py:make_model
python -m unity.run plan.json --steps 1000 --data my_data:train --checkpoint checkpoints --every 50
torchrun --nproc-per-node 4 --max-restarts 3 -m unity.run plan.json --steps 10
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress, TextColumn

from pcg.errors import InputError, NegativeAnswer
from pcg.ops.user import load_operators
from pcg.plan.naming import batch_of
from pcg.plan.plan import Plan, load_plan
from runtime.checkpoints.folder import tidy
from runtime.checkpoints.lock import remove_stale
from runtime.job.job import AgreedError, Begins, FinishedStep, NotFinite, Observer, Options
from runtime.program.lower import Lowering
from runtime.program.validate import validate_lowered
from runtime.world.launch import check_computer, launch, start_server
from runtime.world.orphans import end_with_parent, parent_ended
from runtime.world.status import HELP
from unity.support.cli import PlainConsole, command_of, new_app, run_app, say
from unity.support.declarations import load_user_operators
from unity.support.losses import losses_file
from unity.support.origin import check_graph_of, check_origin
from unity.support.report import print_json, print_report, write_trace
from unity.support.run_arguments import Arguments

MAX_PROGRAMS = 8
"""Programs that are shown; other ranks' differ in their regions and peers only."""

PARTS = 10
"""Lines of progress where the standard error is no terminal."""

GRACE = 60
"""Seconds for the last step and its checkpoint, once told to stop."""

app = new_app()


@dataclass(frozen=True)
class Job:
    """What each process is asked to do; it reads the plan itself."""

    arguments: Arguments
    options: Options


def run(arguments: Arguments) -> None:
    """Train by PLAN, one process a device."""
    with _first_complains():
        arguments.check_alone()
        if arguments.operators is not None:
            load_user_operators(arguments.operators)
        plan = arguments.plan
        lowering = Lowering(load_plan(plan), plan)
        check_origin(lowering.plan, plan, arguments.machine, arguments.rules)
        _check_model(arguments, lowering.plan)
        job = Job(arguments, arguments.options(lowering.plan.optimizer, lowering.plan.model_name))
    if _is_first():
        validate_lowered(lowering, 8 if job.options.dtype == "float64" else 4)
    if arguments.show_program and _is_first():
        _print_programs(lowering)
    _start(job, lowering)


app.command(epilog=HELP)(command_of(Arguments, run))


@contextmanager
def _first_complains() -> Generator[None]:
    """Let the first process of each computer alone report what all of them there find wrong: with
    the command, its files, or the computer."""
    try:
        yield
    except InputError as error:
        if os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) != "0":
            sys.exit(error.exit_status)
        raise


def _check_model(arguments: Arguments, plan: Plan) -> None:
    """That the plan is of its model as that is now, where the model is known; rank 0 sees to it."""
    name = arguments.model_of(plan.model_name)
    if name is None or not _is_first():
        return
    if plan.machine.devices > 1 and "RANK" not in os.environ:
        # Which takes torch as long to load as this process, so both do it at the same time.
        start_server()
    check_graph_of(plan, arguments.plan, name)


def _is_first() -> bool:
    """Whether this is rank 0, or the command that starts all ranks."""
    return os.environ.get("RANK", "0") == "0"


def _start(job: Job, lowering: Lowering) -> None:
    """Work as one of torchrun's processes, or start processes of our own."""
    machine, restarts = lowering.plan.machine, job.arguments.max_restarts
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        _work_among_ranks(job, lowering)
        return
    check_computer(machine.kind, machine.devices)
    if machine.devices == 1 and not restarts:
        work(job, lowering)
        return
    try:
        launch(work, (job,), machine.devices, restarts=restarts, grace=_grace(job))
    finally:
        _clear(job)


def _grace(job: Job) -> int:
    return 5 if job.options.checkpoints is None else GRACE


def _clear(job: Job) -> None:
    """Remove what processes that were killed have left half written."""
    if (kept := job.options.checkpoints) is None or not Path(kept.folder).is_dir():
        return
    with suppress(OSError):
        if remove_stale(folder := Path(kept.folder)):
            tidy(folder)


def _work_among_ranks(job: Job, lowering: Lowering) -> None:
    """Work as one of torchrun's processes. What is wrong with this one alone, it reports."""
    # Here because the command, which starts processes of its own, can do without torch for long.
    from runtime.train.worker import check_ranks
    from runtime.world.collectives import CommunicationError
    from runtime.world.faults import Stopped

    with _first_complains():
        kind = lowering.plan.machine.kind
        check_computer(kind, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        check_ranks(lowering.plan, job.arguments.plan)
    # Of one that was killed nobody would be told.
    end_with_parent(parent_ended, _grace(job))
    try:
        work(job, lowering)
    except (AgreedError, Stopped) as error:  # of which all ranks know
        if not _is_first():
            sys.exit(error.exit_status)
        raise
    except CommunicationError as error:
        if error.is_told:
            sys.exit(error.exit_status)
        raise


def work(job: Job, lowering: Lowering | None = None) -> None:
    """One process's part of a run; rank 0 prints. ``lowering``: of the plan, where this process has
    lowered it already."""
    # Here because the parent, which also imports this module, can do without torch for long.
    from runtime.train.worker import train

    asked = job.arguments
    if asked.operators is not None:
        load_operators(asked.operators)  # which `run` has checked
    lowering = lowering or Lowering(load_plan(asked.plan), asked.plan)
    plan = lowering.plan
    with _observed(job, plan) as (observe, begins):
        report = train(lowering, job.options, asked.timeout, observe, begins)
    if report is None:
        return
    if asked.trace is not None:
        write_trace(report, Path(asked.trace))
    if asked.as_json:
        print_json(plan, report)
    else:
        print_report(plan, report)
    if report.not_finite:
        kept = job.options.checkpoints
        where = "" if kept is None else f"; {kept.folder} has the last good checkpoint, if any"
        raise NotFinite(asked.plan, f"trained, but {report.not_finite}{where}")
    worst = max(report.comparisons, key=lambda c: (not c.passes, c.relative), default=None)
    if worst is not None and not worst.passes:
        what = f"{worst.kind} {worst.name} differs by {worst.relative:.1e} (relative)"
        raise NegativeAnswer(f"{asked.plan}: check failed: {what}")


@contextmanager
def _observed(job: Job, plan: Plan) -> Generator[tuple[Observer, Begins]]:
    """Show every step on a terminal, else some as lines, and add all to the log."""
    is_first = _is_first()
    is_shown = is_first and not job.arguments.as_json
    steps = job.options.steps
    samples = batch_of(plan.model, plan.naming) * job.options.recipe.accumulate
    tell = _lines(steps, plan) if is_shown and not sys.stderr.isatty() else None
    with (
        Progress(
            *Progress.get_default_columns(),
            TextColumn("loss {task.fields[loss]} {task.fields[speed]}"),
            console=PlainConsole(stderr=True),
            transient=True,
            disable=not is_shown or tell is not None,
        ) as progress,
        losses_file(job.arguments.log if is_first else None) as log,
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
    """What prints a line of ``PARTS`` steps, evenly chosen, and of the last one."""
    predicted = f"{plan.estimates.step_seconds:.3g} s predicted"

    def tell(step: FinishedStep) -> None:
        if step.number * PARTS // steps == (step.number - 1) * PARTS // steps:
            return
        text = f"step {step.number} of {steps}: loss {step.loss:.6g}, {step.seconds:.3g} s"
        say(f"unity: {text} ({predicted})", error=True)

    return tell


def _print_programs(lowering: Lowering) -> None:
    """What each process does, on the standard error so that --json stays readable."""
    for rank in range(min(lowering.ranks, MAX_PROGRAMS)):
        say(str(lowering.program(rank)), error=True)
    if lowering.ranks > MAX_PROGRAMS:
        say(f"... and {lowering.ranks - MAX_PROGRAMS} more ranks", error=True)


if __name__ == "__main__":
    run_app(app, "run")

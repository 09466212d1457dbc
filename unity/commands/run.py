"""Trains by a plan: checks it, then starts one process a device, or works as one of torchrun's."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from pcg.errors import InputError
from pcg.plan.plan import Plan, load_plan
from pcg.plan.precision import FORMATS
from runtime.checkpoints.folder import tidy
from runtime.checkpoints.lock import remove_stale
from runtime.job.job import AgreedError
from runtime.program.lower import Lowering
from runtime.program.validate import validate_lowered
from runtime.world.launch import check_computer, launch, start_server
from runtime.world.orphans import end_with_parent, parent_ended
from unity.commands.job import Job, check_alone, job_of, model_of
from unity.commands.train import is_first, work
from unity.run import Options
from unity.support.cli import say
from unity.support.declarations import load_user_operators
from unity.support.origin import check_graph_of, check_origin

MAX_PROGRAMS = 8
"""Programs that are shown; other ranks' differ in their regions and peers only."""

GRACE = 60
"""Seconds for the last step and its checkpoint, once told to stop."""


def run(options: Options) -> None:
    """Train. Raises InputError for what is wrong before it begins, and what training raises."""
    with _first_complains():
        check_alone(options)
        load_user_operators(options.operators)
        lowering = Lowering(load_plan(options.plan), options.plan)
        plan = lowering.plan
        check_origin(plan, options.plan, options.machine, options.rules)
        _check_model(options, plan)
        job = job_of(options, plan)
    if is_first():
        validate_lowered(lowering, FORMATS[job.settings.precision].wide)
    if options.show_program and is_first():
        _print_programs(lowering)
    _start(job, lowering)


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


def _check_model(options: Options, plan: Plan) -> None:
    """That the plan is of its model as that is now, where the model is known; rank 0 sees to it."""
    name = model_of(options, plan.model_name)
    if name is None or not is_first():
        return
    if plan.machine.devices > 1 and "RANK" not in os.environ:
        # Which takes torch as long to load as this process, so both do it at the same time.
        start_server()
    check_graph_of(plan, options.plan, name)


def _start(job: Job, lowering: Lowering) -> None:
    """Work as one of torchrun's processes, or start processes of our own."""
    machine, restarts = lowering.plan.machine, job.options.max_restarts
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
    return 5 if job.settings.checkpoints is None else GRACE


def _clear(job: Job) -> None:
    """Remove what processes that were killed have left half written."""
    if (kept := job.settings.checkpoints) is None or not Path(kept.folder).is_dir():
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

    plan = lowering.plan
    with _first_complains():
        check_computer(plan.machine.kind, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        check_ranks(plan, job.options.plan)
    # Of one that was killed nobody would be told.
    end_with_parent(parent_ended, _grace(job))
    try:
        work(job, lowering)
    except (AgreedError, Stopped) as error:  # of which all ranks know
        if not is_first():
            sys.exit(error.exit_status)
        raise
    except CommunicationError as error:
        if error.is_told:
            sys.exit(error.exit_status)
        raise


def _print_programs(lowering: Lowering) -> None:
    """What each process does, on the standard error so that --json stays readable."""
    for rank in range(min(lowering.ranks, MAX_PROGRAMS)):
        say(str(lowering.program(rank)), error=True)
    if lowering.ranks > MAX_PROGRAMS:
        say(f"... and {lowering.ranks - MAX_PROGRAMS} more ranks", error=True)

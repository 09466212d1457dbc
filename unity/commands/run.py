"""Trains by a plan: checks it, then starts a process for each device, or works under torchrun."""

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
"""The most programs that are printed. Those of other ranks differ only in regions and peers."""

GRACE = 60
"""Seconds for the last step and its checkpoint after a signal to stop."""


def run(options: Options) -> None:
    """Train. Raises InputError for wrong input, and the errors of training."""
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
    """Let only the first process of each computer report an error that all its processes find: in
    the command, its files, or the computer."""
    try:
        yield
    except InputError as error:
        if os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) != "0":
            sys.exit(error.exit_status)
        raise


def _check_model(options: Options, plan: Plan) -> None:
    """Check on rank 0 that the plan belongs to its model, if the model is known."""
    name = model_of(options, plan.model_name)
    if name is None or not is_first():
        return
    if plan.machine.devices > 1 and "RANK" not in os.environ:
        # The server and this process load torch at the same time.
        start_server()
    check_graph_of(plan, options.plan, name)


def _start(job: Job, lowering: Lowering) -> None:
    """Work as a process of torchrun, or start one process for each device."""
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
    """Remove incomplete checkpoints of processes that were killed."""
    if (kept := job.settings.checkpoints) is None or not Path(kept.folder).is_dir():
        return
    with suppress(OSError):
        if remove_stale(folder := Path(kept.folder)):
            tidy(folder)


def _work_among_ranks(job: Job, lowering: Lowering) -> None:
    """Work as a process of torchrun. It reports the errors that it alone has."""
    # Imported here because the command, which starts processes, does not need torch.
    from runtime.train.worker import check_ranks
    from runtime.world.collectives import CommunicationError
    from runtime.world.faults import Stopped

    plan = lowering.plan
    with _first_complains():
        check_computer(plan.machine.kind, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        check_ranks(plan, job.options.plan)
    # If the parent is killed, nothing else tells this process.
    end_with_parent(parent_ended, _grace(job))
    try:
        work(job, lowering)
    except (AgreedError, Stopped) as error:  # all ranks know of it
        if not is_first():
            sys.exit(error.exit_status)
        raise
    except CommunicationError as error:
        if error.is_told:
            sys.exit(error.exit_status)
        raise


def _print_programs(lowering: Lowering) -> None:
    """Print the programs on the standard error, so that --json stays readable."""
    for rank in range(min(lowering.ranks, MAX_PROGRAMS)):
        say(str(lowering.program(rank)), error=True)
    if lowering.ranks > MAX_PROGRAMS:
        say(f"... and {lowering.ranks - MAX_PROGRAMS} more ranks", error=True)

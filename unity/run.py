"""`unity run`: train by a plan on the processes of this computer, or as one that torchrun started.

python -m unity.run plan.json --steps 10 --check
python -m unity.run plan.json --steps 1000 --data my_data:train --checkpoint checkpoints --every 50
torchrun --nproc-per-node 4 --max-restarts 3 -m unity.run plan.json --steps 10
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn

from pcg.errors import InputError, NegativeAnswer
from pcg.plan import load_plan
from pcg.training import Optimizer
from pcg.user import load_operators
from runtime.job import Checkpoints, Observer, Options, Step
from runtime.launch import check_computer, launch
from runtime.lower import Lowering
from runtime.recipe import OptimizerName, Recipe
from unity.cli import new_app, run_app
from unity.declarations import load_user_operators
from unity.origin import check_origin
from unity.report import batch_of, print_json, print_report, write_trace

MAX_PROGRAMS = 8
"""Programs that are shown; other ranks' differ in their regions and peers only."""

GRACE = 60
"""Seconds for the last step and its checkpoint, once told to stop."""

app = new_app()


class Precision(StrEnum):
    """The number formats of a run; bf16 and fp16 with float32 weights."""

    float32 = "float32"
    float64 = "float64"
    bf16 = "bf16"
    fp16 = "fp16"


class OptimizerChoice(StrEnum):
    """Optimizers; momentum is sgd with --momentum 0.9."""

    sgd = "sgd"
    momentum = "momentum"
    adam = "adam"
    adamw = "adamw"


class ScheduleChoice(StrEnum):
    """Schedules of the learning rate."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"
    step = "step"


@dataclass(frozen=True)
class Job:
    """What each process is asked to do; it reads the plan itself."""

    path: str
    options: Options
    timeout: float
    as_json: bool
    operators: str | None
    log: str | None
    trace: str | None


@app.command()
def run(
    plan: Annotated[str, typer.Argument(help="Plan file, from unity optimize.")],
    steps: Annotated[int, typer.Option(min=1, help="Training steps, resumed ones included.")] = 5,
    data: Annotated[
        str | None,
        typer.Option(
            help="module:function or FILE.py:function that returns a map-style dataset or an"
            " iterable of samples; by default values are drawn."
        ),
    ] = None,
    optimizer: Annotated[
        OptimizerChoice | None, typer.Option(help="By default the one that the plan counts with.")
    ] = None,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 0.01,
    momentum: Annotated[
        float | None, typer.Option(help="Of sgd; by default 0.9 for `momentum`, else 0.")
    ] = None,
    dampening: Annotated[float, typer.Option(help="Of sgd with momentum.")] = 0.0,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's momentum.")] = False,
    weight_decay: Annotated[
        float | None, typer.Option(help="By default 0.01 for adamw, else 0.")
    ] = None,
    beta1: Annotated[float, typer.Option(help="Of adam and adamw.")] = 0.9,
    beta2: Annotated[float, typer.Option(help="Of adam and adamw.")] = 0.999,
    epsilon: Annotated[float, typer.Option(help="Of adam and adamw.")] = 1e-8,
    clip: Annotated[
        float | None, typer.Option(help="The largest norm of all gradients together.")
    ] = None,
    accumulate: Annotated[
        int, typer.Option(help="Batches a step, the mean of whose gradients is used.")
    ] = 1,
    schedule: Annotated[
        ScheduleChoice,
        typer.Option(help="Of the learning rate: down to --floor, or by --gamma every so often."),
    ] = ScheduleChoice.constant,
    warmup: Annotated[int, typer.Option(help="Steps in which the rate grows to its size.")] = 0,
    decay_steps: Annotated[
        int | None,
        typer.Option(help="Steps of a schedule after the warm-up; by default up to --steps."),
    ] = None,
    gamma: Annotated[float, typer.Option(help="What each drop of `step` leaves.")] = 0.1,
    floor: Annotated[float, typer.Option(help="The part of the rate that is left at last.")] = 0.0,
    init: Annotated[
        str | None,
        typer.Option(help="Weights to begin with, a state dict of the module; else drawn."),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="A folder for checkpoints, on a disk that all nodes share.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Steps from checkpoint to checkpoint.")] = 100,
    keep: Annotated[int, typer.Option(min=1, help="How many checkpoints stay.")] = 3,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint, if there is one.")
    ] = False,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often to start again when a process has died.")
    ] = 0,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with one process, in float64.")
    ] = False,
    precision: Annotated[
        Precision | None,
        typer.Option(help="Default: float32. bf16 and fp16 compute in these and keep float32."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Fixes weights, synthetic data and its order.")] = 0,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that a communication may take.")
    ] = 120.0,
    operators: Annotated[
        str | None, typer.Option(help="A Python file that declares further operators.")
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(help="What the plan's machine has to be; by default the preset it names."),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(help="The rule library of the plan; by default the generated one."),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(help="Write the timeline of the last step for Chrome's viewer or Perfetto."),
    ] = None,
    log: Annotated[
        str | None, typer.Option("--losses", help="A file to which each step adds a line of JSON.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    show_program: Annotated[
        bool, typer.Option("--show-program", help="First print what each process does.")
    ] = False,
) -> None:
    """Train by PLAN, one process a device."""
    with _rank_0_complains():
        if check and precision not in (None, Precision.float64):
            problem = f"{precision}, expected float64, in which --check compares"
            raise InputError("--precision", problem)
        if check and init is not None:
            raise InputError("--check", "not with --init, expected weights that are drawn")
        if trace is not None and not Path(trace).absolute().parent.is_dir():
            raise InputError(trace, "cannot be written, its folder does not exist")
        if operators is not None:
            load_user_operators(operators)
        lowering = Lowering(load_plan(plan), plan)
        check_origin(lowering.plan, plan, machine, rules)
        kind, momentum = _optimizer(optimizer, lowering.plan.optimizer, momentum)
        recipe = Recipe(
            optimizer=kind,
            rate=lr,
            momentum=momentum,
            dampening=dampening,
            nesterov=nesterov,
            weight_decay=(0.01 if kind == "adamw" else 0.0)
            if weight_decay is None
            else weight_decay,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            clip=clip,
            accumulate=accumulate,
            schedule=schedule.value,
            warmup=warmup,
            decay=decay_steps or (1 if schedule == "constant" else max(steps - warmup, 1)),
            gamma=gamma,
            floor=floor,
        )
        kept = _checkpoints(checkpoint, every, keep, resume, max_restarts)
        number = Precision.float64 if check else precision or Precision.float32
        options = Options(
            steps, recipe, number.value, seed, check, data, kept, init, trace is not None
        )
        job = Job(plan, options, timeout, as_json, operators, log, trace)
    if show_program and os.environ.get("RANK", "0") == "0":
        _print_programs(lowering)
    _start(job, lowering, max_restarts)


def _optimizer(
    chosen: OptimizerChoice | None, of_plan: Optimizer, momentum: float | None
) -> tuple[OptimizerName, float]:
    """The optimizer and its momentum."""
    name = of_plan if chosen is None else chosen.value
    if name == "momentum":
        return "sgd", 0.9 if momentum is None else momentum
    if momentum is not None and name != "sgd":
        raise InputError("--momentum", f"not for --optimizer {name}")
    return name, momentum or 0.0


def _checkpoints(
    folder: str | None, every: int, keep: int, resume: bool, restarts: int
) -> Checkpoints | None:
    if folder is not None:
        return Checkpoints(folder, every, keep, resume)
    for option, is_given in (("--resume", resume), ("--max-restarts", restarts > 0)):
        if is_given:
            raise InputError(option, "expected --checkpoint FOLDER with it")
    return None


@contextmanager
def _rank_0_complains() -> Generator[None]:
    """Let rank 0 alone report what all ranks find wrong."""
    try:
        yield
    except InputError as error:
        if os.environ.get("RANK", "0") != "0":
            sys.exit(error.exit_status)
        raise


def _start(job: Job, lowering: Lowering, restarts: int) -> None:
    """Work as one of torchrun's processes, or start processes of our own."""
    machine = lowering.plan.machine
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        try:
            work(job)
        except InputError as error:
            # What rank 0 finds wrong with the plan as well.
            if os.environ["RANK"] != "0" and error.where.startswith(job.path):
                sys.exit(error.exit_status)
            raise
        return
    check_computer(machine.kind, machine.devices)
    if machine.devices == 1 and not restarts:
        work(job)
        return
    grace = 5 if job.options.checkpoints is None else GRACE
    launch(work, (job,), machine.devices, restarts=restarts, grace=grace)


def work(job: Job) -> None:
    """One process's part of a run; rank 0 prints."""
    # Here because the parent, which also imports this module, can do without torch for long.
    from runtime.worker import train

    if job.operators is not None:
        load_operators(job.operators)  # which `run` has checked
    plan = load_plan(job.path)
    with _observed(job, batch_of(plan) * job.options.recipe.accumulate) as observe:
        report = train(plan, job.options, job.timeout, observe, job.path)
    if report is None:
        return
    if job.trace is not None:
        write_trace(report, Path(job.trace))
    if job.as_json:
        print_json(plan, report)
    else:
        print_report(plan, report)
    worst = max(report.comparisons, key=lambda c: (not c.passes, c.relative), default=None)
    if worst is not None and not worst.passes:
        what = f"{worst.kind} {worst.name} differs by {worst.relative:.1e} (relative)"
        raise NegativeAnswer(f"{job.path}: check failed: {what}")


@contextmanager
def _observed(job: Job, samples: int) -> Generator[Observer]:
    """Show every step on a terminal, and add it to the log; ``samples`` of a step."""
    is_first = os.environ.get("RANK", "0") == "0"
    with (
        Progress(
            *Progress.get_default_columns(),
            TextColumn("loss {task.fields[loss]} {task.fields[speed]}"),
            console=Console(stderr=True),
            transient=True,
            disable=job.as_json or not is_first or not sys.stderr.isatty(),
        ) as progress,
        _appending(job.log if is_first else None) as write,
    ):
        bar = progress.add_task("training", total=job.options.steps, loss="", speed="")

        def observe(step: Step) -> None:
            speed = f"{step.seconds:.3g} s a step, {samples / step.seconds:.4g} samples/s"
            progress.update(bar, completed=step.number, loss=f"{step.loss:.6g}", speed=speed)
            write(step)

        yield observe


@contextmanager
def _appending(path: str | None) -> Generator[Observer]:
    """What adds a line for a step to a file, if one is given."""
    if path is None:
        yield lambda step: None
        return
    try:
        with Path(path).open("a") as file:

            def write(step: Step) -> None:
                file.write(json.dumps(asdict(step)) + "\n")
                file.flush()

            yield write
    except OSError as error:
        raise InputError(path, f"cannot write: {error.strerror}") from error


def _print_programs(lowering: Lowering) -> None:
    """What each process does, on the standard error so that --json stays readable."""
    for rank in range(min(lowering.ranks, MAX_PROGRAMS)):
        print(lowering.program(rank), file=sys.stderr)
    if lowering.ranks > MAX_PROGRAMS:
        print(f"... and {lowering.ranks - MAX_PROGRAMS} more ranks", file=sys.stderr)


if __name__ == "__main__":
    run_app(app, "run")

"""Options of `unity run`, which trains by a plan on this computer, or as torchrun starts it.

python -m unity.run plan.json --steps 10 --check
python -m unity.run plan.json --model my_model.py:make_model
python -m unity.run plan.json --steps 1000 --data my_data:train --checkpoint checkpoints --every 50
torchrun --nproc-per-node 4 --max-restarts 3 -m unity.run plan.json --steps 10
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from runtime.world.status import HELP
from unity.support.cli import app_of, run_app
from unity.support.options import AsJson, Operators, PlanPrecision, Rules, Timeline


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
class Options:
    """Train by PLAN, one process a device."""

    plan: Annotated[str, typer.Argument(help="Plan file, from unity optimize.")]
    steps: Annotated[int, typer.Option(min=1, help="Training steps, resumed ones included.")] = 5
    data: Annotated[
        str | None,
        typer.Option(
            help="module:function or FILE.py:function that returns a map-style dataset or an"
            " iterable of samples, whose `shard(num_shards, index)`, if it has one, gives each"
            " rank its own; by default values are drawn."
        ),
    ] = None
    optimizer: Annotated[
        OptimizerChoice | None, typer.Option(help="Optimizer; by default that of the plan.")
    ] = None
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 0.01
    momentum: Annotated[
        float | None, typer.Option(help="Momentum of sgd; by default 0.9 for `momentum`, else 0.")
    ] = None
    dampening: Annotated[float, typer.Option(help="Dampening of sgd's momentum.")] = 0.0
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's momentum.")] = False
    weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay; by default 0.01 for adamw, else 0.")
    ] = None
    beta1: Annotated[float, typer.Option(help="Adam's decay of the first moment.")] = 0.9
    beta2: Annotated[float, typer.Option(help="Adam's decay of the second moment.")] = 0.999
    epsilon: Annotated[float, typer.Option(help="Adam's epsilon.")] = 1e-8
    clip: Annotated[float | None, typer.Option(help="Largest norm of all gradients together.")] = (
        None
    )
    accumulate: Annotated[
        int, typer.Option(help="Batches in a step; the mean of their gradients is used.")
    ] = 1
    schedule: Annotated[
        ScheduleChoice,
        typer.Option(help="Schedule of the rate: down to --floor, or by --gamma in steps."),
    ] = ScheduleChoice.constant
    warmup: Annotated[int, typer.Option(help="Steps in which the rate grows to --lr.")] = 0
    decay_steps: Annotated[
        int | None,
        typer.Option(help="Steps of the schedule after the warm-up; by default all that are left."),
    ] = None
    gamma: Annotated[
        float, typer.Option(help="Part of the rate that each drop of `step` leaves.")
    ] = 0.1
    floor: Annotated[float, typer.Option(help="Part of the rate that is left in the end.")] = 0.0
    init: Annotated[
        str | None,
        typer.Option(help="State dict of the module to begin with; by default its own."),
    ] = None
    checkpoint: Annotated[
        str | None, typer.Option(help="Folder for checkpoints, on a disk that all nodes share.")
    ] = None
    every: Annotated[int, typer.Option(min=1, help="Steps from checkpoint to checkpoint.")] = 100
    keep: Annotated[int, typer.Option(min=1, help="How many checkpoints stay.")] = 3
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint, if there is one.")
    ] = False
    stop_non_finite: Annotated[
        bool,
        typer.Option(
            "--stop-non-finite",
            help="End with status 3 at the first loss or gradient that is not finite. Without it a"
            " run warns, and writes no checkpoint until all are finite again; a run that ends"
            " before they are has status 3 too.",
        ),
    ] = False
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Number of new starts when a process has died.")
    ] = 0
    check: Annotated[
        bool, typer.Option("--check", help="Compare with one process, in float64.")
    ] = False
    precision: PlanPrecision = None
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Compile what is between communications, by torch.compile."),
    ] = False
    seed: Annotated[
        int, typer.Option(help="Seed of weights, synthetic data and the order of data.")
    ] = 0
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that a communication may take.")
    ] = 120.0
    operators: Operators = None
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of the plan, whose initial values are taken: a name, or FILE.py:FUNCTION,"
            " which is run. By default the one that the plan names, if that is in the zoo. The"
            " plan is compared with it if it is given, or with --check."
        ),
    ] = None
    machine: Annotated[
        str | None,
        typer.Option(help="Machine of the plan; by default the preset that it names."),
    ] = None
    rules: Rules = None
    trace: Timeline = None
    log: Annotated[
        str | None, typer.Option("--losses", help="A file to which each step adds a line of JSON.")
    ] = None
    as_json: AsJson = False
    show_program: Annotated[
        bool, typer.Option("--show-program", help="First print what each process does.")
    ] = False


app = app_of(Options, "unity.commands.run", epilog=HELP)

if __name__ == "__main__":
    run_app(app, "run")

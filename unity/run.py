"""Options of `unity run`, which trains by a plan on this computer, or under torchrun.

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
    """Optimizers. ``momentum`` is sgd with --momentum 0.9."""

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
    """Train by PLAN, with one process for each device."""

    plan: Annotated[str, typer.Argument(help="A plan file, from unity optimize.")]
    steps: Annotated[
        int, typer.Option(min=1, help="Number of training steps, resumed ones included.")
    ] = 5
    data: Annotated[
        str | None,
        typer.Option(
            help="module:function or FILE.py:function that returns a map-style dataset or an"
            " iterable of samples. If the dataset has `shard(num_shards, index)`, that gives each"
            " rank its part. Default: synthetic data."
        ),
    ] = None
    optimizer: Annotated[
        OptimizerChoice | None, typer.Option(help="Optimizer. Default: that of the plan.")
    ] = None
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 0.01
    momentum: Annotated[
        float | None, typer.Option(help="Momentum of sgd. Default: 0.9 for `momentum`, else 0.")
    ] = None
    dampening: Annotated[float, typer.Option(help="Dampening of the momentum of sgd.")] = 0.0
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Use Nesterov's momentum.")] = False
    weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay. Default: 0.01 for adamw, else 0.")
    ] = None
    beta1: Annotated[float, typer.Option(help="Adam's decay of the first moment.")] = 0.9
    beta2: Annotated[float, typer.Option(help="Adam's decay of the second moment.")] = 0.999
    epsilon: Annotated[float, typer.Option(help="Adam's epsilon.")] = 1e-8
    clip: Annotated[
        float | None,
        typer.Option(help="Largest norm of all gradients together; larger ones are scaled down."),
    ] = None
    accumulate: Annotated[
        int, typer.Option(help="Batches of a step, whose gradients are averaged.")
    ] = 1
    schedule: Annotated[
        ScheduleChoice,
        typer.Option(help="Schedule of the learning rate."),
    ] = ScheduleChoice.constant
    warmup: Annotated[int, typer.Option(help="Steps in which the learning rate grows to --lr.")] = 0
    decay_steps: Annotated[
        int | None,
        typer.Option(help="Steps of the schedule after the warm-up. Default: all remaining steps."),
    ] = None
    gamma: Annotated[
        float, typer.Option(help="Factor of the learning rate at each drop of schedule `step`.")
    ] = 0.1
    floor: Annotated[
        float, typer.Option(help="Part of --lr at the end of schedules `linear` and `cosine`.")
    ] = 0.0
    init: Annotated[
        str | None,
        typer.Option(
            help="File with the state dict to begin with. Default: the module's initial values."
        ),
    ] = None
    checkpoint: Annotated[
        str | None, typer.Option(help="Folder for checkpoints, on a disk that all nodes share.")
    ] = None
    every: Annotated[int, typer.Option(min=1, help="Number of steps between checkpoints.")] = 100
    keep: Annotated[int, typer.Option(min=1, help="Number of checkpoints to keep.")] = 3
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint, if there is one.")
    ] = False
    stop_non_finite: Annotated[
        bool,
        typer.Option(
            "--stop-non-finite",
            help="End with status 3 at the first loss or gradient that is not finite. Without this"
            " option, the run warns and writes no checkpoint until all are finite again. If it ends"
            " before that, the status is 3 too.",
        ),
    ] = False
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often to start again after a process has died.")
    ] = 0
    check: Annotated[
        bool,
        typer.Option("--check", help="Compare the run with training in one process, in float64."),
    ] = False
    precision: PlanPrecision = None
    compile: Annotated[
        bool,
        typer.Option(
            "--compile", help="Compile operators between communications with torch.compile."
        ),
    ] = False
    seed: Annotated[
        int, typer.Option(help="Seed of initial weights, synthetic data and the order of data.")
    ] = 0
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Time limit of a communication, in seconds.")
    ] = 120.0
    operators: Operators = None
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of the plan, for initial values: a name of the zoo, or FILE.py:FUNCTION,"
            " which is run. Default: the model that the plan names, if it is in the zoo. With this"
            " option or --check, the plan is compared with it."
        ),
    ] = None
    machine: Annotated[
        str | None,
        typer.Option(help="Machine of the plan. Default: the preset that the plan names."),
    ] = None
    rules: Rules = None
    trace: Timeline = None
    log: Annotated[
        str | None, typer.Option("--losses", help="Add a line of JSON to this file for each step.")
    ] = None
    as_json: AsJson = False
    show_program: Annotated[
        bool,
        typer.Option("--show-program", help="Print the program of each process before the run."),
    ] = False


app = app_of(Options, "unity.commands.run", epilog=HELP)

if __name__ == "__main__":
    run_app(app, "run")

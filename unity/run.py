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
from unity.support.options import AsJson, Operators, Rules, Timeline


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
        OptimizerChoice | None, typer.Option(help="By default the one that the plan counts with.")
    ] = None
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 0.01
    momentum: Annotated[
        float | None, typer.Option(help="Of sgd; by default 0.9 for `momentum`, else 0.")
    ] = None
    dampening: Annotated[float, typer.Option(help="Of sgd with momentum.")] = 0.0
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's momentum.")] = False
    weight_decay: Annotated[
        float | None, typer.Option(help="By default 0.01 for adamw, else 0.")
    ] = None
    beta1: Annotated[float, typer.Option(help="Of adam and adamw.")] = 0.9
    beta2: Annotated[float, typer.Option(help="Of adam and adamw.")] = 0.999
    epsilon: Annotated[float, typer.Option(help="Of adam and adamw.")] = 1e-8
    clip: Annotated[
        float | None, typer.Option(help="The largest norm of all gradients together.")
    ] = None
    accumulate: Annotated[
        int, typer.Option(help="Batches a step, the mean of whose gradients is used.")
    ] = 1
    schedule: Annotated[
        ScheduleChoice,
        typer.Option(help="Of the learning rate: down to --floor, or by --gamma every so often."),
    ] = ScheduleChoice.constant
    warmup: Annotated[int, typer.Option(help="Steps in which the rate grows to its size.")] = 0
    decay_steps: Annotated[
        int | None,
        typer.Option(help="Steps of a schedule after the warm-up; by default up to --steps."),
    ] = None
    gamma: Annotated[float, typer.Option(help="What each drop of `step` leaves.")] = 0.1
    floor: Annotated[float, typer.Option(help="The part of the rate that is left at last.")] = 0.0
    init: Annotated[
        str | None,
        typer.Option(help="Weights to begin with, a state dict of the module; else its own."),
    ] = None
    checkpoint: Annotated[
        str | None, typer.Option(help="A folder for checkpoints, on a disk that all nodes share.")
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
            help="End at the first loss or gradient that is not finite, with status 3; without it"
            " a warning says so, no checkpoint is written until it has changed, and a run that"
            " ends so has status 3 too.",
        ),
    ] = False
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often to start again when a process has died.")
    ] = 0
    check: Annotated[
        bool, typer.Option("--check", help="Compare with one process, in float64.")
    ] = False
    precision: Annotated[
        Precision | None,
        typer.Option(help="Default: float32. bf16 and fp16 compute in these and keep float32."),
    ] = None
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Put what is between communications through torch.compile."),
    ] = False
    seed: Annotated[int, typer.Option(help="Fixes weights, synthetic data and its order.")] = 0
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that a communication may take.")
    ] = 120.0
    operators: Operators = None
    model: Annotated[
        str | None,
        typer.Option(
            help="What the plan has to be of, whose initial values are taken: a model's name or"
            " FILE.py:FUNCTION, which is run. By default the name that the plan gives, where that"
            " is one of Unity's; compared with the plan if given or with --check."
        ),
    ] = None
    machine: Annotated[
        str | None,
        typer.Option(help="What the plan's machine has to be; by default the preset it names."),
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

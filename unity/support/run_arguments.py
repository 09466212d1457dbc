"""What `unity run` can be asked: its options, and what they come to together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pcg.errors import InputError
from pcg.files import check_writable
from pcg.models import MODELS
from pcg.plan.training import Optimizer
from runtime.job.job import Checkpoints, Options
from runtime.job.recipe import OptimizerName, Recipe


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
class Arguments:
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
    operators: Annotated[
        str | None, typer.Option(help="A Python file that declares further operators.")
    ] = None
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
    rules: Annotated[
        str | None,
        typer.Option(help="The rule library of the plan; by default the generated one."),
    ] = None
    trace: Annotated[
        str | None,
        typer.Option(help="Write the timeline of the last step for Chrome's viewer or Perfetto."),
    ] = None
    log: Annotated[
        str | None, typer.Option("--losses", help="A file to which each step adds a line of JSON.")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False
    show_program: Annotated[
        bool, typer.Option("--show-program", help="First print what each process does.")
    ] = False

    def check_alone(self) -> None:
        """Raises InputError for what no plan makes sense of."""
        if self.check and self.precision not in (None, Precision.float64):
            problem = f"{self.precision}, expected float64, in which --check compares"
            raise InputError("--precision", problem)
        if self.check and self.init is not None:
            raise InputError("--check", "not with --init, expected weights that are drawn")
        if not -(1 << 63) <= self.seed < 1 << 64:
            raise InputError("--seed", f"{self.seed}, expected a whole number of 64 bits")
        if self.trace is not None:
            check_writable(Path(self.trace))

    def model_of(self, named: str) -> str | None:
        """The model to capture again, if any; ``named``: by the plan. A file is only run if the
        caller names it."""
        if self.model is not None or not self.check:
            return self.model
        return named if named in MODELS else None

    def options(self, of_plan: Optimizer, named: str = "") -> Options:
        """What each process is asked to do. ``of_plan``: the optimizer that the plan counts with;
        ``named``: the model that it names, whose module is made where it is one of Unity's.

        Raises InputError for what makes no sense."""
        number = Precision.float64 if self.check else self.precision or Precision.float32
        return Options(
            steps=self.steps,
            recipe=self._recipe(of_plan),
            dtype=number.value,
            seed=self.seed,
            check=self.check,
            data=self.data,
            checkpoints=self._checkpoints(),
            initial=self.init,
            model=named if self.model is None and named in MODELS else self.model,
            timeline=self.trace is not None,
            compiles=self.compile,
            stops_not_finite=self.stop_non_finite,
        )

    def _recipe(self, of_plan: Optimizer) -> Recipe:
        kind, momentum = self._optimizer(of_plan)
        decay = 0.01 if kind == "adamw" else 0.0
        constant = self.schedule == ScheduleChoice.constant
        decay_steps = 1 if constant else max(self.steps - self.warmup, 1)
        return Recipe(
            optimizer=kind,
            rate=self.lr,
            momentum=momentum,
            dampening=self.dampening,
            nesterov=self.nesterov,
            weight_decay=decay if self.weight_decay is None else self.weight_decay,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            clip=self.clip,
            accumulate=self.accumulate,
            schedule=self.schedule.value,
            warmup=self.warmup,
            decay=decay_steps if self.decay_steps is None else self.decay_steps,
            gamma=self.gamma,
            floor=self.floor,
        )

    def _optimizer(self, of_plan: Optimizer) -> tuple[OptimizerName, float]:
        """The optimizer and its momentum."""
        name = of_plan if self.optimizer is None else self.optimizer.value
        if name == "momentum":
            return "sgd", 0.9 if self.momentum is None else self.momentum
        if self.momentum is not None and name != "sgd":
            raise InputError("--momentum", f"not for --optimizer {name}")
        return name, self.momentum or 0.0

    def _checkpoints(self) -> Checkpoints | None:
        if self.checkpoint is not None:
            return Checkpoints(self.checkpoint, self.every, self.keep, self.resume)
        for option, is_given in (
            ("--resume", self.resume),
            ("--max-restarts", self.max_restarts > 0),
        ):
            if is_given:
                raise InputError(option, "expected --checkpoint FOLDER with it")
        return None

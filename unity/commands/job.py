"""From the options of `unity run` to the job of each process."""

from __future__ import annotations

from dataclasses import dataclass

from pcg.errors import InputError
from pcg.files import check_writable
from pcg.plan.plan import Plan
from pcg.plan.precision import Precision, precision_of
from pcg.plan.training import Optimizer
from pcg.zoo import MODELS
from runtime.job.job import Checkpoints
from runtime.job.job import TrainingOptions as Settings
from runtime.job.recipe import OptimizerName, Recipe
from unity.run import Options, ScheduleChoice


@dataclass(frozen=True)
class Job:
    """The job of each process of a run. The process reads the plan itself."""

    options: Options
    settings: Settings


def check_alone(options: Options) -> None:
    """Raise InputError for options that are wrong for any plan."""
    asked = None if options.precision is None else precision_of(options.precision)
    if options.check and asked not in (None, "fp64"):
        raise InputError(
            "--precision", f"{asked} with --check, expected fp64, in which the check compares"
        )
    if options.check and options.init is not None:
        raise InputError(
            "--check", "does not go with --init, expected initial weights of the model"
        )
    if not -(1 << 63) <= options.seed < 1 << 64:
        raise InputError("--seed", f"{options.seed}, expected a whole number of 64 bits")
    if options.trace is not None:
        check_writable(options.trace)


def model_of(options: Options, named: str) -> str | None:
    """Return the model to capture again, if any. ``named``: the model that the plan names. A file
    is run only if an option names it."""
    if options.model is not None or not options.check:
        return options.model
    return named if named in MODELS else None


def job_of(options: Options, plan: Plan) -> Job:
    """Return the job of the processes that train by a plan. If the plan names a model of the zoo,
    its module is made. Raises InputError for options that do not go together."""
    named = plan.model_name if plan.model_name in MODELS else None
    settings = Settings(
        steps=options.steps,
        recipe=_recipe(options, plan.training.optimizer),
        precision=_precision(options, plan.training.precision),
        seed=options.seed,
        check=options.check,
        data=options.data,
        checkpoints=_checkpoints(options),
        initial=options.init,
        model=named if options.model is None else options.model,
        timeline=options.trace is not None,
        compiles=options.compile or plan.training.compiled,
        stops_not_finite=options.stop_non_finite,
    )
    return Job(options, settings)


def _recipe(options: Options, of_plan: Optimizer) -> Recipe:
    kind, momentum = _optimizer(options, of_plan)
    decay = 0.01 if kind == "adamw" else 0.0
    constant = options.schedule == ScheduleChoice.constant
    decay_steps = 1 if constant else max(options.steps - options.warmup, 1)
    return Recipe(
        optimizer=kind,
        rate=options.lr,
        momentum=momentum,
        dampening=options.dampening,
        nesterov=options.nesterov,
        weight_decay=decay if options.weight_decay is None else options.weight_decay,
        beta1=options.beta1,
        beta2=options.beta2,
        epsilon=options.epsilon,
        clip=options.clip,
        accumulate=options.accumulate,
        schedule=options.schedule.value,
        warmup=options.warmup,
        decay=decay_steps if options.decay_steps is None else options.decay_steps,
        gamma=options.gamma,
        floor=options.floor,
    )


def _precision(options: Options, of_plan: Precision) -> Precision:
    """The number format: fp64 for a check, else the given one, else that of the plan."""
    if options.check:
        return "fp64"
    return of_plan if options.precision is None else precision_of(options.precision)


def _optimizer(options: Options, of_plan: Optimizer) -> tuple[OptimizerName, float]:
    """The optimizer and its momentum."""
    name = of_plan if options.optimizer is None else options.optimizer.value
    if name == "momentum":
        return "sgd", 0.9 if options.momentum is None else options.momentum
    if options.momentum is not None and name != "sgd":
        raise InputError("--momentum", f"does not go with --optimizer {name}")
    return name, options.momentum or 0.0


def _checkpoints(options: Options) -> Checkpoints | None:
    if options.checkpoint is not None:
        return Checkpoints(options.checkpoint, options.every, options.keep, options.resume)
    for option, is_given in (
        ("--resume", options.resume),
        ("--max-restarts", options.max_restarts > 0),
    ):
        if is_given:
            raise InputError(option, "needs --checkpoint FOLDER")
    return None

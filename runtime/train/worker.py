"""Run the training of a rank. Rank 0 checks and reports."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pcg.errors import InputError, one_line
from pcg.fork import cores
from pcg.graph.graph import Node
from pcg.placement.schedule import Slot
from pcg.plan.plan import Plan
from runtime.execute.executor import Executor
from runtime.execute.precision import allow_tf32, run_formats
from runtime.inputs.dataset import make_source
from runtime.inputs.seeded import InputSource, initial_weight
from runtime.job.job import (
    AgreedError,
    Beginning,
    Begins,
    FinishedStep,
    Observer,
    RunReport,
    TrainingOptions,
)
from runtime.program.lower import Lowering
from runtime.train.check import Outcome, compare, train_alone
from runtime.train.initial import Initial, with_constants
from runtime.train.training import TrainingRun, is_delayed
from runtime.world.collectives import World, environment, open_world


def _ignore(_: Beginning) -> None:
    """A callback that does nothing."""


def train(
    lowering: Lowering,
    options: TrainingOptions,
    timeout: float,
    observe: Observer,
    begins: Begins = _ignore,
) -> RunReport | None:
    """Train by a plan as one of the ranks that torchrun started, or as a single process for a plan
    of one device. Return a report on rank 0, None on other ranks.

    ``timeout``: the seconds that a communication may take. ``observe`` and ``begins`` are called on
    rank 0. Raises InputError if the number of ranks is not the plan's number of devices.
    """
    plan, where = lowering.plan, lowering.where
    check_ranks(plan, where)
    share_cores()
    with open_world(plan.machine.kind, timeout) as world, _memory(world, where), _compiler():
        return run_plan(lowering, options, world, observe, begins)


def check_ranks(plan: Plan, where: str) -> None:
    """Raise InputError if the number of ranks is not the plan's number of devices."""
    _, ranks = environment() or (0, 1)
    if ranks != plan.machine.devices:
        problem = f"expected {plan.machine.devices} processes, one a device, got {ranks}"
        raise InputError(where, problem)


@contextmanager
def _memory(world: World, where: str) -> Generator[None]:
    """Turn an error for lack of memory into an InputError of one line."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # On a CPU, torch raises a RuntimeError.
        has_class = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not has_class and "can't allocate memory" not in str(error):
            raise
        reason = one_line(str(error).rpartition("Allocator: ")[2]) or "no memory is left"
        problem = f"rank {world.rank} is out of memory: {reason[:200]}"
        raise InputError(f"{where}: {world.device}", problem) from error


@contextmanager
def _compiler() -> Generator[None]:
    """Turn the error of torch.compile for a missing compiler into an InputError of one line."""
    try:
        yield
    except RuntimeError as error:
        if "InvalidCxxCompiler" not in str(error):
            raise
        problem = "no C++ compiler works here, expected one such as g++, or CXX to name it"
        raise InputError("--compile", problem) from error


@dataclass(frozen=True)
class PreparedRank:
    """A rank that is ready for its first step."""

    executor: Executor
    training: TrainingRun
    source: InputSource
    first: Mapping[str, Tensor] | None
    """For the check against one process: the initial weights of the module, whole, by leaf, on rank
    0. None if weights are drawn, or no check was asked for."""


def prepare(lowering: Lowering, options: TrainingOptions, world: World) -> PreparedRank:
    """Prepare a rank for its first step. All ranks call together."""
    program, plan, seed = lowering.program(world.rank), lowering.plan, options.seed
    inputs = [node.leaf for node in plan.model.leaves if node.leaf.kind == "input"]
    wide = run_formats(options.precision, world.device).wide
    allow_tf32(allowed=options.precision == "tf32")
    # A hand-written plan does not have the module's names of its weights.
    has_module = options.model is not None and bool(plan.naming.parameters)
    initial = Initial(plan, options.model, seed, world, wide, options.initial)
    source = make_source(options.data, inputs, plan.naming, seed, alone=False)
    source = with_constants(source, initial, program, options)
    first = initial.whole() if options.check and has_module else None
    executor = Executor(
        program,
        world,
        options.precision,
        seed,
        source,
        compiles=options.compiles,
        drawn=not has_module,
    )
    training = TrainingRun(lowering, options, world, executor, initial if has_module else None)
    return PreparedRank(executor, training, source, first)


def run_plan(
    lowering: Lowering,
    options: TrainingOptions,
    world: World,
    observe: Observer,
    begins: Begins = _ignore,
) -> RunReport | None:
    """Train as one of several ranks that are connected already. Return a report on rank 0."""
    prepared = prepare(lowering, options, world)
    plan, seed, recipe = lowering.plan, options.seed, options.recipe
    executor, training = prepared.executor, prepared.training
    with _naming_rank(world):
        steps = training.run(observe, begins)
    report = RunReport(
        steps,
        batches=recipe.accumulate,
        timeline=training.timeline,
        not_finite=training.not_finite,
    )
    if not options.check:
        return report if world.rank == 0 else None
    outcome = _collect(lowering, executor, world.rank, steps)
    if world.rank != 0:
        return None
    delayed = is_delayed(plan)
    expected = train_alone(
        plan.model, options, prepared.source, world.device, delayed=delayed, initial=prepared.first
    )
    # A resumed run has the losses of its own steps only. Without steps it has no outputs.
    losses = expected.losses[options.steps - len(steps) :]
    expected = replace(expected, losses=losses, outputs=expected.outputs if steps else ())
    comparisons = compare(expected, _with_unused(outcome, plan, seed, prepared.first))
    return replace(report, comparisons=comparisons)


@contextmanager
def _naming_rank(world: World) -> Generator[None]:
    """Add the rank and the step to an InputError that a single rank raises, for instance about its
    data."""
    try:
        yield
    except AgreedError:
        raise
    except InputError as error:
        if world.size == 1:
            raise
        step = f": step {world.step}" if world.step else ""
        where = f"rank {world.rank}{step}: {error.where}"
        raise InputError(where, error.problem) from error


def _collect(
    lowering: Lowering, executor: Executor, rank: int, steps: tuple[FinishedStep, ...]
) -> Outcome:
    """Gather on rank 0 every copy of all weights and, if there were steps, of all outputs, as whole
    tensors. Other ranks get no tensors."""

    def copies(slot: Slot, *, weight: bool = False) -> tuple[Tensor, ...]:
        wholes: list[Tensor] = []
        for copy in range(max(map(len, slot.layout.holders.values()))):
            exchange = lowering.collect(slot, copy, rank)
            whole = executor.collect(exchange, slot.layout.type.shape, weight=weight)
            wholes += [] if whole is None else [whole]
        return tuple(wholes)

    outputs = tuple(copies(slot) for slot in lowering.schedule.outputs if steps)
    homes = sorted(lowering.schedule.homes, key=_name)
    weights = {_name(node): copies(lowering.home(node), weight=True) for node in homes}
    return Outcome(tuple(step.loss for step in steps), outputs, weights)


def _with_unused(
    outcome: Outcome, plan: Plan, seed: int, first: Mapping[str, Tensor] | None
) -> Outcome:
    """Add the weights that the model has and the plan does not, with their initial values. Training
    on one process must not change these."""
    unused = {
        _name(node): (initial_weight(node.leaf, seed) if first is None else first[_name(node)],)
        for node in plan.model.leaves
        if node.leaf.kind == "weight" and _name(node) not in outcome.weights
    }
    return Outcome(outcome.losses, outcome.outputs, {**outcome.weights, **unused})


def _name(node: Node) -> str:
    return node.leaf.name


def share_cores() -> None:
    """Divide this computer's cores among its ranks, unless OMP_NUM_THREADS is set."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(max(1, cores() // local))

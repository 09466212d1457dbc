"""The training loop of a rank: steps, checkpoints, and where it goes on from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from torch import Tensor

from pcg.errors import InputError, one_line
from pcg.plan import Plan
from runtime import checkpoint
from runtime.checkpoint import CheckpointError, Kept, Manifest, ScaleRecord
from runtime.collectives import World
from runtime.executor import Executor, StepResult, Update
from runtime.faults import Requests, restarts, stop_requests
from runtime.job import Checkpoints, Mark, Observer, Options, Step
from runtime.lower import Lowering
from runtime.optimizer import Updater
from runtime.plain import fill
from runtime.program import Program, Weight
from runtime.shards import Shard
from runtime.timeline import recorded


def is_delayed(plan: Plan) -> bool:
    """Whether gradients are of the weights of one update before, as in PipeDream-2BW."""
    return plan.pipeline is not None and plan.pipeline.schedule == "2bw"


class Training:
    """A rank's executor, what updates its weights, and its part of checkpoints."""

    def __init__(
        self, lowering: Lowering, options: Options, world: World, executor: Executor
    ) -> None:
        self._lowering, self._options, self._world = lowering, options, world
        self._program: Program = lowering.program(world.rank)
        self._executor = executor
        self.timeline: tuple[tuple[Mark, ...], ...] = ()
        """What each rank did in the last step, where that was recorded."""
        trained = self._program.trained
        self._updater = Updater(
            {weight.register: executor.weights[weight.register] for weight in trained},
            options.recipe,
            world,
            frozenset(weight.register for weight in trained if self._writes(weight)),
        )

    def run(self, observe: Observer) -> tuple[Step, ...]:
        """Train up to the step that was asked for; ``observe`` is called on rank 0.

        Raises Stopped where a signal ended it sooner.
        """
        if lost := self._executor.running.lost:
            problem = "not followed, the plan does not compute what they are of"
            self._tell(f"warning: running statistics {', '.join(lost)}: {problem}")
        if (given := self._options.initial) is not None:
            plan = self._lowering.plan
            executor, running = self._executor, self._executor.running
            fill(executor.weights, self._program.weights, plan.naming, given, running)
            self._renew_older()
        if (kept := self._options.checkpoints) is None:
            return tuple(self._steps(observe))
        steps: list[Step] = []
        self._begin(kept)
        with stop_requests(self._world) as requests:
            for step in self._steps(observe):
                steps.append(step)
                if self._world.stops:
                    self._stop(kept, requests, step.number)
                if step.number % kept.every == 0 and step.number != self._options.steps:
                    self._save_or_warn(kept)
            if steps:
                self._save(kept)
        return tuple(steps)

    def _steps(self, observe: Observer) -> Iterator[Step]:
        parts = self._options.recipe.accumulate
        while (number := self._updater.updates) < self._options.steps:
            self._world.step = number + 1
            loss = seconds = 0.0
            for part in range(parts):
                # Gradients are exchanged once a step: with those of its last batch.
                update = self._updater.update if part == parts - 1 else None
                batch = self._batch(number * parts + part, update)
                is_shown = self._options.timeline and number + 1 == self._options.steps
                result = self._recorded(batch) if is_shown and update else batch()
                loss, seconds = loss + result.loss / parts, seconds + result.seconds
            step = Step(number + 1, loss, seconds)
            if self._world.rank == 0:
                observe(step)
            yield step

    def _batch(self, number: int, update: Update | None) -> Callable[[], StepResult]:
        """What takes a batch."""
        count = self._options.steps * self._options.recipe.accumulate
        return partial(self._executor.step, number, update, more=number + 1 < count)

    def _recorded(self, batch: Callable[[], StepResult]) -> StepResult:
        results: list[StepResult] = []
        marks = recorded(self._world, lambda: results.append(batch()))
        self.timeline = tuple(self._world.gather(marks))
        return results[0]

    def _begin(self, kept: Checkpoints) -> None:
        """Go on from the newest checkpoint that is whole, where that is wanted."""
        folder = Path(kept.folder)
        if not kept.resume and not restarts():
            if any(self._world.gather(checkpoint.contains_any(folder))):
                problem = "has checkpoints already, expected --resume or another folder"
                raise InputError(kept.folder, problem)
            return
        found = checkpoint.find(self._world, folder, self._tell)
        if found is None:
            self._tell(f"{folder}: no checkpoint yet, starting at step 1")
            return
        self._check(found)
        self._updater.restore(found.manifest.updates)
        if (scale := found.manifest.loss_scale) and self._executor.loss_scale:
            self._executor.loss_scale.value = scale.value
            self._executor.loss_scale.good_steps = scale.good_steps
        weights = (*self._shards(), *(self._older() if found.manifest.delayed else ()))
        known = found.manifest.parameters
        running = dict(self._executor.running.shards())
        there = (shard for name, shard in running.items() if name in known)
        checkpoint.load(self._world, found, (*weights, *there))
        if running and not running.keys() <= known.keys():
            self._tell(f"{found.path}: has no running statistics, they begin anew")
        if not found.manifest.delayed:
            self._renew_older()
        self._tell(f"{found.path}: going on with step {found.manifest.updates + 1}")

    def _check(self, found: Kept) -> None:
        """Refuse a checkpoint of something else; tell of what the run does otherwise."""
        manifest, recipe, where = found.manifest, self._options.recipe, str(found.path)
        if manifest.graph != self._lowering.plan.model.digest:
            problem = f"is of {manifest.model} with another graph than the plan's model"
            raise InputError(where, problem)
        if manifest.updates > self._options.steps:
            problem = f"is of step {manifest.updates}, expected --steps {manifest.updates} or more"
            raise InputError(where, problem)
        before = manifest.recipe
        if before.states != recipe.states:
            problem = f"has the states of {before.optimizer} with momentum {before.momentum}"
            raise InputError(where, f"{problem}, expected the same optimizer")
        changes = before.differences(recipe)
        if manifest.seed != self._options.seed:
            changes.append(f"--seed {self._options.seed} instead of {manifest.seed}")
        if changes:
            self._tell(f"{where}: going on with {', '.join(changes)}")

    def _stop(self, kept: Checkpoints, requests: Requests, number: int) -> None:
        path = self._save(kept)
        raise requests.stopped(f"after step {number}, checkpoint {path}")

    def _save_or_warn(self, kept: Checkpoints) -> None:
        """Train on without a checkpoint that could not be written: those before are still there."""
        try:
            self._save(kept)
        except CheckpointError as error:
            self._tell(f"warning: no checkpoint: {error}")

    def _save(self, kept: Checkpoints) -> Path:
        running = (shard for _, shard in self._executor.running.shards())
        shards = (*self._shards(), *self._older(), *running)
        folder, options = Path(kept.folder), self._options
        plan = self._lowering.plan
        leaves = {w.leaf.name: w.leaf for w in self._program.weights}
        scale = self._executor.loss_scale
        known = self._world.gather(sorted(leaves))
        parameters = {
            parameter.names[0]: parameter.names[1:]
            for name in sorted({name for names in known for name in names})
            for parameter in (plan.naming.parameter(name),)
        } | {first: names[1:] for first, names in self._executor.running.names.items()}
        manifest = Manifest(
            model=plan.model_name,
            graph=plan.model.digest,
            updates=self._updater.updates,
            seed=options.seed,
            recipe=options.recipe,
            delayed=is_delayed(plan),
            loss_scale=None if scale is None else ScaleRecord(**asdict(scale)),
            parameters=parameters,
        )
        return checkpoint.save(self._world, folder, shards, manifest, kept.keep)

    def _shards(self) -> Iterator[Shard]:
        """Weights and states that this rank holds, by the names and shapes of the module."""
        weights = {weight.register: weight for weight in self._program.weights}
        for register, weight in weights.items():
            yield self._shard("model.{}", weight, self._executor.weights[register])
        for register, state, tensor in self._updater.states():
            yield self._shard(f"optimizer.{{}}.{state}", weights[register], tensor)

    def _older(self) -> Iterator[Shard]:
        """The weights of one update before, where gradients are of those."""
        for weight in self._program.weights:
            if weight.register in self._executor.older:
                yield self._shard("older.{}", weight, self._executor.older[weight.register])

    def _renew_older(self) -> None:
        """Begin as if the weights had been the same one update before."""
        for register, weight in self._executor.older.items():
            weight.copy_(self._executor.weights[register])

    def _shard(self, key: str, weight: Weight, tensor: Tensor) -> Shard:
        parameter = self._lowering.plan.naming.parameter(weight.leaf.name)
        assert weight.leaf.type is not None, "a graph that runs has types"
        shard = Shard(
            key.format(parameter.names[0]),
            weight.leaf.type.shape,
            tuple(start for start, _ in weight.region),
            tensor,
            self._writes(weight),
        )
        return shard.transposed if parameter.transposed else shard

    def _writes(self, weight: Weight) -> bool:
        """Whether this rank stands for all that hold a piece."""
        return weight.group[0] == self._world.rank

    def _tell(self, text: str) -> None:
        if self._world.rank == 0:
            print(f"unity: {one_line(text)}", file=sys.stderr, flush=True)

"""The training loop of a rank: steps, checkpoints, and resuming from a checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial

from torch import Tensor

from pcg.errors import InputError, one_line
from pcg.plan.plan import Plan
from runtime.checkpoints import checkpoint
from runtime.checkpoints.checkpoint import Checkpoint, CheckpointError, Manifest, ScaleRecord
from runtime.checkpoints.keeping import Keeper
from runtime.checkpoints.shards import Shard, apart
from runtime.execute.executor import Executor, StepResult, Update
from runtime.execute.finite import FiniteWatch, all_finite
from runtime.job.job import (
    AgreedError,
    Beginning,
    Begins,
    Checkpoints,
    FinishedStep,
    Mark,
    NotFinite,
    Observer,
    TrainingOptions,
)
from runtime.program.lower import Lowering
from runtime.program.program import Weight
from runtime.train.initial import DRAWN, Initial
from runtime.train.optimizer import Updater
from runtime.train.plain import fill
from runtime.train.profiler import recorded
from runtime.world.collectives import World
from runtime.world.faults import StopRequests, stop_requests


def is_delayed(plan: Plan) -> bool:
    """Whether gradients belong to the weights before the last update, as in PipeDream-2BW."""
    return plan.pipeline is not None and plan.pipeline.schedule == "2bw"


class TrainingRun:
    """The training of a rank: its executor, the update of its weights, and its checkpoints."""

    def __init__(
        self,
        lowering: Lowering,
        options: TrainingOptions,
        world: World,
        executor: Executor,
        initial: Initial | None = None,
    ) -> None:
        """``initial``: the module's own values. None if the executor has drawn the weights."""
        self._initial = initial
        self._lowering, self._options, self._world = lowering, options, world
        self._program = executor.program
        self._executor = executor
        self.timeline: tuple[tuple[Mark, ...], ...] = ()
        """The timeline of the last step, by rank. Empty if it was not recorded."""
        self._begun = 0, 0
        """The updates and batches of earlier runs, from whose checkpoint this one goes on."""
        trained = self._program.trained
        self._updater = Updater(
            {weight.register: executor.weights[weight.register] for weight in trained},
            options.recipe,
            world,
            frozenset(weight.register for weight in trained if self._writes(weight)),
        )
        if states := self._lowering.plan.naming.states:
            problem = f"every step changes buffer {states[0].names[0]}, which this loop does not"
            raise InputError("plan", f"{problem}, expected a loop of yours by unity.parallelize")
        self._finite = FiniteWatch(world, self._named, executor.bad_inputs)

    @property
    def not_finite(self) -> str:
        """Says what is not finite at the end. Empty if all is finite."""
        return self._finite.now

    def run(
        self, observe: Observer, begins: Begins = lambda beginning: None
    ) -> tuple[FinishedStep, ...]:
        """Train until ``options.steps`` steps are done. Return the steps of this run. ``observe``
        and ``begins`` are called on rank 0.

        Raises Stopped if a signal ends the run early, and NotFinite for a value that is not finite
        if ``options.stops_not_finite`` is set.
        """
        if lost := self._executor.running.lost:
            problem = "not followed, the plan does not compute what they are of"
            self._tell(f"warning: running statistics {', '.join(lost)}: {problem}")
        if (path := self._options.initial) is not None:
            plan = self._lowering.plan
            executor, running = self._executor, self._executor.running
            fill(executor.weights, self._program.weights, plan.naming, path, running)
            self._renew_older()
        if (options := self._options.checkpoints) is None:
            self._draw()
            self._forget()
            steps = tuple(step for step in self._steps(observe, None) if step)
            self._finish(None)
            return steps
        keeper = Keeper(self._world, options, self._tell)
        try:
            self._begin(keeper, begins)
            with stop_requests(self._world) as requests:
                return self._run_with_checkpoints(options, keeper, requests, observe)
        finally:
            keeper.close()

    def _draw(self) -> None:
        """Set the module's own initial values, unless a file has been read."""
        if self._options.initial is not None:
            return
        if self._initial is None:
            # No warning for a hand-written graph, which has no module with values of its own.
            if self._lowering.plan.naming.parameters or self._options.model:
                self._tell(f"warning: {DRAWN}")
            return
        self._initial.fill(self._executor.weights, self._program.weights)
        self._executor.running.fill(self._initial.statistics())
        self._renew_older()

    def _forget(self) -> None:
        """Free the memory of the module, if it was created."""
        if self._initial is not None:
            self._initial.forget()

    def _run_with_checkpoints(
        self, options: Checkpoints, keeper: Keeper, requests: StopRequests, observe: Observer
    ) -> tuple[FinishedStep, ...]:
        steps: list[FinishedStep] = []
        for step in self._steps(observe, keeper):
            if self._world.stops:
                self._stop(keeper, requests)
            if step is None:
                continue
            steps.append(step)
            if step.number % options.every == 0 and step.number != self._options.steps:
                self._save_or_warn(keeper)
        self._finish(keeper)
        if steps and not self._finite.now and self._is_good(keeper):
            keeper.save(*self._content(keeper))
        else:
            keeper.settle()
        return tuple(steps)

    def _update(self, gradients: Mapping[str, Tensor]) -> None:
        self._finite.note(gradients, self._updater.updates + 1)
        self._updater.update(gradients)

    def _finish(self, keeper: Keeper | None) -> None:
        """Check the gradients of the last step."""
        if self._finite.finish():
            self._report_not_finite(keeper)

    def _report_not_finite(self, keeper: Keeper | None) -> None:
        """Warn of a value that is not finite. Raises NotFinite if the run is to end for it."""
        if self._options.stops_not_finite:
            note = ""
            if keeper is not None:
                self._settle(keeper)
                note = f"; {keeper.last_good}"
            raise NotFinite("training", f"{self._finite.now}{note}")
        note = "" if keeper is None else "; until that has changed no checkpoint is written"
        self._tell(f"warning: {self._finite.now}{note}")

    def _steps(self, observe: Observer, keeper: Keeper | None) -> Iterator[FinishedStep | None]:
        """Run all steps. Yield each step as it ends, and None for a skipped update, after which the
        same batches run again."""
        left_out = 0
        self._executor.ends_before(self._batches(self._options.steps))
        while (number := self._updater.updates) < self._options.steps:
            self._world.step, self._world.doing = number + 1, "computing"
            loss, seconds = self._run_batches(number)
            if self._updater.updates == number:
                left_out += 1
                yield None
                continue
            step, left_out = FinishedStep(number + 1, loss, seconds, left_out), 0
            if self._world.rank == 0:
                observe(step)
            if self._finite.after(step.number, loss):
                self._report_not_finite(keeper)
            yield step

    def _run_batches(self, updates: int) -> tuple[float, float]:
        """Run the batches of a step, which follows ``updates`` updates. Return its mean loss and
        its seconds."""
        parts, first = self._options.recipe.accumulate, self._batches(updates)
        is_shown = self._options.timeline and updates + 1 == self._options.steps
        loss = seconds = 0.0
        for part in range(parts):
            # Gradients are exchanged once per step, after its last batch.
            update = self._update if part == parts - 1 else None
            batch = self._batch(first + part, update)
            result = self._recorded(batch) if is_shown and update else batch()
            loss, seconds = loss + result.loss / parts, seconds + result.seconds
        return loss, seconds

    def _batches(self, updates: int) -> int:
        """The number of batches that the first ``updates`` updates read. Earlier runs may have read
        another number per update."""
        before, batches = self._begun
        return batches + (updates - before) * self._options.recipe.accumulate

    def _batch(self, number: int, update: Update | None) -> Callable[[], StepResult]:
        """A function that runs a batch."""
        more = number + 1 < self._batches(self._options.steps)
        return partial(self._executor.step, number, update, more=more)

    def _recorded(self, batch: Callable[[], StepResult]) -> StepResult:
        results: list[StepResult] = []
        marks = recorded(self._world, lambda: results.append(batch()))
        self.timeline = tuple(self._world.gather(marks))
        return results[0]

    def _begin(self, keeper: Keeper, begins: Begins) -> None:
        """Take the folder of checkpoints. Resume from the newest one, or set initial values."""
        if (newest := keeper.begin()) is not None:
            self._go_on(newest)
        else:
            self._draw()
        self._forget()
        if self._world.rank == 0:
            begins(Beginning(self._updater.updates + 1, newest is not None, keeper.run))

    def _go_on(self, newest: Checkpoint) -> None:
        """Resume from a checkpoint."""
        self._check(newest)
        updates, batches = newest.manifest.updates, newest.manifest.batches
        self._updater.restore(updates)
        if batches is None:
            batches = updates * newest.manifest.recipe.accumulate
        self._begun = updates, batches
        if (scale := newest.manifest.loss_scale) and self._executor.loss_scale:
            self._executor.loss_scale.value = scale.value
            self._executor.loss_scale.good_steps = scale.good_steps
        weights = (*self._shards(), *(self._older() if newest.manifest.delayed else ()))
        saved = newest.manifest.parameters
        running = dict(self._executor.running.shards())
        saved_statistics = (shard for name, shard in running.items() if name in saved)
        checkpoint.load(self._world, newest, (*weights, *saved_statistics))
        if running and not running.keys() <= saved.keys():
            self._tell(f"{newest.path}: has no running statistics, they begin anew")
        if not newest.manifest.delayed:
            self._renew_older()
        self._tell(f"{newest.path}: going on with step {updates + 1}")

    def _check(self, newest: Checkpoint) -> None:
        """Raise AgreedError for a checkpoint of another model or optimizer. Print other differences
        of recipe and seed."""
        manifest, where = newest.manifest, str(newest.path)
        for problem in self._world.gather(self._problem(manifest)):
            if problem:
                raise AgreedError(where, problem)
        changes = manifest.recipe.differences(self._options.recipe)
        if manifest.seed != self._options.seed:
            changes.append(f"--seed {self._options.seed} instead of {manifest.seed}")
        if changes:
            self._tell(f"{where}: going on with {', '.join(changes)}")

    def _problem(self, manifest: Manifest) -> str:
        """Why this run cannot resume from a checkpoint. Empty if it can."""
        if manifest.graph != self._lowering.plan.model.digest:
            return f"is of {manifest.model} with another graph than the plan's model"
        if manifest.updates > self._options.steps:
            return f"is of step {manifest.updates}, expected --steps {manifest.updates} or more"
        before = manifest.recipe
        if before.states != self._options.recipe.states:
            kind = f"{before.optimizer} with momentum {before.momentum}"
            return f"has the states of {kind}, expected the same optimizer"
        return ""

    def _stop(self, keeper: Keeper, requests: StopRequests) -> None:
        """Write a checkpoint, and raise Stopped."""
        updates = self._updater.updates
        self._settle(keeper)
        saved_updates, path = keeper.newest or (None, None)
        # If the last update was skipped, the newest checkpoint may have the current weights.
        if path is None or saved_updates != updates:
            if self._finite.now or not self._is_good(keeper):
                problem = self._finite.now or "weights are not finite"
                raise requests.stopped(f"after step {updates}, but {problem}; {keeper.last_good}")
            path = keeper.save(*self._content(keeper))
        raise requests.stopped(f"after step {updates}, checkpoint {path}")

    def _save_or_warn(self, keeper: Keeper) -> None:
        """Begin to write a checkpoint. A failure is only a warning, because older checkpoints
        exist."""
        if self._finite.now or not self._is_good(keeper):
            return
        try:
            keeper.start(*self._content(keeper))
        except CheckpointError as error:
            self._tell(f"warning: no checkpoint: {error}")

    def _settle(self, keeper: Keeper) -> None:
        """Wait for the checkpoint under way. A failure is only a warning."""
        try:
            keeper.settle()
        except CheckpointError as error:
            self._tell(f"warning: no checkpoint: {error}")

    def _is_good(self, keeper: Keeper) -> bool:
        """Whether weights, optimizer states and running statistics are finite on all ranks, so that
        they may replace a good checkpoint. Reports it if they are not."""
        weights = self._executor.weights
        trained = [weights[weight.register] for weight in self._program.trained]
        states = (tensor for _, _, tensor in self._updater.states())
        running = self._executor.running.tensors.values()
        if all_finite(self._world, (*trained, *states, *running)):
            return True
        if not self._finite.now:
            self._finite.now = f"weights or states are not finite after step {self._world.step}"
            self._report_not_finite(keeper)
        return False

    def _content(self, keeper: Keeper) -> tuple[list[Shard], Manifest]:
        """This rank's shards and the manifest of a checkpoint of the current state."""
        running = (shard for _, shard in self._executor.running.shards())
        shards = [*self._shards(), *self._older(), *running]
        options, updates, plan = self._options, self._updater.updates, self._lowering.plan
        leaves = {w.leaf.name: w.leaf for w in self._program.weights}
        scale = self._executor.loss_scale
        by_rank = self._world.gather(sorted(leaves))
        parameters = {
            first: tuple(others)
            for name in sorted({name for names in by_rank for name in names})
            for first, *others in plan.naming.parameter(name).parts
        } | {first: names[1:] for first, names in self._executor.running.names.items()}
        return shards, Manifest(
            model=plan.model_name,
            graph=plan.model.digest,
            updates=updates,
            batches=self._batches(updates),
            seed=options.seed,
            recipe=options.recipe,
            run=keeper.run,
            delayed=is_delayed(plan),
            loss_scale=None if scale is None else ScaleRecord(**asdict(scale)),
            parameters=parameters,
        )

    def _shards(self) -> Iterator[Shard]:
        """This rank's shards of weights and optimizer states, as the module's parameters."""
        weights = {weight.register: weight for weight in self._program.weights}
        for register, weight in weights.items():
            yield from self._apart("model.{}", weight, self._executor.weights[register])
        for register, state, tensor in self._updater.states():
            yield from self._apart(f"optimizer.{{}}.{state}", weights[register], tensor)

    def _older(self) -> Iterator[Shard]:
        """The shards of the weights before the last update, for PipeDream-2BW."""
        for weight in self._program.weights:
            if weight.register in self._executor.older:
                older = self._executor.older[weight.register]
                yield from self._apart("older.{}", weight, older)

    def _renew_older(self) -> None:
        """Set the weights before the last update to the current weights."""
        for register, weight in self._executor.older.items():
            weight.copy_(self._executor.weights[register])

    def _apart(self, key: str, weight: Weight, tensor: Tensor) -> Iterator[Shard]:
        """The shards of the module's parameters in a block of a weight, or of its states."""
        parameter = self._lowering.plan.naming.parameter(weight.leaf.name)
        shard = Shard(
            "",
            weight.leaf.shape,
            tuple(start for start, _ in weight.region),
            tensor,
            self._writes(weight),
        )
        return apart(shard.transposed if parameter.transposed else shard, key, parameter)

    def _named(self, register: str) -> str:
        """The module's name of a weight, from its register."""
        leaves = {weight.register: weight.leaf.name for weight in self._program.weights}
        return self._lowering.plan.naming.parameter(leaves[register]).names[0]

    def _writes(self, weight: Weight) -> bool:
        """Whether this rank is the first of those that hold a block."""
        return weight.group[0] == self._world.rank

    def _tell(self, text: str) -> None:
        if self._world.rank == 0:
            print(f"unity: {one_line(text)}", file=sys.stderr, flush=True)

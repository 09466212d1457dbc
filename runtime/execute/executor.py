"""Execute a rank's program: forward, backward, and the update of its weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from torch import Tensor

from pcg.errors import InputError
from pcg.placement.region import extent
from pcg.plan.precision import Precision
from runtime.execute.frame import Frame, Machinery
from runtime.execute.passes import Passes, Told
from runtime.execute.precision import LossScale, RunFormats, run_formats
from runtime.execute.running_statistics import RunningStatistics
from runtime.execute.segment import Block, Meeting, MeetingAgain
from runtime.execute.sync import GradientSync
from runtime.inputs.prefetch import Ahead
from runtime.inputs.seeded import InputSource, Synthetic, initial_weight
from runtime.inputs.tensor_checks import exact_in
from runtime.program.buckets import buckets
from runtime.program.program import Exchange, Program, Weight
from runtime.world.collectives import World
from runtime.world.messages import run_exchange


@dataclass(frozen=True)
class StepResult:
    """One training step: the loss before its update, and its wall-clock seconds, with the reading
    of a user's data and without the making of synthetic data."""

    loss: float
    seconds: float


@dataclass(frozen=True)
class PendingBatch:
    """A batch that went forward, to be taken back once: ``loss`` is this rank's part. A pipeline,
    which takes slices back meanwhile, has the gradients of a loss that counts once already."""

    loss: Tensor | None
    form: RunFormats
    """In what it was computed."""
    frame: Frame | None = None
    gradients: Mapping[str, Tensor] | None = None


Update = Callable[[Mapping[str, Tensor]], None]
"""Takes the complete gradient of every trained weight's piece, by register, and changes the pieces
in place."""


class Executor:
    """A rank's weights and registers. All ranks of the world have to step together.

    ``weights`` are the pieces kept here, by register; who updates them does so in place.
    """

    def __init__(
        self,
        program: Program,
        world: World,
        precision: Precision = "fp32",
        seed: int = 0,
        source: InputSource | None = None,
        *,
        compiles: bool = False,
        drawn: bool = True,
        reuses: bool = True,
        turned: Collection[str] = (),
    ) -> None:
        """``source`` of the inputs: synthetic ones by default. ``compiles``: whether segments
        between communications go through torch.compile. ``drawn``: whether weights begin with
        values from the seed; else with zeros, for others to fill. ``reuses``: whether the memory of
        gradients is that of the next step's too. ``turned``: the weights, by leaf and on all ranks
        alike, whose memory is that of their transpose, as torch's linear layers have it."""
        self.program, self._world = program, world
        self._formats = run_formats(precision, world.device)
        world.prepare(program.groups, program.channels)
        self.running = RunningStatistics(program.running, world, self._formats.wide)
        self._turned = frozenset(w.register for w in program.weights if w.leaf.name in turned)
        self.weights = {w.register: self._initial(w, seed, drawn) for w in program.weights}
        self.loss_scale = LossScale() if self._formats.needs_scale else None
        """What the loss is multiplied with in float16."""
        given = source or Synthetic(seed)
        self._ahead = self._read_ahead(given) if given.counts else None
        self._passes = Passes(program, self._ahead or given)
        self._blocks = self._passes.backward_blocks
        self._closing = _first_readers(self._blocks)
        self._late = {w.register for w in program.weights if w.late is not None}
        self._sync = self._make_sync(reuses=reuses)
        self.older = {r: w.clone() for r, w in self.weights.items()} if self._is_delayed else {}
        """The weights of one update before, where gradients are of those."""
        self._versions = self._made_versions(Machinery(program, world, self._formats, compiles))
        self._number = 0
        """The batch under way."""
        self._reads = 0
        """The version that the gradients under way are of."""

    def _made_versions(self, shared: Machinery) -> list[Machinery]:
        """Two versions are read in turns, so that a batch may begin before the last update."""
        versions = [replace(shared, leaves=self._leaves(self.older or self.weights))]
        if self.older:
            versions.append(replace(shared, leaves=self._leaves(self.weights), copies={}))
        return versions

    def _initial(self, weight: Weight, seed: int, drawn: bool) -> Tensor:
        """A weight's piece from the seed, or else zeros."""
        dtype, device = self._formats.wide, self._world.device
        if drawn:
            made = initial_weight(weight.leaf, seed, weight.region, dtype).to(device)
        else:
            made = torch.zeros(extent(weight.region), dtype=dtype, device=device)
        return made.mT.contiguous().mT if weight.register in self._turned else made

    @torch.no_grad()
    def step(self, number: int, update: Update | None, *, more: bool = False) -> StepResult:
        """One pass over the data of batch ``number``. ``update`` is given the sums of its gradients
        and those of the batches before that had none; without one they stay here, and no rank
        learns of another's. ``more``: whether the next step is that of the next batch, which then
        may begin before this one has ended."""
        begins: list[float] = []

        def start() -> None:
            self._world.synchronize()
            begins.append(perf_counter())

        totals: list[Callable[[], float]] = []

        def known(loss: Tensor | None) -> None:
            """Ranks add their parts of the loss up while the backward pass goes on."""
            totals.append(self._world.start_total(0.0 if loss is None else loss))

        self._number = number
        # Until the backward pass is told of, nothing is complete.
        self._block = 0
        self._passes.scale = self.loss_scale.value if self.loss_scale else 1.0
        self._updates = update is not None
        following = self._next_version() if more else None
        told = Told(start, known, self._done, self._complete)
        self._passes.run(number, self._versions[self._reads], told, following)
        gradients = self._sync.finish() if self._updates else {}
        self._world.settle()
        self.running.update(self._passes.outputs)
        self._keep_outputs()
        if update is not None:
            self._update(update, gradients)
        # Last, because it waits for other ranks, the slowest of which sets the pace.
        (total,) = (wait() for wait in totals)
        self._world.synchronize()
        return StepResult(total, perf_counter() - begins[0])

    @torch.no_grad()
    def forward(self, number: int, form: RunFormats, *, trains: bool) -> PendingBatch:
        """The first half of a step that others control: batch ``number``, in the
        formats ``form``. ``trains``: whether ``backward`` may follow. Not for delayed weights."""
        (own,) = self._versions
        own.copies.clear()  # Who changes the weights is not known.
        shared = replace(own, formats=form)
        self._number, self._block, self._passes.scale = number, 0, 1.0
        if trains and self.program.pipeline is not None:
            self._updates = True
            parts: list[Tensor | None] = []
            self._passes.run(
                number, shared, Told(_nothing, parts.append, self._done, self._complete)
            )
            begun = PendingBatch(parts[0], form, gradients=self._sync.finish())
        else:
            if not trains:
                # Nothing is kept for a way back.
                shared = replace(shared, program=replace(self.program, active=frozenset()))
            frame, loss = self._passes.forward(number, shared)
            begun = PendingBatch(loss, form, frame if trains else None)
        self._world.settle()
        return begun

    @torch.no_grad()
    def backward(
        self, begun: PendingBatch, scale: Tensor, *, exchanges: bool = True
    ) -> Mapping[str, Tensor]:
        """The second half: the complete gradients of the loss times ``scale``, by register. Without
        ``exchanges`` they stay here, to be added to those of a later batch; but those of a pipeline
        do not."""
        if begun.gradients is not None:
            return {register: g.mul_(scale) for register, g in begun.gradients.items()}
        assert begun.frame is not None, "went forward to be taken back"
        self._block, self._updates = 0, exchanges
        self._passes.backward(begun.frame, scale, self._done)
        gradients = self._sync.finish() if exchanges else {}
        self._world.settle()
        return gradients

    def keep_statistics(self) -> None:
        """Take the last batch into the running statistics."""
        self.running.update(self._passes.outputs)

    @property
    def form(self) -> RunFormats:
        """The number formats that it was made with."""
        return self._formats

    def _update(self, update: Update, gradients: Mapping[str, Tensor]) -> None:
        if self.loss_scale and not self.loss_scale.accepts(gradients, self._world.total):
            return
        for register, older in self.older.items():
            weight = self.weights[register]
            older.copy_(weight)
            # What the next batch has begun to read stays where it is, and becomes the older one.
            older.data, weight.data = weight.data, older.data
        read, self._reads = self._reads, (self._reads + 1) % len(self._versions)
        update(gradients)
        self._versions[read].copies.clear()

    @torch.no_grad()
    def collect(
        self, exchange: Exchange, shape: tuple[int, ...], *, weight: bool = False
    ) -> Tensor | None:
        """Gather a weight, or an output of the last step, of global ``shape``, by an exchange."""
        held = self.weights if weight else self._passes.outputs
        source = held[exchange.source] if exchange.source else None
        wanted = shape if exchange.target else None
        dtype = self._formats.wide
        given = None if source is None else source.to(dtype)
        whole = run_exchange(self._world, exchange, given, wanted, dtype)
        self._world.settle()
        return whole

    def ends_before(self, number: int) -> None:
        """Say which batch is the first that no step will ask for."""
        if self._ahead is not None:
            self._ahead.end = number

    def bad_inputs(self) -> list[str]:
        """The inputs of the last batch, of a user's data, that are not finite."""
        return [] if self._ahead is None else self._ahead.bad(self._number)

    def _read_ahead(self, source: InputSource) -> Ahead:
        wanted = [(load.leaf, load.region) for load in self.program.inputs]
        for leaf, _ in wanted:
            if not exact_in(leaf, self._formats.wide):
                problem = f"has integers up to {leaf.below}, which {self._formats.wide} does not"
                raise InputError(f"input {leaf.name}", f"{problem} hold, expected float64")
        return Ahead(source, wanted, self._formats.wide, self._world.device)

    @property
    def _is_delayed(self) -> bool:
        return self.program.pipeline is not None and self.program.pipeline.is_delayed

    def _make_sync(self, *, reuses: bool) -> GradientSync:
        trained = self.program.trained
        sizes = {w.register: self.weights[w.register].nbytes for w in trained}
        return GradientSync(
            buckets(trained, sizes), self._world, self._take_gradient, reuses, self._turned
        )

    def _next_version(self) -> Machinery | None:
        """What the next batch reads, where it may begin before this one has ended. With a scale of
        the loss, which an update may change, it may not."""
        pipeline = self.program.pipeline
        if pipeline is None or not pipeline.runs_on or self.loss_scale:
            return None
        return self._versions[(self._reads + self._updates) % len(self._versions)]

    def _leaves(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights as autograd reads them: the same memory, so that updates show."""
        trained = {weight.register for weight in self.program.trained}
        leaves: dict[str, Tensor] = {}
        for register, weight in weights.items():
            # Not detached, which would count updates of the weight as changes of what was read.
            leaf = leaves[register] = weight.data.requires_grad_(register in trained)
            if register in trained:
                leaf.register_post_accumulate_grad_hook(self._hook(register))
        return leaves

    def _hook(self, register: str) -> Callable[[Tensor], None]:
        def added(_: Tensor) -> None:
            """The backward pass of the block under way has added to the weight's gradient."""
            closing = self._closing.get(register) == self._block - 1
            if self._updates and closing and register not in self._late:
                self._sync.complete(register)

        return added

    def _take_gradient(self, register: str) -> Tensor:
        leaf = self._versions[self._reads].leaves[register]
        gradient, leaf.grad = leaf.grad, None
        return torch.zeros_like(leaf) if gradient is None else gradient

    def _done(self, number: int | None) -> None:
        """Communication of gradients keeps its place among that of the program: what a later
        step of the schedule completes is sent before an earlier one communicates."""
        self._block = number or 0
        if not self._updates or number is None:
            return
        done = self._blocks[number] if number < len(self._blocks) else None
        if isinstance(done, Meeting):
            # What was computed meanwhile is complete, too.
            self._sync.flush(done.position)
        following = self._blocks[number - 1] if number else None
        if isinstance(following, Meeting | MeetingAgain):
            self._sync.flush(following.position + 1)

    def _complete(self, register: str) -> None:
        """A weight has its gradient of all slices."""
        if self._updates:
            self._sync.complete(register)

    def _keep_outputs(self) -> None:
        """Copy the outputs that are views of weights, which are about to change in place."""
        weights = (*self.weights.values(), *self.older.values())
        kept = {weight.untyped_storage().data_ptr() for weight in weights}
        outputs = self._passes.outputs
        for name, value in outputs.items():
            if value.untyped_storage().data_ptr() in kept:
                outputs[name] = value.clone()


def _nothing() -> None:
    """Nobody takes the time."""


def _first_readers(blocks: tuple[Block, ...]) -> dict[str, int]:
    """By register, the first block that reads it: the last one to add to its gradient."""
    readers: dict[str, int] = {}
    for number, block in enumerate(blocks):
        for name in block.reads:
            readers.setdefault(name, number)
    return readers

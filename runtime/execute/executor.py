"""Execute a rank's program: forward pass, backward pass, and the update of its weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from torch import Tensor

from pcg.errors import InputError
from pcg.placement.region import extent
from pcg.plan.precision import Precision
from runtime.execute.frame import Frame, FrameContext
from runtime.execute.narrow import NarrowWeights
from runtime.execute.passes import PassCallbacks, Passes
from runtime.execute.precision import LossScale, RunFormats, run_formats
from runtime.execute.running_statistics import RunningStatistics
from runtime.execute.segment import Block, Meeting, RepeatedMeeting
from runtime.execute.sync import GradientSync
from runtime.inputs.prefetch import Prefetcher
from runtime.inputs.seeded import InputSource, Synthetic, initial_weight
from runtime.inputs.tensor_checks import exact_in
from runtime.program.buckets import buckets
from runtime.program.program import Exchange, Program, Weight
from runtime.world.collectives import World
from runtime.world.messages import run_exchange


@dataclass(frozen=True)
class StepResult:
    """The result of a training step: the loss before its update, and the wall-clock seconds. The
    time includes reading a user's data, but not generating synthetic data."""

    loss: float
    seconds: float


@dataclass(frozen=True)
class PendingBatch:
    """A batch after its forward pass. It can have one backward pass."""

    loss: Tensor | None
    """This rank's part of the loss, if it has one."""
    formats: RunFormats
    """The number formats in which it was computed."""
    frame: Frame | None = None
    """The frame for the backward pass. None for a pipeline."""
    gradients: Mapping[str, Tensor] | None = None
    """For a pipeline, whose backward passes run among the forward passes: the gradients of the
    loss, unscaled."""


Update = Callable[[Mapping[str, Tensor]], None]
"""Updates this rank's blocks of weights in place. Its argument is the complete gradient of each
trained block, by register."""


class Executor:
    """A rank's weights and registers. All ranks of the world call its methods together.

    ``weights``: the blocks that this rank stores, by register. They are updated in place.
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
        """``source``: where inputs come from; synthetic ones by default. ``compiles``: whether
        segments go through torch.compile. ``drawn``: whether weights begin with values drawn from
        the seed; otherwise with zeros, for the caller to fill. ``reuses``: whether the next step
        reuses the memory of gradients. ``turned``: the leaves of weights, the same on all ranks,
        that are stored transposed in memory, as torch's linear layers store them."""
        self.program, self._world = program, world
        self._formats = run_formats(precision, world.device)
        world.prepare(program.groups, program.channels)
        self.running = RunningStatistics(program.running, world, self._formats.wide)
        self._turned = frozenset(w.register for w in program.weights if w.leaf.name in turned)
        self.weights = {w.register: self._initial(w, seed, drawn) for w in program.weights}
        self.loss_scale = LossScale() if self._formats.needs_scale else None
        """The loss scale in float16. None for other formats."""
        inputs = source or Synthetic(seed)
        self._ahead = self._read_ahead(inputs) if inputs.counts else None
        self._passes = Passes(program, self._ahead or inputs)
        self._blocks = self._passes.backward_blocks
        self._closing = _first_readers(self._blocks)
        self._late = {w.register for w in program.weights if w.late is not None}
        self._sync = self._make_sync(reuses=reuses)
        self.older = {r: w.clone() for r, w in self.weights.items()} if self._is_delayed else {}
        """For PipeDream-2BW, the weights before the last update, by register. Else empty."""
        self._versions = self._make_versions(FrameContext(program, world, self._formats, compiles))
        self._number = 0
        """The batch under way."""
        self._reads = 0
        """The index in ``_versions`` that this batch reads."""

    def _make_versions(self, shared: FrameContext) -> list[FrameContext]:
        """The versions of the weights: two for delayed gradients, which batches read in turns, so
        that a batch may begin before the last update; else one."""
        leaves = [self._leaves(self.older or self.weights)]
        if self.older:
            leaves.append(self._leaves(self.weights))
        return [self._reading(shared, version, shared.formats) for version in leaves]

    def _reading(
        self, shared: FrameContext, leaves: dict[str, Tensor], formats: RunFormats
    ) -> FrameContext:
        """The context of frames that read some weights in some formats."""
        is_read_once = self.program.pipeline is None and len(self._passes.blocks) == 1
        hook = None if is_read_once and not self._sync.communicates else self._hook
        narrow = NarrowWeights(leaves, formats.narrow, hook) if formats.is_mixed else None
        return replace(shared, leaves=leaves, formats=formats, narrow=narrow)

    def _initial(self, weight: Weight, seed: int, drawn: bool) -> Tensor:
        """The initial block of a weight, drawn from the seed or zeros."""
        dtype, device = self._formats.wide, self._world.device
        if drawn:
            block = initial_weight(weight.leaf, seed, weight.region, dtype).to(device)
        else:
            block = torch.zeros(extent(weight.region), dtype=dtype, device=device)
        return block.mT.contiguous().mT if weight.register in self._turned else block

    @torch.no_grad()
    def step(self, number: int, update: Update | None, *, more: bool = False) -> StepResult:
        """Run the forward and backward pass of batch ``number``, and update the weights.

        ``update`` gets the gradients, added to those of earlier batches without an update. Without
        ``update`` the gradients stay on this rank and are not exchanged. ``more``: whether a step
        with the next batch follows, which then may begin before this one has ended.
        """
        begins: list[float] = []

        def start() -> None:
            self._world.synchronize()
            begins.append(perf_counter())

        totals: list[Callable[[], float]] = []

        def add_up(loss: Tensor | None) -> None:
            """Begin to add up the loss over all ranks, while the backward pass goes on."""
            totals.append(self._world.start_total(0.0 if loss is None else loss))

        self._number = number
        # No gradient is complete before the first call of _done.
        self._block = 0
        self._passes.scale = self.loss_scale.value if self.loss_scale else 1.0
        self._updates = update is not None
        following = self._next_version() if more else None
        callbacks = PassCallbacks(start, add_up, self._done, self._complete)
        version = self._versions[self._reads]
        self._passes.run(number, version, callbacks, following)
        _add_gradients(version)
        gradients = self._sync.finish() if self._updates else {}
        self._world.settle()
        self.running.update(self._passes.outputs)
        self._keep_outputs()
        if update is not None:
            self._update(update, gradients)
        # Last, because it waits for all other ranks.
        (total,) = (wait() for wait in totals)
        self._world.synchronize()
        return StepResult(total, perf_counter() - begins[0])

    @torch.no_grad()
    def forward(self, number: int, formats: RunFormats, *, trains: bool) -> PendingBatch:
        """Run the forward pass of batch ``number`` in some formats, for a training loop of the
        user's. ``trains``: whether ``backward`` may follow. Not for delayed gradients."""
        (version,) = self._versions
        # Narrow copies are new, because the user may have changed the weights.
        shared = self._reading(version, version.leaves, formats)
        self._number, self._block, self._passes.scale = number, 0, 1.0
        if trains and self.program.pipeline is not None:
            self._updates = True
            parts: list[Tensor | None] = []
            callbacks = PassCallbacks(_nothing, parts.append, self._done, self._complete)
            self._passes.run(number, shared, callbacks)
            batch = PendingBatch(parts[0], formats, gradients=self._sync.finish())
        else:
            if not trains:
                # Without active registers nothing is saved for a backward pass.
                shared = replace(shared, program=replace(self.program, active=frozenset()))
            frame, loss = self._passes.forward(number, shared)
            batch = PendingBatch(loss, formats, frame if trains else None)
        self._world.settle()
        return batch

    @torch.no_grad()
    def backward(
        self, batch: PendingBatch, scale: Tensor, *, exchanges: bool = True
    ) -> Mapping[str, Tensor]:
        """Run the backward pass of a batch. Return the gradients of the loss times ``scale``, by
        register, summed over the ranks that share a block.

        Without ``exchanges`` the gradients stay on this rank, to be added to those of a later
        batch, and the result is empty. A pipeline has always exchanged them.
        """
        if batch.gradients is not None:
            return {register: g.mul_(scale) for register, g in batch.gradients.items()}
        assert batch.frame is not None, "forward was called with trains"
        self._block, self._updates = 0, exchanges
        self._passes.backward(batch.frame, scale, self._done)
        _add_gradients(batch.frame.shared)
        gradients = self._sync.finish() if exchanges else {}
        self._world.settle()
        return gradients

    def keep_statistics(self) -> None:
        """Update the running statistics with those of the last batch."""
        self.running.update(self._passes.outputs)

    @property
    def formats(self) -> RunFormats:
        """The number formats of the run."""
        return self._formats

    def _update(self, update: Update, gradients: Mapping[str, Tensor]) -> None:
        if self.loss_scale and not self.loss_scale.accepts(gradients, self._world.total):
            return
        for register, older in self.older.items():
            weight = self.weights[register]
            older.copy_(weight)
            # The next batch may read the current weights already. So their memory becomes that of
            # the older weights, and the copy is updated.
            older.data, weight.data = weight.data, older.data
        updated, self._reads = self._reads, (self._reads + 1) % len(self._versions)
        update(gradients)
        if (narrow := self._versions[updated].narrow) is not None:
            narrow.forget()

    @torch.no_grad()
    def collect(
        self, exchange: Exchange, shape: tuple[int, ...], *, weight: bool = False
    ) -> Tensor | None:
        """Gather a weight, or an output of the last step, of global ``shape``, by an exchange.
        Return it on the exchange's target rank, None on others."""
        registers = self.weights if weight else self._passes.outputs
        source = registers[exchange.source] if exchange.source else None
        target_shape = shape if exchange.target else None
        dtype = self._formats.wide
        block = None if source is None else source.to(dtype)
        whole = run_exchange(self._world, exchange, block, target_shape, dtype)
        self._world.settle()
        return whole

    def ends_before(self, number: int) -> None:
        """Set the first batch that no step will read, so that it is not read ahead."""
        if self._ahead is not None:
            self._ahead.end = number

    def bad_inputs(self) -> list[str]:
        """The inputs of the last batch of a user's data that are not finite."""
        return [] if self._ahead is None else self._ahead.bad(self._number)

    def _read_ahead(self, source: InputSource) -> Prefetcher:
        """A reader ahead of a user's data. Raises InputError for integers that are not exact in the
        run's number format."""
        blocks = [(load.leaf, load.region) for load in self.program.inputs]
        for leaf, _ in blocks:
            if not exact_in(leaf, self._formats.wide):
                problem = f"has integers up to {leaf.below}, which {self._formats.wide} does not"
                raise InputError(f"input {leaf.name}", f"{problem} hold, expected float64")
        return Prefetcher(source, blocks, self._formats.wide, self._world.device)

    @property
    def _is_delayed(self) -> bool:
        return self.program.pipeline is not None and self.program.pipeline.is_delayed

    def _make_sync(self, *, reuses: bool) -> GradientSync:
        trained = self.program.trained
        sizes = {w.register: self.weights[w.register].nbytes for w in trained}
        return GradientSync(
            buckets(trained, sizes), self._world, self._take_gradient, reuses, self._turned
        )

    def _next_version(self) -> FrameContext | None:
        """The version that the next batch reads, if it may begin before this one has ended. It may
        not with a loss scale, which an update may change."""
        pipeline = self.program.pipeline
        if pipeline is None or not pipeline.overlaps_batches or self.loss_scale:
            return None
        return self._versions[(self._reads + self._updates) % len(self._versions)]

    def _leaves(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Autograd leaves of the weights, by register. They share memory with the weights."""
        trained = {weight.register for weight in self.program.trained}
        leaves: dict[str, Tensor] = {}
        for register, weight in weights.items():
            # Not .detach(): with it, autograd would take an update for a change of a saved tensor.
            leaf = leaves[register] = weight.data.requires_grad_(register in trained)
            if register in trained and self._sync.communicates:
                leaf.register_post_accumulate_grad_hook(self._hook(register))
        return leaves

    def _hook(self, register: str) -> Callable[[Tensor], None]:
        def added(_: Tensor) -> None:
            """Handle an addition to the weight's gradient by the current block's backward pass."""
            is_last = self._closing.get(register) == self._block - 1
            if self._updates and is_last and register not in self._late:
                self._sync.complete(register)

        return added

    def _take_gradient(self, register: str) -> Tensor:
        leaf = self._versions[self._reads].leaves[register]
        gradient, leaf.grad = leaf.grad, None
        return torch.zeros_like(leaf) if gradient is None else gradient

    def _done(self, number: int | None) -> None:
        """Handle the end of a block's backward pass, as ``BlockCallback``. Gradients that are
        complete by then are sent before the next block communicates, so that all ranks communicate
        in the same order."""
        self._block = number or 0
        if not self._updates or number is None:
            return
        block = self._blocks[number] if number < len(self._blocks) else None
        if isinstance(block, Meeting):
            # Gradients that were computed during the communication are complete, too.
            self._sync.flush(block.position)
        following = self._blocks[number - 1] if number else None
        if isinstance(following, Meeting | RepeatedMeeting):
            self._sync.flush(following.position + 1)

    def _complete(self, register: str) -> None:
        """Handle a weight whose gradient is complete by a pass for weights."""
        if self._updates:
            self._sync.complete(register)

    def _keep_outputs(self) -> None:
        """Copy the outputs that are views of weights, before the update changes these in place."""
        weights = (*self.weights.values(), *self.older.values())
        storages = {weight.untyped_storage().data_ptr() for weight in weights}
        outputs = self._passes.outputs
        for name, value in outputs.items():
            if value.untyped_storage().data_ptr() in storages:
                outputs[name] = value.clone()


def _add_gradients(shared: FrameContext) -> None:
    """Add up the gradients of narrow copies after a backward pass."""
    if shared.narrow is not None:
        shared.narrow.add_gradients()


def _nothing() -> None:
    """Do nothing at the start: no time is taken."""


def _first_readers(blocks: tuple[Block, ...]) -> dict[str, int]:
    """The first block that reads each register, by register. Its backward pass is the last one to
    add to the register's gradient."""
    readers: dict[str, int] = {}
    for number, block in enumerate(blocks):
        for name in block.reads:
            readers.setdefault(name, number)
    return readers

"""Execution of a rank's program: forward, backward, and the gradients of the weights kept here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from runtime.collectives import World
from runtime.data import Source, Synthetic, initial_weight
from runtime.frame import Frame, Machinery
from runtime.messages import run_exchange
from runtime.precision import PrecisionName, precision
from runtime.program import Exchange, Load, Program
from runtime.stretch import Block, Meeting, blocks_of
from runtime.sync import GradientSync, buckets


@dataclass(frozen=True)
class StepResult:
    """One training step: the loss before its update, and its wall-clock seconds, without the
    making of synthetic data."""

    loss: float
    seconds: float


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
        number_format: PrecisionName = "float32",
        seed: int = 0,
        source: Source | None = None,
        *,
        compiles: bool = False,
    ) -> None:
        """``source`` of the inputs: synthetic ones by default. ``compiles``: whether stretches
        between communications go through torch.compile."""
        self._program, self._world = program, world
        self._precision = precision(number_format, world.device)
        self._source = source or Synthetic(seed)
        world.prepare(program.groups)
        self.weights = {
            weight.register: initial_weight(
                weight.leaf, seed, weight.region, self._precision.dtype
            ).to(world.device)
            for weight in program.weights
        }
        self._shared = Machinery(program, world, self._precision, compiles)
        kept = {*program.outputs, *([program.loss] if program.loss else [])}
        self._blocks = blocks_of(program.instructions, frozenset(kept))
        self._closing = _first_readers(self._blocks)
        self._sync = self._make_sync()
        self._outputs: dict[str, Tensor] = {}

    @torch.no_grad()
    def step(self, number: int, update: Update) -> StepResult:
        """One pass over the data of step ``number``, whose gradients ``update`` is given."""
        frame = Frame(self._shared, self._blocks)
        self._outputs.clear()
        self._renew_leaves()
        self._load(frame, number)
        self._synchronize()
        begin = perf_counter()
        frame.forward()
        loss = self._program.loss
        value = frame.values[loss].sum() if loss else None
        self._outputs = {name: frame.value(name) for name in self._program.outputs}
        frame.values.clear()
        self._backward(frame)
        gradients = self._sync.finish()
        self._world.settle()
        self._keep_outputs()
        update(gradients)
        # Last, because it waits for the slowest rank, whose time is the step's.
        total = self._world.total(0.0 if value is None else value.item())
        self._synchronize()
        return StepResult(total, perf_counter() - begin)

    @torch.no_grad()
    def collect(
        self, exchange: Exchange, shape: tuple[int, ...], *, weight: bool = False
    ) -> Tensor | None:
        """Gather a weight, or an output of the last step, of global ``shape``, by an exchange."""
        held = self.weights if weight else self._outputs
        source = held[exchange.source] if exchange.source else None
        wanted = shape if exchange.target else None
        dtype = self._precision.dtype
        given = None if source is None else source.to(dtype)
        found = run_exchange(self._world, exchange, given, wanted, dtype)
        self._world.settle()
        return found

    def _make_sync(self) -> GradientSync:
        trained = self._program.trained
        sizes = {w.register: self.weights[w.register].nbytes for w in trained}
        return GradientSync(buckets(trained, sizes), self._world, self._take_gradient)

    def _renew_leaves(self) -> None:
        """The weights as autograd reads them in this step."""
        trained = {weight.register for weight in self._program.trained}
        self._closed = -1
        for register, weight in self.weights.items():
            leaf = weight.detach().requires_grad_(register in trained)
            self._shared.leaves[register] = leaf
            if register in trained:
                leaf.register_post_accumulate_grad_hook(self._hook(register))

    def _hook(self, register: str) -> Callable[[Tensor], None]:
        def added(_: Tensor) -> None:
            """The way back of the block under way has added to the weight's gradient."""
            if self._closing.get(register) == self._closed - 1:
                self._sync.complete(register)

        return added

    def _take_gradient(self, register: str) -> Tensor:
        leaf = self._shared.leaves[register]
        gradient, leaf.grad = leaf.grad, None
        return torch.zeros_like(leaf) if gradient is None else gradient

    def _load(self, frame: Frame, number: int) -> None:
        for instruction in self._program.instructions:
            if isinstance(instruction, Load) and instruction.leaf.kind != "weight":
                piece = self._source.piece(instruction.leaf, instruction.region, number)
                frame.values[instruction.target] = piece.to(
                    self._world.device, self._precision.dtype
                )

    def _backward(self, frame: Frame) -> None:
        loss = self._program.loss
        if loss is not None and loss in self._program.active:
            shape = self._program.shapes[loss]
            device = self._world.device
            frame.add(loss, torch.ones(shape, dtype=self._precision.dtype, device=device))
        self._closed = len(self._blocks)
        frame.backward(self._done)

    def _done(self, number: int) -> None:
        """Communication of gradients keeps its place among that of the program: what a later
        step of the schedule completes is sent before an earlier one communicates."""
        self._closed = number
        if number and isinstance(following := self._blocks[number - 1], Meeting):
            self._sync.flush(following.position + 1)

    def _keep_outputs(self) -> None:
        """Copy the outputs that are views of weights, which are about to change in place."""
        kept = {weight.untyped_storage().data_ptr() for weight in self.weights.values()}
        for name, value in self._outputs.items():
            if value.untyped_storage().data_ptr() in kept:
                self._outputs[name] = value.clone()

    def _synchronize(self) -> None:
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)


def _first_readers(blocks: tuple[Block, ...]) -> dict[str, int]:
    """By register, the first block that reads it: the last one to add to its gradient."""
    found: dict[str, int] = {}
    for number, block in enumerate(blocks):
        for name in block.reads:
            found.setdefault(name, number)
    return found

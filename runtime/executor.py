"""Execution of a rank's program: forward, backward, and the update of the weights kept here."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from runtime.collectives import World
from runtime.data import initial_weight, input_batch
from runtime.kernels import run_task
from runtime.messages import communicate, run_exchange
from runtime.program import Alias, Communication, Exchange, Load, Program, Run


@dataclass(frozen=True)
class StepResult:
    """One training step: the loss before its update, and its wall-clock seconds, without the
    making of synthetic data."""

    loss: float
    seconds: float


@dataclass(frozen=True)
class _Record:
    """A task's operands and results, joined by autograd's record of this task alone."""

    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


class Executor:
    """A rank's weights and registers. All ranks of the world have to step together.

    The order of the backward pass is the program's, reversed, and not autograd's choice, so that
    all ranks communicate in the same order; autograd differentiates single tasks.
    """

    def __init__(self, program: Program, world: World, dtype: torch.dtype, seed: int) -> None:
        self._program, self._world = program, world
        self._dtype, self._seed = dtype, seed
        self._values: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        self._records: list[_Record] = []
        world.prepare(program.groups)
        self._weights = {
            weight.register: initial_weight(weight.leaf, seed, weight.region, dtype).to(
                world.device
            )
            for weight in program.weights
        }

    def step(self, number: int, rate: float) -> StepResult:
        """One update by stochastic gradient descent, on the data of step ``number``."""
        self._load(number)
        self._synchronize()
        begin = perf_counter()
        self._forward()
        loss = self._values[self._program.loss].sum().item() if self._program.loss else 0.0
        # Autograd's records hold what the backward pass needs.
        self._values = {name: self._values[name] for name in self._program.outputs}
        self._backward()
        self._update(rate)
        # Last, because it waits for the slowest rank, whose time is the step's.
        total = self._world.total(loss)
        self._synchronize()
        return StepResult(total, perf_counter() - begin)

    def collect(
        self, exchange: Exchange, shape: tuple[int, ...], *, weight: bool = False
    ) -> Tensor | None:
        """Gather a weight, or an output of the last step, of global ``shape``, by an exchange."""
        held = self._weights if weight else self._values
        source = held[exchange.source] if exchange.source else None
        wanted = shape if exchange.target else None
        return run_exchange(self._world, exchange, source, wanted, self._dtype)

    def _load(self, number: int) -> None:
        self._values.clear()
        for instruction in self._program.instructions:
            if not isinstance(instruction, Load):
                continue
            target, leaf = instruction.target, instruction.leaf
            if leaf.kind == "weight":
                self._values[target] = self._weights[target]
                continue
            batch = input_batch(leaf, self._seed, number, instruction.region, self._dtype)
            self._values[target] = batch.to(self._world.device)

    def _forward(self) -> None:
        values = self._values
        for instruction in self._program.instructions:
            match instruction:
                case Load():
                    pass
                case Alias(source, target):
                    values[target] = values[source]
                case Run():
                    self._run(instruction)
                case _:
                    source, target = instruction.source, instruction.target
                    moved = self._moved(instruction, values[source] if source else None)
                    if target is not None and moved is not None:
                        values[target] = moved

    def _run(self, run: Run) -> None:
        active = self._program.active
        operands = tuple(
            self._values[name].detach().requires_grad_(name in active) for name in run.operands
        )
        recorded = self._is_recorded(run)
        with torch.set_grad_enabled(recorded):
            results = run_task(run.call, run.task, operands, run.starts)
        if recorded:
            self._records.append(_Record(operands, results))
        for name, result in zip(run.results, results, strict=True):
            self._values[name] = result.detach()

    def _is_recorded(self, run: Run) -> bool:
        return any(name in self._program.active for name in run.results)

    def _backward(self) -> None:
        self._begin_with_loss()
        active = self._program.active
        for instruction in reversed(self._program.instructions):
            match instruction:
                case Load():
                    pass
                case Alias(source, target):
                    if target in active:
                        self._add(source, self._take(target))
                case Run():
                    if self._is_recorded(instruction):
                        self._differentiate(instruction, self._records.pop())
                case _:
                    source, target = instruction.source, instruction.target
                    known = isinstance(instruction, Exchange) and instruction.active
                    if known or target in active:
                        gradient = self._take(target) if target else None
                        moved = self._moved(instruction.adjoint, gradient)
                        if source is not None and moved is not None:
                            self._add(source, moved)

    def _begin_with_loss(self) -> None:
        loss = self._program.loss
        if loss is not None and loss in self._program.active:
            shape = self._program.shapes[loss]
            self._add(loss, torch.ones(shape, dtype=self._dtype, device=self._world.device))

    def _differentiate(self, run: Run, record: _Record) -> None:
        """Pull the gradients of a task's results back to its operands."""
        active = self._program.active
        gradients = {name: self._take(name) for name in run.results if name in active}
        results = [
            (result, gradients[name])
            for name, result in zip(run.results, record.results, strict=True)
            if name in gradients and result.requires_grad
        ]
        operands = [
            (name, operand)
            for name, operand in zip(run.operands, record.operands, strict=True)
            if name in active
        ]
        if not results or not operands:
            return
        found = torch.autograd.grad(
            [result for result, _ in results],
            [operand for _, operand in operands],
            [gradient for _, gradient in results],
            allow_unused=True,
            materialize_grads=True,
        )
        for (name, _), gradient in zip(operands, found, strict=True):
            self._add(name, gradient)

    def _update(self, rate: float) -> None:
        for weight in self._program.trained:
            gradient = self._world.all_reduce(self._take(weight.register), weight.group)
            # A new tensor: outputs of this step may still be views of the old one.
            self._weights[weight.register] = self._weights[weight.register] - rate * gradient
        self._gradients.clear()

    def _moved(self, instruction: Communication, source: Tensor | None) -> Tensor | None:
        target = instruction.target
        shape = self._program.shapes[target] if target else None
        return communicate(self._world, instruction, source, shape, self._dtype)

    def _add(self, name: str, gradient: Tensor) -> None:
        """One more user's share of a register's gradient."""
        known = self._gradients.get(name)
        self._gradients[name] = gradient if known is None else known + gradient

    def _take(self, name: str) -> Tensor:
        """A register's gradient, complete because all its users come later in the program."""
        gradient = self._gradients.pop(name, None)
        if gradient is not None:
            return gradient
        shape = self._program.shapes[name]
        return torch.zeros(shape, dtype=self._dtype, device=self._world.device)

    def _synchronize(self) -> None:
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)

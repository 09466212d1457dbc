"""Several steps of plain gradient descent by a plan, and the state of a rank after them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pcg.placement.region import Region
from runtime.execute.executor import Executor
from runtime.program.lower import Lowering
from runtime.world.collectives import World

STEPS, RATE = 3, 0.05


@dataclass(frozen=True)
class Piece:
    """A rank's part of a weight. ``gradient``: the gradient of the last step."""

    leaf: str
    region: Region
    weight: Tensor
    gradient: Tensor | None
    """None for a weight that the loss does not depend on."""


@dataclass(frozen=True)
class Stepped:
    """The state of a rank after ``STEPS`` steps in double precision."""

    losses: list[float]
    pieces: list[Piece]
    running: dict[str, Tensor]
    """Running statistics of batch norms, by their names in the module."""


def stepped(lowering: Lowering, world: World) -> Stepped:
    """Take the steps as one rank of all."""
    program = lowering.program(world.rank)
    executor = Executor(program, world, "fp64")
    last: dict[str, Tensor] = {}

    def update(gradients):
        for register, gradient in gradients.items():
            last[register] = gradient.clone()
            executor.weights[register].sub_(gradient, alpha=RATE)

    losses = [executor.step(n, update, more=n + 1 < STEPS).loss for n in range(STEPS)]
    pieces = [
        Piece(w.leaf.name, w.region, executor.weights[w.register], last.get(w.register))
        for w in program.weights
    ]
    return Stepped(losses, pieces, executor.running.tensors)


def save(stepped: Stepped, path: str) -> None:
    """Write the state as plain tensors, which another process reads by ``load``."""
    pieces = [(p.leaf, p.region, p.weight, p.gradient) for p in stepped.pieces]
    running = {name: tensor.clone() for name, tensor in stepped.running.items()}
    torch.save((stepped.losses, pieces, running), path)


def load(path: str) -> Stepped:
    losses, pieces, running = torch.load(path, weights_only=True)
    return Stepped(losses, [Piece(*piece) for piece in pieces], running)

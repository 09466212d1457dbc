"""The peak bytes of tensors on a rank while it trains by a plan."""

from __future__ import annotations

from support.runs.held_bytes import LiveBytes

from pcg.plan.precision import Precision
from runtime.execute.executor import Executor
from runtime.job.recipe import OptimizerName, Recipe
from runtime.program.lower import Lowering
from runtime.train.optimizer import Updater
from runtime.world.collectives import World

STEPS = 2
"""Enough steps for the optimizer's states and the buffers of gradients to exist."""


def peak_bytes(
    lowering: Lowering, world: World, optimizer: OptimizerName, precision: Precision = "fp32"
) -> int:
    """The peak bytes, counted from before there are any weights."""
    program = lowering.program(world.rank)
    with LiveBytes() as held:
        executor = Executor(program, world, precision)
        trained = {w.register: executor.weights[w.register] for w in program.trained}
        updater = Updater(trained, Recipe(optimizer=optimizer, rate=1e-3), world)
        for number in range(STEPS):
            executor.step(number, updater.update)
        return held.peak

"""Give each rank its blocks of the module's own initial values.

Problem. Initialization is Python code of the module. Its random numbers depend on the order in
which all parameters are created. So a rank cannot draw its blocks by itself, and a large model
should not be held by more than one process.

Method. Rank 0 creates the module once, on the CPU, after ``torch.manual_seed(seed)``. Its values
are bitwise those of ``torch.manual_seed(seed); make_module()``. Each rank lists the regions of
tensors that it stores. A region goes to all ranks that store it along a binary tree, so that rank 0
sends it to at most two. Values are rounded to the run's number format, and do not depend on the
plan. Frozen parameters and buffers that the graph reads are distributed in the same way.

Complexity. Memory: the module, in the main memory of rank 0, until it has been distributed; on all
ranks, one block beyond those that they keep. Time: the creation of the module, during which rank 0
sends a sign of life to the others every second, and log2(holders) messages one after the other per
block. Exact.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from pcg.errors import UnityError, one_line
from pcg.graph.graph import Leaf
from pcg.models import make_module
from pcg.placement.region import Region, as_slices, elements, extent, whole_region
from pcg.plan.naming import ParameterFile
from pcg.plan.plan import Plan
from runtime.inputs.seeded import InputSource, LeafRegion
from runtime.job.job import AgreedError, TrainingOptions
from runtime.program.program import Program, Weight
from runtime.train.plain import read_state_dict
from runtime.world.collectives import World

PULSE = 1.0
"""Seconds from one sign of life of rank 0 to the next."""
DRAWN = (
    "weights are drawn as normal values over the root of the fan-in, not as the module draws them:"
    " expected --model with the module, and a plan that says what they are called there"
)

UNKNOWN = (
    "the plan's model reads {} of the module: expected --model with that module, --init with a"
    " state dict that has it, or `constants` of --data"
)


@dataclass
class Initial:
    """The initial values of a plan's leaves. Rank 0 has them. All ranks call its methods together.

    ``model``: the module's name for ``pcg.models.make_module``, if the user has named one.
    """

    plan: Plan
    model: str | None
    seed: int
    world: World
    dtype: torch.dtype
    """The number format of the blocks."""
    file: str | None = None
    """The path of a state dict, whose values replace those of the module."""
    given: Mapping[str, Tensor] | None = None
    """The tensors of an existing module, by name, which take the place of ``model``."""
    _state: dict[str, Tensor] | None = field(init=False, default=None)

    @property
    def state(self) -> Mapping[str, Tensor]:
        """The tensors of the module, by name, on rank 0. Empty on other ranks. Raises AgreedError
        if the module cannot be created or does not fit the plan."""
        if self._state is None:
            if self.given is not None:
                state = None if self.world.rank else dict(self.given)
            else:
                make = partial(_state_of, self.model, self.seed)
                state = _on_first(self.world, self.model or "", make if self.model else dict)
            self._state = state or {}
            self._agree(self._misfit() if self.model or self.given is not None else "")
        return self._state

    def forget(self) -> None:
        """Free the module's memory."""
        self._state = None

    def whole(self) -> dict[str, Tensor]:
        """Copies of all weights of the model's graph, whole and in double precision, on rank 0.
        Empty on other ranks."""
        state = self.state
        weights = [n.leaf for n in self.plan.model.leaves if n.leaf.kind == "weight"]
        if self.world.rank:
            return {}
        return {leaf.name: self._value(leaf.name, state).double().clone() for leaf in weights}

    def fill(self, weights: Mapping[str, Tensor], pieces: Iterable[Weight]) -> None:
        """Fill this rank's blocks of weights. ``weights``: their tensors, by register."""
        blocks = [(LeafRegion(p.leaf.name, p.region), weights[p.register]) for p in pieces]
        self._distribute(self.state, blocks)

    def statistics(self) -> dict[str, Tensor]:
        """The initial running statistics of the module, by name, on all ranks."""
        names = {
            name for r in self.plan.statistics for name in (*r.mean, *r.variance, *r.count)
        } & self.state.keys()
        statistics = {name: self.state[name].clone() for name in sorted(names)}
        return self.world.gather(statistics)[0]

    def constants(self, pieces: Iterable[LeafRegion]) -> dict[LeafRegion, Tensor]:
        """Blocks of the frozen parameters and buffers that the graph reads. Raises AgreedError if
        no source has one of them."""
        state = dict(self.state)
        blocks = {
            p: torch.zeros(extent(p.region), dtype=self.dtype, device=self.world.device)
            for p in pieces
        }
        if self.file is not None and self.world.rank == 0:
            state |= read_state_dict(self.file)
        leaves = {piece.leaf for of_rank in self.world.gather(list(blocks)) for piece in of_rank}
        names = {self.plan.naming.buffers[leaf] for leaf in leaves}
        missing = sorted(names - state.keys())
        self._agree(UNKNOWN.format(missing[0]) if missing else "")
        self._distribute(state, blocks.items())
        return blocks

    def _value(self, leaf: str, state: Mapping[str, Tensor]) -> Tensor:
        naming = self.plan.naming
        if leaf in naming.buffers:
            return state[naming.buffers[leaf]]
        return naming.parameter(leaf).weight(state)

    def _distribute(
        self, state: Mapping[str, Tensor], blocks: Iterable[tuple[LeafRegion, Tensor]]
    ) -> None:
        """Send blocks of rank 0's ``state`` to the ranks that hold them. ``blocks``: those of this
        rank, with the tensors to fill."""
        world, targets = self.world, dict[LeafRegion, list[Tensor]]()
        for piece, tensor in blocks:
            targets.setdefault(piece, []).append(tensor)
        holders: dict[LeafRegion, list[int]] = {}
        for rank, pieces in enumerate(world.gather(list(targets))):
            for piece in pieces:
                holders.setdefault(piece, []).append(rank)
        world.prepare(())
        # In the same order on all ranks.
        for piece in sorted(holders, key=lambda p: (p.leaf, p.region)):
            ranks = [0, *(rank for rank in holders[piece] if rank)]
            if world.rank in ranks and elements(piece.region):
                value = self._pass_on(piece, ranks, state)
                for target in targets.get(piece, ()):
                    target.copy_(value)
        world.settle()

    def _pass_on(
        self, piece: LeafRegion, ranks: Sequence[int], state: Mapping[str, Tensor]
    ) -> Tensor:
        """Receive a block from the rank above in the tree, and send it to the ranks below."""
        world, place = self.world, ranks.index(self.world.rank)
        if place:
            above = ranks[(place - 1) // 2]
            flat = world.exchange({}, {above: elements(piece.region)}, self.dtype)[above]
        else:
            value = self._value(piece.leaf, state)[as_slices(piece.region)]
            flat = value.to(world.device, self.dtype).contiguous().reshape(-1)
        if below := [ranks[i] for i in (2 * place + 1, 2 * place + 2) if i < len(ranks)]:
            world.exchange(dict.fromkeys(below, flat), {}, self.dtype)
            # Wait, so that only one block at a time is kept.
            world.settle()
        return flat.reshape(extent(piece.region))

    def _misfit(self) -> str:
        """On rank 0: how the module differs from the plan's model. Empty if it does not."""
        if self.world.rank:
            return ""
        state, naming = self._state or {}, self.plan.naming
        for leaf in (node.leaf for node in self.plan.model.leaves):
            if leaf.kind != "weight" and leaf.name not in naming.buffers:
                continue
            parameter = ParameterFile(names=(naming.buffers.get(leaf.name) or leaf.name,))
            if leaf.name not in naming.buffers:
                parameter = naming.parameter(leaf.name)
            if (name := parameter.missing_from(state)) is not None:
                return f"has no {name}, which the plan's model has"
            if (misfit := parameter.misfit(leaf.shape, state)) is not None:
                name, actual, expected = misfit
                return f"{name} has shape {actual}, expected {expected} by the plan"
        return ""

    def _agree(self, problem: str) -> None:
        """Raise AgreedError on all ranks if rank 0 has a problem. ``problem``: empty for none."""
        if problem_of_first := self.world.gather(problem)[0]:
            raise AgreedError(f"model {self.model or self.plan.model_name}", problem_of_first)


@dataclass(frozen=True)
class WithConstants:
    """A source of inputs, extended by frozen parameters and buffers of the module."""

    source: InputSource
    pieces: Mapping[LeafRegion, Tensor]

    @property
    def seed(self) -> int:
        return self.source.seed

    @property
    def counts(self) -> bool:
        return self.source.counts

    @property
    def constants(self) -> Collection[str]:
        return {piece.leaf for piece in self.pieces}

    def piece(self, leaf: Leaf, region: Region, step: int) -> Tensor:
        """As ``runtime.inputs.seeded.InputSource.piece``."""
        constant = self.pieces.get(LeafRegion(leaf.name, region))
        return self.source.piece(leaf, region, step) if constant is None else constant


def with_constants(
    source: InputSource, initial: Initial, program: Program, options: TrainingOptions
) -> InputSource:
    """A source that also has the frozen parameters and buffers that the graph reads. The source
    itself if it has all of them."""
    plan = initial.plan
    missing = plan.naming.buffers.keys() - set(source.constants)
    if not missing:
        return source
    pieces = [piece for piece in loaded(program) if piece.leaf in missing]
    if options.check and initial.world.rank == 0:
        leaves = {node.leaf.name: node.leaf for node in plan.model.leaves}
        shapes = ((name, leaves[name].shape) for name in sorted(missing))
        pieces += [LeafRegion(n, whole_region(shape)) for n, shape in shapes]
    return WithConstants(source, initial.constants(dict.fromkeys(pieces)))


@contextmanager
def seeded(seed: int) -> Generator[Callable[[], None]]:
    """Seed the CPU's random number generators within a block, and restore their states and torch's
    default format after it. The context is a function that seeds them again."""
    before = random.getstate(), np.random.get_state(), torch.get_default_dtype()

    def begin() -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)

    with torch.random.fork_rng(devices=[]):
        begin()
        try:
            yield begin
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.set_default_dtype(before[2])


def _state_of(model: str | None, seed: int) -> dict[str, Tensor]:
    """The tensors of a module that is created with a seed, by name."""
    assert model is not None
    with seeded(seed) as begin:
        module = make_module(model, begin)
    return {name: tensor.detach() for name, tensor in tensors_of(module).items()}


def tensors_of(module: Module) -> dict[str, Tensor]:
    """All tensors of a module by name: parameters, buffers, and plain attributes."""
    tensors = {
        f"{prefix}.{name}".removeprefix("."): value
        for prefix, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor)
    }
    tensors |= dict(module.named_buffers(remove_duplicate=False))
    return tensors | dict(module.named_parameters(remove_duplicate=False))


def _on_first(
    world: World, model: str, make: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor] | None:
    """Call a function on rank 0 and return its result, None on other ranks. The others wait for it,
    however long it takes. Raises AgreedError on all ranks for a UnityError of the function."""
    if world.size == 1:
        return make()
    world.prepare(())
    if world.rank:
        while not world.total(0.0):
            pass
        _raise_agreed(world, model, "")
        return None
    ended = threading.Event()
    thread = threading.Thread(target=_signal_until, args=(world, ended), daemon=True)
    thread.start()
    problem, result = "", dict[str, Tensor]()
    try:
        result = make()
    except UnityError as error:
        problem = str(error)
    finally:
        ended.set()
        thread.join()
    _raise_agreed(world, model, problem)
    return result


def _signal_until(world: World, ended: threading.Event) -> None:
    """Send a sign of life to the other ranks every ``PULSE`` seconds, and at last the end."""
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    while not ended.wait(PULSE):
        world.total(0.0)
    world.total(1.0)


def _raise_agreed(world: World, model: str, problem: str) -> None:
    """Raise AgreedError on all ranks if rank 0 has a problem."""
    if problem_of_first := world.gather(problem)[0]:
        raise AgreedError(f"model {model}", one_line(problem_of_first))


def loaded(program: Program) -> list[LeafRegion]:
    """The blocks of inputs that a rank's program loads."""
    return list(dict.fromkeys(LeafRegion(i.leaf.name, i.region) for i in program.inputs))

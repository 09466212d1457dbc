"""Give each rank its pieces of the values that the module itself begins with.

Problem: an initialisation is Python of the module's own, and its random numbers depend on the order
in which all of its parameters are made. So neither can a rank draw its pieces alone, nor may more
than one process hold the whole of a large model.

Method: rank 0 makes the module once, on the CPU, after ``torch.manual_seed(seed)``: what it then
has is to the bit what ``torch.manual_seed(seed); make_module()`` gives anybody. Each rank says
which regions of which tensors it holds; a region goes to the ranks that hold it along a binary
tree, so that rank 0 sends each to at most two. Values are rounded to the run's number format, and
do not depend on the plan. Frozen parameters and buffers that the graph reads are handed out alike.

Memory: the module, in the main memory of rank 0, until it is handed out; a piece at a time beyond
what they keep on all ranks. Time: what the module takes to make itself, during which the others
hear every second that rank 0 is still there, and a piece's way over log2(holders) links.
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
"""Seconds from one sign that rank 0 is still there to the next."""
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
    """The initial values of a plan's leaves. All ranks call together, rank 0 knows them.

    ``model``: the module's name as ``pcg.models.make_module`` takes it; None where nobody has told.
    """

    plan: Plan
    model: str | None
    seed: int
    world: World
    dtype: torch.dtype
    """What pieces are kept in."""
    file: str | None = None
    """A state dict, whose values go before those of the module."""
    given: Mapping[str, Tensor] | None = None
    """The tensors of a module that is at hand, by name, in the place of ``model``."""
    _state: dict[str, Tensor] | None = field(init=False, default=None)

    @property
    def state(self) -> Mapping[str, Tensor]:
        """On rank 0 all tensors of the module, by name; nothing on others."""
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
        """Give the module's memory back."""
        self._state = None

    def whole(self) -> dict[str, Tensor]:
        """On rank 0 a copy of every weight of the model's graph, in double precision."""
        state = self.state
        weights = [n.leaf for n in self.plan.model.leaves if n.leaf.kind == "weight"]
        if self.world.rank:
            return {}
        return {leaf.name: self._value(leaf.name, state).double().clone() for leaf in weights}

    def fill(self, weights: Mapping[str, Tensor], pieces: Iterable[Weight]) -> None:
        """Give this rank's pieces of weights, by register, their values."""
        held = [(LeafRegion(p.leaf.name, p.region), weights[p.register]) for p in pieces]
        self._hand_out(self.state, held)

    def statistics(self) -> dict[str, Tensor]:
        """What the module's running statistics are at first, by name."""
        names = {
            name for r in self.plan.statistics for name in (*r.mean, *r.variance, *r.count)
        } & self.state.keys()
        own = {name: self.state[name].clone() for name in sorted(names)}
        return self.world.gather(own)[0]

    def constants(self, pieces: Iterable[LeafRegion]) -> dict[LeafRegion, Tensor]:
        """Pieces of what the graph reads of the module without training it. Raises AgreedError
        where nobody knows it."""
        state = dict(self.state)
        held = {
            p: torch.zeros(extent(p.region), dtype=self.dtype, device=self.world.device)
            for p in pieces
        }
        if self.file is not None and self.world.rank == 0:
            state |= read_state_dict(self.file)
        wanted = {piece.leaf for own in self.world.gather(list(held)) for piece in own}
        names = {self.plan.naming.buffers[leaf] for leaf in wanted}
        missing = sorted(names - state.keys())
        self._agree(UNKNOWN.format(missing[0]) if missing else "")
        self._hand_out(state, held.items())
        return held

    def _value(self, leaf: str, state: Mapping[str, Tensor]) -> Tensor:
        naming = self.plan.naming
        if leaf in naming.buffers:
            return state[naming.buffers[leaf]]
        return naming.parameter(leaf).weight(state)

    def _hand_out(
        self, state: Mapping[str, Tensor], held: Iterable[tuple[LeafRegion, Tensor]]
    ) -> None:
        """Bring the values of pieces to the ranks that hold them, into their tensors."""
        world, targets = self.world, dict[LeafRegion, list[Tensor]]()
        for piece, tensor in held:
            targets.setdefault(piece, []).append(tensor)
        holders: dict[LeafRegion, list[int]] = {}
        for rank, pieces in enumerate(world.gather(list(targets))):
            for piece in pieces:
                holders.setdefault(piece, []).append(rank)
        world.prepare(())
        # In one order on all ranks.
        for piece in sorted(holders, key=lambda p: (p.leaf, p.region)):
            ranks = [0, *(rank for rank in holders[piece] if rank)]
            if world.rank in ranks and elements(piece.region):
                value = self._passed_on(piece, ranks, state)
                for target in targets.get(piece, ()):
                    target.copy_(value)
        world.settle()

    def _passed_on(
        self, piece: LeafRegion, ranks: Sequence[int], state: Mapping[str, Tensor]
    ) -> Tensor:
        """A piece, from the rank above in the tree, and sent to those below."""
        world, place = self.world, ranks.index(self.world.rank)
        if place:
            above = ranks[(place - 1) // 2]
            flat = world.exchange({}, {above: elements(piece.region)}, self.dtype)[above]
        else:
            value = self._value(piece.leaf, state)[as_slices(piece.region)]
            flat = value.to(world.device, self.dtype).contiguous().reshape(-1)
        if below := [ranks[i] for i in (2 * place + 1, 2 * place + 2) if i < len(ranks)]:
            world.exchange(dict.fromkeys(below, flat), {}, self.dtype)
            # So that a piece at a time is all that is kept.
            world.settle()
        return flat.reshape(extent(piece.region))

    def _misfit(self) -> str:
        """What of the plan's model the module lacks, if anything; known to rank 0."""
        if self.world.rank:
            return ""
        state, naming = self._state or {}, self.plan.naming
        for leaf in (node.leaf for node in self.plan.model.leaves):
            if leaf.kind != "weight" and leaf.name not in naming.buffers:
                continue
            known = ParameterFile(names=(naming.buffers.get(leaf.name) or leaf.name,))
            if leaf.name not in naming.buffers:
                known = naming.parameter(leaf.name)
            if (name := known.missing_from(state)) is not None:
                return f"has no {name}, which the plan's model has"
            if (misfit := known.misfit(leaf.shape, state)) is not None:
                name, given, wanted = misfit
                return f"{name} has shape {given}, expected {wanted} by the plan"
        return ""

    def _agree(self, problem: str) -> None:
        """Raise what rank 0 finds wrong on all ranks."""
        if agreed := self.world.gather(problem)[0]:
            raise AgreedError(f"model {self.model or self.plan.model_name}", agreed)


@dataclass(frozen=True)
class WithConstants:
    """Inputs from a source, and those that are the module's own."""

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
        """As ``runtime.inputs.seeded.InputSource`` says."""
        known = self.pieces.get(LeafRegion(leaf.name, region))
        return self.source.piece(leaf, region, step) if known is None else known


def with_constants(
    source: InputSource, initial: Initial, program: Program, options: TrainingOptions
) -> InputSource:
    """A source that knows what the graph reads of the module, too, unless it has that already."""
    plan = initial.plan
    wanted = plan.naming.buffers.keys() - set(source.constants)
    if not wanted:
        return source
    pieces = [piece for piece in loaded(program) if piece.leaf in wanted]
    if options.check and initial.world.rank == 0:
        leaves = {node.leaf.name: node.leaf for node in plan.model.leaves}
        shapes = ((name, leaves[name].shape) for name in sorted(wanted))
        pieces += [LeafRegion(n, whole_region(shape)) for n, shape in shapes]
    return WithConstants(source, initial.constants(dict.fromkeys(pieces)))


@contextmanager
def seeded(seed: int) -> Generator[Callable[[], None]]:
    """Let all that is drawn on the CPU follow from a seed, in the end leaving the generators as
    they were. What is given begins anew with the seed."""
    kept = random.getstate(), np.random.get_state(), torch.get_default_dtype()

    def begin() -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)

    with torch.random.fork_rng(devices=[]):
        begin()
        try:
            yield begin
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])
            torch.set_default_dtype(kept[2])


def _state_of(model: str | None, seed: int) -> dict[str, Tensor]:
    """What a module has when it has been made with a seed."""
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
    """What a function returns on rank 0, for which the others wait, however long it takes."""
    if world.size == 1:
        return make()
    world.prepare(())
    if world.rank:
        while not world.total(0.0):
            pass
        _raised(world, model, "")
        return None
    ended = threading.Event()
    thread = threading.Thread(target=_tell_until, args=(world, ended), daemon=True)
    thread.start()
    problem, made = "", dict[str, Tensor]()
    try:
        made = make()
    except UnityError as error:
        problem = str(error)
    finally:
        ended.set()
        thread.join()
    _raised(world, model, problem)
    return made


def _tell_until(world: World, ended: threading.Event) -> None:
    """Let the others know every now and then that this rank is there, and then that it is done."""
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    while not ended.wait(PULSE):
        world.total(0.0)
    world.total(1.0)


def _raised(world: World, model: str, problem: str) -> None:
    if agreed := world.gather(problem)[0]:
        raise AgreedError(f"model {model}", one_line(agreed))


def loaded(program: Program) -> list[LeafRegion]:
    """The pieces of inputs that a rank's program loads."""
    return list(dict.fromkeys(LeafRegion(i.leaf.name, i.region) for i in program.inputs))

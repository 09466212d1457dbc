"""A module that trains by a plan, in a loop of its user's own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import Module, Parameter
from torch.nn.modules.module import _IncompatibleKeys  # pyright: ignore[reportPrivateUsage]
from torch.optim import Optimizer

from pcg.errors import InputError
from runtime.execute.executor import PendingBatch
from runtime.module.calls import TARGET, Face, call_of, matched
from runtime.module.clip import clip
from runtime.module.engine import RankEngine, Total
from runtime.module.gradient import Gradient, GradientPiece
from runtime.module.itself import Itself
from runtime.module.loss import Loss
from runtime.module.resuming import Resuming
from runtime.module.whole import load_whole, whole_tensors
from runtime.program.lower import Lowering
from runtime.train.initial import tensors_of
from runtime.world.collectives import World


@dataclass(frozen=True)
class _Place:
    """Where a weight's shard is a parameter. ``shard``: the memory of this rank's piece, as the
    module has it."""

    leaf: str
    name: str
    owner: Module
    last: str
    shard: Tensor

    @property
    def parameter(self) -> Parameter:
        return self.owner.get_parameter(self.last)


@dataclass
class _Own:
    """What a module keeps beside parameters. ``kept``: tensors of the module that are not trained,
    by name."""

    engine: RankEngine
    face: Face
    names: tuple[str, ...]
    """Of the module's state dict, in order."""
    kept: dict[str, Tensor]
    itself: Itself
    places: list[_Place] = field(default_factory=list[_Place])
    syncs: bool = True
    is_asked_itself: bool = False
    """Whether the module itself is to evaluate."""


class ParallelModule(Module):
    """This rank's part of a module that trains by a plan.

    Its parameters are this rank's shards, under the module's own names; a rank that holds nothing
    of a parameter has one without elements. ``forward`` takes what the module takes (and what is
    for the loss alone, where the plan was made with ``loss=``), of the whole batch or of this
    rank's samples, and returns the loss of the whole batch, also as ``.loss``. All ranks have to
    call forward, backward, ``state_dict`` and ``clip_grad_norm_`` together.
    """

    def __init__(self, model: Module, lowering: Lowering, world: World, seed: int) -> None:
        super().__init__()
        tensors, names = tensors_of(model), tuple(model.state_dict(keep_vars=True))
        engine = RankEngine(lowering, tensors, world, seed)
        trained = {n for leaf in engine.leaves for n in engine.naming.parameter(leaf).in_module}
        running = {n for group in engine.executor.running.names.values() for n in group}
        kept = {n: tensors[n].detach() for n in names if n not in trained | running}
        self._own = _Own(engine, Face.of(model), names, kept, Itself(model, engine, self._shards))
        self._register(names)
        self.train(model.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The loss of the whole batch, and with it what the module returns, computed when that is
        asked for. Without gradients, what is not of the plan (evaluation with dropout or batch
        norms, no labels, another size of batch) is computed by the module itself: then it is what
        that returns for this rank's inputs. Raises InputError for what does not fit the plan."""
        self._follow()
        inputs = self._inputs_of_plan(args, kwargs)
        if inputs is None:
            return self._by_itself(args, kwargs)
        engine = self._own.engine
        parameters = [place.parameter for place in self._own.places]
        trains = torch.is_grad_enabled() and any(p.requires_grad for p in parameters)
        begun, total = engine.forward(inputs, trains=trains, keeps=self.training)
        if trains:
            self._own.itself.forget()
            loss = _Step.apply(self._own, begun, total, *parameters)
            assert isinstance(loss, Tensor)
        else:
            total.wait()
            loss = total.loss
        then = self._own.itself.version()
        return Loss.of(loss, lambda: self._beside_loss(args, kwargs, then), total.wait)

    def _inputs_of_plan(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, Tensor] | None:
        """By leaf of the graph, what a call gives; None on all ranks where the module itself, and
        not the plan, is to compute it."""
        engine, inputs, can = self._own.engine, None, False
        if self.training and (torch.is_grad_enabled() or engine.depends_on_training):
            return self._inputs(args, kwargs)
        if self.training or not (engine.depends_on_training or self._own.is_asked_itself):
            with suppress(InputError):
                inputs = self._inputs(args, kwargs)
                can = engine.fed.takes(inputs)
        return inputs if all(engine.world.gather(can)) else None

    def _by_itself(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the module returns."""
        own, refuses = self._own, torch.is_grad_enabled()
        return own.itself.run(args, kwargs, own.kept, training=self.training, refuses=refuses)

    def _beside_loss(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], then: Sequence[int]
    ) -> Any:
        """What the module returns for a batch that went forward with the weights of ``then``."""
        own = self._own
        if self.training and own.engine.depends_on_training:
            problem = "but the loss are not kept, and dropout or batch norms would not be the same"
            raise InputError("outputs", f"{problem}, expected eval()")
        if own.itself.version() != then:
            problem = "but the loss are of weights that have changed since"
            raise InputError("outputs", f"{problem}, expected to be asked for before the update")
        return self._by_itself(args, kwargs)

    @property
    def itself(self) -> Module | None:
        """The module that it was made of, without the elements of its parameters; None for one that
        cannot be copied."""
        return self._own.itself.module

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs that the plan was made with, by name."""
        return tuple(name for name in self._own.engine.naming.inputs if name is not None)

    @property
    def needs_scale(self) -> bool:
        """Whether its gradients may be too small for the plan's number format, so that the loss has
        to be scaled, as torch's GradScaler does."""
        return self._own.engine.formats.needs_scale

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """By the name of each parameter: the names of those of the module itself that it is made
        of, one but for stacks."""
        own = self._own
        records = {place.name: own.engine.naming.parameter(place.leaf) for place in own.places}
        return {name: record.stacked or (name,) for name, record in records.items()}

    @contextmanager
    def by_itself(self) -> Generator[None]:
        """Evaluation is by the module itself, also of what the plan could compute: what it returns
        is of its own kind. All ranks enter together."""
        before, self._own.is_asked_itself = self._own.is_asked_itself, True
        try:
            yield
        finally:
            self._own.is_asked_itself = before

    @contextmanager
    def no_sync(self) -> Generator[None]:
        """Gradients of batches within it are not exchanged, but added to those of the next batch
        after it, as in DistributedDataParallel. Pipelines exchange all the same."""
        before, self._own.syncs = self._own.syncs, False
        try:
            yield
        finally:
            self._own.syncs = before

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Tensor:
        """As ``torch.nn.utils.clip_grad_norm_``, of all ranks' shards together, each counted once:
        also of gradients that a loop has put in the places of a parameter's own."""
        places = [(p.leaf, p.parameter.grad) for p in self._own.places]
        gradients = [(leaf, grad) for leaf, grad in places if grad is not None]
        return clip(self._own.engine, gradients, max_norm, float(norm_type), error_if_nonfinite)

    def state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Tensor]:
        """All tensors of the module, whole, under its own names, on the CPU. All ranks have to call
        together, and each gets them."""
        del keep_vars  # They are gathered, hence no parameters of this module.
        whole_state = {**self._own.kept, **whole_tensors(self._own.engine)}
        state: dict[str, Tensor] = {} if destination is None else destination
        state.update({prefix + name: whole_state[name] for name in self._own.names})
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> _IncompatibleKeys:
        """Take this rank's shards from whole tensors under the module's own names. Each rank is
        given all of them; of a file that is mapped (``torch.load(..., mmap=True)``) it reads only
        its own part. As torch does, raises RuntimeError for names or shapes that do not fit."""
        del assign  # Values are copied: shards are not theirs.
        self._follow()
        own = self._own
        missing = load_whole(own.engine, own.names, own.kept, state_dict, strict)
        return _IncompatibleKeys(missing, [name for name in state_dict if name not in own.names])

    def save_checkpoint(
        self,
        folder: str | Path,
        optimizer: Optimizer | None = None,
        *,
        step: int,
        keep: int = 3,
    ) -> None:
        """Write a checkpoint after ``step`` steps: all shards, what the optimizer keeps for them,
        and how many batches went forward, of which dropout is drawn. The last ``keep`` stay. All
        ranks have to call together. Raises CheckpointError on all where it cannot be written."""
        self._follow()
        self._resuming().save(Path(folder), optimizer, step, keep)

    def load_checkpoint(self, folder: str | Path, optimizer: Optimizer | None = None) -> int:
        """Go on from the newest checkpoint of a folder that is whole, whatever plan wrote it. How
        many steps it was written after; 0, and nothing is changed, where there is none. All ranks
        have to call together. Raises InputError for one of another module."""
        self._follow()
        step = self._resuming().load(Path(folder), optimizer)
        self._own.engine.is_filled |= step > 0
        return step

    def _shards(self) -> list[Tensor]:
        return [place.shard for place in self._own.places]

    def _resuming(self) -> Resuming:
        own = self._own
        shards = {place.leaf: place.parameter for place in own.places}
        return Resuming(own.engine, shards, own.kept)

    def _inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """By leaf of the graph, what a call gives."""
        face, naming, wanted = self._own.face, self._own.engine.naming, self.inputs
        has_target = TARGET in wanted or not all(face.takes(name) for name in kwargs)
        expected = f"expected {', '.join(wanted)} as the plan was made with"
        try:
            call = call_of(face, args, kwargs, has_target=has_target)
        except InputError as error:
            raise InputError(error.where, f"{error.problem}, {expected}") from error
        matches = matched(wanted, tuple(call.tensors))
        if missing := [name for name in wanted if name not in matches]:
            raise InputError("inputs", f"lack {', '.join(missing)}, {expected}")
        further = [name for name in call.tensors if name not in matches.values()]
        if len(further) > naming.inputs.count(None):
            raise InputError("inputs", f"have {further[0]}, {expected}")
        return {leaf: call.tensors[name] for leaf, name in matches.items()}

    def _register(self, names: Iterable[str]) -> None:
        """Make shards parameters, under all names that they have in the module, in its order; those
        of parameters that are stacked under the name that these go by together."""
        engine = self._own.engine
        known = {leaf: engine.naming.parameter(leaf) for leaf in engine.leaves}
        leaf_of = {name: leaf for leaf in engine.leaves for name in known[leaf].in_module}
        made: dict[str, Parameter] = {}
        for name in names:
            if (leaf := leaf_of.get(name)) is None:
                continue
            is_first = leaf not in made
            if known[leaf].stacked:
                if not is_first:
                    continue
                (name,) = known[leaf].names
            shard = made[leaf].data if leaf in made else self._shard(leaf)
            parameter = made.setdefault(leaf, Parameter(shard))
            if is_first and engine.world.size > 1:
                parameter.register_post_accumulate_grad_hook(
                    _marking(GradientPiece(engine.world, engine.counts(leaf)))
                )
            owner, last = self._owner(name), name.rpartition(".")[2]
            try:
                owner.register_parameter(last, parameter)
            except KeyError as error:
                problem = "has a name that torch modules have for something else"
                raise InputError(f"parameter {name}", problem) from error
            if is_first:
                self._own.places.append(_Place(leaf, name, owner, last, shard))

    def _owner(self, name: str) -> Module:
        """The part that a parameter belongs to."""
        owner: Module = self
        for step in name.split(".")[:-1]:
            if step not in owner._modules:
                owner.add_module(step, Module())
            owner = owner.get_submodule(step)
        return owner

    def _shard(self, leaf: str) -> Tensor:
        """The memory of this rank's piece, as the module has it; empty where it holds none."""
        engine = self._own.engine
        piece = engine.piece(leaf)
        if piece is None:
            return torch.empty(0, dtype=engine.formats.wide, device=engine.world.device)
        return piece.data.mT if engine.naming.parameter(leaf).transposed else piece.data

    @torch.no_grad()
    def _follow(self) -> None:
        """Take over what was put in the place of a shard, as ``parameter.data = ...`` does. Raises
        InputError for what does not fit."""
        for place in self._own.places:
            own, given = place.shard, place.parameter
            if given.data_ptr() == own.data_ptr() and given.dtype == own.dtype:
                continue
            if (given.shape, given.dtype, given.device) != (own.shape, own.dtype, own.device):
                problem = f"is {_described(given)} now, expected {_described(own)} by the plan"
                raise InputError(f"parameter {place.name}", problem)
            own.copy_(given)
            given.data = own


class _Step(Function):
    """The loss of all ranks as a function of this rank's shards."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, own: _Own, begun: PendingBatch, total: Total, *shards: Tensor
    ) -> Tensor:
        ctx.own, ctx.begun, ctx.total, ctx.syncs = own, begun, total, own.syncs
        return total.loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        own: _Own = ctx.own
        begun: PendingBatch | None = ctx.begun
        if begun is None:
            raise InputError("backward", "a second time through one loss, expected forward again")
        ctx.begun = None
        computed = own.engine.backward(begun, gradient, exchanges=ctx.syncs)
        ctx.total.wait()
        gradients: list[Tensor | None] = []
        for place in own.places:
            value = computed.pop(place.leaf, None)
            if value is None and not place.shard.numel():
                # So that all ranks have the same gradients to take norms of.
                gradients.append(torch.zeros_like(place.shard))
                continue
            turned = own.engine.naming.parameter(place.leaf).transposed
            gradients.append(value.mT if turned and value is not None else value)
        return None, None, None, *gradients


def _marking(piece: GradientPiece) -> Callable[[Tensor], None]:
    """Marks a parameter's gradient as that of a shard."""

    def mark(parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None and not isinstance(gradient, Gradient):
            parameter.grad = Gradient.of(gradient, piece)

    return mark


def _described(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {list(tensor.shape)} on {tensor.device}"

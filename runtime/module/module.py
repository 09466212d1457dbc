"""A module that trains by a plan, in a training loop of the user's."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import Module, Parameter
from torch.nn.modules.module import _IncompatibleKeys  # pyright: ignore[reportPrivateUsage]
from torch.optim import Optimizer

from pcg.errors import InputError
from runtime.execute.executor import PendingBatch
from runtime.module.calls import TARGET, ForwardSignature, TensorCalls, call_of, matched
from runtime.module.clip import clip
from runtime.module.engine import PendingLoss, RankEngine
from runtime.module.gradient import Gradient, GradientPiece
from runtime.module.itself import OriginalModule
from runtime.module.loss import Loss
from runtime.module.resuming import ModuleCheckpoints
from runtime.module.sharded import ShardedParameter
from runtime.module.whole import load_whole, whole_tensors
from runtime.program.lower import Lowering
from runtime.train.initial import tensors_of
from runtime.world.collectives import World


@dataclass
class _State:
    """The state of a parallel module beside its parameters."""

    engine: RankEngine
    face: ForwardSignature
    names: tuple[str, ...]
    """The names of the original module's state dict, in order."""
    kept: dict[str, Tensor]
    """The tensors of the module that are not trained, by name."""
    itself: OriginalModule
    places: list[ShardedParameter] = field(default_factory=list[ShardedParameter])
    calls: TensorCalls = field(default_factory=TensorCalls)
    syncs: bool = True
    """Whether backward passes exchange gradients."""
    is_asked_itself: bool = False
    """Whether the original module computes all outputs of an evaluation."""


class ParallelModule(Module):
    """This rank's part of a module that trains by a plan.

    Its parameters are this rank's shards, under the original module's names. A rank without a shard
    of a parameter has a parameter without elements. ``forward`` takes the arguments of the original
    module (and those of the loss, if the plan was made with ``loss=``), for the whole batch or for
    this rank's samples. It returns the loss of the whole batch, also as ``.loss``. All ranks have
    to call forward, backward, ``state_dict`` and ``clip_grad_norm_`` together.
    """

    def __init__(self, model: Module, lowering: Lowering, world: World, seed: int) -> None:
        super().__init__()
        tensors, names = tensors_of(model), tuple(model.state_dict(keep_vars=True))
        engine = RankEngine(lowering, tensors, world, seed)
        trained = {n for leaf in engine.leaves for n in engine.naming.parameter(leaf).in_module}
        running = {n for group in engine.executor.running.names.values() for n in group}
        states = {n for state in engine.naming.states for n in state.names}
        own = dict.fromkeys((*names, *sorted(states)))
        kept = {n: tensors[n].detach() for n in own if n not in trained | running}
        self._own = _State(
            engine,
            ForwardSignature.of(model),
            names,
            kept,
            OriginalModule(model, engine, self._shards),
        )
        self._register(names)
        self.train(model.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The loss of the whole batch, by the plan. Other outputs of the original module can be
        read from it (see ``Loss``), and are computed then.

        Without gradients, the original module computes what the plan does not: evaluation with
        dropout or batch norms, calls without labels, another batch size. Then the result is its
        output for this rank's inputs. Raises InputError for inputs that do not fit the plan.
        """
        self._follow()
        inputs = self._inputs_of_plan(args, kwargs)
        if inputs is None:
            return self._by_itself(args, kwargs)
        engine = self._own.engine
        parameters = [place.parameter for place in self._own.places]
        trains = torch.is_grad_enabled() and any(p.requires_grad for p in parameters)
        batch, total = engine.forward(inputs, trains=trains, keeps=self.training)
        kept = self._own.kept
        kept |= {name: value.to(kept[name].dtype) for name, value in engine.states.items()}
        engine.states.clear()
        if trains:
            self._own.itself.forget()
            loss = _Step.apply(self._own, batch, total, *parameters)
            assert isinstance(loss, Tensor)
        else:
            total.wait()
            loss = total.loss
        version = self._own.itself.version()
        return Loss.of(loss, lambda: self._other_outputs(args, kwargs, version), total.wait)

    def _inputs_of_plan(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, Tensor] | None:
        """The tensors of a call, by leaf of the graph. None on all ranks if the original module
        computes the call, and not the plan."""
        engine, inputs, fits = self._own.engine, None, False
        if self.training and (torch.is_grad_enabled() or engine.depends_on_training):
            return self._inputs(args, kwargs)
        if self.training or not (engine.depends_on_training or self._own.is_asked_itself):
            with suppress(InputError):
                inputs = self._inputs(args, kwargs)
                fits = engine.fed.takes(inputs)
        return inputs if all(engine.world.gather(fits)) else None

    def _by_itself(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The output of the original module."""
        state, refuses = self._own, torch.is_grad_enabled()
        return state.itself.run(args, kwargs, state.kept, training=self.training, refuses=refuses)

    def _other_outputs(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], version: Sequence[int]
    ) -> Any:
        """The output of the original module for a batch that went forward with the weights of
        ``version``. Raises InputError if the module cannot compute the same values now."""
        state = self._own
        if self.training and state.engine.depends_on_training:
            problem = "but the loss are not kept, and dropout or batch norms would not be the same"
            raise InputError("outputs", f"{problem}, expected eval()")
        if state.itself.version() != version:
            problem = "but the loss are of weights that have changed since"
            raise InputError("outputs", f"{problem}, expected to be asked for before the update")
        return self._by_itself(args, kwargs)

    @property
    def itself(self) -> Module | None:
        """The original module, with parameters on the meta device. None if it cannot be copied."""
        return self._own.itself.module

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs with which the plan was made."""
        return tuple(name for name in self._own.engine.naming.inputs if name is not None)

    @property
    def needs_scale(self) -> bool:
        """Whether gradients may underflow in the plan's number format, so that the loss has to be
        scaled, as torch's GradScaler does."""
        return self._own.engine.formats.needs_scale

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """For each parameter: the names of the original module's parameters that it contains. They
        are several for a stack, else one."""
        state = self._own
        records = {place.name: state.engine.naming.parameter(place.leaf) for place in state.places}
        return {name: record.stacked or (name,) for name, record in records.items()}

    @contextmanager
    def by_itself(self) -> Generator[None]:
        """Within a block, let the original module compute all evaluations, even those that the plan
        could compute, so that outputs have the module's own types. All ranks enter together."""
        before, self._own.is_asked_itself = self._own.is_asked_itself, True
        try:
            yield
        finally:
            self._own.is_asked_itself = before

    @contextmanager
    def no_sync(self) -> Generator[None]:
        """Within a block, gradients are not exchanged, but added to those of the first batch after
        it, as in DistributedDataParallel. Pipelines exchange them even so."""
        before, self._own.syncs = self._own.syncs, False
        try:
            yield
        finally:
            self._own.syncs = before

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Tensor:
        """As ``torch.nn.utils.clip_grad_norm_``, over the shards of all ranks, each counted once.
        It also counts gradients that the training loop has assigned itself."""
        places = [(p.leaf, p.parameter.grad) for p in self._own.places]
        gradients = [(leaf, grad) for leaf, grad in places if grad is not None]
        return clip(self._own.engine, gradients, max_norm, float(norm_type), error_if_nonfinite)

    def state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Tensor]:
        """The whole tensors of the original module under its names, on the CPU, on every rank. All
        ranks call together."""
        del keep_vars  # Gathered tensors are no parameters of this module.
        whole_state = {**self._own.kept, **whole_tensors(self._own.engine)}
        state: dict[str, Tensor] = {} if destination is None else destination
        state.update({prefix + name: whole_state[name] for name in self._own.names})
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> _IncompatibleKeys:
        """Set this rank's shards from whole tensors under the original module's names. Each rank
        passes all of them. Of a memory-mapped file (``torch.load(..., mmap=True)``) it reads only
        its own part. As torch does, raises RuntimeError for names or shapes that do not fit."""
        del assign  # Values are copied into the shards.
        self._follow()
        state = self._own
        missing = load_whole(state.engine, state.names, state.kept, state_dict, strict)
        return _IncompatibleKeys(missing, [name for name in state_dict if name not in state.names])

    def save_checkpoint(
        self,
        folder: str | Path,
        optimizer: Optimizer | None = None,
        *,
        step: int,
        keep: int = 3,
    ) -> None:
        """Write a checkpoint after ``step`` steps: all shards, their optimizer states, and the
        number of forward passes, from which dropout is drawn. The newest ``keep`` checkpoints stay.
        All ranks call together. Raises CheckpointError on all ranks if one cannot write."""
        self._follow()
        self._resuming().save(Path(folder), optimizer, step, keep)

    def load_checkpoint(self, folder: str | Path, optimizer: Optimizer | None = None) -> int:
        """Resume from the newest undamaged checkpoint of a folder, of any plan of this module.
        Return the number of steps after which it was written, or 0 if there is none; then nothing
        changes. All ranks call together. Raises InputError for a checkpoint of another module."""
        self._follow()
        step = self._resuming().load(Path(folder), optimizer)
        self._own.engine.is_filled |= step > 0
        return step

    def _shards(self) -> list[Tensor]:
        return [place.shard for place in self._own.places]

    def _resuming(self) -> ModuleCheckpoints:
        state = self._own
        shards = {place.leaf: place.parameter for place in state.places}
        return ModuleCheckpoints(state.engine, shards, state.kept)

    def _inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """The tensors of a call, by leaf of the graph. Raises InputError if they are not the inputs
        of the plan."""
        if (tensors := self._own.calls.tensors(args, kwargs)) is not None:
            return tensors
        face, naming, leaves = self._own.face, self._own.engine.naming, self.inputs
        has_target = TARGET in leaves or not all(face.takes(name) for name in kwargs)
        expected = f"expected {', '.join(leaves)} as the plan was made with"
        try:
            call = call_of(face, args, kwargs, has_target=has_target)
        except InputError as error:
            raise InputError(error.where, f"{error.problem}, {expected}") from error
        matches = matched(leaves, tuple(call.tensors))
        if missing := [name for name in leaves if name not in matches]:
            raise InputError("inputs", f"lack {', '.join(missing)}, {expected}")
        unmatched = [name for name in call.tensors if name not in matches.values()]
        if len(unmatched) > naming.inputs.count(None):
            raise InputError("inputs", f"have {unmatched[0]}, {expected}")
        tensors = {leaf: call.tensors[name] for leaf, name in matches.items()}
        self._own.calls.add(args, kwargs, tensors)
        return tensors

    def _register(self, names: Iterable[str]) -> None:
        """Register shards as parameters, under all their names in the original module, in its
        order. Parameters that the plan stacks are registered once, under the name of the stack."""
        engine = self._own.engine
        records = {leaf: engine.naming.parameter(leaf) for leaf in engine.leaves}
        leaf_of = {name: leaf for leaf in engine.leaves for name in records[leaf].in_module}
        parameters: dict[str, Parameter] = {}
        for name in names:
            if (leaf := leaf_of.get(name)) is None:
                continue
            is_first = leaf not in parameters
            if records[leaf].stacked:
                if not is_first:
                    continue
                (name,) = records[leaf].names
            shard = parameters[leaf].data if leaf in parameters else self._shard(leaf)
            parameter = parameters.setdefault(leaf, Parameter(shard))
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
                self._own.places.append(ShardedParameter(leaf, name, owner, last, shard))

    def _owner(self, name: str) -> Module:
        """The submodule of a parameter. It is created if it does not exist."""
        owner: Module = self
        for step in name.split(".")[:-1]:
            if step not in owner._modules:
                owner.add_module(step, Module())
            owner = owner.get_submodule(step)
        return owner

    def _shard(self, leaf: str) -> Tensor:
        """The memory of this rank's block, in the module's orientation. Empty if it has none."""
        engine = self._own.engine
        piece = engine.piece(leaf)
        if piece is None:
            return torch.empty(0, dtype=engine.formats.wide, device=engine.world.device)
        return piece.data.mT if engine.naming.parameter(leaf).transposed else piece.data

    @torch.no_grad()
    def _follow(self) -> None:
        """Copy parameters whose memory was replaced, as by ``parameter.data = ...``, back into
        their shards. Raises InputError for another shape, number format or device."""
        for place in self._own.places:
            place.follow()


class _Step(Function):
    """The loss of all ranks as a function of this rank's shards."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, state: _State, batch: PendingBatch, total: PendingLoss, *shards: Tensor
    ) -> Tensor:
        ctx.state, ctx.batch, ctx.syncs = state, batch, state.syncs
        # The loss knows this context. If the context knew the loss, too, the tensors of a batch
        # without a backward pass would stay until Python looks for cycles.
        ctx.wait = WeakMethod(total.wait)
        return total.loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        state: _State = ctx.state
        batch: PendingBatch | None = ctx.batch
        if batch is None:
            raise InputError("backward", "a second time through one loss, expected forward again")
        ctx.batch = None
        by_leaf = state.engine.backward(batch, gradient, exchanges=ctx.syncs)
        if (wait := ctx.wait()) is not None:
            wait()
        gradients: list[Tensor | None] = []
        for place in state.places:
            value = by_leaf.pop(place.leaf, None)
            if value is None and not place.shard.numel():
                # An empty gradient, so that all ranks compute norms of the same parameters.
                gradients.append(torch.zeros_like(place.shard))
                continue
            turned = state.engine.naming.parameter(place.leaf).transposed
            gradients.append(value.mT if turned and value is not None else value)
        return None, None, None, *gradients


def _marking(piece: GradientPiece) -> Callable[[Tensor], None]:
    """A hook that turns a parameter's gradient into a ``Gradient``."""

    def mark(parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None and not isinstance(gradient, Gradient):
            parameter.grad = Gradient.of(gradient, piece)

    return mark

"""A module that trains by a plan, in a loop of its user's own."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import Module, Parameter
from torch.nn.modules.module import _IncompatibleKeys  # pyright: ignore[reportPrivateUsage]

from pcg.errors import InputError
from runtime.execute.executor import Begun
from runtime.module.calls import TARGET, Face, call_of, matched
from runtime.module.engine import Engine
from runtime.module.loss import Loss
from runtime.program.lower import Lowering
from runtime.train.initial import tensors_of
from runtime.world.collectives import World


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
        tensors = tensors_of(model)
        own: dict[str, Any] = {
            "engine": Engine(lowering, tensors, world, seed),
            "face": Face.of(model),
            "names": tuple(model.state_dict(keep_vars=True)),
            "sync": True,
        }
        object.__setattr__(self, "_own", own)
        engine = self._engine
        self._leaves = tuple(sorted(engine.naming.parameters))
        self._whole = {leaf: n.leaf.shape for leaf, n in _weights(engine).items()}
        for leaf in self._leaves:
            self._register(leaf)
        trained = {name for leaf in self._leaves for name in engine.naming.parameter(leaf).names}
        running = {name for names in engine.executor.running.names.values() for name in names}
        kept = {n: tensors[n].detach() for n in own["names"] if n not in trained | running}
        own["kept"] = kept
        self.train(model.training)

    @property
    def _engine(self) -> Engine:
        return self.__dict__["_own"]["engine"]

    # ------------------------------------------------------------------------------------------
    # Steps

    def forward(self, *args: Any, **kwargs: Any) -> Loss:
        """The loss of the whole batch. Raises InputError for what does not fit the plan."""
        engine, parameters = self._engine, self._own_parameters
        if not self.training and engine.depends_on_training:
            problem = "the plan is of the module in training mode, with dropout or batch norms"
            advice = "expected train(), or the module itself with this one's state_dict()"
            raise InputError("eval()", f"{problem}, {advice}")
        inputs = self._inputs(args, kwargs)
        self._follow()
        trains = torch.is_grad_enabled() and any(p.requires_grad for p in parameters)
        # Of every rank, as all take the same steps, whatever they hold.
        trains = torch.is_grad_enabled() and (trains or not parameters)
        if not trains:
            _, loss = engine.forward(inputs, trains=False, keeps=self.training)
            return loss.as_subclass(Loss)
        anchor = torch.zeros((), device=engine.world.device, requires_grad=True)
        loss = _Step.apply(self, inputs, anchor, *parameters)
        assert isinstance(loss, Tensor)
        return loss.as_subclass(Loss)

    @contextmanager
    def no_sync(self) -> Generator[None]:
        """Gradients of batches within it are not exchanged, but added to those of the next batch
        after it, as in DistributedDataParallel. Pipelines exchange all the same."""
        own = self.__dict__["_own"]
        before, own["sync"] = own["sync"], False
        try:
            yield
        finally:
            own["sync"] = before

    @torch.no_grad()
    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Tensor:
        """As ``torch.nn.utils.clip_grad_norm_``, of all ranks' shards together, each counted once.
        That one would take the norm of this rank's shards alone."""
        engine, kind = self._engine, float(norm_type)
        shards = [(leaf, self._parameter(leaf).grad) for leaf in self._leaves]
        norms = [
            float(torch.linalg.vector_norm(grad.double(), kind))
            for leaf, grad in shards
            if grad is not None and grad.numel() and engine.counts(leaf)
        ]
        if kind == float("inf"):
            every = engine.world.gather(max(norms, default=0.0))
            norm = float("nan") if any(n != n for n in (*norms, *every)) else max(every)
        else:
            norm = engine.world.total(sum(n**kind for n in norms)) ** (1.0 / kind)
        if error_if_nonfinite and not torch.isfinite(torch.tensor(norm)):
            raise RuntimeError(f"the norm of all gradients is {norm}, so they cannot be clipped")
        factor = max_norm / (norm + 1e-6)
        # Not "factor < 1": a norm that is no number has to spoil the weights visibly.
        if not factor >= 1.0:
            for _, grad in shards:
                if grad is not None:
                    grad.mul_(factor)
        return torch.tensor(norm, dtype=engine.form.dtype, device=engine.world.device)

    def _inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """By leaf of the graph, what a call gives."""
        face: Face = self.__dict__["_own"]["face"]
        wanted = [name for name in self._engine.naming.inputs if name is not None]
        has_target = TARGET in wanted or not all(face.takes(name) for name in kwargs)
        call = call_of(face, args, kwargs, has_target=has_target)
        found = matched(wanted, tuple(call.tensors))
        if missing := [name for name in wanted if name not in found]:
            problem = f"lack {', '.join(missing)}, expected {', '.join(wanted)}"
            raise InputError("inputs", f"{problem} as the plan was made with")
        further = [name for name in call.tensors if name not in found.values()]
        if len(further) > self._engine.naming.inputs.count(None):
            problem = f"have {further[0]}, expected {', '.join(wanted)}"
            raise InputError("inputs", f"{problem} as the plan was made with")
        return {leaf: call.tensors[name] for leaf, name in found.items()}

    # ------------------------------------------------------------------------------------------
    # Whole tensors

    def state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Tensor]:
        """All tensors of the module, whole, under its own names, on the CPU. All ranks have to call
        together, and each gets them."""
        engine, own = self._engine, self.__dict__["_own"]
        found: dict[str, Tensor] = dict(own["kept"])
        for leaf in self._leaves:
            parameter = engine.naming.parameter(leaf)
            value = engine.whole(leaf) if leaf in self._whole else None
            if value is None:
                continue
            turned = value.mT if parameter.transposed else value
            found.update(dict.fromkeys(parameter.names, turned.contiguous().cpu()))
        running = engine.executor.running
        for first, names in running.names.items():
            found.update(dict.fromkeys(names, running.tensors[first].cpu().clone()))
        whole = {} if destination is None else destination
        whole.update({prefix + name: found[name] for name in own["names"] if name in found})
        return whole

    @torch.no_grad()
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> _IncompatibleKeys:
        """Take this rank's shards from whole tensors under the module's own names. Each rank is
        given all of them; of a file that is mapped (``torch.load(..., mmap=True)``) it reads only
        its own part. As torch does, raises RuntimeError for names or shapes that do not fit."""
        del assign  # Values are copied: shards are not theirs.
        own, engine = self.__dict__["_own"], self._engine
        names: tuple[str, ...] = own["names"]
        missing = [name for name in names if name not in state_dict]
        unexpected = [name for name in state_dict if name not in names]
        shapes = self._shapes()
        problems = [
            f"{name} has shape {list(value.shape)}, expected {list(shapes[name])}"
            for name, value in state_dict.items()
            if name in shapes and value.shape != shapes[name]
        ]
        if strict:
            problems += [f"{name} is missing" for name in missing]
            problems += [f"{name} is unexpected" for name in unexpected]
        if problems:
            raise RuntimeError(f"load_state_dict of {engine.plan.model_name}: {problems[0]}")
        self._load(state_dict)
        if not missing:
            engine.is_filled = True
        return _IncompatibleKeys(missing, unexpected)

    def _load(self, state: Mapping[str, Tensor]) -> None:
        own, engine = self.__dict__["_own"], self._engine
        for leaf in self._leaves:
            parameter = engine.naming.parameter(leaf)
            name = next((name for name in parameter.names if name in state), None)
            if name is not None:
                engine.load(leaf, state[name].mT if parameter.transposed else state[name])
        for leaf, name in engine.naming.buffers.items():
            if name in state:
                engine.load(leaf, state[name])
        engine.executor.running.fill(state)
        own["kept"].update({n: state[n].detach().clone() for n in own["kept"] if n in state})

    def _shapes(self) -> dict[str, torch.Size]:
        """Of all tensors of the module."""
        engine, own = self._engine, self.__dict__["_own"]
        shapes = {name: tensor.shape for name, tensor in own["kept"].items()}
        for leaf, whole in self._whole.items():
            parameter = engine.naming.parameter(leaf)
            turned = whole[::-1] if parameter.transposed else whole
            shapes.update(dict.fromkeys(parameter.names, torch.Size(turned)))
        running = engine.executor.running
        for first, names in running.names.items():
            shapes.update(dict.fromkeys(names, running.tensors[first].shape))
        return shapes

    # ------------------------------------------------------------------------------------------
    # Parameters

    @property
    def _own_parameters(self) -> list[Parameter]:
        return [self._parameter(leaf) for leaf in self._leaves]

    def _parameter(self, leaf: str) -> Parameter:
        return self.get_parameter(self._engine.naming.parameter(leaf).names[0])

    def _register(self, leaf: str) -> None:
        """Make the shard of a weight a parameter, under all names that it has in the module."""
        engine = self._engine
        parameter = Parameter(self._shard(leaf), requires_grad=leaf in engine.trained or True)
        for name in engine.naming.parameter(leaf).names:
            *path, last = name.split(".")
            part: Module = self
            for step in path:
                if step not in part._modules:
                    part.add_module(step, Module())
                part = part.get_submodule(step)
            try:
                part.register_parameter(last, parameter)
            except KeyError as error:
                raise InputError(f"parameter {name}", "has the name of a method") from error

    def _shard(self, leaf: str) -> Tensor:
        """The memory of this rank's piece, as the module has it."""
        engine = self._engine
        piece = engine.piece(leaf)
        if piece is None:
            return torch.empty(0, dtype=engine.form.dtype, device=engine.world.device)
        data = piece.data
        return data.mT if engine.naming.parameter(leaf).transposed else data

    def _follow(self) -> None:
        """Take over what was put in the place of a shard, as ``parameter.data = ...`` does. Raises
        InputError for what does not fit."""
        for leaf in self._leaves:
            own, parameter = self._shard(leaf), self._parameter(leaf)
            if parameter.data_ptr() == own.data_ptr() and parameter.dtype == own.dtype:
                continue
            given = parameter.data
            if (given.shape, given.dtype, given.device) != (own.shape, own.dtype, own.device):
                name = self._engine.naming.parameter(leaf).names[0]
                problem = f"is {_described(given)} now, expected {_described(own)} by the plan"
                raise InputError(f"parameter {name}", problem)
            own.copy_(given)
            parameter.data = own


class _Step(Function):
    """The loss of all ranks as a function of this rank's shards."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, module: ParallelModule, inputs: Mapping[str, Tensor], *tensors: Tensor
    ) -> Tensor:
        engine = module._engine  # pyright: ignore[reportPrivateUsage]
        begun, loss = engine.forward(inputs, trains=True, keeps=module.training)
        ctx.module, ctx.begun = module, begun
        ctx.sync = module.__dict__["_own"]["sync"]
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        module: ParallelModule = ctx.module
        begun: Begun | None = ctx.begun
        if begun is None:
            raise InputError("backward", "a second time through one loss, expected forward again")
        ctx.begun = None
        engine = module._engine  # pyright: ignore[reportPrivateUsage]
        found = engine.backward(begun, gradient, exchanges=ctx.sync)
        leaves = module._leaves  # pyright: ignore[reportPrivateUsage]
        gradients: list[Tensor | None] = []
        for leaf in leaves:
            value = found.pop(leaf, None)
            turned = engine.naming.parameter(leaf).transposed
            gradients.append(value.mT if turned and value is not None else value)
        return None, None, None, *gradients


def _weights(engine: Engine) -> dict[str, Any]:
    return {node.leaf.name: node for node in engine.lowering.schedule.homes}


def _described(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {list(tensor.shape)} on {tensor.device}"

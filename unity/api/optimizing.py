"""Plan the training of a module.

The module itself is captured if it and its inputs are in main memory. Otherwise a copy of it on the
meta device is captured. The values of the module are neither changed nor copied.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.dropout import _DropoutNd as Dropout  # pyright: ignore[reportPrivateUsage]

from pcg.capture import Captured, capture
from pcg.capture.running.refusals import refuse_hooks, refuse_kinds
from pcg.errors import InputError
from pcg.models import MAX_BATCH
from runtime.module.calls import ForwardSignature, ModuleCall, call_of
from runtime.module.twin import twin, without_elements
from runtime.train.eager import MOST_PARAMETERS, ModuleAgreement, compare_captured
from runtime.train.initial import tensors_of
from search.choices import Mode, Recompute
from unity.api.losses import Loss, LossSource, with_loss
from unity.api.planned import PlannedModel, check_module
from unity.api.shrunk import shorter, shrunk
from unity.commands.looking import Look, wanted
from unity.commands.planning import answered, check, load
from unity.optimize import Options

MOST_BYTES = 1 << 30
"""The most bytes of inputs of a whole batch. Larger inputs are made on the meta device."""


def optimize(
    model: Module,
    inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    *,
    machine: str | Path = "local",
    nodes: int | None = None,
    devices: int | None = None,
    batch: int | None = None,
    loss: Loss = None,
    optimizer: str = "adam",
    precision: str | None = None,
    compile: bool = False,
    planner: str = "joint",
    mode: str = "joint",
    degrees: str | None = None,
    mesh: str | None = None,
    shard: Sequence[str] = (),
    allow: str | None = None,
    recompute: str = "auto",
    batch_norm: str | None = None,
    budget: float = 600.0,
    profile: str | Path | None = None,
    operators: str | Path | None = None,
    rules: str | Path | None = None,
    compare: bool = True,
    name: str | None = None,
    quiet: bool = False,
) -> PlannedModel:
    """Return the fastest plan to train a module on a machine.

    ``model``: a module on any device, also meta. ``inputs``: the inputs of one device, on any
    device: a tuple of arguments, a dictionary of keyword arguments, or the only argument. Their
    first dimension is the batch of a device. ``batch``: the batch of all devices together. Default:
    the batch of a device times the number of devices.

    ``loss``: needed if ``forward`` returns no loss. It is the name of a loss of
    ``torch.nn.functional``, such as ``cross_entropy``, an instance of a loss of ``torch.nn``, or a
    function of (output, batch). Then some inputs are for the loss alone: the last of a tuple, or
    the entries of a dictionary that ``forward`` does not take.

    ``optimizer``: sgd, momentum or adam; it decides what memory holds. ``precision``: fp32, tf32,
    bf16, fp16 or fp64. Default: bf16 on GPUs that have it, else fp32. ``compile``: plan for
    operators that ``torch.compile`` joins. ``compare``: compare the module with its graph, in
    values and gradients. ``name``: the name of the model in the plan. ``quiet``: show no progress.
    All other parameters are options of ``unity optimize``.

    Raises InputError if the module cannot be captured or planned, and NegativeAnswer if no plan
    fits.
    """
    check_module(model)
    called = name or type(model).__name__
    if mode not in list(Mode):
        raise InputError("mode", f"{mode}: expected one of {', '.join(Mode)}")
    if recompute not in list(Recompute):
        raise InputError("recompute", f"{recompute}: expected one of {', '.join(Recompute)}")
    options = Options(
        model=called,
        machine=str(machine),
        nodes=nodes,
        devices=devices,
        batch=batch,
        rules=_path(rules),
        profile=_path(profile),
        operators=_path(operators),
        planner=planner,
        mode=Mode(mode),
        degrees=degrees,
        mesh=mesh,
        shard=list(shard),
        allow=allow,
        recompute=Recompute(recompute),
        budget=budget,
        optimizer=optimizer,
        precision=precision,
        compile=compile,
        batch_norm=batch_norm,
        compare=compare,
        as_json=quiet,
    )
    losses = LossSource(loss)
    # Checked here, because a copy would not have the hooks.
    refuse_kinds(model, called)
    refuse_hooks(model, called)
    asked = _Asked(model, called, _example(model, inputs, losses), losses, batch)
    with _without_dashes():
        check(options)
        load(options)
        answer = answered(options, partial(asked.look, options))
    return PlannedModel(answer)


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


def _example(
    model: Module, inputs: Tensor | Sequence[Any] | Mapping[str, Any], losses: LossSource
) -> ModuleCall:
    """Return the example call of a module."""
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    if isinstance(inputs, Mapping):
        kwargs = inputs
    elif isinstance(inputs, Tensor):
        args = (inputs,)
    elif isinstance(inputs, (tuple, list)):
        args = inputs
    else:
        expected = "expected a tuple of arguments, a dictionary of keyword arguments, or a tensor"
        raise InputError("inputs", f"{expected}, got {type(inputs).__name__}")
    try:
        call = call_of(ForwardSignature.of(model), args, kwargs, has_target=losses.has_target)
    except InputError as error:
        if losses.has_target:
            raise
        hint = "; an input for the loss alone needs loss="
        raise InputError(error.where, f"{error.problem}{hint}") from error
    losses.check(call)
    first = next(iter(call.tensors.values()), None)
    if first is None or not first.dim() or not first.shape[0]:
        raise InputError("inputs", "have no batch, expected a tensor with samples")
    return call


@dataclass(frozen=True)
class _Asked:
    """A module with an example call. ``batch``: the batch of all devices; None for the default."""

    model: Module
    name: str
    call: ModuleCall
    losses: LossSource
    batch: int | None

    @property
    def own(self) -> int:
        """The number of samples of one device."""
        return next(iter(self.call.tensors.values())).shape[0]

    def look(self, options: Options) -> Look:
        """Return the graph, and how it agrees with the module, if that is asked for."""
        captured = self.captured(*wanted(options))
        return Look(captured, self.agreement() if options.compare else None)

    def captured(self, devices: int, groups: int) -> Captured:
        """Return the graph for a number of devices, with batch norms by ``groups`` of samples."""
        wanted = self.own * devices if self.batch is None else self.batch
        if not 1 <= wanted <= MAX_BATCH:
            raise InputError("batch", f"expected 1 to {MAX_BATCH}, got {wanted}")
        tensors = self.call.tensors
        shapes = {name: _resized(tensor, self.own, wanted) for name, tensor in tensors.items()}
        total = sum(tensors[n].element_size() * shape.numel() for n, shape in shapes.items())
        model = self.model
        if _is_at_hand(model) and total <= MOST_BYTES:
            made = [_repeated(tensors[name], shape) for name, shape in shapes.items()]
        else:
            model = twin(model, without_elements)
            dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
            made = [torch.empty(s, dtype=dtypes[n], device="meta") for n, s in shapes.items()]
        # On which the example call has tensors of its own, that are no inputs.
        seen = with_loss(model, self.call, self.losses)
        captured = capture(seen, tuple(made), self.name, groups)
        return replace(captured, notes=(*captured.notes, *_told_of_mode(self.model)))

    def agreement(self) -> ModuleAgreement:
        """Compare the module with its graph, for the batch of one device."""
        problem = self._too_large_or_unknown()
        if problem is not None:
            return self._of_a_copy() or ModuleAgreement(reason=problem)
        alone = replace(self, batch=None)
        return alone._against(alone.captured(1, 1))

    def _against(self, captured: Captured) -> ModuleAgreement:
        """Compare the module with a graph of it."""

        def make(begin: Callable[[], object]) -> tuple[Module, tuple[Any, ...]]:
            begin()
            copied = twin(self.model, _with_values)
            examples = [_at_hand(tensor) for tensor in self.call.tensors.values()]
            return with_loss(copied, self.call, self.losses), tuple(examples)

        return compare_captured(self.name, captured, make)

    def _too_large_or_unknown(self) -> str | None:
        """Return why the module itself cannot be compared; None if it can."""
        tensors, parameters = tensors_of(self.model), _parameters(self.model)
        count = sum(parameter.numel() for parameter in self.model.parameters())
        if count > MOST_PARAMETERS:
            return f"it has {count:,} parameters, more than {MOST_PARAMETERS:,}"
        others = set(tensors) - {name for name, _ in parameters}
        unknown = sorted(name for name in others if tensors[name].is_meta)
        return f"{unknown[0]} has no values on the meta device" if unknown else None

    def _of_a_copy(self) -> ModuleAgreement | None:
        """Compare a small copy of the module with its graph. None if no copy can be captured.
        Raises InputError if they differ."""
        if (copy := shrunk(self.model)) is None:
            return None
        model, words = copy
        call = replace(self.call, **_shorter(self.call))
        asked = replace(self, model=model, name=f"{self.name}, {words}", call=call, batch=None)
        try:
            captured = asked.captured(1, 1)
        except InputError:
            return None
        return replace(asked._against(captured), copy=words)


def _told_of_mode(model: Module) -> tuple[str, ...]:
    """Return a line about a module in evaluation mode that would train otherwise than it is
    planned. ``from_pretrained`` returns modules in evaluation mode."""
    parts = [part for part in model.modules() if not part.training]
    drops = any(isinstance(part, Dropout) and part.p > 0 for part in parts)
    norms = any(isinstance(part, BatchNorm) and part.track_running_stats for part in parts)
    if model.training or not (drops or norms):
        return ()
    without = ["without dropout"] if drops else []
    without += ["with the statistics that batch norms keep"] if norms else []
    words = " and ".join(without)
    return (f"the module is in evaluation mode, so it is planned and trains {words}: call train()",)


def _shorter(call: ModuleCall) -> dict[str, Any]:
    """Return the fields of a call, with texts cut short."""
    tensors = shorter(dict(call.tensors))
    bound, targets = call.with_tensors(tuple(tensors.values()))
    return {"arguments": dict(bound.arguments), "targets": targets, "tensors": tensors}


def _parameters(model: Module) -> list[tuple[str, Parameter]]:
    return list(model.named_parameters(remove_duplicate=False))


def _with_values(tensor: Tensor) -> Tensor:
    """Return a copy in main memory, with random values if the tensor has none."""
    if not tensor.is_meta:
        return tensor.detach().to("cpu", copy=True)
    fan_in = tensor.shape[-1] if tensor.dim() > 1 else 1
    return torch.randn(tensor.shape, dtype=torch.float64).mul_(fan_in**-0.5).to(tensor.dtype)


def _at_hand(tensor: Tensor) -> Tensor:
    """Return an example in main memory: zeros if it has no values."""
    if tensor.is_meta:
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return tensor.detach().to("cpu", copy=True)


def _is_at_hand(model: Module) -> bool:
    """Whether all tensors of a module are in main memory."""
    return all(tensor.device.type == "cpu" for tensor in tensors_of(model).values())


def _resized(tensor: Tensor, own: int, wanted: int) -> torch.Size:
    """Return the shape with the whole batch, if the first dimension is the batch of one device."""
    shape = tensor.shape
    if shape and shape[0] == own:
        return torch.Size((wanted, *shape[1:]))
    return shape


def _repeated(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Return an input of the whole batch. Integers repeat the example, which gives their range."""
    if tensor.is_meta or tensor.is_floating_point() or tensor.is_complex():
        return torch.zeros(shape, dtype=tensor.dtype)
    own = tensor.detach().cpu()
    if own.shape == shape:
        return own
    return own[torch.arange(shape[0]) % own.shape[0]]


@contextmanager
def _without_dashes() -> Generator[None]:
    """Name options in errors as Python does: without dashes."""
    try:
        yield
    except InputError as error:
        if not error.where.startswith("--"):
            raise
        where = error.where.removeprefix("--").replace("-", "_")
        raise InputError(where, error.problem) from error

"""Make a module train by a plan, in the processes of torchrun or in one process."""

from __future__ import annotations

import atexit
import os
from contextlib import ExitStack
from inspect import Parameter, Signature, currentframe
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.nn import Module

from pcg.device import DeviceKind
from pcg.plan.plan import Plan, load_plan
from runtime.module.calls import ForwardSignature
from runtime.module.module import ParallelModule
from runtime.program.lower import Lowering
from runtime.world.collectives import World, open_world, own_device
from unity.api.planned import PlannedModel, check_module
from unity.api.trainer import asked
from unity.support.declarations import load_user_operators

_WORLDS: dict[DeviceKind, World] = {}
"""The world of this process for each kind of device, once it is open."""


def parallelize(
    model: Module,
    plan: PlannedModel | Plan | str | Path,
    *,
    seed: int = 0,
    timeout: float = 300.0,
    operators: str | Path | None = None,
) -> ParallelModule:
    """Return a module whose parameters are this rank's shards, and whose forward and backward
    passes are those of the plan. All ranks have to call this together, one process a device.

    ``model``: the module that the plan was made for. Rank 0's values are used. A module on the meta
    device has none, so call ``load_state_dict`` afterwards. The module is not changed, and is not
    needed any more. Parameters of a module in bf16 or fp16 become float32, as the plan
    counts them. ``plan``: a plan, or the path of a plan file. ``seed``: the seed of dropout.
    ``timeout``: the time limit of a communication in seconds, if no process group exists yet.
    ``operators``: the file of operators that the plan was made with, if any.

    Raises InputError if plan, module and processes do not fit together. Raises it for pipelines
    with delayed weights too, whose gradients are of weights one update old.
    """
    check_module(model)
    load_user_operators(operators)
    where = "plan"
    if isinstance(plan, PlannedModel):
        plan = plan.plan
    elif not isinstance(plan, Plan):
        where = str(plan)
        plan = load_plan(plan)
    lowering = Lowering(plan, where)
    return _kind(model)(model, lowering, _world(plan.machine.kind, timeout), seed)


def _kind(model: Module) -> type[ParallelModule]:
    """Return a class with the name, signature and configuration of a module. Other training loops,
    such as the Trainer of transformers, find labels and columns of a dataset by these."""
    signature = ForwardSignature.of(model).signature
    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)

    def forward(self: ParallelModule, *args: Any, **kwargs: Any) -> Any:
        return ParallelModule.forward(self, *args, **kwargs)

    def accepts_loss_kwargs(self: ParallelModule) -> bool:
        return asked(self, currentframe().f_back)  # pyright: ignore[reportOptionalMemberAccess]

    # setattr for pyright, which knows no such attribute.
    setattr(  # noqa: B010
        forward, "__signature__", Signature([own, *signature.parameters.values()])
    )
    members: dict[str, Any] = {"forward": forward, "__doc__": ParallelModule.__doc__}
    members["accepts_loss_kwargs"] = property(accepts_loss_kwargs)
    # So that accelerate does not wrap it in a DistributedDataParallel.
    members["_is_accelerate_prepared"] = True
    members["_keys_to_ignore_on_save"] = None
    for name in ("config", "main_input_name"):
        if hasattr(model, name):
            members[name] = getattr(model, name)
    return type(type(model).__name__, (ParallelModule,), members)


def _world(kind: DeviceKind, timeout: float) -> World:
    """Return the world of this process: that of its default process group, else of torchrun."""
    if kind in _WORLDS:
        return _WORLDS[kind]
    if dist.is_available() and dist.is_initialized():
        world = World(dist.get_rank(), dist.get_world_size(), own_device(kind))
    else:
        opened = ExitStack()
        world = opened.enter_context(open_world(kind, timeout))
        atexit.register(_close, opened, os.getpid())
    _WORLDS[kind] = world
    return world


def _close(opened: ExitStack, process: int) -> None:
    """Leave the other ranks, unless this is a fork of the process that joined them."""
    if os.getpid() == process:
        opened.close()

"""Convert between the shards of all ranks and whole tensors under the module's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pcg.plan.naming import ParameterFile
from runtime.module.engine import RankEngine


@torch.no_grad()
def whole_tensors(engine: RankEngine) -> dict[str, Tensor]:
    """Gather all trained weights and running statistics on the CPU, under all their names. All
    ranks call together."""
    tensors: dict[str, Tensor] = {}
    for leaf in sorted(engine.leaves):
        parameter = engine.naming.parameter(leaf)
        by_name = parameter.tensors(engine.whole(leaf))
        # Several names may share one tensor.
        copies = {id(tensor): _copy(tensor, parameter) for tensor in by_name.values()}
        tensors.update({name: copies[id(tensor)] for name, tensor in by_name.items()})
    running = engine.executor.running
    for first, names in running.names.items():
        tensors.update(dict.fromkeys(names, running.tensors[first].cpu().clone()))
    return tensors


def _copy(tensor: Tensor, parameter: ParameterFile) -> Tensor:
    """A contiguous tensor with memory of its own on the CPU."""
    whole = tensor.detach().contiguous()
    return (whole.clone() if parameter.stacked else whole).cpu()


@torch.no_grad()
def load_whole(
    engine: RankEngine,
    names: Sequence[str],
    kept: dict[str, Tensor],
    state: Mapping[str, Any],
    strict: bool,
) -> list[str]:
    """Set a rank's shards from the whole tensors ``state``. Return the names that ``state`` lacks.

    ``names``: those of the module's state dict. ``kept``: its tensors that are not trained, which
    are replaced. Raises RuntimeError for shapes, or with ``strict`` for names, that do not fit,
    before anything is changed.
    """
    missing = [name for name in names if name not in state]
    shapes = _shapes(engine, kept)
    problems = [
        f"{name} has shape {list(value.shape)}, expected {list(shapes[name])}"
        for name, value in state.items()
        if name in shapes and value.shape != shapes[name]
    ]
    if strict:
        problems += [f"{name} is missing" for name in missing]
        problems += [f"{name} is unexpected" for name in state if name not in names]
    if problems:
        raise RuntimeError(f"load_state_dict of {engine.plan.model_name}: {problems[0]}")
    for leaf in engine.leaves:
        parameter = engine.naming.parameter(leaf)
        if parameter.missing_from(state) is None:
            engine.load(leaf, parameter.weight(state))
    for leaf, name in engine.naming.buffers.items():
        if name in state:
            engine.load(leaf, state[name])
    engine.executor.running.fill(state)
    kept.update({name: state[name].detach().clone() for name in kept if name in state})
    engine.is_filled = engine.is_filled or not missing
    return missing


def _shapes(engine: RankEngine, kept: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """The shapes of all tensors of the module, by name."""
    shapes = {name: tensor.shape for name, tensor in kept.items()}
    for leaf, whole in engine.shapes.items():
        parameter = engine.naming.parameter(leaf)
        shape = (
            parameter.reoriented(whole)[1:] if parameter.stacked else parameter.reoriented(whole)
        )
        shapes.update(dict.fromkeys(parameter.in_module, torch.Size(shape)))
    running = engine.executor.running
    for first, names in running.names.items():
        shapes.update(dict.fromkeys(names, running.tensors[first].shape))
    return shapes

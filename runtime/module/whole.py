"""Whole tensors under the module's own names, from all ranks' shards and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pcg.plan.naming import ParameterFile
from runtime.module.engine import RankEngine


@torch.no_grad()
def whole_tensors(engine: RankEngine) -> dict[str, Tensor]:
    """All trained weights and running statistics on the CPU, under all of their names. All ranks
    call together."""
    tensors: dict[str, Tensor] = {}
    for leaf in sorted(engine.leaves):
        parameter = engine.naming.parameter(leaf)
        made = parameter.tensors(engine.whole(leaf))
        # A name more is not a tensor more.
        whole = {id(tensor): _own(tensor, parameter) for tensor in made.values()}
        tensors.update({name: whole[id(tensor)] for name, tensor in made.items()})
    running = engine.executor.running
    for first, names in running.names.items():
        tensors.update(dict.fromkeys(names, running.tensors[first].cpu().clone()))
    return tensors


def _own(tensor: Tensor, parameter: ParameterFile) -> Tensor:
    """A tensor in memory of its own on the CPU, in its order."""
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
    """Give a rank its pieces of whole tensors; the names that ``state`` lacks. ``names``: of the
    module's state dict; ``kept``: those tensors that are not trained, which are replaced. Raises
    RuntimeError, before anything is changed, for names or shapes that do not fit."""
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
    """Of all tensors of the module."""
    shapes = {name: tensor.shape for name, tensor in kept.items()}
    for leaf, whole in engine.shapes.items():
        parameter = engine.naming.parameter(leaf)
        own = parameter.reoriented(whole)[1:] if parameter.stacked else parameter.reoriented(whole)
        shapes.update(dict.fromkeys(parameter.in_module, torch.Size(own)))
    running = engine.executor.running
    for first, names in running.names.items():
        shapes.update(dict.fromkeys(names, running.tensors[first].shape))
    return shapes

"""Placements found by meta-pytorch's AutoParallel, as annotations of our graph.

AutoParallel chooses the placements of all tensors by an integer program, on a ``DeviceMesh`` that
users name. We read the placements of parameters and of the batch. The others follow from these by
propagation, as in GSPMD. The package is no dependency: it needs a CUDA build of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch.distributed.tensor import Placement, Replicate, Shard

from pcg.capture.convert import Captured


def found_placements(
    module: torch.nn.Module, inputs: Callable[[], Any], sizes: Mapping[str, int]
) -> dict[str, tuple[Placement, ...]]:
    """The placements of a module's parameters by their names, as AutoParallel finds them.
    ``sizes``: the sizes of the mesh axes, outermost first. The batch is cut along the first axis.

    ``module`` is on the meta device. ``inputs`` makes an example batch. Needs a process group of as
    many devices, which may have the backend ``fake``. Raises ImportError without the package.
    """
    from torch._functorch._aot_autograd.fx_utils import get_named_param_nodes
    from torch.distributed.device_mesh import init_device_mesh

    planners = import_module("autoparallel.api")
    mesh = init_device_mesh("cuda", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    samples = (Shard(0), *[Replicate()] * (mesh.ndim - 1))
    with planners.AutoParallel(module, inputs, mesh) as planner:
        planner.add_parameter_memory_constraint(low=None, high=None)
        planner.add_input_constraints([samples])
        planner.add_output_constraints([samples])
        chosen = planner.optimize_placement(verbose=False)
        nodes = get_named_param_nodes(planner.gm.graph)
        return {name: tuple(chosen[node].input_specs[0].placements) for name, node in nodes.items()}


def shardings_of(
    captured: Captured, placements: Mapping[str, Sequence[Placement]], axes: Sequence[str]
) -> list[str]:
    """Shardings of weights and of the batch, as ``--shard`` takes them.

    ``placements``: the placements of parameters by their names in the module, one entry an axis.
    Weights without placements are left to propagation. Raises ValueError for a placement that no
    stored parameter can have: a partial sum, or blocks that do not follow the order of the axes.
    """
    rank = {node.leaf.name: node.value().rank for node in captured.graph.leaves}
    stated: list[str] = []
    for weight in captured.weights:
        own = placements.get(weight.parameter)
        if own is not None:
            dims = _dims(own, axes, rank[weight.leaf], weight.parameter)
            if weight.transposed:
                dims[-2:] = dims[-1:-3:-1]
            stated.append(f"{weight.leaf}={','.join(dims)}")
    for name in filter(None, captured.inputs):
        stated.append(f"{name}={','.join([axes[0], *['-'] * (rank[name] - 1)])}")
    return stated


def _dims(own: Sequence[Placement], axes: Sequence[str], rank: int, name: str) -> list[str]:
    """The mesh axes that cut each dimension."""
    cut: list[list[str]] = [[] for _ in range(rank)]
    for axis, placement in zip(axes, own, strict=True):
        if type(placement) is Shard:
            cut[placement.dim].append(axis)
        elif not placement.is_replicate():
            raise ValueError(f"{name}: expected Shard or Replicate along {axis}, got {placement}")
    return ["+".join(along) or "-" for along in cut]

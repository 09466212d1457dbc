"""Cost of fetching halos, for every strategy of the operator that reads them."""

from __future__ import annotations

import numpy as np

from pcg.graph.graph import Node
from pcg.types.local import Window
from search.map.choose.resharding import PairSeconds
from search.map.rules.cuts import block_halo
from search.map.space.axes import Mesh
from search.map.space.strategies import Space


def windows(node: Node) -> tuple[Window, ...]:
    """The windows that an operator slides over its operands."""
    return node.operator_call.typing(tuple(value.rank for value in node.inputs)).windows


def halo_seconds(
    node: Node, position: int, space: Space, mesh: Mesh, itemsize: int
) -> PairSeconds | None:
    """Seconds of fetching the elements of neighbouring blocks that windows read of an operand, for
    each strategy. None if nothing is fetched."""
    slid = {window.axis for window in windows(node)}
    if slid.isdisjoint(space.axes):
        return None
    tensor = node.inputs[position].type
    bits = 1 << np.arange(len(mesh))
    cut = space.degrees(mesh.primes).astype(float)
    reads = [axis.operands[position] is not None for axis in space.axes]
    block = tensor.elements * itemsize / np.where(reads, cut, 1.0).prod(axis=1)
    fetching = np.zeros(len(space), np.float32)
    for place, axis in enumerate(space.axes):
        dim = axis.operands[position]
        width = 0 if axis not in slid or dim is None else sum(block_halo(node, position, dim))
        if dim is None or not width:
            continue
        masks, which = np.unique((space.strategies == place) @ bits, return_inverse=True)
        peers = [mesh.peers(int(mask)) for mask in masks]
        latency = np.array([p.latency for p in peers])[which]
        inverse = np.array([p.inverse_bandwidth for p in peers])[which]
        share = width * cut[:, place] / tensor.shape[dim]
        fetching += np.where(cut[:, place] > 1, latency + block * share * inverse, 0.0)
    return fetching if fetching.any() else None

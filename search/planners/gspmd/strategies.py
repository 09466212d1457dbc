"""Strategies of operators from the shardings of the tensors that they read and make.

Problem: the partitioner has to compute an operator whose tensors may be sharded along different
indices (GSPMD, section 4). Method: along each named axis, an index is cut along which some tensor
of the operator is already sharded. If there is none, all devices compute the same. A contracted
index leaves partial sums, which are reduced to the sharding of the result. Among the strategies
that cut along the most axes, the one with the least resharding between the shardings of the tensors
and its own is taken: a gather moves a whole tensor, an all_to_all a part of it, an all_reduce two
tensors, a slice nothing. Exact for these counts, which consider each named axis by itself. Linear
in the number of strategies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Node, Value
from search.map.space.axes import Strategy
from search.map.space.strategies import IDLE, PARTIAL, REPLICATE, UNCUT, Space, passes
from search.planners.gspmd.annotations import NamedMesh
from search.planners.gspmd.propagation import TensorSharding

_WHOLE = 1e30
"""The elements that repeated computation on all devices counts as, if there is a choice."""


@dataclass(frozen=True)
class Partitioner:
    """Chooses strategies by the shardings of all tensors of a graph."""

    mesh: NamedMesh
    shardings: Mapping[Value, TensorSharding]

    def strategy(self, node: Node, space: Space) -> Strategy:
        """The strategy of an operator."""
        used = self._used
        if not used:
            return space.strategy(UNCUT)
        rows, copied = self._rows(space), len(space.axes)
        moved = np.zeros(len(rows))
        for axis in used:
            named = space.strategies[rows, self.mesh.runs[axis][0]]
            table = np.array([self._moved(node, space, axis, at) for at in range(copied + 1)])
            table[copied] = _WHOLE if np.isfinite(table[:copied]).any() else 0.0
            moved += table[np.where(named == REPLICATE, copied, named)]
        return space.strategy(int(rows[np.argmin(moved)]))

    @property
    def _used(self) -> list[int]:
        """The named axes of more than one device."""
        return [axis for axis, size in enumerate(self.mesh.sizes) if size > 1]

    def _rows(self, space: Space) -> NDArray[np.intp]:
        """The strategies that cut one index along all of a named axis, or copy."""
        strategies = space.strategies
        passing = [place for place, axis in enumerate(space.axes) if passes(axis)]
        allowed = ~np.isin(strategies, [IDLE, *passing]).any(axis=1)
        for axis in self._used:
            first, after = self.mesh.runs[axis]
            allowed &= (strategies[:, first:after] == strategies[:, first : first + 1]).all(axis=1)
        return np.flatnonzero(allowed)

    def _moved(self, node: Node, space: Space, axis: int, place: int) -> float:
        """Elements that a device receives along a named axis if it cuts an index; infinite if no
        tensor is sharded so."""
        if place == len(space.axes):
            return 0.0
        index, parts = space.axes[place], self.mesh.sizes[axis]
        total, matched = 0.0, False
        for value, needs in zip(node.inputs, index.operands, strict=True):
            has = self.shardings.get(value, {}).get(axis)
            total += _gathered(value, has, needs, parts)
            matched |= has is not None and has == needs
        for value, made in zip(node.outputs, index.outputs, strict=True):
            wanted = self.shardings.get(value, {}).get(axis)
            matched |= wanted is not None and wanted == made
            if made is None:
                total += _elements(value) * (1 - 1 / parts) * (2 if wanted is None else 1)
            else:
                total += _gathered(value, made, wanted, parts)
        return total if matched else inf


def _gathered(value: Value, has: int | None, needs: int | None, parts: int) -> float:
    """Elements that a device receives of a tensor that is sharded along one dimension and needed
    along another."""
    if has is None or has == needs:
        return 0.0
    missing = _elements(value) * (1 - 1 / parts)
    return missing if needs is None else missing / parts


def _elements(value: Value) -> int:
    return prod(value.type.shape)


def operand_sharding(
    space: Space, strategy: Sequence[int], position: int, mesh: NamedMesh
) -> TensorSharding:
    """The sharding in which a strategy needs an operand."""
    places = [axis.operands[position] for axis in space.axes]
    return _sharding([REPLICATE if at is None else at for at in places], strategy, mesh)


def result_sharding(
    space: Space, strategy: Sequence[int], port: int, mesh: NamedMesh
) -> TensorSharding:
    """The sharding in which a strategy leaves a result; PARTIAL along named axes of partial
    sums."""
    places = [axis.outputs[port] for axis in space.axes]
    return _sharding([PARTIAL if at is None else at for at in places], strategy, mesh)


def _sharding(places: Sequence[int], strategy: Sequence[int], mesh: NamedMesh) -> TensorSharding:
    axes: dict[int, int] = {}
    for axis, (first, after) in enumerate(mesh.runs):
        entry = strategy[first] if after > first else REPLICATE
        dim = places[entry] if entry >= 0 else REPLICATE
        if dim != REPLICATE:
            axes[axis] = dim
    return axes

"""The strategies of an operator: which of its indices each mesh axis of the devices cuts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, pairwise, permutations
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Node
from pcg.placement.view import MachineView
from pcg.types.local import Axis
from search.map.space.axes import Mesh, Strategy
from search.map.space.mapping import IDLE, OperatorMapping, mapping_of

PARTIAL = -2
"""Along this mesh axis a tensor is held in partial sums."""
REPLICATE = -3
"""Along this mesh axis a tensor is copied, and an operator repeats the same computation."""

PASSING = "partials of "
"""The prefix of the names of axes along which partial sums pass through an operator."""

UNCUT = 0
"""The place of the strategy that cuts nothing."""

Strategies = NDArray[np.int8]
"""[strategies, mesh axes]: each row is a strategy."""

Placements = NDArray[np.int8]
"""[placements, mesh axes]: the dimension that is sharded; or IDLE, PARTIAL or REPLICATE."""


@dataclass(frozen=True)
class Space:
    """The strategies of an operator. ``strategies[s, m]`` is the place in ``axes`` of the axis
    that mesh axis m cuts; or IDLE or REPLICATE."""

    axes: tuple[Axis, ...]
    strategies: Strategies

    def __len__(self) -> int:
        return len(self.strategies)

    def strategy(self, place: int) -> Strategy:
        """The strategy at a place."""
        return tuple(self.strategies[place].tolist())

    def place(self, strategy: Strategy) -> int | None:
        """The place of a strategy; None if the operator has no such strategy."""
        return self._place.get(strategy)

    @cached_property
    def _place(self) -> Mapping[Strategy, int]:
        return {tuple(row): place for place, row in enumerate(self.strategies.tolist())}

    def operand(self, position: int) -> Placements:
        """The placement in which each strategy reads an operand. Along an index that the operand
        lacks, the operand is copied."""
        table = [axis.operands[position] for axis in self.axes]
        return self._placed([REPLICATE if at is None else at for at in table])

    def output(self, port: int) -> Placements:
        """The placement in which each strategy leaves an output. An index that is summed away
        leaves partial sums."""
        table = [axis.outputs[port] for axis in self.axes]
        return self._placed([PARTIAL if at is None else at for at in table])

    def _placed(self, table: Sequence[int]) -> Placements:
        # Python and numpy count negative places from the end: the entries -3 to -1 are the last.
        return np.array([*table, REPLICATE, PARTIAL, IDLE], np.int8)[self.strategies]

    def degrees(self, primes: Sequence[int]) -> NDArray[np.int64]:
        """[strategies, axes]: the number of pieces into which each index is cut. It is 1 for axes
        of partial sums that pass through, as each partial sum is a whole tensor."""
        degrees = np.ones((len(self.strategies), len(self.axes)), np.int64)
        cut = [i for i, axis in enumerate(self.axes) if not passes(axis)]
        for axis in cut:
            for mesh_axis, prime in enumerate(primes):
                degrees[:, axis] *= np.where(self.strategies[:, mesh_axis] == axis, prime, 1)
        return degrees


def passes(axis: Axis) -> bool:
    """Whether an axis stands for partial sums that pass through."""
    return axis.name.startswith(PASSING)


def passing(node: Node, carriers: Collection[int]) -> Axis:
    """The axis of partial sums that pass through from some operands, the ``carriers``. The other
    operands are copied along it."""
    operands = tuple(PARTIAL if i in carriers else None for i in range(len(node.inputs)))
    name = PASSING + " ".join(map(str, sorted(carriers)))
    return Axis(name, operands, (None,) * len(node.types))


def space(
    node: Node,
    axes: Mapping[str, int],
    mesh: Mesh,
    most: int,
    carriers: Collection[Collection[int]] = (),
) -> Space:
    """The strategies of a whole operator. ``axes``: the lengths of the indices that may be cut;
    ``most``: the most indices that are in use at once; ``carriers``: sets of operands whose partial
    sums may pass through together.

    Consecutive mesh axes cut one index, or hold partial sums. Along the mesh axes that are left,
    one device takes part, or all repeat the same computation.
    """
    ranks = tuple(value.type.rank for value in node.inputs)
    local = node.operator_call.typing(ranks)
    cuttable = (*local.axes, *(window.axis for window in local.windows))
    typing = [axis for axis in cuttable if axis.name in axes]
    # An axis of partial sums has no length: its degree may be any number.
    lengths = [*(axes[axis.name] for axis in typing), *(0 for _ in carriers)]
    typing += [passing(node, operands) for operands in carriers]
    # Only the degrees that divide a length matter.
    devices = prod(mesh.primes)
    dividing = tuple(gcd(length, devices) if length else 0 for length in lengths)
    return Space(tuple(typing), _strategies(dividing, tuple(mesh.primes), most))


@lru_cache(maxsize=1 << 12)
def _strategies(lengths: tuple[int, ...], primes: tuple[int, ...], most: int) -> Strategies:
    """[strategies, mesh axes]: the strategies of indices with these lengths; length 0 stands for
    partial sums."""
    cut = dict.fromkeys(_rows(lengths, primes, most))
    copied = (tuple(REPLICATE if entry == IDLE else entry for entry in row) for row in cut)
    rows = cut | dict.fromkeys(copied)
    strategies = np.array(list(rows), np.int8).reshape(len(rows), len(primes))
    strategies.setflags(write=False)  # callers share the array
    return strategies


def _rows(lengths: Sequence[int], primes: Sequence[int], most: int) -> Iterator[Strategy]:
    count = len(primes)
    yield (IDLE,) * count
    for cut in range(1, most + 1):
        for order in permutations(range(len(lengths)), cut):
            if sum(lengths[axis] == 0 for axis in order) > 1:
                continue
            # Idle mesh axes are the outermost (some nodes, or sockets, take part) or the innermost
            # (one device of each group does).
            for bounds in combinations(range(count + 1), cut + 1):
                if bounds[0] and bounds[-1] < count:
                    continue
                degrees = [prod(primes[a:b]) for a, b in pairwise(bounds)]
                if all(lengths[axis] % d == 0 for axis, d in zip(order, degrees, strict=True)):
                    row = [IDLE] * bounds[0]
                    for axis, (a, b) in zip(order, pairwise(bounds), strict=True):
                        row += [axis] * (b - a)
                    yield (*row, *[IDLE] * (count - bounds[-1]))


def starts(strategy: Sequence[int], mesh: Mesh) -> list[int]:
    """The devices at which an operator may begin: one for each choice of the devices that take part
    along the idle mesh axes."""
    devices = [0]
    for entry, prime, stride in zip(strategy, mesh.primes, mesh.strides, strict=True):
        devices = [
            first + i * stride for first in devices for i in range(prime if entry == IDLE else 1)
        ]
    return devices


def view(strategy: Strategy, places: Sequence[int], mesh: Mesh, start: int = 0) -> MachineView:
    """The machine view of a strategy (see ``mapped_view``). ``start``: one of its ``starts``."""
    return mapped_view(mapping_of(strategy, start, mesh.primes, mesh.strides), places)


def mapped_view(mapping: OperatorMapping, places: Sequence[int]) -> MachineView:
    """The machine view of an operator that is cut. Equal views are one object. ``places``: for each
    axis of the operator's task grid, its place among the axes of the space; REPLICATE for the axis
    of copies, or IDLE for an axis that is not cut."""
    shape: list[int] = []
    strides: list[int] = []
    for place in places:
        cutting = [axis for axis in mapping.axes if axis.place == place]
        shape.append(prod(axis.degree for axis in cutting))
        strides.append(cutting[-1].stride if cutting else 0)
    return _view(mapping.start, tuple(shape), tuple(strides))


@lru_cache(maxsize=4096)
def _view(start: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> MachineView:
    return MachineView(start, shape, strides)

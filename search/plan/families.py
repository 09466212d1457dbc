"""Families of strategies: the sets of strategies that planners choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from pcg.graph.graph import Graph
from search.choices import IndexRole
from search.map.choose.choosing import Chooser
from search.map.space.allow import (
    Allowed,
    data_parallel,
    everything,
    expert,
    has_tables,
    tensor_parallel,
)
from search.map.space.axes import Mesh
from search.plan.megatron import ColumnsThenRows

FamilyKey = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Strategies:
    """Strategies among which a planner chooses the best, for one graph."""

    name: str
    mask: Allowed
    data_parallel: bool = False
    brief: bool = True
    """Whether only a few settings of overlapping communication are tried."""
    by_hand: bool = False
    """Whether nothing is left to choose, so that the bound of the plan is known beforehand."""
    fully_sharded: bool = False
    """Whether weights are fully sharded over all devices."""
    last: bool = False
    """Whether they are tried only if no plan is known that fits, or if fully sharded weights may
    make data parallelism faster than the known plan."""
    along: tuple[int, ...] = ()
    """The mesh axes of tensor parallelism, if they are fixed."""

    @property
    def is_bounded(self) -> bool:
        """Whether what a sum of seconds promises is a bound of their plans. It counts the whole
        update of each weight on every device, which fully sharded weights divide."""
        return not self.fully_sharded

    @property
    def key(self) -> FamilyKey:
        """A key that tells these strategies from others, equal for corresponding ones of any
        graph."""
        return self.name, self.along


EVERY = Strategies("all strategies", everything, brief=False)
"""The strategies that no other family restricts."""
Family = Callable[[Graph, Chooser], Iterator[Strategies]]


def _joint(graph: Graph, chooser: Chooser) -> Iterator[Strategies]:
    # The strategies of other planners are tried too, as the bound on strategies may leave them out.
    yield from _data(graph, chooser)
    yield from _tensor(graph, chooser)
    if has_tables(graph):
        yield from _expert(graph, chooser)
    yield EVERY
    yield from (replace(zero, last=True) for zero in _zero(graph, chooser))


def _data(graph: Graph, chooser: Chooser) -> Iterator[Strategies]:
    yield Strategies("data parallelism", data_parallel(graph), data_parallel=True)


def _zero(graph: Graph, chooser: Chooser) -> Iterator[Strategies]:
    """Data parallelism with weights, gradients and optimizer states fully sharded."""
    yield Strategies("fully sharded weights", data_parallel(graph), fully_sharded=True)


def _expert(graph: Graph, chooser: Chooser) -> Iterator[Strategies]:
    yield Strategies("tables cut, the rest by data", expert(graph))


def _megatron(graph: Graph, chooser: Chooser) -> Iterator[Strategies]:
    """Data parallelism, alone or with tensor parallelism within a node, or by hand across nodes."""
    yield from _data(graph, chooser)
    yield from _tensor(graph, chooser)


def _tensor(graph: Graph, chooser: Chooser) -> Iterator[Strategies]:
    inside = chooser.mesh.machine.devices_per_node
    count = len(chooser.mesh)
    inner = [n for n in range(1, count + 1) if chooser.mesh.strides[count - n] < inside]
    # Tensor parallelism across nodes keeps the exchange of large gradients within nodes.
    outer = [n for n in range(1, count) if prod(chooser.mesh.primes[:n]) <= inside]
    yield from _of_degrees(graph, chooser, inner, outer)


def _of_degrees(
    graph: Graph, chooser: Chooser, inner: Sequence[int], outer: Sequence[int] = ()
) -> Iterator[Strategies]:
    """Tensor parallelism along ``n`` of the innermost mesh axes, by hand and with strategies to
    choose; and by hand along ``n`` of the outermost. ``inner`` and ``outer``: the numbers ``n``."""
    count, hand = len(chooser.mesh), ColumnsThenRows(graph, chooser.spaces.of)
    for n in inner:
        innermost = tuple(range(count - n, count))
        yield from _by_hand(hand, innermost)
        mask = tensor_parallel(graph, count, n)
        yield Strategies("tensor parallelism", mask, along=innermost)
    for n in outer:
        yield from _by_hand(hand, tuple(range(n)))


def _by_hand(hand: ColumnsThenRows, along: tuple[int, ...]) -> Iterator[Strategies]:
    mask = hand.along(along)
    if mask is not None:
        yield Strategies("columns, then rows", mask, by_hand=True, along=along)


def _other_tensor(graph: Graph, chooser: Chooser) -> Iterator[Strategies]:
    """Tensor parallelism of degrees that are innermost only on a turned mesh, such as 2 of the 6
    devices of a node."""
    usual, primes = Mesh(chooser.mesh.machine).primes, chooser.mesh.primes
    inner = [n for n in range(1, len(primes)) if prod(primes[-n:]) != prod(usual[-n:])]
    yield from _of_degrees(graph, chooser, inner)


PLANNERS: Mapping[str, Family] = {
    "joint": _joint,
    "data-parallel": _data,
    "zero": _zero,
    "expert": _expert,
    "megatron": _megatron,
}
TURNED: Mapping[str, Family] = {"joint": _other_tensor, "megatron": _other_tensor}
"""The families that planners also try on a turned mesh."""


def cuts_windows(graph: Graph, devices: int, dimensions: frozenset[IndexRole] | None) -> bool:
    """Whether images are cut with halos: if this is asked for, or if the samples can't be divided
    among all devices. ``dimensions``: the roles of indices that may be cut, or None for all."""
    if dimensions is not None:
        return IndexRole.SPATIAL in dimensions
    inputs = [node.leaf for node in graph.leaves if node.leaf.kind == "input"]
    return any(leaf.type.shape[0] % devices for leaf in inputs if leaf.type and leaf.rank)

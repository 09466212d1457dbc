"""Families of strategies: those that each planner may choose from, such as data parallelism."""

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


@dataclass(frozen=True)
class Strategies:
    """What a planner may use, to choose the best of."""

    name: str
    mask: Allowed
    data_parallel: bool = False
    brief: bool = True
    """Whether few ways to overlap communication are tried."""
    by_hand: bool = False
    """Whether there is nothing to choose, so that it is known beforehand what is promised."""
    fully_sharded: bool = False
    """Whether weights are fully sharded, on all devices."""
    last: bool = False
    """Whether to look only where no plan is known that fits, or where fully sharded weights may
    save time: of data parallelism, that of updating all weights everywhere."""


Family = Callable[[Graph, Chooser], Iterator[Strategies]]


def _joint(graph: Graph, chooser: Chooser) -> Iterator[Strategies]:
    # What others may find is tried too: the bound on strategies may leave it out.
    yield from _data(graph, chooser)
    yield from _tensor(graph, chooser)
    if has_tables(graph):
        yield from _expert(graph, chooser)
    yield Strategies("all strategies", everything, brief=False)
    yield from (replace(zero, last=True) for zero in _zero(graph, chooser))


def _data(graph: Graph, chooser: Chooser) -> Iterator[Strategies]:
    yield Strategies("data parallelism", data_parallel(graph), data_parallel=True)


def _zero(graph: Graph, chooser: Chooser) -> Iterator[Strategies]:
    """Data parallelism with weights, gradients and the optimizer's states in parts."""
    yield Strategies("fully sharded weights", data_parallel(graph), fully_sharded=True)


def _expert(graph: Graph, chooser: Chooser) -> Iterator[Strategies]:
    yield Strategies("tables cut, the rest by data", expert(graph))


def _megatron(graph: Graph, chooser: Chooser) -> Iterator[Strategies]:
    """Data parallelism, alone or with tensor parallelism: within a node, or by hand across."""
    yield from _data(graph, chooser)
    yield from _tensor(graph, chooser)


def _tensor(graph: Graph, chooser: Chooser) -> Iterator[Strategies]:
    inside = chooser.mesh.machine.devices_per_node
    count = len(chooser.mesh)
    inner = [n for n in range(1, count + 1) if chooser.mesh.strides[count - n] < inside]
    # Across nodes as well, so that the exchange of large gradients stays within some.
    outer = [n for n in range(1, count) if prod(chooser.mesh.primes[:n]) <= inside]
    yield from _of_degrees(graph, chooser, inner, outer)


def _of_degrees(
    graph: Graph, chooser: Chooser, inner: Sequence[int], outer: Sequence[int] = ()
) -> Iterator[Strategies]:
    """Tensor parallelism along so many of the innermost mesh axes, as by hand and as it is best,
    and by hand along so many of the outermost."""
    count, hand = len(chooser.mesh), ColumnsThenRows(graph, chooser.spaces.of)
    for n in inner:
        yield from _by_hand(hand.along(range(count - n, count)))
        yield Strategies("tensor parallelism", tensor_parallel(graph, count, n))
    for n in outer:
        yield from _by_hand(hand.along(range(n)))


def _by_hand(mask: Allowed | None) -> Iterator[Strategies]:
    if mask is not None:
        yield Strategies("columns, then rows", mask, by_hand=True)


def _other_tensor(graph: Graph, chooser: Chooser) -> Iterator[Strategies]:
    """Tensor parallelism of degrees that only mesh axes which are turned have innermost, such as 2
    of the 6 devices of a node."""
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
"""What planners try with mesh axes that are turned, in addition."""


def cuts_windows(graph: Graph, devices: int, dimensions: frozenset[IndexRole] | None) -> bool:
    """Whether to cut images with halos: where that is asked for, or not all devices can have
    samples of their own. ``dimensions``: what may be cut, everything if None."""
    if dimensions is not None:
        return IndexRole.SPATIAL in dimensions
    inputs = [node.leaf for node in graph.leaves if node.leaf.kind == "input"]
    return any(leaf.type.shape[0] % devices for leaf in inputs if leaf.type and leaf.rank)

"""Families of strategies: what each planner may choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from pcg.graph import Graph
from search.mesh.allow import (
    Allowed,
    data_parallel,
    everything,
    expert,
    has_tables,
    tensor_parallel,
)
from search.mesh.digits import Digits
from search.mesh.engine import Engine
from search.mesh.megatron import columns_then_rows


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
    in_parts: bool = False
    """Whether weights are kept in parts, on all devices."""
    last: bool = False
    """Whether to look only where no plan is known that fits, or where weights in parts may save
    time: of data parallelism, that of updating all weights everywhere."""


Family = Callable[[Graph, Engine], Iterator[Strategies]]


def _joint(graph: Graph, engine: Engine) -> Iterator[Strategies]:
    # What others may find is tried too: the bound on strategies may leave it out.
    yield from _data(graph, engine)
    yield from _tensor(graph, engine)
    if has_tables(graph):
        yield from _expert(graph, engine)
    yield Strategies("all strategies", everything, brief=False)
    yield from (replace(zero, last=True) for zero in _zero(graph, engine))


def _data(graph: Graph, engine: Engine) -> Iterator[Strategies]:
    yield Strategies("data parallelism", data_parallel(graph), data_parallel=True)


def _zero(graph: Graph, engine: Engine) -> Iterator[Strategies]:
    """Data parallelism with weights, gradients and the optimizer's states in parts."""
    yield Strategies("weights in parts", data_parallel(graph), in_parts=True)


def _expert(graph: Graph, engine: Engine) -> Iterator[Strategies]:
    yield Strategies("tables cut, the rest by data", expert(graph))


def _megatron(graph: Graph, engine: Engine) -> Iterator[Strategies]:
    """Data parallelism, alone or with tensor parallelism within a node."""
    yield from _data(graph, engine)
    yield from _tensor(graph, engine)


def _tensor(graph: Graph, engine: Engine) -> Iterator[Strategies]:
    inside = engine.cost.machine.devices_per_node
    count, inner = len(engine.digits), 1
    while inner <= count and engine.digits.strides[count - inner] < inside:
        yield from _columns_then_rows(graph, engine, range(count - inner, count))
        yield Strategies("tensor parallelism", tensor_parallel(graph, count, inner))
        inner += 1
    # Across nodes, so that the exchange of large gradients stays within some.
    for outer in range(1, count):
        if prod(engine.digits.primes[:outer]) <= inside:
            yield from _columns_then_rows(graph, engine, range(outer))


def _columns_then_rows(graph: Graph, engine: Engine, digits: range) -> Iterator[Strategies]:
    mask = columns_then_rows(graph, digits, engine.space)
    if mask is not None:
        yield Strategies("columns, then rows", mask, by_hand=True)


def _other_tensor(graph: Graph, engine: Engine) -> Iterator[Strategies]:
    """Tensor parallelism of degrees that only digits which are turned have innermost, such as 2 of
    the 6 devices of a node."""
    usual, primes = Digits(engine.cost.machine).primes, engine.digits.primes
    inner = [n for n in range(1, len(primes)) if prod(primes[-n:]) != prod(usual[-n:])]
    for count in inner:
        yield from _columns_then_rows(graph, engine, range(len(primes) - count, len(primes)))
        yield Strategies("tensor parallelism", tensor_parallel(graph, len(primes), count))


PLANNERS: Mapping[str, Family] = {
    "joint": _joint,
    "data-parallel": _data,
    "zero": _zero,
    "expert": _expert,
    "megatron": _megatron,
}
TURNED: Mapping[str, Family] = {"joint": _other_tensor, "megatron": _other_tensor}
"""What planners try with digits that are turned, in addition."""

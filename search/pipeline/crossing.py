"""How tensors cross from one stage to another: whole, or in parts that are gathered there.

Problem: several devices of a stage want the same shard of a tensor. Each would receive it over the
slow links between stages. Method: each receives a part, and they gather the parts over their own
links (``pcg.placement.in_parts``; Narayanan et al., SC 2021, section 4.1). The number of parts is
the one that takes least time: both stages are busy while the tensor crosses, and one while it
gathers. The way back is the same in reverse, and takes as long. Complexity: a transfer for each
divisor of the copies. The priced transfers are those that run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pcg.graph.graph import Graph, Value
from pcg.machine import Link
from pcg.memo import Memo
from pcg.placement.in_parts import TransferParts, layout_in_parts, layout_of_sums, stated_parts
from pcg.placement.layout import Layout
from pcg.placement.transfer import transfer
from search.cost.collectives import seconds
from search.cost.cost import CostModel
from search.cost.derivation import Applied
from search.map.rules.fully_sharded import partings
from search.map.space.axes import Peers
from substitutions.rules.concrete.rooted import RootedRules
from substitutions.rules.match import build, matches_at


class _Way(NamedTuple):
    """How a tensor crosses. ``parts``: None if it arrives whole; ``seconds``: those of both ends
    together."""

    parts: TransferParts | None
    seconds: float


@dataclass(frozen=True)
class Crossings:
    """Chooses how tensors arrive at a stage. ``cost``: of the whole machine."""

    cost: CostModel
    _known: Memo[tuple[Layout, Layout], _Way] = field(
        init=False, repr=False, default_factory=Memo[tuple[Layout, Layout], _Way]
    )

    def best(self, source: Layout, wanted: Layout) -> TransferParts | None:
        """The parts in which a tensor crosses fastest; None if whole is as fast."""
        return self._way(source, wanted).parts

    def seconds(self, source: Layout, wanted: Layout) -> float:
        """The seconds that both stages together are busy with a tensor that crosses fastest."""
        return self._way(source, wanted).seconds

    def _way(self, source: Layout, wanted: Layout) -> _Way:
        pair = source.one_slice or source, wanted.one_slice or wanted
        return self._known.get(pair, lambda: self._best(*pair))

    def _best(self, source: Layout, wanted: Layout) -> _Way:
        sums = layout_of_sums(source, wanted) or source
        summing = 0.0 if sums is source else self._seconds(source, sums)
        best = _Way(None, summing + 2 * self._seconds(sums, wanted))
        for how in _ways(wanted):
            between = layout_in_parts(sums, wanted, how)
            if between is not None:
                gather = self._seconds(between, wanted)
                taken = summing + 2 * self._seconds(sums, between) + gather
                if taken < best.seconds:
                    best = _Way(how, taken)
        return best

    def _seconds(self, source: Layout, target: Layout) -> float:
        return self.cost.movement(transfer(source, target)).longest


def _ways(wanted: Layout) -> Iterator[TransferParts]:
    """The ways to cut in parts: numbers of parts that divide the copies, each along the first
    dimension that it divides."""
    copies = min(map(len, wanted.holders.values()))
    block = wanted.type.block
    for parts in (n for n in range(2, copies + 1) if copies % n == 0):
        dim = next((i for i, size in enumerate(block) if size % parts == 0), None)
        if dim is not None:
            yield TransferParts(dim, parts)


def parted(rules: RootedRules, value: Value, how: TransferParts) -> Applied | None:
    """A tensor as the combine of its parts, by one of some rules; None if no rule says so."""
    graph = Graph((value,))
    for rule in partings(rules):
        match = next(matches_at(rule, value.node, graph), None)
        free = dict.fromkeys(rule.free_symbols, how.parts)
        made = None if match is None else build(rule, match, free)
        if match is not None and made is not None:
            join = made[0].node
            if stated_parts((join.inputs[0].node, join)) == how:
                return Applied(rule, match, free, made)
    return None


def crossing_seconds(link: Link, alike: Peers, volume: float) -> float:
    """An estimate of the seconds for which a stage, at either end, is busy with a tensor that
    crosses a link, forward. ``alike``: the devices that want the same shard, of ``volume``
    bytes."""
    whole = link.latency + volume / link.bandwidth
    if alike.members == 1:
        return whole
    gather = float(seconds(alike.ring, volume))
    return min(whole, link.latency + volume / alike.members / link.bandwidth + gather / 2)

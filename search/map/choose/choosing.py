"""Choosing: the strategies of all operators of a graph that together cost least.

The cost of a choice is a sum of tables: one for each operator, by its own strategy, and one for
each resharding, by the strategies at both ends. ``factors`` finds the least sum exactly. Where its
tables would grow too large, ``marginals`` first leaves strategies out; this part is a heuristic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from pcg.graph.graph import Graph, Node, Value
from pcg.memo import Memo
from pcg.readings.work import gradient_nodes
from search.cost.cost import CostModel
from search.cost.progress import check_time
from search.map.choose.costs import OperatorCosts
from search.map.choose.factors import Factor, PairTable, Places, least, restricted
from search.map.choose.marginals import MOST, considered_values
from search.map.choose.pricing import Operand, Pricing
from search.map.choose.spaces import Spaces
from search.map.choose.tied import TiedVariables, saves
from search.map.rules.cuts import Cuts
from search.map.space.allow import Allowed, Mask, everything
from search.map.space.axes import Mesh, Seconds, Strategy
from search.map.space.mapping import OperatorMapping
from search.map.space.strategies import Space
from search.split.blocks import blocks_of
from search.split.colours import MOST_FREE


@dataclass(frozen=True)
class Exposed:
    """The fractions of communication that count, where the rest is hidden behind computation:
    ``exchange`` of weights' gradients, ``resharding`` of tensors, and the reduction of the
    ``loss``."""

    exchange: float = 1.0
    resharding: float = 1.0
    loss: float = 1.0
    weights: Mapping[Node, float] = field(default_factory=dict[Node, float])
    """The fractions for the exchange of single weights, which take precedence over ``exchange``."""
    shared: Mapping[Operand, float] = field(default_factory=dict[Operand, float])
    """Factors for the resharding of operands that move together with others
    (``Chooser.shared``)."""


ALL = Exposed()


@dataclass(frozen=True)
class Choice:
    """A strategy by mesh axes for every operator of a whole graph, and its estimated seconds."""

    graph: Graph
    strategies: Mapping[Node, Strategy]
    seconds: float
    fully_sharded: bool = False
    """Whether weights are fully sharded over all devices, as in ZeRO."""
    starts: Mapping[Node, int] = field(default_factory=dict[Node, int])
    """The first devices of operators that don't run on the first ones along their idle mesh
    axes."""
    mappings: Mapping[Node, OperatorMapping] = field(default_factory=dict[Node, OperatorMapping])
    """The mappings of operators that were refined. They replace the operators' strategies."""
    kept_whole: frozenset[str] = frozenset()
    """The names of the weights that are not sharded if the others are."""
    order: tuple[Node, ...] = ()
    """The operators in the order of issue; empty if it is that of the graph."""


@dataclass(frozen=True)
class Prices:
    """The terms of the sum of seconds that a choice minimizes."""

    nodes: Sequence[Node]
    alone: Mapping[Node, Seconds]
    """For each operator, the cost of each of its strategies by itself."""
    resharding: Sequence[Factor]
    """The cost of each resharding, by the strategies of its two operators. Variables are places in
    ``nodes``."""


class _Resharding(NamedTuple):
    """The resharding of a tensor between two operators, given by their numbers in ``ends``.
    ``times``: 2 if its gradient moves back, otherwise 1."""

    ends: tuple[int, int]
    table: PairTable
    times: float
    reader: Operand


_OwnTerm = tuple[OperatorCosts, tuple[Node, ...]]
"""The costs of an operator by itself, and the weights whose gradients it exchanges."""
MOST_LISTED = 16
"""The number of graphs whose terms are kept."""
_Terms = Sequence[tuple[Node, _Resharding | _OwnTerm]]
"""The terms of a sum, each with its operator, in order."""


def least_places(
    sizes: Sequence[int],
    masks: Sequence[Places],
    factors: Sequence[Factor],
    most: int = MOST,
    known: Sequence[Sequence[int]] = (),
) -> tuple[float, list[int]]:
    """Return the least sum of factors, and the place of each variable's value in it. ``sizes``: the
    number of values of each variable; ``masks``: the places of the values that may be taken;
    ``most``: how many of these are considered if all are too many; ``known``: choices among them
    that are considered in any case."""
    factors = restricted(factors, masks)
    considered = considered_values([len(mask) for mask in masks], factors, most, known)
    seconds, chosen = least([len(few) for few in considered], restricted(factors, considered))
    picked = zip(masks, considered, chosen, strict=True)
    return seconds, [int(mask[few[at]]) for mask, few, at in picked]


def tied_places(
    colours: Sequence[int],
    sizes: Sequence[int],
    masks: Sequence[Places],
    factors: Sequence[Factor],
    most: int = MOST,
    known: Sequence[Sequence[int]] = (),
) -> tuple[float, list[int]]:
    """Like ``least_places``, but variables of one colour take the same value if they may take the
    same values. ``colours``: one for each variable."""
    tied = TiedVariables.of(colours, masks)
    rows = [row for choice in known if (row := tied.row(choice)) is not None]
    seconds, places = least_places(
        tied.sizes(sizes), tied.picked(masks), tied.factors(factors), most, rows
    )
    return seconds, tied.spread(places)


@dataclass
class Chooser:
    """Chooses the strategies of operators by their prices."""

    pricing: Pricing
    most: int = MOST
    """The strategies of an operator that are considered if all are too many."""
    more: int = 0
    """The number of further blocks that the middle block of a graph stands for."""
    _listed: Memo[tuple[int, bool], tuple[Graph, _Terms]] = field(
        init=False,
        default_factory=lambda: Memo[tuple[int, bool], tuple[Graph, _Terms]](MOST_LISTED),
    )
    _ties: Memo[Graph, Mapping[Node, int] | None] = field(
        init=False, default_factory=Memo[Graph, Mapping[Node, int] | None]
    )

    @staticmethod
    def on(
        cost: CostModel, cuts: Cuts, most: int = MOST, *, turned: bool = False, more: int = 0
    ) -> Chooser:
        """A chooser for whole graphs, by the rules of one library. ``turned``: whether the mesh
        axes within a node are in reverse order. ``more``: the number of further blocks that the
        middle block of a graph stands for."""
        return Chooser(Pricing(Spaces(Mesh(cost.machine, turned), cuts), cost), most, more)

    def times(self, graph: Graph) -> Mapping[Node, int]:
        """How often each operator counts, for the operators of a block that stands for others. All
        other operators count once and are not listed."""
        blocks = blocks_of(graph) if self.more else None
        return {} if blocks is None else blocks.times(self.more)

    def forget(self) -> None:
        """Drop the tables, which take much memory. They are made again when needed."""
        self._listed.clear()
        self.pricing.forget()

    @property
    def spaces(self) -> Spaces:
        return self.pricing.spaces

    @property
    def mesh(self) -> Mesh:
        return self.pricing.mesh

    def choose(
        self,
        graph: Graph,
        byte_price: float = 0.0,
        allowed: Allowed = everything,
        exposed: Exposed = ALL,
        *,
        among: Collection[Node] | None = None,
        fixed: Mapping[Node, Strategy] = MappingProxyType({}),
        also: Iterable[Mapping[Node, Strategy]] = (),
        ends: Sequence[Value] | None = None,
    ) -> Choice:
        """Return the best strategies of a whole graph. ``byte_price``: the cost in seconds of a
        byte of memory on a device. ``allowed``: the strategies that may be used. ``exposed``: the
        fractions of communication that count. ``among``: the operators to choose for, by default
        all. ``fixed``: strategies that are given for some operators. ``also``: choices that are
        considered in any case, if they are allowed. ``ends``: the values to bring together on one
        device, by default all outputs."""
        nodes = [n for n in graph.operators if among is None or n in among]
        number = {node: i for i, node in enumerate(nodes)}
        spaces = [self.spaces.of(node) for node in nodes]
        masks = [
            _settled(space, fixed.get(node), allowed(node, space))
            for node, space in zip(nodes, spaces, strict=True)
        ]
        times = self.times(graph) if among is None else {}
        factors = list(self._factors(graph, number, byte_price, exposed, times))
        factors += self._ends(graph, graph.outputs if ends is None else ends, number, exposed)
        known = [self._rows(nodes, masks, strategies) for strategies in also]
        allowed_rows = [rows for rows in known if rows is not None]
        sizes = [len(space) for space in spaces]
        colours = self._colours(graph, factors, is_part=among is not None)
        if colours is None:
            seconds, places = least_places(sizes, masks, factors, self.most, allowed_rows)
        else:
            of_nodes = [colours[node] for node in nodes]
            seconds, places = tied_places(of_nodes, sizes, masks, factors, self.most, allowed_rows)
        chosen = zip(nodes, spaces, places, strict=True)
        return Choice(graph, {node: space.strategy(at) for node, space, at in chosen}, seconds)

    def shared(self, graph: Graph, choice: Choice | None = None) -> dict[Operand, float]:
        """The fraction of an operand's resharding that counts, since a tensor is moved once for all
        readers that want it in one layout. The layouts are those of ``choice``. Without one, all
        readers of a tensor are taken to want the same layout. Operands that count fully are not
        listed."""
        readers: dict[object, list[Operand]] = defaultdict(list)
        for node in graph.operators:
            space = self.spaces.of(node)
            row = None if choice is None else space.place(choice.strategies[node])
            for position, value in enumerate(node.inputs):
                layout = None if row is None else space.operand(position)[row].tobytes()
                readers[value, layout].append((node, position))
        together = (each for each in readers.values() if len(each) > 1)
        return {operand: 1.0 / len(each) for each in together for operand in each}

    def _colours(
        self, graph: Graph, factors: Sequence[Factor], *, is_part: bool
    ) -> Mapping[Node, int] | None:
        """The colour of each operator, where operators of one colour are cut alike. None if each
        operator is cut by itself. ``is_part``: whether only a part of the graph is considered."""
        if is_part:
            return None
        blocks = blocks_of(graph) if self.more else None
        if blocks is not None:
            return blocks.colours()
        if len(graph.operators) <= MOST_FREE:
            return None
        return self._ties.get(graph, lambda: self._tied_colours(graph, factors))

    def _tied_colours(self, graph: Graph, factors: Sequence[Factor]) -> Mapping[Node, int] | None:
        colours = self.pricing.colours(graph)
        of_nodes = [colours[node] for node in graph.operators]
        return colours if saves(of_nodes, [factor.variables for factor in factors]) else None

    def prices(self, graph: Graph, exposed: Exposed = ALL) -> Prices:
        """The cost in seconds of all strategies of all operators, and of the reshardings."""
        nodes = graph.operators
        number = {node: i for i, node in enumerate(nodes)}
        factors = list(self._factors(graph, number, 0.0, exposed, {}))
        alone = {nodes[f.variables[0]]: f.scaled for f in factors if len(f.variables) == 1}
        return Prices(nodes, alone, [f for f in factors if len(f.variables) == 2])

    def _rows(
        self, nodes: Sequence[Node], masks: Sequence[Places], strategies: Mapping[Node, Strategy]
    ) -> list[int] | None:
        """The places of strategies among those that are allowed; None if one is not allowed."""
        rows: list[int] = []
        for node, mask in zip(nodes, masks, strict=True):
            place = self.spaces.of(node).place(strategies[node])
            at = len(mask) if place is None else int(np.searchsorted(mask, place))
            if at == len(mask) or mask[at] != place:
                return None
            rows.append(at)
        return rows

    def _factors(
        self,
        graph: Graph,
        number: Mapping[Node, int],
        byte_price: float,
        exposed: Exposed,
        often: Mapping[Node, int],
    ) -> Iterator[Factor]:
        """The terms of the sum over some operators. ``number``: the variable of each operator;
        ``often``: how often an operator counts, if not once."""
        whole, saved = len(number) == len(graph.operators), bool(byte_price)
        terms = self._terms(graph, saved) if whole else self._terms_of(graph, number, saved)
        alone = Memo[object, Seconds]()
        for node, term in terms:
            count = often.get(node, 1)
            if isinstance(term, _Resharding):
                times = exposed.resharding * term.times * count
                times *= exposed.shared.get(term.reader, 1.0)
                yield term.table.factor(*term.ends, times)
                continue
            costs, leaves = term
            times = tuple(exposed.weights.get(leaf, exposed.exchange) for leaf in leaves)
            key = costs, times
            table = alone.get(key, partial(_alone, costs, byte_price, times))
            yield Factor((number[node],), table, count)

    def _terms(self, graph: Graph, saved: bool) -> _Terms:
        """The terms for a whole graph. A search asks for these again and again."""

        def listed() -> tuple[Graph, _Terms]:
            number = {node: i for i, node in enumerate(graph.operators)}
            return graph, self._terms_of(graph, number, saved)

        # The key is the object itself, which the table keeps alive: equal graphs may list operands
        # in different orders.
        return self._listed.get((id(graph), saved), listed)[1]

    def _terms_of(self, graph: Graph, number: Mapping[Node, int], saved: bool) -> _Terms:
        """The cost of each operator by itself and, before it, the reshardings of its operands.
        ``saved``: whether tensors that are saved for the backward pass count."""
        duties_of = self.pricing.duties(graph, number, keeps=saved)
        homes = {n.inputs[at].node: (n, at) for n, duty in duties_of.items() for at in duty.weights}
        terms: list[tuple[Node, _Resharding | _OwnTerm]] = []
        for node, duty in duties_of.items():
            check_time()
            for position, value in enumerate(node.inputs):
                home = homes.get(value.node)
                if home is not None and home[0] is not node:
                    # A weight lies as its first reader wants it.
                    pairs = self.pricing.weight_resharding(value, home, (node, position))
                    terms.append(
                        (
                            node,
                            _Resharding(
                                (number[home[0]], number[node]), pairs, 2.0, (node, position)
                            ),
                        )
                    )
                elif value.node in number:
                    pairs = self.pricing.resharding(value, node, position)
                    ends = number[value.node], number[node]
                    times = 2.0 if position in duty.needs else 1.0
                    terms.append((node, _Resharding(ends, pairs, times, (node, position))))
            leaves = tuple(node.inputs[position].node for position in duty.weights)
            terms.append((node, (self.pricing.operator_costs(node, duty), leaves)))
        return terms

    def _ends(
        self, graph: Graph, ends: Sequence[Value], number: Mapping[Node, int], exposed: Exposed
    ) -> Iterator[Factor]:
        """The cost of bringing values to one device, and their gradients back."""
        trained = gradient_nodes(graph)
        for value in ends:
            if value.node in number:
                # No gradient moves back from the loss: it is 1.
                back = 2.0 if value.node in trained else 1.0
                times = back * exposed.resharding if value.type.rank else exposed.loss
                yield Factor((number[value.node],), times * self.pricing.gathering(value))


def _alone(costs: OperatorCosts, byte_price: float, exposed: Sequence[float]) -> Seconds:
    """The cost of each of an operator's strategies by itself. ``exposed``: the fraction of the
    exchange of each of its weights that counts."""
    seconds = costs.seconds + byte_price * costs.memory
    for times, exchange in zip(exposed, costs.exchanges, strict=True):
        seconds = seconds + times * exchange
    return seconds


def _settled(space: Space, strategy: Strategy | None, allowed: Mask) -> Places:
    """The places of the strategies that may be used: the given ``strategy``, if the operator has
    it, or else those that are allowed."""
    place = None if strategy is None else space.place(strategy)
    return np.flatnonzero(allowed) if place is None else np.array([place])

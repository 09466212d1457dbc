"""Finds the best strategies for all operators of a graph together, and the plan that they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType

import numpy as np

from pcg.graph.graph import Graph, Node, Signature, Value
from pcg.placement.view import MachineView
from pcg.plan.derivation import Application
from pcg.readings.saved import Reads, gradient_parts
from pcg.readings.work import gradient_nodes
from pcg.types.halo import typing_of
from search.cost.cost import CostModel
from search.cost.derivation import Derivation, Scribe
from search.cost.liveness import saved_positions
from search.mesh.choose.costs import Duties, OwnCosts, lengths, own_costs
from search.mesh.choose.factors import Factor, Pairs, Places, least, restricted
from search.mesh.choose.halos import halo_seconds, windows
from search.mesh.choose.marginals import MOST, looked_at
from search.mesh.choose.resharding import Transfers
from search.mesh.rules.cuts import Cuts, applied
from search.mesh.rules.cutting import CutNode, Cutting, in_order
from search.mesh.rules.fully_sharded import Placed, fully_sharded
from search.mesh.space.allow import Allowed, Mask, everything
from search.mesh.space.axes import Mesh, Seconds, Strategy
from search.mesh.space.strategies import IDLE, REPLICATE, Placements, Space, passes, space, view

Kind = tuple[Signature, tuple[frozenset[int], ...]]
"""What operators with the same strategies share: what they do, and the operands of which partial
sums may pass through."""

MOST_CUT = 2
"""Indices of an operator that are cut at once."""


@dataclass(frozen=True)
class Exposed:
    """How much of communication counts, the rest being hidden behind computation: of the exchange
    of weights' gradients, of the resharding of tensors, and of what puts the loss together."""

    exchange: float = 1.0
    resharding: float = 1.0
    loss: float = 1.0
    weights: Mapping[Node, float] = field(default_factory=dict[Node, float])
    """Of the exchange of some weights, where more is known."""


ALL = Exposed()


@dataclass(frozen=True)
class Choice:
    """A strategy for every operator of a whole graph, by mesh axes, and what is estimated."""

    graph: Graph
    strategies: Mapping[Node, Strategy]
    seconds: float
    fully_sharded: bool = False
    """Whether weights are fully sharded, one on each device, as in ZeRO."""
    starts: Mapping[Node, int] = field(default_factory=dict[Node, int])
    """The first devices of operators that run on others than the first along idle mesh axes."""


@dataclass(frozen=True)
class Prices:
    """The parts of the sum of seconds that a choice is the least of."""

    nodes: Sequence[Node]
    alone: Mapping[Node, Seconds]
    """What each strategy of an operator costs by itself."""
    resharding: Sequence[Factor]
    """What is moved between two operators, by the strategies of both; variables are places in
    ``nodes``."""


@dataclass(frozen=True)
class Cut:
    """A graph that is cut, its views, and the steps that led to it."""

    graph: Graph
    views: Mapping[Node, MachineView]
    steps: tuple[Application, ...]


@dataclass
class Engine:
    """Chooses strategies on one machine by the rules of one library; remembers what it learnt."""

    cost: CostModel
    cuts: Cuts
    most: int = MOST
    turned: bool = False
    """Whether devices are numbered by mesh axes that are turned within a node."""
    mesh: Mesh = field(init=False)
    _transfers: Transfers = field(init=False)
    _spaces: dict[Kind, Space] = field(init=False, default_factory=dict[Kind, Space])
    _passing: dict[Node, tuple[frozenset[int], ...]] = field(
        init=False, default_factory=dict[Node, tuple[frozenset[int], ...]]
    )
    _own: dict[object, OwnCosts] = field(init=False, default_factory=dict[object, OwnCosts])
    _saved: dict[Graph, Mapping[Node, Reads]] = field(
        init=False, default_factory=dict[Graph, Mapping[Node, Reads]]
    )
    _reshardings: dict[object, Pairs] = field(init=False, default_factory=dict[object, Pairs])
    """Seconds of each kind of resharding."""
    known: int = field(init=False, default=0)
    """How often the price of an operator or resharding was known from one that is alike."""

    def __post_init__(self) -> None:
        self.mesh = Mesh(self.cost.machine, self.turned)
        self._transfers = Transfers(self.mesh)

    # -- choosing -----------------------------------------------------------------------------

    def choose(
        self,
        graph: Graph,
        byte_price: float = 0.0,
        allowed: Allowed = everything,
        exposed: Exposed = ALL,
        *,
        among: Collection[Node] | None = None,
        fixed: Mapping[Node, tuple[int, ...]] = MappingProxyType({}),
        also: Iterable[Mapping[Node, tuple[int, ...]]] = (),
        ends: Sequence[Value] | None = None,
    ) -> Choice:
        """The best strategies of a whole graph. ``byte_price``: seconds that a byte of memory on a
        device is taken to cost. ``allowed``: which may be used. ``exposed``: how much of the
        communication counts, the rest being hidden behind computation. ``among``: the operators
        that are looked at, all by default; ``fixed``: the strategies of some that are settled.
        ``also``: strategies of all of them that are looked at in any case, if they are allowed.
        ``ends``: what has to come out whole, by default all outputs."""
        nodes = [n for n in graph.nodes if not n.is_leaf and (among is None or n in among)]
        number = {node: i for i, node in enumerate(nodes)}
        spaces = [self.space(node) for node in nodes]
        masks = [
            _settled(s, fixed.get(node), allowed(node, s))
            for node, s in zip(nodes, spaces, strict=True)
        ]
        factors = list(self._factors(graph, nodes, number, byte_price, exposed))
        factors += self._ends(graph, graph.outputs if ends is None else ends, number, exposed)
        if any(len(mask) < len(s) for mask, s in zip(masks, spaces, strict=True)):
            factors = restricted(factors, masks)
        known = [self._rows(nodes, masks, strategies) for strategies in also]
        sizes = [len(mask) for mask in masks]
        some = looked_at(sizes, factors, self.most, [rows for rows in known if rows is not None])
        values = [mask[few] for mask, few in zip(masks, some, strict=True)]
        seconds, chosen = least([len(few) for few in some], restricted(factors, some))
        strategies = {
            node: tuple(int(c) for c in spaces[i].strategies[values[i][chosen[i]]])
            for i, node in enumerate(nodes)
        }
        return Choice(graph, strategies, seconds)

    def prices(self, graph: Graph, exposed: Exposed = ALL) -> Prices:
        """What the strategies of all operators cost, and what moves between them, in seconds."""
        nodes = [node for node in graph.nodes if not node.is_leaf]
        number = {node: i for i, node in enumerate(nodes)}
        factors = list(self._factors(graph, nodes, number, 0.0, exposed))
        alone = {nodes[f.variables[0]]: f.scaled for f in factors if len(f.variables) == 1}
        return Prices(nodes, alone, [f for f in factors if len(f.variables) == 2])

    def computing(self, graph: Graph) -> Mapping[Node, Seconds]:
        """Seconds for which each strategy of each operator computes, forward and backward."""
        trained, parts = gradient_nodes(graph), gradient_parts(graph)
        found: dict[Node, Seconds] = {}
        for node in graph.nodes:
            if not node.is_leaf:
                needs = frozenset(p for p, v in enumerate(node.inputs) if v.node in trained)
                added = tuple(parts[node.value(port)] for port in range(len(node.types)))
                found[node] = self._own_costs(node, Duties(needs, (), Reads(), added)).seconds
        return found

    def _rows(
        self, nodes: Sequence[Node], masks: Sequence[Places], strategies: Mapping[Node, Strategy]
    ) -> list[int] | None:
        """Where strategies are among those allowed; None if one is not."""
        found: list[int] = []
        for node, mask in zip(nodes, masks, strict=True):
            place = self.space(node).place(strategies[node])
            at = len(mask) if place is None else int(np.searchsorted(mask, place))
            if at == len(mask) or mask[at] != place:
                return None
            found.append(at)
        return found

    def kind(self, node: Node) -> Kind:
        return node.signature, self._carriers(node)

    def _carriers(self, node: Node) -> tuple[frozenset[int], ...]:
        """The operands of which partial sums may pass through, where what makes them may leave
        some."""
        found = self._passing.get(node)
        if found is None:
            found = tuple(
                some
                for some in self.cuts.carriers(node)
                if all(self._leaves_partials(node.inputs[i]) for i in some)
            )
            self._passing[node] = found
        return found

    def _leaves_partials(self, value: Value) -> bool:
        if value.node.is_leaf:
            return False
        return any(axis.outputs[value.port] is None for axis in self.space(value.node).axes)

    def space(self, node: Node) -> Space:
        kind = self.kind(node)
        found = self._spaces.get(kind)
        if found is None:
            rules = self.cuts.of(node)
            # Columns as well as rows would save little of the halos and make many more strategies.
            columns = {window.axis.name for window in windows(node)[1:]}
            cuttable = {
                name: length
                for name, length in lengths(node).items()
                if name in rules and name not in columns
            }
            found = self._spaces[kind] = space(node, cuttable, self.mesh, MOST_CUT, kind[1])
        return found

    def _factors(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        number: Mapping[Node, int],
        byte_price: float,
        exposed: Exposed,
    ) -> Iterator[Factor]:
        trained = gradient_nodes(graph)
        saved = self._saved_positions(graph) if byte_price else {}
        parts = gradient_parts(graph)
        home: dict[Node, tuple[Node, int]] = {}
        for i, node in enumerate(nodes):
            needs = frozenset(p for p, value in enumerate(node.inputs) if value.node in trained)
            weights: list[int] = []
            for position, value in enumerate(node.inputs):
                if value.node.is_leaf:
                    if value.node.leaf.kind != "weight":
                        continue
                    if value.node not in home:
                        home[value.node] = node, position
                        weights.append(position)
                    elif home[value.node][0] is not node:
                        # A weight lives where its first reader wants it.
                        first = home[value.node]
                        ends = first, (node, position)
                        yield self._between(number, value, *ends, exposed.resharding)
                    continue
                if value.node not in number:
                    continue
                times = exposed.resharding * (2.0 if position in needs else 1.0)
                yield self._resharding(number, value, node, position, times)
            added = tuple(parts[node.value(port)] for port in range(len(node.types)))
            duties = Duties(needs, tuple(weights), saved.get(node, Reads()), added)
            own = self._own_costs(node, duties)
            seconds = own.seconds + byte_price * own.memory
            for position, exchange in zip(weights, own.exchanges, strict=True):
                leaf = node.inputs[position].node
                seconds = seconds + exposed.weights.get(leaf, exposed.exchange) * exchange
            yield Factor((i,), seconds)

    def _ends(
        self, graph: Graph, ends: Sequence[Value], number: Mapping[Node, int], exposed: Exposed
    ) -> Iterator[Factor]:
        """What it takes to bring values to one device, and their gradients back."""
        trained = gradient_nodes(graph)
        whole = np.full((1, len(self.mesh)), IDLE, np.int8)
        for value in ends:
            if value.node in number:
                out = self.space(value.node).output(value.port)
                # Nothing moves back where the loss is put together: its gradient is 1.
                back = 2.0 if value.node in trained else 1.0
                times = back * exposed.resharding if value.type.rank else exposed.loss
                moved = times * self._pairs(out, whole, value).forth[:, 0]
                yield Factor((number[value.node],), moved)

    def _saved_positions(self, graph: Graph) -> Mapping[Node, Reads]:
        if graph not in self._saved:
            self._saved[graph] = saved_positions(graph)
        return self._saved[graph]

    def _own_costs(self, node: Node, duties: Duties) -> OwnCosts:
        key = self.kind(node), duties
        found = self._own.get(key)
        if found is None:
            found = own_costs(node, self.space(node), duties, self.cost, self.mesh)
            self._own[key] = found
        else:
            self.known += 1
        return found

    def _resharding(
        self, number: Mapping[Node, int], value: Value, node: Node, position: int, times: float
    ) -> Factor:
        source, target = number[value.node], number[node]
        key = (self.kind(value.node), value.port, self.kind(node), position)
        if key not in self._reshardings:
            out, reader = self.space(value.node).output(value.port), self.space(node)
            moved = self._pairs(out, reader.operand(position), value)
            halos = halo_seconds(node, position, reader, self.mesh, self.cost.itemsize)
            self._reshardings[key] = moved if halos is None else Pairs.of(moved.forth + halos)
        else:
            self.known += 1
        return self._reshardings[key].factor(source, target, times)

    def _between(
        self,
        number: Mapping[Node, int],
        value: Value,
        first: tuple[Node, int],
        other: tuple[Node, int],
        resharding: float,
    ) -> Factor:
        """From where one reader wants a weight to where another does, and its gradient back."""
        key = "weight", self.kind(first[0]), first[1], self.kind(other[0]), other[1]
        if key not in self._reshardings:
            there, wanted = (self.space(node).operand(at) for node, at in (first, other))
            self._reshardings[key] = self._pairs(there, wanted, value)
        return self._reshardings[key].factor(number[first[0]], number[other[0]], 2.0 * resharding)

    def _pairs(self, sources: Placements, targets: Placements, value: Value) -> Pairs:
        return self._transfers.seconds(sources, targets, value.type.elements * self.cost.itemsize)

    # -- building -----------------------------------------------------------------------------

    def cut(
        self,
        choice: Choice,
        before: Derivation | None = None,
        known: MutableMapping[object, CutNode] | None = None,
    ) -> Cut:
        """The graph in which every operator is cut as chosen, one rule application an index.
        ``before``: what led to the graph of the choice, if that is no model's. ``known``: operators
        that were cut before, which is added to."""
        known = {} if known is None else known
        new: dict[Value, Value] = {}
        views: dict[Node, MachineView] = {}
        scribe = Scribe.after(before or Derivation.start(choice.graph))
        for node in choice.graph.nodes:
            if node.is_leaf:
                new[node.value()] = node.value()
                continue
            made = Node(node.call, tuple(new[value] for value in node.inputs))
            scribe.rename({node.value(p): made.value(p) for p in range(len(node.types))})
            strategy, start = choice.strategies[node], choice.starts.get(node, 0)
            key = self.kind(node), made, strategy, start
            if key not in known:
                known[key] = self.cut_node(node, made, strategy, start)
            found = known[key]
            found.write(scribe)
            views[found.inner] = found.view
            new.update({node.value(port): value for port, value in enumerate(found.outer)})
        placed = Placed(Graph(tuple(new[value] for value in choice.graph.outputs)), views)
        if choice.fully_sharded:
            weights = {leaf.leaf.name for leaf in choice.graph.leaves}
            devices = self.cost.machine.devices
            placed = fully_sharded(placed, weights, devices, self.cuts.parting, scribe)
        return Cut(placed.graph, placed.views, tuple(scribe.steps))

    def cut_node(self, whole: Node, node: Node, strategy: Strategy, start: int = 0) -> CutNode:
        """An operator of a whole graph, as it reads what is cut already, by one of its strategies
        on devices from ``start`` on."""
        own, rules = self.space(whole), self.cuts.of(whole)
        made = Cutting([node.value(port) for port in range(len(node.types))], node)
        for place in in_order(own, strategy):
            axis, mine = own.axes[place], zip(self.mesh.primes, strategy, strict=True)
            degree = prod(prime for prime, entry in mine if entry == place)
            if not passes(axis):
                made.apply(applied(rules[axis.name], made.inner, degree))
                continue
            carriers = [i for i, at in enumerate(axis.operands) if at is not None]
            if not made.let_pass(self.cuts, carriers, degree):
                strategy = tuple(REPLICATE if entry == place else entry for entry in strategy)
        return made.done(view(strategy, self._places(made.inner, own, strategy), self.mesh, start))

    def _places(self, node: Node, own: Space, strategy: Sequence[int]) -> list[int]:
        """For each axis of the task grid, its place in the space."""
        names = [axis.name for axis in own.axes]
        typing = typing_of(node.operator_call, [value.type for value in node.inputs])
        axes = [axis.name for axis in typing.axes]
        through = [entry for entry in strategy if entry >= 0 and passes(own.axes[entry])]
        passed = through[0] if through else IDLE
        return [*(names.index(a) if a in names else IDLE for a in axes), passed, REPLICATE]


def _settled(own: Space, strategy: Strategy | None, allowed: Mask) -> Places:
    """The strategies that may be used: one that is settled, if the operator has it, or those that
    are allowed."""
    place = None if strategy is None else own.place(strategy)
    return np.flatnonzero(allowed) if place is None else np.array([place])

"""Pricing: the cost of every strategy of an operator, and of every resharding between operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from pcg.graph.graph import Graph, Node, Value
from pcg.memo import Memo, remembered
from pcg.readings.saved import Reads
from search.cost.cost import CostModel
from search.cost.liveness import saved_positions
from search.map.choose.costs import OperatorCosts, operator_costs
from search.map.choose.duties import Duties, duties_in
from search.map.choose.factors import PairTable
from search.map.choose.halos import halo_seconds
from search.map.choose.resharding import PairSeconds, Transfers
from search.map.choose.spaces import Spaces
from search.map.space.axes import Mesh, Seconds
from search.map.space.strategies import IDLE, Placements
from search.split.colours import colours

Operand = tuple[Node, int]
"""An operator, and the position of one of its operands."""


@dataclass
class Pricing:
    """Prices strategies on one machine. Operators and reshardings that are alike are priced
    once."""

    spaces: Spaces
    cost: CostModel
    """The cost model of the machine of the mesh."""
    transfers: Transfers | None = None
    """The transfers on the mesh, if these are shared with others."""
    _transfers: Transfers = field(init=False)
    _costs: Memo[tuple[int, Duties], OperatorCosts] = field(
        init=False, default_factory=Memo[tuple[int, Duties], OperatorCosts]
    )
    _reshardings: Memo[object, PairTable] = field(
        init=False, default_factory=Memo[object, PairTable]
    )

    def __post_init__(self) -> None:
        self._transfers = self.transfers or Transfers(self.mesh)

    @property
    def mesh(self) -> Mesh:
        return self.spaces.mesh

    @property
    def known(self) -> int:
        """How often a price was already known from an equal operator or resharding."""
        return self._costs.hits + self._reshardings.hits

    def operator_costs(self, node: Node, duties: Duties) -> OperatorCosts:
        """The costs of each strategy of an operator by itself, for one slice of the batch."""
        return self._costs.get((self.spaces.kind(node), duties), lambda: self._priced(node, duties))

    def _priced(self, node: Node, duties: Duties) -> OperatorCosts:
        task = self.spaces.slices.task(node)
        return operator_costs(task, self.spaces.of(node), duties, self.cost, self.mesh)

    def computing(self, graph: Graph) -> Mapping[Node, Seconds]:
        """Seconds of computation of each strategy of each operator, forward and backward."""
        return {
            node: self.operator_costs(node, duties.without_weights).seconds
            for node, duties in self.duties(graph, graph.operators, keeps=False).items()
        }

    def duties(self, graph: Graph, nodes: Collection[Node], *, keeps: bool) -> dict[Node, Duties]:
        """The duties of some operators of a graph. ``keeps``: whether tensors that are saved for
        the backward pass count."""
        saved = self.saved(graph) if keeps else {}
        return duties_in(graph, nodes, saved, compiled=self.cost.training.compiled)

    @remembered
    def saved(self, graph: Graph) -> Mapping[Node, Reads]:
        """The tensors that each operator of a graph saves for the backward pass."""
        return saved_positions(graph)

    @remembered
    def colours(self, graph: Graph) -> Mapping[Node, int]:
        """The colour of each operator of a graph. Operators of one colour look alike."""
        return colours(graph, self.spaces.kind)

    def resharding(self, value: Value, node: Node, position: int) -> PairTable:
        """Seconds of one transfer of a tensor, from the operator that makes it to one that reads
        it, for all pairs of their strategies."""
        key = self.spaces.kind(value.node), value.port, self.spaces.kind(node), position
        return self._reshardings.get(key, lambda: self._resharded(value, node, position))

    def _resharded(self, value: Value, node: Node, position: int) -> PairTable:
        made, reader = self.spaces.of(value.node).output(value.port), self.spaces.of(node)
        moved = self._between(made, reader.operand(position), value)
        halos = halo_seconds(node, position, reader, self.mesh, self.cost.itemsize)
        return moved if halos is None else PairTable.of(moved.forth + halos)

    def weight_resharding(self, weight: Value, first: Operand, other: Operand) -> PairTable:
        """Seconds of a transfer of a weight, from the layout that its first reader wants to the one
        that another reader wants."""
        ends = [(self.spaces.kind(node), position) for node, position in (first, other)]
        there, wanted = (self.spaces.of(node).operand(at) for node, at in (first, other))
        return self._reshardings.get(
            ("weight", *ends), lambda: self._between(there, wanted, weight)
        )

    def gathering(self, value: Value) -> PairSeconds:
        """Seconds of bringing a value to one device, for each strategy of the operator that makes
        it."""
        whole = np.full((1, len(self.mesh)), IDLE, np.int8)
        made = self.spaces.of(value.node).output(value.port)
        return self._between(made, whole, value).forth[:, 0]

    def _between(self, sources: Placements, targets: Placements, value: Value) -> PairTable:
        volume = self.spaces.slices.elements(value) * self.cost.itemsize
        return self._transfers.seconds(sources, targets, volume)

    def forget(self) -> None:
        """Drop the tables, which take much memory. They are made again when needed."""
        self._costs.clear()
        self._reshardings.clear()
        self._transfers.forget()

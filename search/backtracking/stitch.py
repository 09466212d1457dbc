"""The whole graph from the best of its parts, and how it was derived.

Parts are searched under other names, so that equal parts are searched once; here what was done to
a part is told of the values of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pcg.graph.graph import Graph, Node, Value, rebuild
from pcg.plan.derivation import Application
from search.backtracking.backtrack import BacktrackResult
from search.backtracking.split import GraphPart, crossing_leaf, renamed
from search.cost.derivation import Derivation, Scribe
from search.substitute.applications import Option


@dataclass(frozen=True)
class Leg:
    """A part, how the tensors before and after it cross, the names under which it was searched,
    and the best of it under these."""

    part: GraphPart
    enter: Option | None
    leave: Option | None
    names: Mapping[str, str]
    found: BacktrackResult

    def start(self) -> Graph:
        """What the search of the part began with: it leaves what crosses whole."""
        whole = Option(self.part.after.type, (), (), ()) if self.part.after is not None else None
        return renamed(self.part.graph(self.enter, whole), self.names)


@dataclass(frozen=True)
class _Crossing:
    """Ids of a tensor between two parts: of the cuts and joins, each in the order in which they
    were found."""

    cuts: tuple[str, ...] = ()
    joins: tuple[str, ...] = ()


@dataclass
class _Entered:
    """The tensor that enters a part: in the stitched graph, its id, and the ids of its joins."""

    value: Value
    id: str
    joins: tuple[str, ...]


@dataclass
class _Stitcher:
    model: Graph
    known: Derivation
    steps: list[Application] = field(default_factory=list[Application])
    ids: dict[Value, str] = field(default_factory=dict[Value, str])
    outputs: dict[int, Value] = field(default_factory=dict[int, Value])

    def run(self, legs: Sequence[Leg]) -> tuple[Graph, Derivation]:
        """Tensors that cross are cut and joined first; then each part has its own steps."""
        scribe = Scribe(self.steps, dict(self.known.ids))
        crossings = [self._cross(leg.leave, scribe) for leg in legs]
        entered: _Entered | None = None
        for leg, crossing in zip(legs, crossings, strict=True):
            entered = self._part(leg, crossing, entered)
        graph = Graph(tuple(self.outputs[i] for i in range(len(self.model.outputs))))
        return graph, Derivation(tuple(self.steps), self.ids)

    def _cross(self, leave: Option | None, scribe: Scribe) -> _Crossing:
        if leave is None:
            return _Crossing()
        cuts: list[str] = []
        joins: list[str] = []
        for applied in leave.applied:
            scribe.write(applied)
            (join,) = applied.made
            cuts.append(scribe.ids[join.node.inputs[0]])
            joins.append(scribe.ids[join])
        return _Crossing(tuple(cuts), tuple(joins))

    def _part(self, leg: Leg, crossing: _Crossing, entered: _Entered | None) -> _Entered | None:
        graph = leg.start()
        scribe = Scribe(self.steps, self._known(leg, entered))
        for applied in leg.found.applied:
            graph = scribe.follow(graph, applied)
        names = {new: old for old, new in leg.names.items()}
        values = tuple(n.value(p) for n in graph.nodes for p in range(len(n.types)))
        leaves = {v: Graph((v,)) for v in values if v.node.is_leaf}
        images = {v: renamed(own, names).outputs[0] for v, own in leaves.items()}
        if entered is not None and leg.enter is not None:
            leaf = crossing_leaf(leg.enter)
            images = {v: entered.value if to == leaf else to for v, to in images.items()}
        made = rebuild(values, images)
        self.ids.update(zip(made, (scribe.ids[value] for value in values), strict=True))
        whole = dict(zip(values, made, strict=True))
        for (position, _), value in zip(leg.part.outputs, graph.outputs, strict=False):
            self.outputs[position] = whole[value]
        if leg.part.after is None or leg.leave is None:
            return None
        value = last = whole[graph.outputs[-1]]
        name = self.ids[last]
        for call, name in zip(leg.leave.parts, crossing.cuts, strict=True):
            value = Value(Node(call, (value,)))
            self.ids[value] = name
        return _Entered(value, name, crossing.joins)

    def _known(self, leg: Leg, entered: _Entered | None) -> dict[Value, str]:
        """The ids of the values of a part as its search began."""
        part = leg.part
        values = tuple(self.known.ids)
        images = part.replace(values, leg.enter)
        start = part.graph(leg.enter, leg.leave)
        named = {
            n.value(): renamed(Graph((n.value(),)), leg.names).outputs[0] for n in start.leaves
        }
        pairs = zip(values, rebuild(images, named), strict=True)
        ids = {image: self.known.ids[value] for value, image in pairs if value != part.before}
        if entered is not None and leg.enter is not None:
            value = named[crossing_leaf(leg.enter)]
            ids[value] = entered.id
            for call, name in zip(reversed(leg.enter.joins), reversed(entered.joins), strict=True):
                value = Value(Node(call, (value,)))
                ids[value] = name
        return ids


def stitch(model: Graph, legs: Sequence[Leg]) -> tuple[Graph, Derivation]:
    """The whole graph from its parts in order, and the steps that lead to it from the model."""
    return _Stitcher(model, Derivation.start(model)).run(legs)

"""Cutting one operator: the rules of its strategy, applied one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from pcg.graph.graph import Graph, Node, Value
from pcg.placement.schedule import trace
from pcg.placement.view import MachineView
from search.cost.derivation import Applied, Scribe
from search.map.rules.cuts import Cuts
from search.map.space.strategies import Space, passes


@dataclass(frozen=True)
class CutNode:
    """An operator that was cut: what its outputs have become, the operator itself, its view, and
    the rules that did it, each with the values that are others since but mean the same."""

    outer: tuple[Value, ...]
    inner: Node
    view: MachineView
    steps: tuple[tuple[Applied, Mapping[Value, Value]], ...]

    def write(self, scribe: Scribe) -> None:
        """Note how it came about."""
        for applied, same in self.steps:
            scribe.write(applied)
            scribe.rename(same)


@dataclass
class Cutting:
    """``outer``: what the operator's outputs have become; ``inner``: the operator itself."""

    outer: list[Value]
    inner: Node
    steps: list[tuple[Applied, Mapping[Value, Value]]] = field(
        default_factory=list[tuple[Applied, Mapping[Value, Value]]]
    )
    """See ``CutNode``."""

    def apply(self, made: Applied | None) -> None:
        """Go on with what a rule made of the operator."""
        assert made is not None
        replaced = made.replaced
        wider = list(Graph(tuple(self.outer)).replace(replaced).outputs)
        # Unless it was itself replaced, a value that is made of others than before stays
        # the same one.
        pairs = zip(self.outer, wider, strict=True)
        self.steps.append((made, {a: b for a, b in pairs if a not in replaced}))
        self.outer = wider
        self.inner = trace(made.made[0])[0].node

    def done(self, view: MachineView) -> CutNode:
        """What was made, to run on these devices."""
        return CutNode(tuple(self.outer), self.inner, view, tuple(self.steps))

    def let_pass(self, cuts: Cuts, carriers: Iterable[int], degree: int) -> bool:
        """Reduce so many partial sums after the operator, not before, if that is what is done last
        to each of the operands that carry them. Says whether it is."""
        some = frozenset(carriers)
        times = {_last_reduced(self.inner.inputs[i], degree) for i in some}
        degrees = times.pop()
        if times or degrees is None:
            return False
        for _ in degrees:
            self.apply(cuts.through(self.inner, some))
        return True


def in_order(own: Space, strategy: Iterable[int]) -> list[int]:
    """The places of a strategy's axes, in the order in which rules cut along them: sums are reduced
    after all else is combined, so that they can pass on."""

    def depth(place: int) -> int:
        axis = own.axes[place]
        return 0 if passes(axis) else 1 if None in axis.outputs else 2

    return sorted(dict.fromkeys(entry for entry in strategy if entry >= 0), key=depth)


def _last_reduced(value: Value, degree: int) -> tuple[int, ...] | None:
    """The degrees of the reductions that come last in what makes a value, if their product is the
    one given."""
    degrees: list[int] = []
    while prod(degrees) < degree and value.node.name == "reduce":
        degrees.append(value.node.operator_call.integer("degree"))
        (value,) = value.node.inputs
    return tuple(degrees) if prod(degrees) == degree else None

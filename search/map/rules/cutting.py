"""Cutting one operator: the rules of its strategy, applied one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from pcg.graph.graph import Graph, Node, Value
from pcg.placement.schedule import trace
from pcg.placement.view import MachineView
from search.cost.derivation import Applied
from search.map.rules.cuts import Cuts
from search.map.space.mapping import OperatorMapping
from search.map.space.strategies import REPLICATE, Space, mapped_view, passes

CutStep = tuple[Applied | None, Mapping[Value, Value]]


class PlacedAxes(NamedTuple):
    """The axes of the task grid of an operator that was cut. ``copied``: the places of axes that
    partial sums should have passed along and did not, so that the operator is copied instead;
    ``places``: for each axis of the grid, its place among the axes of the operator's space."""

    copied: frozenset[int]
    places: tuple[int, ...]

    def view(self, mapping: OperatorMapping) -> MachineView:
        """The machine view of the operator by a mapping with these cuts."""
        if self.copied:
            axes = [
                a._replace(place=REPLICATE) if a.place in self.copied else a for a in mapping.axes
            ]
            mapping = OperatorMapping(mapping.start, tuple(axes))
        return mapped_view(mapping, self.places)


@dataclass(frozen=True)
class CutNode:
    """An operator that was cut. ``outer``: the values that stand for its outputs; ``inner``: the
    operator on blocks; ``placed``: the axes of its task grid; ``steps``: the rules that were
    applied, each with the values that changed because of it and mean the same. Values may also
    change without a rule (None)."""

    outer: tuple[Value, ...]
    inner: Node
    placed: PlacedAxes
    steps: tuple[CutStep, ...]


@dataclass
class Cutting:
    """An operator that is being cut. ``outer``: the values that stand for its outputs; ``inner``:
    the operator on blocks."""

    outer: list[Value]
    inner: Node
    steps: list[CutStep] = field(default_factory=list[CutStep])
    """See ``CutNode``."""

    def apply(self, made: Applied | None) -> None:
        """Replace the operator by the result of a rule."""
        assert made is not None
        replaced = made.replaced
        wider = list(Graph(tuple(self.outer)).replace(replaced).outputs)
        # A value that was not replaced itself may be computed from other values than before. It
        # still means the same.
        pairs = zip(self.outer, wider, strict=True)
        self.steps.append((made, {a: b for a, b in pairs if a not in replaced}))
        self.outer = wider
        self.inner = trace(made.made[0])[0].node

    def done(self, placed: PlacedAxes) -> CutNode:
        """The operator that was cut, with the axes of its task grid."""
        return CutNode(tuple(self.outer), self.inner, placed, tuple(self.steps))

    def let_pass(self, cuts: Cuts, carriers: Iterable[int], degree: int) -> bool:
        """Move a reduction of ``degree`` partial sums behind the operator. Returns False, and
        changes nothing, unless this reduction comes last in each of the ``carriers``."""
        operands = frozenset(carriers)
        times = {_last_reduced(self.inner.inputs[i], degree) for i in operands}
        degrees = times.pop()
        if times or degrees is None:
            return False
        for _ in degrees:
            self.apply(cuts.through(self.inner, operands))
        return True


def in_order(space: Space, strategy: Iterable[int]) -> list[int]:
    """The places of a strategy's axes, in the order in which rules cut along them. Axes that leave
    partial sums come before axes of outputs, so that the sums are reduced last and can pass on."""

    def depth(place: int) -> int:
        axis = space.axes[place]
        return 0 if passes(axis) else 1 if None in axis.outputs else 2

    return sorted(dict.fromkeys(entry for entry in strategy if entry >= 0), key=depth)


def _last_reduced(value: Value, degree: int) -> tuple[int, ...] | None:
    """The degrees of the reductions that come last before a value, if their product is ``degree``;
    otherwise None."""
    degrees: list[int] = []
    while prod(degrees) < degree and value.node.name == "reduce":
        degrees.append(value.node.operator_call.integer("degree"))
        (value,) = value.node.inputs
    return tuple(degrees) if prod(degrees) == degree else None

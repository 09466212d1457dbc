"""Operators cut once a kind, and not once an occurrence.

Problem: a search cuts the same model by many choices of strategies, and a model has the same blocks
again and again. Matching rules and inferring types takes far longer than making nodes.

Method: what rules make of an operator depends on its call, on the types of what it reads, on which
of that is the same value, and on the reductions that come last in it, which may pass the operator.
So an operator is cut on stand-ins for what comes before these, and what is made of them is made
again on the values themselves. Both graphs are the same: a rule sees nothing else
(``substitutions.rules.match``). Time is that of the nodes that are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pcg.graph.graph import Leaf, Node, Value, topological
from pcg.memo import Memo
from pcg.placement.view import MachineView
from search.map.rules.cutting import CutNode

_Place = tuple[int, int]
"""An operand and how many reductions behind it; or a node that was made, and its port."""


@dataclass(frozen=True)
class _Made:
    """A node to be made again. ``inputs``: places, of operands where ``given`` has them."""

    node: Node
    inputs: tuple[tuple[bool, _Place], ...]


@dataclass(frozen=True)
class CutTemplate:
    """An operator as it was cut on stand-ins."""

    nodes: tuple[_Made, ...]
    outer: tuple[tuple[bool, _Place], ...]
    inner: int
    view: MachineView

    @staticmethod
    def of(cut: CutNode, given: Mapping[Value, _Place]) -> CutTemplate:
        """``given``: the stand-ins."""
        numbers: dict[Node, int] = {}

        def place(value: Value) -> tuple[bool, _Place]:
            if value in given:
                return True, given[value]
            return False, (numbers[value.node], value.port)

        made: list[_Made] = []
        for node in topological((*(v.node for v in cut.outer), cut.inner), given):
            if node.value() in given:
                continue
            made.append(_Made(node, tuple(map(place, node.inputs))))
            numbers[node] = len(numbers)
        return CutTemplate(tuple(made), tuple(map(place, cut.outer)), numbers[cut.inner], cut.view)

    def on(self, operands: Sequence[Sequence[Value]]) -> tuple[tuple[Value, ...], Node]:
        """What the operator's outputs have become, and the operator itself. ``operands``: each with
        what is behind its reductions, one after the other."""
        made: list[Node] = []

        def value(at: tuple[bool, _Place]) -> Value:
            given, (first, second) = at
            return operands[first][second] if given else Value(made[first], second)

        for one in self.nodes:
            made.append(one.node.on(tuple(map(value, one.inputs))))
        return tuple(map(value, self.outer)), made[self.inner]


def behind_reductions(value: Value) -> list[Value]:
    """A value, and what is behind each of the reductions that come last in it."""
    behind = [value]
    while behind[-1].node.name == "reduce" and not behind[-1].node.is_leaf:
        behind.append(behind[-1].node.inputs[0])
    return behind


@dataclass(frozen=True)
class CutTemplates:
    """What was cut so far."""

    _known: Memo[object, CutTemplate] = field(init=False, default_factory=Memo[object, CutTemplate])

    def cut(
        self,
        kind: object,
        whole: Node,
        inputs: Sequence[Value],
        cut: Callable[[Node], CutNode],
        behind: Callable[[Value], list[Value]] = behind_reductions,
    ) -> tuple[tuple[Value, ...], Node, MachineView]:
        """What an operator's outputs become as it reads some values, the operator itself, and its
        view. ``kind``: what else the answer depends on; ``cut``: how it is cut; ``behind``: a value
        and, one after the other, what is behind it that rules look at."""
        operands = [behind(value) for value in inputs]
        bases: dict[Value, int] = {}
        pattern = tuple(
            (
                bases.setdefault(chain[-1], len(bases)),
                chain[-1].type,
                *(value.node.call for value in chain[:-1]),
            )
            for chain in operands
        )
        template = self._known.get(
            (kind, pattern), lambda: _on_stand_ins(whole, operands, bases, cut)
        )
        return *template.on(operands), template.view


def _on_stand_ins(
    whole: Node,
    operands: Sequence[Sequence[Value]],
    bases: Mapping[Value, int],
    cut: Callable[[Node], CutNode],
) -> CutTemplate:
    leaves = {
        value: Node(Leaf("tensor", f"operand {number}", value.rank, value.type)).value()
        for value, number in bases.items()
    }
    given: dict[Value, _Place] = {}
    inputs: list[Value] = []
    for operand, behind in enumerate(operands):
        stand_in = leaves[behind[-1]]
        given.setdefault(stand_in, (operand, len(behind) - 1))
        for depth in range(len(behind) - 2, -1, -1):
            stand_in = Node(behind[depth].node.call, (stand_in,)).value()
            given.setdefault(stand_in, (operand, depth))
        inputs.append(stand_in)
    return CutTemplate.of(cut(Node(whole.call, tuple(inputs))), given)

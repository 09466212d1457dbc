"""Operators cut once for each kind instead of once for each occurrence.

Problem: a search cuts the same model by many choices of strategies, and a model repeats its blocks.
Matching rules and inferring types takes far longer than making nodes.

Method: the result of the rules depends on the operator's call, on the types of its operands, on
which operands are the same value, and on the reductions that come last in an operand, since these
may pass the operator. So the operator is cut once on stand-ins for the values before these
reductions. The result is then built again on the values themselves. Both graphs are equal, since a
rule sees nothing else (``substitutions.rules.match``). The time is proportional to the nodes built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pcg.graph.graph import Leaf, Node, Value, topological
from pcg.memo import Memo
from pcg.placement.view import MachineView
from search.map.rules.cutting import CutNode

_Place = tuple[int, int]
"""The number of an operand, and how many of its reductions lie behind this value; or the number of
a node of the template, and a port."""


@dataclass(frozen=True)
class _TemplateNode:
    """A node of a template. ``inputs``: a place for each; the flag is set if it is an operand."""

    node: Node
    inputs: tuple[tuple[bool, _Place], ...]


@dataclass(frozen=True)
class CutTemplate:
    """An operator that was cut on stand-ins. ``outer``: the places of the values that stand for its
    outputs; ``inner``: the number of the operator on blocks."""

    nodes: tuple[_TemplateNode, ...]
    outer: tuple[tuple[bool, _Place], ...]
    inner: int
    view: MachineView

    @staticmethod
    def of(cut: CutNode, given: Mapping[Value, _Place]) -> CutTemplate:
        """The template of a cut operator. ``given``: the stand-ins, each with its place."""
        numbers: dict[Node, int] = {}

        def place(value: Value) -> tuple[bool, _Place]:
            if value in given:
                return True, given[value]
            return False, (numbers[value.node], value.port)

        made: list[_TemplateNode] = []
        for node in topological((*(v.node for v in cut.outer), cut.inner), given):
            if node.value() in given:
                continue
            made.append(_TemplateNode(node, tuple(map(place, node.inputs))))
            numbers[node] = len(numbers)
        return CutTemplate(tuple(made), tuple(map(place, cut.outer)), numbers[cut.inner], cut.view)

    def on(self, operands: Sequence[Sequence[Value]]) -> tuple[tuple[Value, ...], Node]:
        """Build the template on operands. Returns the values that stand for the operator's outputs,
        and the operator on blocks. ``operands``: each as a list of the operand and the values
        behind its last reductions."""
        made: list[Node] = []

        def value(at: tuple[bool, _Place]) -> Value:
            given, (first, second) = at
            return operands[first][second] if given else Value(made[first], second)

        for template in self.nodes:
            made.append(template.node.on(tuple(map(value, template.inputs))))
        return tuple(map(value, self.outer)), made[self.inner]


def behind_reductions(value: Value) -> list[Value]:
    """A value, followed by the values behind each of the reductions that come last in it."""
    behind = [value]
    while behind[-1].node.name == "reduce" and not behind[-1].node.is_leaf:
        behind.append(behind[-1].node.inputs[0])
    return behind


@dataclass(frozen=True)
class CutTemplates:
    """The templates of the operators that were cut so far."""

    _known: Memo[object, CutTemplate] = field(init=False, default_factory=Memo[object, CutTemplate])

    def cut(
        self,
        kind: object,
        whole: Node,
        inputs: Sequence[Value],
        cut: Callable[[Node], CutNode],
        behind: Callable[[Value], list[Value]] = behind_reductions,
    ) -> tuple[tuple[Value, ...], Node, MachineView]:
        """Cut an operator that reads ``inputs``. Returns the values that stand for its outputs, the
        operator on blocks, and its machine view. ``kind``: all else that the result depends on;
        ``cut``: the function that cuts; ``behind``: a function from a value to the value and those
        behind it that rules look at."""
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

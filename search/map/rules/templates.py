"""Operators cut once for each kind instead of once for each occurrence.

Problem: a search cuts the same model by many choices of strategies, and a model repeats its blocks.
Matching rules and inferring types takes far longer than making nodes.

Method: the result of the rules depends on the operator's call, on the types of its operands, on
which operands are the same value, and on the reductions that come last in an operand, since these
may pass the operator. So the operator is cut once on stand-ins for the values before these
reductions. The result is then built again on the values themselves. Both graphs are equal, since a
rule sees nothing else (``substitutions.rules.match``). The derivation is written again in the same
way: the same rules with the same symbols, on the ids of the values. The time is proportional to the
nodes built and the steps written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pcg.graph.graph import Leaf, Node, Value, topological
from pcg.memo import Memo
from pcg.plan.derivation import Application, made_id
from search.cost.derivation import Scribe, created, in_derivation
from search.map.rules.cutting import CutNode, PlacedAxes

_Place = tuple[int, int]
"""The number of an operand, and how many of its reductions lie behind this value; or the number of
a node of the template, and a port."""
_Reference = tuple[bool, _Place]
"""A value of a template. The flag is set if it is an operand."""


@dataclass(frozen=True)
class _TemplateNode:
    """A node of a template."""

    node: Node
    inputs: tuple[_Reference, ...]


@dataclass(frozen=True)
class _TemplateStep:
    """A step of the derivation in a template. ``step``: the application of a rule without ids, or
    None if values change without one; ``at`` and ``inputs``: as in ``Application``."""

    step: Application | None
    at: tuple[_Reference, ...]
    inputs: tuple[_Reference, ...]
    made: tuple[tuple[_Reference, int, int], ...]
    """The values that the rule makes, each with the number of its operator and its port."""
    same: tuple[tuple[_Reference, _Reference], ...]
    """Values before the step, each with the value that means the same after it."""


@dataclass(frozen=True)
class CutTemplate:
    """An operator that was cut on stand-ins. ``outer``: the values that stand for its outputs;
    ``inner``: the number of the operator on blocks. The numbers of nodes that are not part of the
    result, such as the operator itself, follow those of ``nodes``."""

    nodes: tuple[_TemplateNode, ...]
    outer: tuple[_Reference, ...]
    inner: int
    placed: PlacedAxes
    whole: tuple[_Reference, ...]
    """The outputs of the operator before it was cut."""
    steps: tuple[_TemplateStep, ...]

    @staticmethod
    def of(whole: Node, cut: CutNode, given: Mapping[Value, _Place]) -> CutTemplate:
        """The template of a cut operator. ``whole``: the operator on the stand-ins; ``given``: the
        stand-ins, each with its place."""
        numbers: dict[Node, int] = {}

        def place(value: Value) -> _Reference:
            if value in given:
                return True, given[value]
            return False, (numbers.setdefault(value.node, len(numbers)), value.port)

        made: list[_TemplateNode] = []
        for node in topological((*(v.node for v in cut.outer), cut.inner), given):
            if node.value() in given:
                continue
            made.append(_TemplateNode(node, tuple(map(place, node.inputs))))
            numbers[node] = len(numbers)
        outer, outputs = (tuple(map(place, values)) for values in (cut.outer, whole.outputs))
        steps = _template_steps(cut, place)
        return CutTemplate(tuple(made), outer, numbers[cut.inner], cut.placed, outputs, steps)

    def on(
        self, operands: Sequence[Sequence[Value]], node: Node, scribe: Scribe | None = None
    ) -> tuple[tuple[Value, ...], Node]:
        """Build the template on operands. Returns the values that stand for the operator's outputs,
        and the operator on blocks. ``operands``: each as a list of the operand and the values
        behind its last reductions; ``node``: the operator in the whole graph; ``scribe``: if given,
        writes the derivation down."""
        made: list[Node] = []

        def value(at: _Reference) -> Value:
            given, (first, second) = at
            return operands[first][second] if given else Value(made[first], second)

        for template in self.nodes:
            made.append(template.node.on(tuple(map(value, template.inputs))))
        if scribe is not None:
            self._write(operands, node, made, scribe)
        return tuple(map(value, self.outer)), made[self.inner]

    def _write(
        self, operands: Sequence[Sequence[Value]], node: Node, made: Sequence[Node], scribe: Scribe
    ) -> None:
        """Write the derivation down. The ids of values that are not part of the result are
        forgotten."""
        known = scribe.ids
        ids: dict[_Place, str] = {}

        def id_of(at: _Reference) -> str:
            given, place = at
            return known[operands[place[0]][place[1]]] if given else ids[place]

        def note(at: _Reference, name: str) -> None:
            given, place = at
            if given:
                known[operands[place[0]][place[1]]] = name
            else:
                ids[place] = name

        for at, output in zip(self.whole, node.outputs, strict=True):
            note(at, known[output])
        for own in self.steps:
            if own.step is not None:
                at, inputs = tuple(map(id_of, own.at)), tuple(map(id_of, own.inputs))
                number = len(scribe.steps)
                scribe.steps.append(Application(own.step.applied, at, inputs, own.step.symbols))
                for value, operator, port in own.made:
                    note(value, made_id(number, operator, port))
            for new, name in [(new, id_of(old)) for old, new in own.same]:
                note(new, name)
        for (number, port), name in ids.items():
            if number < len(made):
                known[Value(made[number], port)] = name


def _template_steps(
    cut: CutNode, place: Callable[[Value], _Reference]
) -> tuple[_TemplateStep, ...]:
    """The steps of the derivation of a cut operator, with references in place of ids."""
    steps: list[_TemplateStep] = []
    for applied, same in cut.steps:
        pairs = tuple((place(old), place(new)) for old, new in same.items() if old != new)
        if applied is None:
            steps.append(_TemplateStep(None, (), (), (), pairs))
            continue
        at, inputs = (tuple(map(place, values)) for values in applied.matched)
        made = tuple((place(value), at, value.port) for value, at in created(applied))
        steps.append(_TemplateStep(in_derivation(applied, (), ()), at, inputs, made, pairs))
    return tuple(steps)


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
        scribe: Scribe | None = None,
    ) -> tuple[tuple[Value, ...], Node, PlacedAxes]:
        """Cut an operator that reads ``inputs``. Returns the values that stand for its outputs, the
        operator on blocks, and the axes of its task grid. ``kind``: all else that the result
        depends on; ``whole``: the operator in the whole graph; ``cut``: the function that cuts;
        ``behind``: a function from a value to the value and those behind it that rules look at;
        ``scribe``: if given, writes the derivation down."""
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
        return *template.on(operands, whole, scribe), template.placed


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
    on_stand_ins = Node(whole.call, tuple(inputs))
    return CutTemplate.of(on_stand_ins, cut(on_stand_ins), given)

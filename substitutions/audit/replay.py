"""Replays the steps of a plan's derivation, from its model's graph to the graph that it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Leaf, Node, Value
from pcg.plan.derivation import Application, made_id
from pcg.plan.plan import Plan
from pcg.plan.schema import Symbol
from pcg.plan.text import print_graph
from pcg.types.operator import Call
from substitutions.audit.errors import Finding, Refused
from substitutions.audit.forms import concrete, operators_of, rules_of
from substitutions.audit.place import RulePlace, evaluated, numbers
from substitutions.audit.values import GraphItem, NamedValues, Port, draft
from substitutions.rules.requirements import not_natural
from substitutions.rules.rule import Rule, attribute_symbols, variables


@dataclass(frozen=True)
class PlanReplay:
    """The result of a replay. ``rules``: the rules that the plan applies, by name. ``steps``: how
    many steps were replayed. ``conditions``: how many equations between sizes and types of values
    were checked."""

    findings: tuple[Finding, ...]
    rules: Mapping[str, Rule]
    steps: int
    conditions: int


def replay(plan: Plan, library: Sequence[Rule]) -> PlanReplay:
    """Replay a plan's derivation. The replay stops at the first step that does not follow, since
    later steps rest on it."""
    by_name = rules_of(plan, library)
    forms: dict[str, Rule] = {}
    operators = operators_of(plan)
    for applied in {step.applied.name: step.applied for step in plan.derivation}.values():
        try:
            forms[applied.name] = concrete(applied, by_name, operators)
        except Refused as error:
            where = f"decisions.rules.{applied.name}"
            return PlanReplay((Finding(where, str(error)),), {}, 0, 0)
    used = {step.applied.rule: by_name[step.applied.rule] for step in plan.derivation}
    derivation_replay = DerivationReplay(NamedValues(plan.model))
    for number, step in enumerate(plan.derivation):
        try:
            derivation_replay.step(number, step, forms[step.rule])
        except Refused as error:
            finding = Finding(f"decisions.derivation[{number}]", f"{step.rule}: {error}")
            return PlanReplay((finding,), used, number, derivation_replay.conditions)
    findings = tuple(differences(derivation_replay.values.graph(), plan.graph))
    return PlanReplay(findings, used, len(plan.derivation), derivation_replay.conditions)


@dataclass
class DerivationReplay:
    """Applies the steps of a derivation to a graph. ``conditions``: how many equations between
    sizes and types of values were checked."""

    values: NamedValues
    conditions: int = field(default=0)

    def step(self, number: int, step: Application, rule: Rule) -> None:
        """Apply a rule as a step says. Raises Refused if the rule does not match there, if its
        conditions on sizes and types do not hold, or if a value would be computed from itself."""
        old = self._outputs(step, rule)
        inputs = self._inputs(step, rule)
        known = numbers(inputs, _symbols(step, rule))
        place = RulePlace(inputs, known)
        for pattern, port in zip(rule.left, old, strict=True):
            place.check(pattern, port)
        self._check_requirements(rule, known)
        attributed = _attributed(rule, known)
        if (wrong := not_natural(rule.naturals, known)) is not None:
            value = evaluated(wrong, known)
            raise Refused(f"{wrong} is {value}, expected a whole number of at least 0")
        _check_apart(rule, old, inputs)
        made, new = _made(rule, inputs, attributed)
        for before, after in zip(old, new, strict=True):
            if before.type != after.type:
                raise Refused(f"gives a tensor {after.type}, expected {before.type}")
        self.conditions += len(made) + len(new)
        for operator, item in enumerate(made):
            ports = range(len(item.types))
            self.values.name(item, (made_id(number, operator, port) for port in ports))
        self.values.replace(old, new, made)

    def _outputs(self, step: Application, rule: Rule) -> list[Port]:
        if len(step.at) != len(rule.left):
            raise Refused(f"is at {len(step.at)} values, expected {len(rule.left)}")
        return [self.values.at(name) for name in step.at]

    def _inputs(self, step: Application, rule: Rule) -> dict[str, Port]:
        if len(step.inputs) != len(rule.inputs):
            raise Refused(f"has {len(step.inputs)} inputs, expected {len(rule.inputs)}")
        if unbound := sorted({name for name, _ in rule.inputs} - variables(rule.left)):
            raise Refused(f"input {unbound[0]} is not on the rule's left side")
        ports: dict[str, Port] = {}
        for (name, rank), given in zip(rule.inputs, step.inputs, strict=True):
            port = ports[name] = self.values.at(given)
            if port.type.rank != rank:
                raise Refused(f"input {name} has rank {port.type.rank}, expected {rank}")
        return ports

    def _check_requirements(self, rule: Rule, known: Mapping[str, Symbol]) -> None:
        for text, (left, right) in zip(rule.requires, rule.requirements, strict=True):
            self.conditions += 1
            sides = evaluated(left, known), evaluated(right, known)
            if not all(isinstance(side, int) for side in sides) or sides[0] != sides[1]:
                raise Refused(f"requires {text}, which is {sides[0]} = {sides[1]}")


def _symbols(step: Application, rule: Rule) -> dict[str, Symbol]:
    """The values of a rule's symbols. Raises Refused unless these are exactly the rule's."""
    given, wanted = dict(step.symbols), attribute_symbols((*rule.left, *rule.right))
    if missing := sorted(wanted - given.keys()):
        raise Refused(f"symbol {missing[0]} has no value")
    if unknown := sorted(given.keys() - wanted):
        raise Refused(f"the rule has no symbol {unknown[0]}")
    return given


def _check_apart(rule: Rule, old: Sequence[Port], inputs: Mapping[str, Port]) -> None:
    """Raise Refused if outputs that are replaced are the same value, or an input is computed from
    one of several replaced values. The new values are computed from the inputs, so a value would
    then be computed from itself."""
    if len(set(old)) < len(set(rule.left)):
        raise Refused("different outputs of the rule are the same value")
    if len(old) == 1:
        return
    replaced = set(old)
    pending = [port.item for port in inputs.values()]
    seen: set[GraphItem] = set()
    while pending:
        item = pending.pop()
        if item not in seen:
            seen.add(item)
            if not replaced.isdisjoint(item.inputs):
                raise Refused("would compute a value from itself")
            pending += (port.item for port in item.inputs)


def _attributed(rule: Rule, known: Mapping[str, Symbol]) -> dict[Node, Call]:
    """The calls of the right side with numbers for their attributes. Raises Refused for a degree
    below 2, and for an integer attribute that is no integer."""
    attributed: dict[Node, Call] = {}
    for node in rule.created:
        call = node.operator_call
        attributes = tuple((name, evaluated(value, known)) for name, value in call.attributes)
        if (degree := dict(attributes).get("degree", 2)) < 2:
            raise Refused(f"degree {degree}, expected 2 or more")
        # 2.0 equals 2, so results that are cached for 2 would be used for it.
        for name, value in attributes:
            if isinstance(value, float) and name not in call.operator.reals:
                raise Refused(f"has no type there: {name} is {value}, expected an integer")
        attributed[node] = Call(call.operator, attributes)
    return attributed


def _made(
    rule: Rule, inputs: Mapping[str, Port], attributed: Mapping[Node, Call]
) -> tuple[list[GraphItem], list[Port]]:
    """The nodes of the right side on the inputs, and its outputs. Raises Refused if a node has no
    type."""
    items: dict[Node, GraphItem] = {}

    def port(value: Value) -> Port:
        call = value.node.call
        return inputs[call.name] if isinstance(call, Leaf) else Port(items[value.node], value.port)

    for node in rule.created:
        try:
            made = draft(attributed[node], tuple(map(port, node.inputs)))
        except OperatorError as error:
            raise Refused(f"has no type there: {error}") from None
        items[node] = made
    return list(items.values()), [port(value) for value in rule.right]


def differences(derived: Graph, graph: Graph) -> Iterator[Finding]:
    """Yield the first line in which a plan's graph differs from the graph that its derivation leads
    to, with the line that is missing."""
    if derived.outputs == graph.outputs:
        return
    lines, have = print_graph(graph).splitlines(), set(graph.nodes)
    first = len(lines) - 1 - len(graph.nodes)
    known = set(derived.nodes)
    foreign = (i for i, node in enumerate(graph.nodes) if node not in known)
    at = first + next(foreign, len(graph.nodes))
    wanted = print_graph(derived).splitlines()
    missing = (i for i, node in enumerate(derived.nodes) if node not in have)
    expected = wanted[len(wanted) - 1 - len(derived.nodes) + next(missing, len(derived.nodes))]
    problem = f"{lines[at]!r} is not what the derivation leads to, expected {expected!r}"
    yield Finding(f"decisions.graph[{at}]", problem)

"""Expands general rules to concrete rules for a graph: for its ranks and element-wise operators.

An operator is *reached* if the graph has it, or if a rule creates it from reached operators.
Parallel operators are always reached. Left out are rules that can never be applied: those with an
operator that is not reached on the side that is matched, and those about tensors with more axes
than the graph's. Rules about batched functions are in no library; they are made and proved here
(``substitutions.rules.batched``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from pcg.collection import uncollected
from pcg.graph.graph import Graph
from pcg.graph.pairs import both, side
from pcg.memo import Answers
from pcg.ops import OPERATORS
from pcg.ops.stand_ins import STAND_INS, stand_in
from pcg.types.operator import Operator
from substitutions.rules.batched import rules_about
from substitutions.rules.rule import Rule, attribute_symbols, open_call

Usable = Callable[[Rule], bool]
"""Whether a direction of a rule may be used. A direction is a rule read from left to right."""
Counts = tuple[int, ...]
"""The numbers of axes in the place of a rule's runs."""


def any_direction(rule: Rule) -> bool:
    """Accept every direction."""
    return True


class Expander:
    """Expands the general rules of a library, and caches the results."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(_Expandable(rule) for rule in rules)
        self._formed = Answers(self._form)
        self._filled = Answers(self._fill)
        self._ranked = Answers(self._fitting_counts)
        self._concrete = Answers(self._of_reached)
        self._listed = Answers(self._all_concrete)

    def concrete(self, graph: Graph, usable: Usable = any_direction) -> tuple[Rule, ...]:
        """The concrete rules for a graph, each once, in a fixed order. Graphs that need the same
        rules get the same tuple.

        The inputs and outputs of a rule have at most as many axes as the tensors of the graph.
        Values between them may have one more.
        """
        max_rank = max((rank for node in graph.nodes for rank in node.ranks), default=0)
        calls = (node.operator_call for node in graph.nodes if not node.is_leaf)
        return self._concrete[max_rank, frozenset(call.operator for call in calls), usable]

    def _of_reached(self, key: tuple[int, frozenset[Operator], Usable]) -> tuple[Rule, ...]:
        """The rules for tensors of at most ``most`` axes and for all operators that the given ones
        reach. A graph and its rewrites often reach the same operators."""
        max_rank, operators, usable = key
        known = {**OPERATORS, **{operator.name: operator for operator in operators}}
        reached = self._reached(frozenset(operator.name for operator in operators), known, usable)
        undeclared = frozenset(
            operator for operator in operators if OPERATORS.get(operator.name) is not operator
        )
        return self._listed[max_rank, reached, undeclared]

    @uncollected()  # The rules are kept, so the garbage collector would search them in vain.
    def _all_concrete(
        self, key: tuple[int, frozenset[str], frozenset[Operator]]
    ) -> tuple[Rule, ...]:
        """The rules for tensors of at most ``most`` axes, for the names of reached operators, and
        for further operators that are not declared, such as batched functions."""
        max_rank, reached, undeclared = key
        undeclared_by_name = {operator.name: operator for operator in undeclared}
        known = {**OPERATORS, **undeclared_by_name}
        functions = _functions(reached, known)
        concrete: dict[tuple[object, ...], Rule] = {}
        for number, expandable in enumerate(self._rules):
            if not any(expandable.is_in_reach(way, reached, functions) for way in (0, 1)):
                continue
            stand_ins = expandable.rule.stand_ins
            for counts in self._ranked[number, max_rank]:
                for chosen in product(*(functions[name] for name in stand_ins)):
                    rule = self._filled[number, counts, chosen]
                    concrete.setdefault(_content(rule), rule)
        for name in sorted(undeclared_by_name):
            for rule in rules_about(undeclared_by_name[name]):
                concrete.setdefault(_content(rule), rule)
        return tuple(concrete.values())

    def _fitting_counts(self, key: tuple[int, int]) -> tuple[Counts, ...]:
        """The numbers of axes for which the tensors of a rule have at most ``most`` axes. Graphs of
        different ranks share the forms of rules."""
        number, max_rank = key
        given = _counts(self._rules[number].rule, max_rank)
        forms = ((counts, self._formed[number, counts]) for counts in given)
        return tuple(c for c, form in forms if form is not None and _fits(form, max_rank))

    def _form(self, key: tuple[int, Counts]) -> Rule | None:
        """A rule, by its number, with so many axes in the place of its runs."""
        number, counts = key
        rule = self._rules[number].rule
        return rule.at(counts) if counts else rule

    def _fill(self, key: tuple[int, Counts, tuple[Operator, ...]]) -> Rule:
        """Such a form with operators for its stand-ins."""
        number, counts, operators = key
        concrete = self._formed[number, counts]
        assert concrete is not None
        for operator in operators:
            taken = attribute_symbols((*concrete.left, *concrete.right))
            concrete = concrete.with_operator(open_call(operator, taken))
        return concrete

    def _reached(
        self, names: frozenset[str], known: Mapping[str, Operator], usable: Usable
    ) -> frozenset[str]:
        reached = names | {o.name for o in OPERATORS.values() if o.parallel is not None}
        pending = [
            (expandable, way)
            for expandable in self._rules
            for way in (0, 1)
            if not expandable.starts_anywhere(way) and usable(expandable.directions[way])
        ]
        while True:
            functions = _functions(reached, known)
            ready = [(e, way) for e, way in pending if e.is_in_reach(way, reached, functions)]
            more = frozenset(name for e, way in ready for name in e.named[1 - way])
            if more <= reached:
                return reached
            reached |= more


@dataclass(frozen=True)
class _Expandable:
    """A rule with the operators of its sides. Ways to read it: 0 as written, 1 reversed."""

    rule: Rule

    @cached_property
    def directions(self) -> tuple[Rule, Rule]:
        return self.rule, self.rule.reversed

    @cached_property
    def _operators(self) -> tuple[frozenset[str], frozenset[str]]:
        sides = (side(self.rule.left), side(self.rule.right))
        left, right = ({n.name for n in side.nodes if not n.is_leaf} for side in sides)
        return frozenset(left), frozenset(right)

    @cached_property
    def named(self) -> tuple[frozenset[str], frozenset[str]]:
        """The operators of each side, stand-ins aside."""
        left, right = self._operators
        return left - STAND_INS.keys(), right - STAND_INS.keys()

    def starts_anywhere(self, way: int) -> bool:
        """Whether the side that is matched has no operators, so that it matches any value."""
        return not self._operators[way]

    def is_in_reach(
        self, way: int, reached: frozenset[str], functions: Mapping[str, Sequence[Operator]]
    ) -> bool:
        """Whether all operators of the side that is matched are reached; if that side has none,
        those of the other side."""
        asked = 1 - way if self.starts_anywhere(way) else way
        wanted = self._operators[asked] & STAND_INS.keys()
        return self.named[asked] <= reached and all(functions[name] for name in wanted)


def _functions(names: frozenset[str], known: Mapping[str, Operator]) -> dict[str, list[Operator]]:
    """The element-wise operators among ``names``, by the stand-in that covers them."""
    covered: dict[str, list[Operator]] = {name: [] for name in STAND_INS}
    for name in sorted(names & known.keys()):
        covering = stand_in(known[name])
        if covering is not None and covering.name in covered:
            covered[covering.name].append(known[name])
    return covered


def _counts(rule: Rule, max_rank: int) -> Iterator[Counts]:
    """Yield the numbers of axes for the runs for which no input has more than ``most`` axes."""
    room = {name: max_rank - rank for name, rank in rule.inputs}
    for group in rule.runs:
        for name, _ in group:
            room[name] += 1
    if min(room.values(), default=0) < 0:
        return
    pending: list[tuple[Counts, dict[str, int]]] = [((), room)]
    for group in rule.runs:
        uses = {name: sum(n == name for n, _ in group) for name, _ in group}
        pending = [
            ((*counts, count), {n: left - count * uses.get(n, 0) for n, left in rest.items()})
            for counts, rest in pending
            for count in range(min(rest[n] // used for n, used in uses.items()) + 1)
        ]
    yield from (counts for counts, _ in pending)


def _fits(rule: Rule, max_rank: int) -> bool:
    ends = all(value.rank <= max_rank for value in (*rule.left, *rule.right))
    nodes = both((rule.left, rule.right)).nodes
    return ends and all(rank <= max_rank + 1 for node in nodes for rank in node.ranks)


def _content(rule: Rule) -> tuple[object, ...]:
    """The content of a rule without its name. Inputs are already named in order of use."""
    sides = tuple((v.node.digest, v.port) for v in (*rule.left, *rule.right))
    return (*sides, *rule.requires)

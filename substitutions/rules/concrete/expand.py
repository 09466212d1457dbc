"""Expands general rules to concrete rules for a graph: for its ranks and element-wise operators.

An operator is *reached* if the graph has it, or if a rule creates it from reached operators.
Parallel operators are always reached. Left out are rules that can never be applied: those with an
operator that is not reached on the side that is matched, and those about tensors with more axes
than the graph's. Rules about batched functions are in no library; they are made and proved here
(``substitutions.rules.concrete.batched``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product

from pcg.collection import uncollected
from pcg.graph.graph import Graph
from pcg.graph.pairs import both, side
from pcg.memo import Answers, remembered
from pcg.ops import OPERATORS
from pcg.ops.stand_ins import STAND_INS, stand_in
from pcg.types.operator import Operator
from substitutions.rules.concrete.batched import rules_about
from substitutions.rules.concrete.rooted import RootedRules, directions_at, is_parallel, root_of
from substitutions.rules.rule import Rule, attribute_symbols, open_call

Counts = tuple[int, ...]
"""The numbers of axes in the place of a rule's runs."""


class Expander:
    """Expands the general rules of a library, and caches the results."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(_Expandable(rule) for rule in rules)
        self._concrete = Answers(self._of_operators)
        self._expanded = Answers(self._of_reached)

    def concrete(self, graph: Graph) -> RootedRules:
        """The concrete rules for a graph, each once, in a fixed order. A rule is made when it is
        first asked for. Graphs that need the same rules get the same object.

        The inputs and outputs of a rule have at most as many axes as the tensors of the graph.
        Values between them may have one more.
        """
        max_rank = max((rank for node in graph.nodes for rank in node.ranks), default=0)
        calls = (node.operator_call for node in graph.nodes if not node.is_leaf)
        return self._concrete[max_rank, frozenset(call.operator for call in calls)]

    def _of_operators(self, key: tuple[int, frozenset[Operator]]) -> RootedRules:
        """The rules for tensors of at most ``max_rank`` axes and for all operators that the given
        ones reach. A graph and its rewrites often reach the same operators."""
        max_rank, operators = key
        known = {**OPERATORS, **{operator.name: operator for operator in operators}}
        reached = self._reached(frozenset(operator.name for operator in operators), known)
        undeclared = frozenset(
            operator for operator in operators if OPERATORS.get(operator.name) is not operator
        )
        return self._expanded[max_rank, reached, undeclared]

    def _of_reached(self, key: tuple[int, frozenset[str], frozenset[Operator]]) -> RootedRules:
        """The rules for tensors of at most ``max_rank`` axes, for the names of reached operators,
        and for further operators that are not declared, such as batched functions."""
        max_rank, reached, undeclared = key
        undeclared_by_name = {operator.name: operator for operator in undeclared}
        functions = _functions(reached, {**OPERATORS, **undeclared_by_name})
        general = [
            expandable
            for expandable in self._rules
            if any(expandable.is_in_reach(way, reached, functions) for way in (0, 1))
        ]
        others = [undeclared_by_name[name] for name in sorted(undeclared_by_name)]
        return _ExpandedRules(general, max_rank, functions, others)

    def _reached(self, names: frozenset[str], known: Mapping[str, Operator]) -> frozenset[str]:
        reached = names | {o.name for o in OPERATORS.values() if o.parallel is not None}
        pending = [(e, way) for e in self._rules for way in (0, 1) if not e.starts_anywhere(way)]
        while True:
            functions = _functions(reached, known)
            ready = [(e, way) for e, way in pending if e.is_in_reach(way, reached, functions)]
            more = frozenset(name for e, way in ready for name in e.named[1 - way])
            if more <= reached:
                return reached
            reached |= more


class _ExpandedRules(RootedRules):
    """The concrete rules of general rules, and the rules about further operators.

    ``functions``: the operators by the stand-in that covers them. ``others``: operators that are
    not declared.
    """

    def __init__(
        self,
        general: Sequence[_Expandable],
        max_rank: int,
        functions: Mapping[str, Sequence[Operator]],
        others: Sequence[Operator],
    ) -> None:
        self._general = tuple(general)
        self._max_rank = max_rank
        self._functions = functions
        self._others = tuple(others)
        self._rooted = Answers(self._directions)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._all)

    def rooted(self, root: str | None, *, parallel: bool) -> tuple[Rule, ...]:
        return self._rooted[root, parallel]

    @cached_property
    def _all(self) -> tuple[Rule, ...]:
        return self._distinct(self._general, self._about_others)

    @uncollected()  # The rules are kept, so the garbage collector would search them in vain.
    def _directions(self, key: tuple[str | None, bool]) -> tuple[Rule, ...]:
        root, parallel = key
        general = [e for e in self._general_at(root) if e.is_parallel == parallel]
        others = self._about_others if parallel else ()  # they are about cuts of one operator
        return tuple(directions_at(root, self._distinct(general, others)))

    def _general_at(self, root: str | None) -> Iterator[_Expandable]:
        """The general rules with a direction that is matched at ``root``, or at a stand-in for an
        operator of this name."""
        names = {root}
        for stand_in_name, covered in self._functions.items():
            if any(operator.name == root for operator in covered):
                names.add(stand_in_name)
        return (e for e in self._general if not names.isdisjoint(e.roots))

    def _distinct(self, general: Iterable[_Expandable], others: Iterable[Rule]) -> tuple[Rule, ...]:
        """The concrete rules of some general rules, and other rules, each once."""
        concrete: dict[tuple[object, ...], Rule] = {}
        made = (rule for e in general for rule in e.forms(self._max_rank, self._functions))
        for rule in chain(made, others):
            concrete.setdefault(_content(rule), rule)
        return tuple(concrete.values())

    @cached_property
    def _about_others(self) -> tuple[Rule, ...]:
        return tuple(rule for operator in self._others for rule in rules_about(operator))


@dataclass(frozen=True, eq=False)
class _Expandable:
    """A rule with the operators of its sides and its forms, which all graphs share. Ways to read
    it: 0 as written, 1 reversed."""

    rule: Rule

    def forms(self, max_rank: int, functions: Mapping[str, Sequence[Operator]]) -> Iterator[Rule]:
        """Yield the rule with operators for its stand-ins, in every combination, at all numbers of
        axes for which its tensors have at most ``max_rank`` axes."""
        for counts in self._fitting(max_rank):
            for chosen in product(*(functions[name] for name in self.rule.stand_ins)):
                yield self._filled(counts, chosen)

    @remembered
    def _fitting(self, max_rank: int) -> tuple[Counts, ...]:
        """The numbers of axes for the runs for which the rule's tensors have at most ``max_rank``
        axes."""
        given = _counts(self.rule, max_rank)
        forms = ((counts, self._at(counts)) for counts in given)
        return tuple(c for c, form in forms if form is not None and _fits(form, max_rank))

    @remembered
    def _at(self, counts: Counts) -> Rule | None:
        """The rule with ``counts`` axes in the place of its runs; None if there is no such form."""
        return self.rule.at(counts) if counts else self.rule

    @remembered
    def _filled(self, counts: Counts, operators: tuple[Operator, ...]) -> Rule:
        """The form at ``counts`` with operators for its stand-ins."""
        concrete = self._at(counts)
        assert concrete is not None
        for operator in operators:
            taken = attribute_symbols((*concrete.left, *concrete.right))
            concrete = concrete.with_operator(open_call(operator, taken))
        return concrete

    @cached_property
    def roots(self) -> frozenset[str | None]:
        """The roots of both directions."""
        return frozenset(map(root_of, (self.rule.left, self.rule.right)))

    @cached_property
    def is_parallel(self) -> bool:
        return is_parallel(self.rule)

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
    """Yield the numbers of axes for the runs for which no input has more than ``max_rank`` axes."""
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

"""The rules about whole tensors that can be applied at an operator, and their results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from pcg.graph.graph import Graph, Node, Value
from pcg.graph.pairs import both, side
from pcg.language.poly import Poly
from pcg.memo import Memo, remembered
from pcg.types.halo import states_halo
from pcg.types.operator import Call
from pcg.types.parallel_operators import IN_TIME
from search.cost.derivation import Applied
from search.map.rules.reduced import ReducedAxes
from substitutions.rules.concrete.rooted import RootedRules
from substitutions.rules.match import build, could_match, matches_at
from substitutions.rules.rule import Rule


@dataclass(frozen=True, eq=False)
class Algebra:
    """The rules of a library about whole tensors, by the root operator of their left side."""

    rules: RootedRules
    reduced: ReducedAxes
    """The rules by which an operator that reduces an axis may be cut along it."""
    _fitting: Memo[object, tuple[Rule, ...]] = field(
        init=False, default_factory=Memo[object, tuple[Rule, ...]]
    )

    @staticmethod
    @lru_cache(maxsize=8)
    def of(rules: RootedRules) -> Algebra:
        """The algebra among some rules. Results are cached, as a library returns the same rules for
        graphs of one kind."""
        return Algebra(rules, ReducedAxes.of(rules))

    @remembered
    def _usable(self, name: str, rank: int) -> tuple[Rule, ...]:
        """The rules that may be applied at operators of a name whose first result has ``rank``
        axes."""
        rooted = self.rules.rooted(name, parallel=False)
        return tuple(
            rule
            for rule in rooted
            if _root_rank(rule) == rank and is_usable(rule) and not rule.free_symbols
        )

    @cached_property
    def _openings(self) -> tuple[Rule, ...]:
        """The rules that write any tensor as the concat of two parts, with the size of one part
        free."""
        return tuple(
            rule
            for rule in self.rules.rooted(None, parallel=False)
            if not rule.derived
            and [value.node.name for value in rule.right] == ["concat"]
            and len(rule.free_symbols) == 1
            and rule.is_applicable
        )

    def applications(self, node: Node, graph: Graph) -> Iterator[Applied]:
        """The applications of the rules at an operator."""
        for rule in self._fits(node):
            for match in matches_at(rule, node, graph):
                made = build(rule, match, {})
                if made is not None and made != match.outputs:
                    yield Applied(rule, match, {}, made)

    def _fits(self, node: Node) -> tuple[Rule, ...]:
        """The rules that may match at an operator, judged by its call and its operands'
        operators."""
        rank = node.types[0].rank
        operands = (None if value.node.is_leaf else value.node.name for value in node.inputs)
        key = (node.call, rank, *operands)
        rules = self._usable(node.name, rank)
        return self._fitting.get(key, lambda: tuple(r for r in rules if could_match(r, node)))

    def opened(self, node: Node) -> Iterator[Applied]:
        """The applications that split a weight which an operator reads, at the place where another
        operand of the operator is a concat."""
        for position, value in enumerate(node.inputs):
            if not _is_weight(value):
                continue
            for at in dict.fromkeys(_joints(node, position)):
                for rule in self._openings:
                    match = next(matches_at(rule, value.node, Graph((value,))), None)
                    free = dict.fromkeys(rule.free_symbols, at)
                    made = None if match is None else build(rule, match, free)
                    if match is not None and made is not None:
                        yield Applied(rule, match, free, made)


def _is_weight(value: Value) -> bool:
    """Whether a value is a weight or a part of one."""
    while value.node.name == "split":
        (value,) = value.node.inputs
    return value.node.is_weight


def _joints(node: Node, position: int) -> Iterator[int]:
    """The sizes at which an operand would be split to match the operator's other operands: the size
    of the first part of each concat of two among these, along an index that both operands have."""
    for axis in node.operator_call.typing(tuple(v.rank for v in node.inputs)).axes:
        for other, value in enumerate(node.inputs):
            shared = axis.operands[other] is not None and axis.operands[position] is not None
            if other == position or not shared or value.node.name != "concat":
                continue
            first = value.node.inputs[0].type.shape
            if first != value.type.shape:
                dim = axis.operands[other]
                assert dim is not None
                if first[dim] != value.type.shape[dim]:
                    yield first[dim]


def _root_rank(rule: Rule) -> int:
    """The axes of the first result of a rule's root."""
    return next(value.node.ranks[0] for value in rule.left if not value.node.is_leaf)


def is_usable(rule: Rule) -> bool:
    """Whether a direction of a rule can be applied, since its right side is fully determined. False
    for a rule that follows from two steps by others, for rules about slices in time, which the
    pipeline planner uses, and for those about halos."""
    if rule.derived:
        return False
    nodes = both((rule.left, rule.right)).nodes
    calls = [n.operator_call for n in nodes if not n.is_leaf]
    if any(call.name in IN_TIME or states_halo(call) for call in calls):
        return False
    return rule.is_applicable and rule.free_symbols <= _degree_symbols(rule.right)


def _degree_symbols(values: tuple[Value, ...]) -> frozenset[str]:
    """The symbols that stand for degrees of parallel operators in a side of a rule."""
    return frozenset(
        symbol
        for node in side(values).nodes
        if isinstance(node.call, Call)
        for name, value in node.call.attributes
        if name == "degree" and isinstance(value, Poly)
        for symbol in value.symbols
    )

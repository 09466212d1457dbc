"""The rules of the library that cut an operator along one of its indices, by operator."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from pcg.graph.graph import Graph, Leaf, Node, Signature, Value
from pcg.graph.pairs import side
from pcg.language.poly import Poly
from pcg.memo import Memo, remembered
from pcg.placement.schedule import trace
from pcg.types.halo import least_halo, states_halo, typing_of
from pcg.types.infer import bind_sizes
from pcg.types.parallel_operators import IN_SPACE
from search.cost.derivation import Applied, Derivation, Scribe
from search.map.rules.fully_sharded import Parting, parting
from search.map.rules.reduced import ReducedAxes, match_alone
from substitutions.rules.concrete.rooted import ListedRules, RootedRules
from substitutions.rules.match import Match, build
from substitutions.rules.rule import Rule


@dataclass(eq=False)
class Cuts:
    """The rules that turn an operator on its own into an operator on blocks, by operator."""

    rules: RootedRules = field(default_factory=ListedRules)
    parallel: frozenset[str] = IN_SPACE
    """The parallel operators that a rule may use."""
    windows: bool = False
    """Whether a dimension over which windows slide may be cut. Each block then reads a halo of its
    neighbours."""
    _known: Memo[Signature, Mapping[str, Rule]] = field(
        init=False, default_factory=Memo[Signature, Mapping[str, Rule]]
    )

    @staticmethod
    @lru_cache(maxsize=8)
    def of_rules(
        rules: RootedRules, parallel: frozenset[str] = IN_SPACE, *, windows: bool = False
    ) -> Cuts:
        """The cuts by some rules. Results are cached, as a library returns the same rules for
        graphs of one kind. So all choosers of a search share what is known of an operator."""
        return Cuts(rules, parallel, windows)

    @cached_property
    def parting(self) -> Parting:
        """The function that stores a weight in parts, for fully sharded weights."""
        return parting(self.rules)

    @remembered
    def _cutting(self, name: str) -> tuple[Rule, ...]:
        """The rules that cut the operators of a name."""
        return tuple(
            rule
            for rule in self.rules.rooted(name, parallel=True)
            if _is_cut(rule, self.parallel, windows=self.windows)
        )

    @remembered
    def _through(self, name: str) -> tuple[tuple[frozenset[int], Rule], ...]:
        """The rules that let partial sums pass through the operators of a name, with the operands
        whose partial sums pass."""
        rules = self.rules.rooted(name, parallel=True)
        return tuple((carriers, rule) for rule in rules if (carriers := _carriers(rule)))

    def of(self, node: Node) -> Mapping[str, Rule]:
        """The rules that cut a whole operator, by the index along which they cut it."""
        return self._known.get(node.signature, lambda: dict(self._of(node)))

    def carriers(self, node: Node) -> Sequence[frozenset[int]]:
        """The sets of operands whose partial sums some rule lets pass through the operator."""
        return self._carriers(node.name, tuple(value.rank for value in node.inputs))

    @remembered
    def _carriers(self, name: str, ranks: tuple[int, ...]) -> tuple[frozenset[int], ...]:
        """The same for operators of a name, with operands of these ranks."""
        return tuple(
            dict.fromkeys(
                operands
                for operands, rule in self._through(name)
                if tuple(v.rank for v in rule.left[0].node.inputs) == ranks
            )
        )

    def through(self, node: Node, carriers: Collection[int]) -> Applied | None:
        """Move the reductions of the ``carriers`` from the operands of an operator behind it. None
        if no rule does."""
        for operands, rule in self._through(node.name):
            made = applied(rule, node, 1) if operands == carriers else None
            if made is not None:
                return made
        return None

    def _of(self, node: Node) -> Iterator[tuple[str, Rule]]:
        seen: set[str] = set()
        for rule in self._cutting(node.name):
            match = match_alone(rule, node)
            tried = (_at_degree(rule, node, match, degree) for degree in (2, 3, 5, 7) if match)
            made = next((made for made in tried if made is not None), None)
            name = None if made is None else _cut_index(made.made[0])
            if name is not None and name not in seen:
                seen.add(name)
                yield name, rule


def applied(rule: Rule, node: Node, degree: int) -> Applied | None:
    """A rule applied to all outputs of an operator at a degree; None if it does not fit."""
    match = match_alone(rule, node)
    return None if match is None else _at_degree(rule, node, match, degree)


def _at_degree(rule: Rule, node: Node, match: Match, degree: int) -> Applied | None:
    free = dict.fromkeys(rule.free_symbols, degree) | dict(_halos(rule, node))
    made = build(rule, match, free)
    return None if made is None else Applied(rule, match, free, made)


def _halos(rule: Rule, node: Node) -> Iterator[tuple[str, int]]:
    """The symbols of a rule that stand for widths of halos. Each comes with the least width that
    the windows of the operator need."""
    if len(rule.free_symbols) == 1:
        return  # the only symbol is the degree: the usual case, made fast
    reads = ((n, i, v.node) for n in side(rule.right).nodes for i, v in enumerate(n.inputs))
    for reader, operand, source in reads:
        if source.is_leaf or reader.is_parallel or not states_halo(source.operator_call):
            continue
        values = source.operator_call.values
        widths = block_halo(node, operand, source.operator_call.integer("dim"))
        for name, width in zip(source.operator_call.operator.optional, widths, strict=True):
            value = values[name]
            if isinstance(value, Poly) and value.symbol is not None:
                yield value.symbol, width


def block_halo(node: Node, operand: int, dim: int) -> tuple[int, int]:
    """How far the windows of an operator read beyond their block of an operand, along a dimension,
    before and after it."""
    call, types = node.operator_call, [value.type for value in node.inputs]
    ranks = tuple(tensor.rank for tensor in types)
    sizes = bind_sizes(call, call.instance(ranks), [tensor.shape for tensor in types])
    return least_halo(call, ranks, sizes, operand, dim)


def with_unfolded(
    graph: Graph, derivation: Derivation, nodes: Collection[Node], rules: RootedRules
) -> tuple[Graph, Derivation]:
    """Replace some operators of a graph by graphs of simpler ones, where rules say so, with the
    reductions among these in blocks. ``derivation``: the steps that led to the graph. Returns the
    new graph and its derivation."""
    new: dict[Value, Value] = {}
    scribe = Scribe.after(derivation)
    reduced = ReducedAxes.of(rules)
    for node in graph.nodes:
        made = node if node.is_leaf else Node(node.call, tuple(new[v] for v in node.inputs))
        outputs = made.outputs
        scribe.rename(dict(zip(node.outputs, outputs, strict=True)))
        if node in nodes:
            simple, *others = reduced.unfolded(made) or (None,)
            if simple is not None:
                scribe.write(simple)
                outputs = simple.made
            for step in others:
                outputs = scribe.follow(Graph(outputs), step).outputs
        new.update(zip(node.outputs, outputs, strict=True))
    return Graph(tuple(new[value] for value in graph.outputs)), scribe.derivation


def _cut_index(value: Value) -> str | None:
    """The only index that is cut in the operator behind a value; None if there are several or
    none."""
    node = trace(value)[0].node
    typing = typing_of(node.operator_call, [v.type for v in node.inputs])
    cut: list[str] = []
    for axis in typing.axes:
        operand, dim = axis.first_place
        degrees = node.inputs[operand].type.degrees
        if degrees.dims[dim] * degrees.slices[dim] > 1:
            cut.append(axis.name)
    return cut[0] if len(cut) == 1 else None


def _is_cut(rule: Rule, allowed: frozenset[str], *, windows: bool) -> bool:
    """Whether a rule cuts an operator: the left side is one operator on inputs, and the right side
    is the same operator between parallel operators of the kinds ``allowed``."""
    left = {value.node for value in rule.left}
    node = rule.left[0].node
    if len(left) > 1 or node.is_leaf or node.operator_call.operator.parallel is not None:
        return False
    if not all(isinstance(value.node.call, Leaf) for value in node.inputs):
        return False
    if len(rule.left) != len(node.ranks):
        return False
    others = side(rule.right).operators
    computing = [n for n in others if not n.is_parallel]
    if len(computing) != 1 or computing[0].name != node.name or len(others) == 1:
        return False
    moves = {n.name for n in others if n.is_parallel}
    if not moves <= allowed:
        return False
    if not windows and any(states_halo(n.operator_call) for n in others):
        return False
    return bool(rule.free_symbols) and rule.is_applicable


def _carriers(rule: Rule) -> frozenset[int]:
    """The operands whose reductions a rule moves behind the operator. Empty if the rule does no
    such thing."""
    node, none = rule.left[0].node, frozenset[int]()
    if any(value.node != node for value in rule.left) or node.is_leaf or node.is_parallel:
        return none
    if any(v.node.name != "reduce" for v in rule.right):
        return none
    behind = [v.node.inputs[0] if v.node.name == "reduce" else v for v in node.inputs]
    after = side(rule.right).operators
    computing = [n for n in after if not n.is_parallel]
    if not all(v.node.is_leaf for v in behind) or [n.call for n in computing] != [node.call]:
        return none
    if {n.name for n in after if n.is_parallel} - {"reduce", "replicate"}:
        return none
    if len(rule.left) != len(node.ranks) or not rule.is_applicable or rule.free_symbols:
        return none
    return frozenset(i for i, v in enumerate(node.inputs) if v.node.name == "reduce")

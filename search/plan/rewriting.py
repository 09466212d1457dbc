"""Rewrites of a refined plan, one place at a time, with the operators near it mapped anew.

Problem: rewrites are chosen by sums of seconds, for the strategies of a mesh. In a refined plan
other rewrites pay. Where branches have devices of their own, few kernels count more, and merged
operators may no longer run side by side.

Method: tabu search over graphs (Glover, ORSA Journal on Computing 1989). Each application of a rule
about whole tensors leads to another graph. Its operators keep their mappings. A short annealing
changes the new operators and their neighbours. If some graphs are faster than the fastest so far,
their applications are made one after the other, each if it still makes the plan faster. If none is,
a longer annealing changes all operators of the best few. The search goes on from the fastest of
them, even if it is a little slower than before, and never comes back to a graph. An application
that made a step much slower is not tried again. Other graphs that are nearly as fast are returned
as well.

Complexity: most applications are tried once or twice, with some hundred states. Heuristic: rewrites
that pay only together are found if none of them costs much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple, TypeVar

from pcg.graph.graph import Graph, Node, rebuild
from pcg.graph.pairs import side
from pcg.placement.order import ordered, sources
from pcg.types.local import Axis
from search.cost.derivation import Applied, Derivation, Scribe
from search.cost.progress import check_time
from search.map.choose.choosing import Choice
from search.map.choose.spaces import Spaces
from search.map.space.mapping import MappedAxis, OperatorMapping
from search.plan.incumbent import PricedTrial
from search.refine.annealing import Annealer, Lane, Stage, Stages
from search.refine.delta import DeltaSimulator
from search.refine.moves import FINE, SINGLE
from search.refine.processes import run_in_turn
from search.substitute.algebra import Algebra
from search.substitute.rewrites import around
from substitutions.rules.concrete.rooted import RootedRules
from substitutions.rules.rule import Rule

NEAR_IT: Stages = (Stage(0.002, 0.005, "best", SINGLE),)
"""The annealing of new operators and their neighbours."""
ALL: Stages = (Stage(0.05, 0.015, "best", FINE),)
"""The annealing of all operators. A product of weights pays only once devices that would be idle
compute it, and a shorter annealing misses that."""
BEST = 8
"""The most graphs of which all operators are annealed at once."""
SLOWER = 1.03
"""The search goes on from a graph if its step takes at most this many times as long as that of the
fastest."""
NEAR = 1.01
"""Other graphs are returned if a step takes at most this many times as long."""
PROMISING = 1.03
"""An application is tried again on the next graph if the step took at most this many times as long
as before."""
OF_RULE = 12
"""The most applications of one rule that are tried at once."""
ROUNDS, PATIENCE, GROWTH = 9, 4, 1
"""The most rounds, the most of them in a row that find nothing faster, and the most operators by
which a graph is larger than the fastest."""

T = TypeVar("T")
_Key = tuple[str, tuple[str, ...]]
"""An application: the name of its rule, and the ids of the values that it replaces."""
_Application = tuple[_Key, Applied, Graph]
"""An application, with its key and the graph that it leads to."""


@dataclass(frozen=True, eq=False)
class _Neighbour:
    """A graph after one application, with the simulator of its plans, and its annealing."""

    key: _Key
    applied: Applied
    delta: DeltaSimulator
    lane: Lane

    @property
    def seconds(self) -> float:
        return self.lane.annealer.least


@dataclass(frozen=True, eq=False)
class RewrittenPlan:
    """A plan of a rewritten graph: its choice and seconds, and the derivation of the graph."""

    choice: Choice
    seconds: float
    derivation: Derivation


class _Found(NamedTuple):
    """What a rewriter found: see the fields of the same names."""

    plan: RewrittenPlan
    reached: dict[Graph, RewrittenPlan]
    is_exhausted: bool


@dataclass(eq=False)
class RefinedRewriter:
    """Rewrites the graph of a refined plan. ``trial``: of that graph; ``choice`` and ``seconds``:
    the plan; ``rules_of``: a function from a graph to the rules that match it; ``work``: as of an
    ``Annealer``."""

    trial: PricedTrial
    choice: Choice
    seconds: float
    rules_of: Callable[[Graph], RootedRules]
    work: int
    plan: RewrittenPlan = field(init=False)
    """The fastest plan so far."""
    is_exhausted: bool = field(init=False, default=False)
    """Whether the last graphs that were reached from this plan led to nothing faster. False if the
    search ended before that was known."""
    _reached: dict[Graph, RewrittenPlan] = field(
        init=False, default_factory=dict[Graph, RewrittenPlan]
    )
    """The plans from which the search went on, by graph."""
    _ratios: dict[_Key, float] = field(init=False, default_factory=dict[_Key, float])
    """Seconds of a step after each application to those before, when it was last tried."""

    def __post_init__(self) -> None:
        trial = self.trial
        self.plan = RewrittenPlan(self.choice, self.seconds, trial.before)
        self._rules = self.rules_of(trial.graph)
        self._algebra = Algebra.of(self._rules)

    @property
    def others(self) -> list[RewrittenPlan]:
        """Plans of other graphs that are nearly as fast, the fastest first. A wide annealing may
        find faster ones."""
        near = [own for own in self._reached.values() if own.seconds <= NEAR * self.plan.seconds]
        return sorted((own for own in near if own is not self.plan), key=lambda own: own.seconds)

    @property
    def result(self) -> _Found:
        return _Found(self.plan, self._reached, self.is_exhausted)

    def take_over(self, result: _Found) -> None:
        """Take over the plans of the same search in another process."""
        self.plan, self._reached, self.is_exhausted = result

    def run(self) -> None:
        """Rewrite the graph as long as that makes its plan faster now and then. After an interrupt,
        the plan is the best one until then."""
        now, waits = self.plan, 0
        for _ in range(ROUNDS):
            self._reached[now.choice.graph] = now
            best = self._best_beside(now) if waits < PATIENCE else []
            if self.trial.phases.is_over:
                return
            if not best:
                self.is_exhausted = True
                return
            now = self._together(now, best)
            waits = 0 if now.seconds < self.plan.seconds else waits + 1
            self.plan = now if waits == 0 else self.plan

    def _best_beside(self, now: RewrittenPlan) -> list[_Neighbour]:
        """The graphs after one application, the fastest first: all that are faster if one is the
        fastest so far, else only the fastest, and none if that is much slower."""
        neighbours = [self._neighbour(now, *each) for each in self._applications(now)]
        run_in_turn([one.lane for one in neighbours])
        self._ratios |= {one.key: one.seconds / now.seconds for one in neighbours}
        neighbours.sort(key=lambda one: one.seconds)
        if neighbours and neighbours[0].seconds < self.plan.seconds:
            return [one for one in neighbours if one.seconds < now.seconds]
        best = neighbours[:BEST]
        lanes = [self._lane(one.delta, one.lane.best, ALL) for one in best]
        run_in_turn(lanes)
        most = SLOWER * self.plan.seconds
        near = (replace(one, lane=lane) for one, lane in zip(best, lanes, strict=True))
        return sorted((one for one in near if one.seconds <= most), key=lambda one: one.seconds)[:1]

    def _together(self, now: RewrittenPlan, best: Sequence[_Neighbour]) -> RewrittenPlan:
        """The plan after the first application, and after each of the others that still makes it
        faster."""
        first, *others = best
        plan = self._plan(now, first)
        for other in others:
            again = self._again(plan, other.key)
            if again is not None:
                made = self._neighbour(plan, *again)
                made.lane.run()
                plan = self._plan(plan, made) if made.seconds < plan.seconds else plan
        return plan

    def _again(self, now: RewrittenPlan, key: _Key) -> _Application | None:
        """The application of a key to another graph, if it is possible there."""
        ids, (_, at) = now.derivation.ids, key
        nodes = (n for n in now.choice.graph.operators if any(ids[v] in at for v in n.outputs))
        return next((each for each in self._applied(now, nodes) if each[0] == key), None)

    def _plan(self, before: RewrittenPlan, made: _Neighbour) -> RewrittenPlan:
        scribe = Scribe.after(before.derivation)
        scribe.follow(before.choice.graph, made.applied)
        return RewrittenPlan(made.lane.best, made.seconds, scribe.derivation)

    def _applications(self, now: RewrittenPlan) -> list[_Application]:
        """The applications that are new or promising, at most one for each rule and graph."""
        by_rule: dict[Rule, dict[Graph, _Application]] = defaultdict(dict)
        for each in self._applied(now, now.choice.graph.operators):
            _, applied, made = each
            by_rule[applied.rule].setdefault(made, each)
        return [each for made in by_rule.values() for each in _some([*made.values()])]

    def _applied(self, now: RewrittenPlan, nodes: Iterable[Node]) -> Iterator[_Application]:
        """The applications at some operators that are new or promising."""
        graph, ids = now.choice.graph, now.derivation.ids
        for node in nodes:
            for applied in self._algebra.applications(node, graph):
                at = tuple(ids[value] for value in applied.match.outputs)
                key, made = (applied.rule.name, at), graph.replace(applied.replaced)
                is_slow = self._ratios.get(key, 0.0) > PROMISING
                if not (is_slow or _is_renaming(applied.rule) or self._is_other(made)):
                    yield key, applied, made

    def _is_other(self, made: Graph) -> bool:
        """Whether a graph was reached before or is too large, or other rules match it."""
        grows = len(made.operators) > len(self.plan.choice.graph.operators) + GROWTH
        return made in self._reached or grows or self.rules_of(made) is not self._rules

    def _neighbour(
        self, now: RewrittenPlan, key: _Key, applied: Applied, made: Graph
    ) -> _Neighbour:
        check_time()
        chooser, rows = self.trial.chooser, self.trial.delta.rows
        choice, fresh = carried_over(now.choice, applied, made, chooser.spaces)
        changed = around(made, fresh, 1)
        near = [node for node in made.operators if node in changed]
        given = self.trial.builder, chooser.pricing.cost, rows
        own = DeltaSimulator.of(made, *given)
        return _Neighbour(key, applied, own, self._lane(own, choice, NEAR_IT, near))

    def _lane(
        self, delta: DeltaSimulator, choice: Choice, stages: Stages, near: Sequence[Node] = ()
    ) -> Lane:
        given = self.trial.chooser, delta, lambda: self.trial.phases.is_over, self.work
        return Lane(Annealer(*given, begins=near), choice, stages)


def _is_renaming(rule: Rule) -> bool:
    """Whether a rule replaces one operator by another one, which computes the same alone."""
    made = (side(values).nodes for values in (rule.left, rule.right))
    return all(sum(not node.is_leaf for node in nodes) == 1 for nodes in made)


def _some(every: Sequence[T]) -> Sequence[T]:
    """At most ``OF_RULE`` of a list, evenly spread."""
    return every[:: -(-len(every) // OF_RULE)]


def carried_over(
    choice: Choice, applied: Applied, made: Graph, spaces: Spaces
) -> tuple[Choice, set[Node]]:
    """The choice for the graph that an application of a rule has made of its graph, and the
    operators that are new there. A new operator is mapped and issued like the one whose result it
    makes. Or else it is on the first device of a neighbour, and is issued right after what it
    reads."""
    before, replaced = choice.mappings, applied.replaced
    kept = [v for node in choice.graph.operators for v in node.outputs if v not in replaced]
    images = zip(kept, rebuild(tuple(kept), replaced), strict=True)
    there = set(made.operators)
    olds = {image.node: value.node for value, image in images if image.node in there}
    mappings = {node: before[old] for node, old in olds.items()}
    fresh = there - olds.keys()
    for old, new in replaced.items():
        if new.node in fresh and not old.node.is_leaf:
            mappings[new.node] = _like(spaces, old.node, before[old.node], new.node)
            olds[new.node] = old.node
    for node in made.operators:
        if node not in mappings:
            beside = around(made, {node}, 1) & mappings.keys()
            mappings[node] = OperatorMapping(min((mappings[n].start for n in beside), default=0))
    order = _order(choice.order, made, olds) if choice.order else ()
    mapped = {node: mappings[node] for node in made.operators}
    return Choice(made, dict.fromkeys(mapped, ()), inf, mappings=mapped, order=order), fresh


def _order(before: Sequence[Node], made: Graph, olds: Mapping[Node, Node]) -> tuple[Node, ...]:
    """The order of issue of a rewritten graph. ``before``: that of the graph before; ``olds``: the
    operator there in whose place one is."""
    at = {node: float(number) for number, node in enumerate(before)}
    places: dict[Node, float] = {}
    for node in made.operators:
        old = olds.get(node)
        after = max((places[maker] for maker in sources(node)), default=0.0)
        places[node] = after if old is None else at[old]
    return ordered(made, places)


def _like(spaces: Spaces, old: Node, mapping: OperatorMapping, new: Node) -> OperatorMapping:
    """The mapping of an operator along the axes of the same names as those of another one; on one
    device if it lacks one of them, or does not fit."""
    made = by_names(mapping, spaces.of(old).axes, spaces.of(new).axes)
    if made is None or not all(
        axis.place < 0 or spaces.fits(new, axis.place, axis.degree) for axis in made.axes
    ):
        return OperatorMapping(mapping.start)
    return made


def by_names(
    mapping: OperatorMapping, old: Sequence[Axis], new: Sequence[Axis]
) -> OperatorMapping | None:
    """A mapping in terms of other axes of the same names. None if one is missing there."""
    places = {axis.name: place for place, axis in enumerate(new)}
    made: list[MappedAxis] = []
    for axis in mapping.axes:
        place = axis.place if axis.place < 0 else places.get(old[axis.place].name)
        if place is None:
            return None
        made.append(axis._replace(place=place))
    return OperatorMapping(mapping.start, tuple(made))

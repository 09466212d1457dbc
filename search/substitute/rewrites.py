"""Algebraic rewrites, judged by the strategies that are best after them.

Problem: find rewrites of a graph, by rules of the library, after which its best strategies take
less time. A rewrite is judged after parallelization, not before. This makes the optimization joint
(Unity, OSDI 2022, sections 2 and 6.4).

Method: cost-ordered backtracking (``search.substitute.backtrack``) over groups of rewrites. Places
that look alike and are cut alike form one group, and the rewrite is tried at one of them. The
operators near it choose their strategies anew; those further away keep theirs. The gain at this
place, times the number of places, is the estimate for the rewrite at all of them. The price is that
of the whole graph, with all strategies chosen again. Groups with a small gain each are also made
all at once.

A gain is stored by what its place looks like, so that after a rewrite only places near it are tried
again. The gain of the whole is in terms of the sum that ``choosing`` minimizes. Estimates are no
bounds. So no proof excludes that another graph is faster, and the number of rewrites that were left
is reported.

Some rules want a weight in parts where a model has it whole. Such a weight, or a part of it that an
earlier rewrite has made, is first *opened*: by the rule that a tensor is the concat of its parts,
if the other operand is a concat of just these. An operator that reduces an axis, such as a loss, is
opened if the axis may then be cut (``search.map.rules.reduced``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from pcg.graph.graph import Graph, Node, rebuild, topological
from search.choices import RewriteSettings
from search.cost.derivation import Derivation
from search.cost.progress import check_time
from search.cost.survey import NearestRewrite, RewriteSurvey
from search.map.choose.choosing import Choice, Chooser
from search.map.space.allow import Allowed, everything
from search.split.blocks import blocks_of
from search.split.excerpt import Excerpt
from search.substitute.algebra import Algebra
from search.substitute.backtrack import BacktrackLimits, RewriteCandidate, backtrack
from search.substitute.places import GroupKey, Rewritten, Steps, made_everywhere, rewrites_at

LEAST_GAIN = 2e-3
"""The least gain for which a rewrite is made, as a fraction of the seconds of a step."""
LARGE, LEAST_OF_LARGE = 500, 5e-3
"""``LARGE``: the number of operators above which a graph counts as large. ``LEAST_OF_LARGE``: the
least gain of all its rewrites together, since the result takes long to plan."""
TRIES, ONE_DEVICE_TRIES = 160, 32
"""The number of groups of rewrites that are tried, on the machine and on one device."""
PATIENCE, LEAST_PATIENCE = 400, 2
"""The search ends after graphs without a gain that have ``PATIENCE`` operators together, but not
before ``LEAST_PATIENCE`` such graphs. One is enough if graphs are large."""
DEPTH = 3
"""The distance up to which the operands of two places are compared to see if they look alike."""


@dataclass(frozen=True)
class Limits(RewriteSettings):
    """The limits of a search for rewrites. ``tries``: the number of groups of rewrites that are
    tried; ``together``: whether groups with small gains are also made at once; ``least``: the least
    gain of all rewrites together, as a fraction of a step; ``is_over``: whether to stop with the
    best graph so far; ``tell``: called with the survey of a graph's rewrites in the end."""

    tries: int = TRIES
    together: bool = True
    least: float = LEAST_GAIN
    is_over: Callable[[], bool] = lambda: False
    tell: Callable[[RewriteSurvey], None] = lambda survey: None


@dataclass(frozen=True, eq=False)
class RewrittenGroup:
    """Rewrites that were made at all places of their groups at once. ``choice``: the strategies of
    the graph before; ``keys``: those of the groups."""

    choice: Choice
    keys: tuple[GroupKey, ...]


@dataclass(frozen=True, eq=False)
class _State:
    """A graph with its best strategies, its derivation, and the rewrites that led to it."""

    choice: Choice
    derivation: Derivation
    made: tuple[RewrittenGroup, ...] = ()


@dataclass(frozen=True, eq=False)
class Group:
    """A rewrite and the places where it may be made. ``reduces``: whether a reduction may be cut
    along its axis after it."""

    key: GroupKey
    places: Sequence[Node]
    reduces: bool


@dataclass(frozen=True, eq=False)
class _GroupGain:
    """The estimated gain of a rewrite at all places of a group: ``gain`` seconds a place, at
    ``count`` places of the whole graph. ``is_one``: whether it is one rule with no free symbol, so
    that it can be made at once with others."""

    key: GroupKey
    places: Sequence[Node]
    count: int
    gain: float
    is_one: bool

    @property
    def seconds(self) -> float:
        return self.gain * self.count


def all_strategies(graph: Graph) -> Allowed:
    """Allow all strategies of a graph."""
    return everything


@dataclass
class Rewriter:
    """Rewrites graphs for one machine. ``allowed``: a function from a graph to the strategies that
    may be used."""

    chooser: Chooser
    algebra: Algebra
    limits: Limits = Limits()
    allowed: Callable[[Graph], Allowed] = all_strategies
    tried: int = field(init=False, default=0)
    survey: RewriteSurvey = field(init=False, default_factory=RewriteSurvey)
    """The survey of the rewrites of the latest graph. It counts as left the candidates within the
    threshold that were not made, and the groups whose gain was not computed."""
    made: tuple[RewrittenGroup, ...] = field(init=False, default=())
    """The rewrites that led to the best graph, in order."""
    _gains: dict[GroupKey, float] = field(init=False, default_factory=dict[GroupKey, float])
    """Seconds that a rewrite saves at one place, by the key of its group."""
    _listed: dict[object, list[tuple[GroupKey, bool]]] = field(
        init=False, default_factory=dict[object, list[tuple[GroupKey, bool]]]
    )
    """The rewrites of a place, by what it looks like, each with ``Group.reduces``."""
    _passed: set[GroupKey] = field(init=False, default_factory=set[GroupKey])
    """The groups whose gain was not computed."""
    _known: set[Graph] = field(init=False, default_factory=set[Graph])
    _first: list[Group] | None = field(init=False, default=None)
    """The groups of the latest graph, before rewrites."""
    _texts: dict[GroupKey, tuple[str, ...]] = field(
        init=False, default_factory=dict[GroupKey, tuple[str, ...]]
    )
    """The rules of each rewrite whose gain is known, as text."""

    def improved(
        self, graph: Graph, derivation: Derivation, choice: Choice | None = None
    ) -> Rewritten | None:
        """Return the graph with rewrites that make it faster; None if there are none. ``choice``:
        its best strategies, if they are known."""
        start = _State(choice or self._chosen(graph), derivation)
        self._known, self._passed, self._first = {graph}, set(), None
        least = 1 if is_large(graph) else LEAST_PATIENCE
        patience = max(least, PATIENCE // max(1, len(graph.operators)))
        limits = self.limits
        extent = BacktrackLimits(limits.threshold, patience, LEAST_GAIN, limits.is_over)
        reached = backtrack(start, lambda state: state.choice.seconds, self._candidates, extent)
        best, left = reached.best, reached.left + len(self._passed)
        self.survey = self._surveyed(start, left)
        limits.tell(self.survey)
        self.made = best.made
        gains = best.choice.seconds <= (1 - limits.least) * start.choice.seconds
        return (best.choice.graph, best.derivation) if gains and best is not start else None

    def _surveyed(self, start: _State, left: int) -> RewriteSurvey:
        """The survey of the rewrites of a graph. Rewrites of rewritten graphs don't count as
        matched."""
        groups = self._first or []
        times = self.chooser.times(start.choice.graph)
        gains = (
            NearestRewrite(
                self._texts[group.key],
                count := sum(times.get(node, 1) for node in group.places),
                self._gains[group.key] * count / start.choice.seconds,
            )
            for group in groups
            if group.key in self._texts
        )
        nearest = max(gains, key=lambda rewrite: rewrite.gain, default=None)
        return RewriteSurvey(len(groups), left, nearest)

    def _candidates(self, state: _State) -> Iterator[RewriteCandidate[_State]]:
        """The candidates: each group of rewrites, and all groups with a gain at once."""
        promises = list(self._promises(state.choice))
        for promise in promises:
            yield self._candidate(state, (promise,))
        gaining = [promise for promise in promises if promise.seconds > 0 and promise.is_one]
        gaining.sort(key=lambda promise: -promise.seconds / len(promise.places))
        if self.limits.together and len(gaining) > 1:
            yield self._candidate(state, tuple(gaining))

    def _candidate(
        self, state: _State, promises: tuple[_GroupGain, ...]
    ) -> RewriteCandidate[_State]:
        seconds = state.choice.seconds - sum(promise.seconds for promise in promises)
        return RewriteCandidate(seconds, lambda: self._rewritten(state, promises))

    def _promises(self, choice: Choice) -> Iterator[_GroupGain]:
        times = self.chooser.times(choice.graph)
        groups = sorted(self.groups(choice), key=lambda group: not group.reduces)
        if self._first is None:
            self._first = groups
        for group in groups:
            check_time()
            gain = self._gains.get(group.key)
            if gain is None:
                is_late = self.tried >= self.limits.tries and not group.reduces
                if is_late or self.limits.is_over():
                    self._passed.add(group.key)
                    continue
                gain = self._gains[group.key] = self.gain(choice, group)
            count = sum(times.get(node, 1) for node in group.places)
            is_one = len(group.key.rules) == 1 and not group.reduces
            yield _GroupGain(group.key, group.places, count, gain, is_one)

    def _rewritten(self, state: _State, promises: tuple[_GroupGain, ...]) -> _State | None:
        """Make all rewrites of some groups, and choose strategies again. None if the graph is known
        or has lost its blocks."""
        choice = state.choice
        groups = [(promise.key, promise.places) for promise in promises]
        graph, after = made_everywhere(self.algebra, choice.graph, state.derivation, groups)
        if graph in self._known:
            return None
        self._known.add(graph)
        if self.chooser.times(choice.graph) and blocks_of(graph) is None:
            return None
        again = self._chosen(graph)
        if len(promises) == 1:
            (promise,) = promises
            self._gains[promise.key] = (choice.seconds - again.seconds) / promise.count
        group = RewrittenGroup(choice, tuple(promise.key for promise in promises))
        return _State(again, after, (*state.made, group))

    def _chosen(self, graph: Graph) -> Choice:
        return self.chooser.choose(graph, allowed=self.allowed(graph))

    # -- what may be rewritten ----------------------------------------------------------------

    def groups(self, choice: Choice) -> Iterator[Group]:
        """The rewrites of a graph, each with all places that look alike."""
        graph = choice.graph
        looks = _looks(choice)
        alike: dict[object, list[Node]] = defaultdict(list)
        for node in graph.operators:
            alike[looks[node]].append(node)
        for look, nodes in alike.items():
            check_time()
            if look not in self._listed:
                rewrites = enumerate(rewrites_at(self.algebra, nodes[0], graph))
                self._listed[look] = [
                    (
                        GroupKey(look, number, tuple(step.rule.name for step in steps)),
                        _reduces(steps),
                    )
                    for number, steps in rewrites
                ]
            for key, reduces in self._listed[look]:
                yield Group(key, nodes, reduces)

    @staticmethod
    def everywhere(
        algebra: Algebra, choice: Choice, derivation: Derivation, keys: Sequence[GroupKey]
    ) -> Rewritten:
        """Make the rewrites of the groups with the given keys at all their places in the graph of a
        choice."""
        looks = _looks(choice)
        groups = [
            (key, [node for node in choice.graph.operators if looks[node] == key.look])
            for key in keys
        ]
        return made_everywhere(algebra, choice.graph, derivation, groups)

    # -- what a rewrite gains -----------------------------------------------------------------

    def gain(self, choice: Choice, group: Group) -> float:
        """Seconds that a rewrite saves at the first place of its group, if operators near it choose
        their strategies anew. 0 if this place does not have the rewrite after all."""
        self.tried += not group.reduces
        whole, reach = choice.graph, self.limits.reach
        rewrites = rewrites_at(self.algebra, group.places[0], whole)
        steps = next(islice(rewrites, group.key.number, None), ())
        if tuple(step.rule.name for step in steps) != group.key.rules:
            return 0.0
        self._texts[group.key] = tuple(step.rule.text for step in steps)
        excerpt = Excerpt.of(whole, around(whole, _touched(whole, steps), reach + 1))
        strategies = {image: choice.strategies[node] for node, image in excerpt.images.items()}
        first = graph = excerpt.graph
        kept = {value: value for node in first.nodes for value in node.outputs}
        ends = excerpt.ends
        for step in steps:
            replaced = excerpt.replaced(step)
            graph, ends = graph.replace(replaced), rebuild(ends, replaced)
            held = [(old, value) for old, value in kept.items() if value not in replaced]
            images = rebuild(tuple(value for _, value in held), replaced)
            kept = {old: image for (old, _), image in zip(held, images, strict=True)}
        before = {old.node: new.node for old, new in kept.items()}
        after = {new: old for old, new in before.items()}
        there = set(graph.nodes)
        gone = {n for n in first.nodes if before.get(n) not in there and not n.is_leaf}
        fresh = {n for n in graph.nodes if n not in after and not n.is_leaf}
        near = around(first, gone, reach) - gone
        near |= {after[n] for n in around(graph, fresh, reach) if n in after} - gone
        ring = around(first, near | gone, 1) - gone - near
        fixed = {node: strategies[node] for node in ring}
        among = near | gone | ring
        old = self.chooser.choose(first, among=among, fixed=fixed, ends=excerpt.ends)
        fixed = {before[node]: strategy for node, strategy in fixed.items()}
        among = {before[node] for node in near | ring} | fresh
        new = self.chooser.choose(graph, among=among, fixed=fixed, ends=ends)
        return old.seconds - new.seconds


def least_gain(graph: Graph) -> float:
    """The least gain for which rewrites of a graph are planned, as a fraction of a step."""
    return LEAST_OF_LARGE if is_large(graph) else LEAST_GAIN


def is_large(graph: Graph) -> bool:
    """Whether it takes long to plan a graph."""
    return len(graph.operators) > LARGE


def _reduces(steps: Steps) -> bool:
    """Whether steps let a reduction be cut along its axis. A graph has few such rewrites, most
    often at its end. They are tried first, and do not count towards the limit of tries."""
    return bool(steps[-1].free)  # the blocks of the axis; other rewrites leave nothing to choose


def _touched(graph: Graph, steps: Steps) -> set[Node]:
    """The operators that steps replace, fully or partly, and the readers of the replaced values."""
    touched: set[Node] = set()
    for step in steps:
        stop = set(step.match.values.values())
        touched.update(topological((v.node for v in step.match.outputs), stop))
        touched.update(u for v in step.match.outputs for u in graph.users.get(v.node, ()))
    return {node for node in touched if node in graph.users and not node.is_leaf}


def around(graph: Graph, nodes: set[Node], distance: int) -> set[Node]:
    """The operators at most ``distance`` away from some operators in either direction, these
    included."""
    near = set(nodes)
    for _ in range(distance):
        near |= {v.node for n in near for v in n.inputs if not v.node.is_leaf} | {
            user for n in near for user in graph.users.get(n, ())
        }
    return near


def _looks(choice: Choice) -> dict[Node, object]:
    """A key for what each operator looks like: itself, its operands up to ``DEPTH`` operators back,
    its readers, and the strategies of all these. Of layers that are alike but cut differently, some
    may gain by a rewrite and others not."""
    graph = choice.graph
    looks: dict[Node, object] = {}
    for node in graph.nodes:
        call = node.leaf.kind if node.is_leaf else node.operator_call
        looks[node] = hash((call, tuple(node.types), choice.strategies.get(node)))
    for _ in range(DEPTH):
        looks = {
            node: hash((looks[node], tuple((looks[v.node], v.port) for v in node.inputs)))
            for node in graph.nodes
        }
    return {
        node: (looks[node], tuple(sorted(hash(looks[user]) for user in graph.users[node])))
        for node in graph.nodes
    }

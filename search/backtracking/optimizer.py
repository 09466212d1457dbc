"""The three levels of the search, from a graph and a machine to a plan (Unity, section 5).

The graph is split at post-dominators; each part is searched by backtracking for every way in which
the tensors before and after it may be cut, priced by the best machine views; dynamic programming
along the chain of parts picks the cuts. How much of a part's exchange of gradients is hidden by the
backward pass of the parts before it only the whole tells: so the chain is asked several times, with
more or less of it counted. The best of the stitched graphs is searched once more as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import TypeVar

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph, Value
from pcg.machine import Machine
from pcg.placement.schedule import Schedule, schedule
from pcg.plan.plan import Plan
from pcg.plan.training import Training
from search.backtracking.backtrack import BacktrackResult, Observer, RewriteSpace, backtrack
from search.backtracking.mapping import Mapped, Mapper
from search.backtracking.split import GraphPart, parts, renamed, shape_key
from search.backtracking.stitch import Leg, stitch
from search.cost import planned
from search.cost.cost import SGD, CostModel
from search.cost.derivation import Derivation, Scribe
from search.cost.efficiency import Speed
from search.cost.memory import peak_memory
from search.cost.progress import Phases, Teller
from search.mesh.plan.building import Cut
from search.mesh.plan.finish import does_not_fit, finished, memory_limit
from search.substitute.applications import Allow, Keys, Option, Rewrites, anything, is_usable
from substitutions.rules.rule import Rule
from substitutions.rules.store import Library

T = TypeVar("T")

_ENDS: tuple[planned.Stop, ...] = "interrupted", "time", "budget", "exhausted"
"""Why the searches of parts ended; the first of these is why the whole did."""
SYNC_COUNTED = (1.0, 0.5, 0.0)
"""How much of the exchange of gradients at the end of a part counts."""
NO_FIT = 1e9
"""Seconds, more than a step takes: what a plan that needs all memory of a device and no more would
count as, if it did not fit. So what does not fit is never preferred, and of that what needs less
is."""


@dataclass(frozen=True)
class Settings:
    """How far to search. ``part``: least operators of a part; ``threshold``: see backtracking;
    ``growth``: operators that a part may gain; ``budget``: candidates for a part, and for the
    whole at the end; ``seconds``: time for all; ``seed``: of the order of graphs of equal cost."""

    part: int = 2
    threshold: float = 1.05
    growth: int = 1
    budget: int = 2_000
    final_budget: int = 500
    seconds: float = 600.0
    training: Training = SGD
    seed: int | None = None


@dataclass(frozen=True)
class BacktrackingReport:
    """What the search did: parts, different parts and ways to enter them, candidates priced, how
    often a price was known from before, why it stopped, and seconds, in all and by phase."""

    parts: int
    distinct_parts: int
    candidates: int
    known: int
    stop: planned.Stop
    seconds: float
    phases: Mapping[str, float]


@dataclass(frozen=True)
class Optimized:
    plan: Plan
    report: BacktrackingReport


@dataclass
class Optimizer:
    """Searches graphs for one machine with one library; remembers what it learnt."""

    machine: Machine
    library: Library
    settings: Settings = field(default_factory=Settings)
    observe: Observer | None = None
    """Told every candidate with its cost, for study."""
    teller: Teller = field(default_factory=Teller)
    allow: Allow = anything
    """Which operators, as they are cut, plans may have, for study."""
    speed: Speed | None = None
    """How fast devices are; by default as the curves that come with Unity say."""

    def __post_init__(self) -> None:
        self._cost = CostModel(self.machine, self.settings.training, self.speed)
        self._mapper = Mapper(self.machine, self._cost)
        self._rules: tuple[Rule, ...] = ()
        self._rewrites = Rewrites((), self.machine.devices, self.allow)
        self._keys = Keys()
        self._prices: dict[int, tuple[float, float]] = {}
        """Of graphs of parts (``_in_two``)."""
        self._whole_prices: dict[int, float] = {}
        self._solved: dict[tuple[str, str | None, float], BacktrackResult] = {}
        self._spaces: dict[str, RewriteSpace] = {}
        self._phases = Phases()
        self._priced = self._known = 0
        self._stops: set[planned.Stop] = set()
        self._deadline = inf

    def optimize(self, name: str, graph: Graph) -> Optimized:
        """The fastest plan found for a model. Raises NegativeAnswer where none fits."""
        start = perf_counter()
        self._deadline = start + self.settings.seconds
        self._phases, self._priced, self._known, self._stops = Phases(), 0, 0, set()
        graph.check()
        self._phases.timed("rules", lambda: self._use_rules(graph))
        self._price_whole(graph)
        pieces = parts(graph, self.settings.part, self._rewrites.spans(graph))
        best, derivation = self._stitched(graph, pieces)
        self.teller.works_on("the whole")
        space = RewriteSpace(best, self._rewrites, self._keys, self.settings.growth)
        final = self._backtrack(space, self._price_whole, self.settings.final_budget)
        tidy, shortened = self._rewrites.tidied(final.graph)
        mapped = self._mapper.best(tidy)
        if mapped is None:
            raise NegativeAnswer(f"{name} does not fit {self.machine.name}")
        steps = schedule(tidy, mapped.views)
        memory, limit = self._memory(steps), memory_limit(self.machine, mapped.views)
        if memory > limit:
            raise does_not_fit(name, self.machine, memory - limit)
        scribe = Scribe.after(derivation)
        for step in (*final.applied, *shortened):
            best = scribe.follow(best, step)
        cut = Cut(tidy, mapped.views, tuple(scribe.steps))
        rules, seconds = self.library.hash, mapped.seconds
        plan = finished(name, graph, cut, steps, self._cost, rules, seconds=seconds, memory=memory)
        return Optimized(plan, self._report(len(pieces), perf_counter() - start))

    def planned(self, name: str, graph: Graph) -> planned.Planned:
        """What ``optimize`` finds, reported as all planners do."""
        found = self.optimize(name, graph)
        did = found.report
        report = planned.SearchReport(
            did.candidates, did.candidates, did.stop, did.phases, did.known
        )
        return planned.Planned(found.plan, report, did.seconds)

    def _use_rules(self, graph: Graph) -> None:
        """Take the rules that concern a graph; what was learnt with others is forgotten."""
        rules = self.library.concrete(graph, is_usable)
        if rules is not self._rules:
            self._rules = rules
            self._rewrites = Rewrites(rules, self.machine.devices, self.allow)
            self._solved.clear()
            self._spaces.clear()

    def _report(self, pieces: int, seconds: float) -> BacktrackingReport:
        stop = min(self._stops, key=_ENDS.index)
        phases = self._phases.seconds
        # What is neither of the others goes to rules that are applied.
        phases["rewriting"] = max(0.0, seconds - sum(phases.values()))
        return BacktrackingReport(
            pieces, len(self._spaces), self._priced, self._known, stop, seconds, phases
        )

    def _once(
        self, known: dict[int, T], graph: Graph, price: Callable[[Graph, Mapped | None], T]
    ) -> T:
        """The price of a graph with its best views, which is remembered in ``known``."""
        key = self._keys.of(graph)
        if key in known:
            self._known += 1
            return known[key]
        self._priced += 1
        mapped = self._phases.timed("pricing", lambda: self._mapper.best(graph))
        return known.setdefault(key, price(graph, mapped))

    def _price(self, graph: Graph, counted: float) -> float:
        """The price of a graph of a part. ``counted``: see ``SYNC_COUNTED``."""
        rest, sync = self._once(self._prices, graph, self._in_two)
        return rest + counted * sync

    def _price_whole(self, graph: Graph) -> float:
        """The price of a graph of the whole model, which has to fit (``NO_FIT``)."""
        return self._once(self._whole_prices, graph, self._fitting)

    def _in_two(self, graph: Graph, mapped: Mapped | None) -> tuple[float, float]:
        """Seconds without the exchange of gradients at the end, and these."""
        self.teller.priced()
        return (inf, 0.0) if mapped is None else (mapped.seconds - mapped.sync, mapped.sync)

    def _fitting(self, graph: Graph, mapped: Mapped | None) -> float:
        """Seconds of a step, or what stands for a plan that does not fit."""
        seconds = inf if mapped is None else self._where_it_fits(graph, mapped)
        self.teller.priced(seconds if seconds < NO_FIT else inf)
        return seconds

    def _where_it_fits(self, graph: Graph, mapped: Mapped) -> float:
        memory = self._memory(schedule(graph, mapped.views))
        limit = memory_limit(self.machine, mapped.views)
        return mapped.seconds if memory <= limit else NO_FIT * memory / limit

    def _memory(self, steps: Schedule) -> int:
        """Bytes on the fullest device."""
        return peak_memory(steps, self._cost.training).total

    def _backtrack(
        self, space: RewriteSpace, price: Callable[[Graph], float], budget: int
    ) -> BacktrackResult:
        found = backtrack(
            space,
            price,
            threshold=self.settings.threshold,
            budget=budget,
            deadline=self._deadline,
            observe=self.observe,
            seed=self.settings.seed,
        )
        self._stops.add(found.stop)
        if found.stop == "interrupted":
            self._deadline = -inf
        return found

    def _stitched(self, graph: Graph, pieces: Sequence[GraphPart]) -> tuple[Graph, Derivation]:
        """The fastest graph that is stitched of the best of its parts, and how it was derived."""
        best, derivation = graph, Derivation.start(graph)
        for counted in SYNC_COUNTED:
            stitched, steps = stitch(graph, self._chain(graph, pieces, counted))
            if self._price_whole(stitched) < self._price_whole(best):
                best, derivation = stitched, steps
            if perf_counter() >= self._deadline:
                break
        return best, derivation

    def _chain(self, graph: Graph, pieces: Sequence[GraphPart], counted: float) -> Sequence[Leg]:
        """Dynamic programming over how tensors cross from part to part."""
        enter: list[Option | None] = [None]
        costs = {0: 0.0}
        trails: dict[int, list[Leg]] = {0: []}
        for number, part in enumerate(pieces):
            self.teller.works_on(f"part {number + 1} of {len(pieces)}")
            leave = self._ways(part.after, graph)
            new_costs: dict[int, float] = {}
            new_trails: dict[int, list[Leg]] = {}
            for j, out in enumerate(leave):
                for i, cost in costs.items():
                    leg = self._solve(part, enter[i], out, counted)
                    if cost + leg.found.seconds < new_costs.get(j, inf):
                        new_costs[j] = cost + leg.found.seconds
                        new_trails[j] = [*trails[i], leg]
            costs, trails, enter = new_costs, new_trails, leave
        return trails[min(costs, key=lambda i: costs[i])] if costs else []

    def _ways(self, value: Value | None, graph: Graph) -> list[Option | None]:
        """How a tensor may cross from part to part. What the graph returns is left whole: it is
        read outside of the parts."""
        if value is None:
            return [None]
        options = self._rewrites.options(value)
        return [*(options[:1] if value in graph.outputs else options)]

    def _solve(
        self, part: GraphPart, enter: Option | None, leave: Option | None, counted: float
    ) -> Leg:
        """The best of a part; parts that differ only in names are solved once."""
        whole = Option(part.after.type, (), (), ()) if part.after is not None else None
        start = part.graph(enter, whole)
        shape, names = shape_key(start)
        key = (shape, None if leave is None else str(leave.type), counted)
        if key not in self._solved:
            space = self._spaces.get(shape)
            if space is None:
                named = renamed(start, names)
                space = RewriteSpace(named, self._rewrites, self._keys, self.settings.growth)
                self._spaces[shape] = space

            def price(graph: Graph) -> float:
                return self._price(_leaving(graph, leave), counted)

            self._solved[key] = self._backtrack(space, price, self.settings.budget)
        return Leg(part, enter, leave, names, self._solved[key])


def _leaving(graph: Graph, leave: Option | None) -> Graph:
    """The graph of a part with what crosses, its last output, cut."""
    if leave is None or not leave.parts:
        return graph
    return Graph((*graph.outputs[:-1], leave.cut(graph.outputs[-1])))

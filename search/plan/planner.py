"""The planner over strategies: the fastest plan of a model that fits the memory of its machine.

Problem: choose a variant of the model's graph, a strategy for every operator, and whether weights
are fully sharded and results recomputed, so that a simulated step takes least time and every device
has the memory.

Method: for each variant and each family of strategies, choices that are fastest with overlap
(``overlap``); where these do not fit, choices in which memory has a price (``fitting``). The same
on fewer devices, as long as that is faster. A variant whose bound is slower than the best plan so
far is left out. What a rewrite makes of a large graph is planned by those families that came near
the best plan of that graph. Of a deep model, plans of another kind are asked for (``rival``) as
soon as data parallelism was tried, and what does not promise to be faster than these is left out.

Every candidate is simulated, and its memory is counted; what is tried is a heuristic selection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import inf

from pcg.collection import seldom_collected
from pcg.errors import InputError, one_of
from pcg.graph.graph import Graph
from pcg.machine import Machine
from pcg.placement.schedule import Schedule, schedule
from pcg.plan.plan import Plan
from pcg.plan.training import Training
from search.choices import THRESHOLD, IndexRole, Mode, Recompute
from search.cost.cost import SGD, CostModel
from search.cost.efficiency import Speed
from search.cost.planned import NoPlanInTime, Outdone, Planned, Stop
from search.cost.progress import OutOfTime, Phases, Teller, now
from search.cost.unroll import NotAlike
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.cuts import Cuts
from search.map.rules.fully_sharded import PlacedGraph
from search.map.space.allow import Allowed, along, both, everything
from search.map.space.axes import Mesh
from search.plan.families import PLANNERS, TURNED, Family, Strategies, cuts_windows
from search.plan.fewer_devices import PartOfMachine, begun_at, fewer, of_each_kind
from search.plan.finish import does_not_fit, finished
from search.plan.fitting import Fitting
from search.plan.incumbent import PricedPlans, PricedTrial, SearchState
from search.plan.judging import Judge
from search.plan.refining import move_once, refine
from search.refine.overlap import Simulated, Trial
from search.split.blocks import Folded, folded
from search.substitute.rewrites import Limits, least_gain
from search.substitute.variants import Variant, of_whole, on_whole, rewritten, variants
from substitutions.rules.store import Library

_Kept = tuple[int, int, bool, bool, int]
"""What a chooser is kept for: its first device and how many they are, whether it cuts windows,
whether mesh axes are turned, and the identity of its rules, which the library keeps."""

Rival = Callable[[str, Graph, float], float]
"""Seconds of a step of the best plan of another kind for a graph of some name, if that takes less
than so many; else anything longer."""


@dataclass
class MeshPlanner:
    """Plans by one family of strategies on one machine; the fastest that fits its memory."""

    machine: Machine
    library: Library
    family: str = "joint"
    seconds: float = 600.0
    training: Training = SGD
    speed: Speed | None = None
    """How fast devices are; by default as the curves that come with Unity say."""
    mode: Mode = Mode.JOINT
    dimensions: frozenset[IndexRole] | None = None
    """What may be cut; everything by default."""
    teller: Teller = field(default_factory=Teller)
    recompute: Recompute = Recompute.AUTO
    """What may be recomputed in the backward pass."""
    threshold: float = THRESHOLD
    """So many times as slow as the best a graph may be and still be rewritten."""
    rival: Rival | None = None
    """Asked for deep models."""
    _phases: Phases = field(init=False, default_factory=Phases)
    _choosers: dict[_Kept, Chooser] = field(init=False, default_factory=dict[_Kept, Chooser])
    _short: Folded = field(init=False)
    """What is searched."""
    _variants_of: dict[Graph, Variant] = field(init=False, default_factory=dict[Graph, Variant])
    """How each graph that is tried came about."""

    def __post_init__(self) -> None:
        one_of("planner", self.family, PLANNERS)
        joint = self.family == "joint" and self.mode is not Mode.ALGEBRA
        if not (joint or self._cuts_data):
            what = self.family if self.family != "joint" else self.mode
            raise InputError(f"planner {what}", "cuts along data, which is not allowed")

    @seldom_collected()
    def plan(self, name: str, graph: Graph) -> Planned:
        start = now()
        graph.check()
        self.teller.works_on("rules", "split")
        self._phases = Phases.of(start, self.seconds, len(graph.operators), self.teller)
        short = folded(graph)
        if short is not None:
            try:
                return self._planned(name, graph, short, start)
            except NotAlike:
                self._phases.has_plan, self._phases.deadline = False, start + self.seconds
        return self._planned(name, graph, Folded(graph, 0), start)

    def _planned(self, name: str, graph: Graph, short: Folded, start: float) -> Planned:
        """The plan of a graph that another stands for. Raises NotAlike where that turns out to be
        unlike it."""
        self._short, self._choosers, self._variants_of = short, {}, {}
        search = SearchState()
        stop = self._searched(name, graph, search)
        priced, self._phases.deadline = search.priced, inf
        if not priced:
            raise NoPlanInTime(name, self.seconds)
        known = sum(chooser.pricing.known for chooser in self._choosers.values())
        report = search.report(stop, self._phases.seconds, known)
        data_parallel = min((c.seconds for c in search.data_parallel), default=None)
        if not any(c.fits for c in priced):
            if search.rival < inf:
                raise Outdone(name, report, data_parallel)
            over = min(c.memory - c.limit for c in priced)
            raise does_not_fit(name, self.machine, over, stop)
        plan = self._finished(name, graph, search)
        return Planned(plan, report, now() - start, data_parallel)

    def _finished(self, name: str, graph: Graph, search: SearchState) -> Plan:
        """The plan of the fastest choice that fits; where few blocks stood for the whole, of the
        fastest that is the same there and fits there too. Raises NotAlike where there is none."""
        short, cost = self._short, self._cost(self.machine)
        fitting = sorted((c for c in search.priced if c.fits), key=lambda c: c.seconds)
        for best in fitting:
            trial = search.priced[best]
            choice, before = best.choice, trial.before
            if short.more:
                variant = of_whole(self._variants_of[trial.graph], graph, short.more, self.library)
                whole = None if variant is None else on_whole(choice, variant.graph, short.more)
                if variant is None or whole is None:
                    continue
                choice, before = whole, variant.derivation
            cut = begun_at(search.firsts.get(trial, 0), trial.builder.cut(choice, before))
            steps = schedule(cut.graph, cut.views)
            if short.more:
                few = trial.builder.cut(best.choice, trial.before)
                few = begun_at(search.firsts.get(trial, 0), few)
                remade = self._judge(short.more).again(best, few, steps, cost)
                if remade is None or not remade.fits:
                    continue
                best = remade
            return finished(
                name,
                graph,
                cut,
                steps,
                cost,
                self.library.hash,
                seconds=best.seconds,
                memory=best.memory,
                recompute=best.recompute,
                short=short,
            )
        raise NotAlike

    def _judge(self, more: int) -> Judge:
        return Judge(self._phases, more, self._short.more > 0, self.recompute)

    def _searched(self, name: str, graph: Graph, search: SearchState) -> Stop:
        """Look for plans until all is tried or time is up, or somebody interrupts: which it was."""
        try:
            with self._phases.under_way():
                self._on_all_devices(self._short.graph, search, partial(self._asked, name, graph))
                if self.family == "joint" and self.mode is not Mode.ALGEBRA:
                    self._on_fewer_devices(search)
                    move_once(search, lambda own: self._masked(own, everything))
                    if not self._short.more and self.dimensions is None:
                        refine(graph, search, self.machine, self.teller)
        except OutOfTime:
            return "time"
        except KeyboardInterrupt:
            if search.known == inf:
                raise
            return "interrupted"
        return "exhausted"

    def _asked(self, name: str, graph: Graph, known: float) -> float:
        """Seconds of the rival's plan, where one is asked for."""
        if self.rival is None or not self._short.more:
            return inf
        self._forget()
        return self.rival(name, graph, known)

    def _on_all_devices(
        self, graph: Graph, search: SearchState, rival: Callable[[float], float]
    ) -> None:
        """Try the graph, and what rewrites make of it before and after it is cut. ``rival``:
        seconds of the best plan of another kind, by those of the best plan so far."""
        cost = self._cost(self.machine)
        graphs = self._variants(graph, search)
        trials = [self._trial(variant, cost, search) for variant in islice(graphs, 1)]
        if self.family == "joint" and self.mode is Mode.JOINT and self._cuts_data:
            # So that there is a plan early: the first graph is the model's, and needs no rewriting.
            (data,) = PLANNERS["data-parallel"](trials[0].graph, trials[0].chooser)
            self._fitting(trials[0], data).tries(0.0)
        search.rival = rival(search.known)
        rest = self._phases.timed("rewriting", lambda: list(graphs))
        trials += [self._trial(variant, cost, search) for variant in rest]
        for trial in trials if len(trials) == 1 else sorted(trials, key=lambda one: one.at_best):
            self._try(trial, search)
        if not search.fastest:
            raise NotAlike  # no plan came out alike in all blocks
        if self.mode is Mode.JOINT and self.family == "joint":
            base = search.base
            again = self._phases.timed("rewriting", lambda: self._rewritten(base, search))
            if again is not None:
                better = self._trial(again, cost, search)
                search.came_of[better] = base
                self._try(better, search)
        self._with_axes_turned(search)

    def _with_axes_turned(self, search: SearchState) -> None:
        """Try all graphs with the mesh axes within a node in the other order, if there is one; but
        for those that were not planned without, and large ones that were faster once rewritten."""
        is_other = Mesh(self.machine).primes != Mesh(self.machine, turned=True).primes
        if self.family not in TURNED or self.mode is Mode.ALGEBRA or not is_other:
            return
        for trial in tuple(search.trials):
            if trial not in search.fastest or search.is_outdone(trial):
                continue
            variant = self._variants_of[trial.graph]
            turned = self._trial(variant, trial.chooser.pricing.cost, search, turned=True)
            self._try(turned, search, TURNED)

    def _on_fewer_devices(self, search: SearchState) -> None:
        """Try all graphs on the first devices alone, and on those of each kind."""
        base, is_mixed = search.base, len(self.machine.kinds) > 1
        variants = [self._variants_of[one.graph] for one in search.trials]
        # Of a small graph most is the latency of kernels; of several kinds nobody knows the work.
        work = 0.0 if base.is_small or is_mixed else base.least_work()
        self._narrowed(PartOfMachine(0, self.machine), variants, work, search)
        for part in of_each_kind(self.machine):
            self._on_part(part, variants, search)
            self._narrowed(part, variants, work, search)

    def _narrowed(
        self, part: PartOfMachine, variants: list[Variant], work: float, search: SearchState
    ) -> None:
        """Try all graphs on the first devices of a part, and on fewer yet where that is faster:
        what does not divide by 3 is cut by 2, and little work is soon done by few. Not where the
        work alone, spread over them, would take longer than the plan that is known. What does not
        fit all fits fewer no better."""
        best = part
        while search.known < inf:
            whole, known = best, search.known
            for devices in fewer(whole.machine):
                if work / devices > known:
                    break
                some = part._replace(machine=part.machine.with_devices(devices))
                self._on_part(some, variants, search)
                if search.known < known:
                    best, known = some, search.known
            if best is whole:
                return

    def _forget(self) -> None:
        """Let the tables of numbers of devices go, which take much memory."""
        for chooser in self._choosers.values():
            chooser.forget()

    def _on_part(self, part: PartOfMachine, variants: list[Variant], search: SearchState) -> None:
        """Try all graphs on a part of the machine alone."""
        self._forget()
        for variant in variants:
            cost = self._cost(part.machine)
            self._try(self._trial(variant, cost, search, first=part.first), search)

    def _cost(self, machine: Machine) -> CostModel:
        return CostModel(machine, self.training, self.speed)

    def _try(
        self, trial: PricedTrial, search: SearchState, families: Mapping[str, Family] = PLANNERS
    ) -> None:
        """Try all strategies of the family on one graph."""
        if families is PLANNERS:
            search.trials.append(trial)
        if search.fastest and search.rules_out(trial):
            return
        family = "data-parallel" if self.mode is Mode.ALGEBRA else self.family
        for allowed in families[family](trial.graph, trial.chooser):
            if allowed.last and search.saves_nothing():
                continue
            if not search.is_near(trial, allowed.key):
                continue
            settled = allowed.by_hand or (search.rival < inf and trial in search.fastest)
            if settled and trial.promised(allowed.mask) > search.known:
                continue
            self.teller.works_on(allowed.name, "map", lambda: trial.busy_bound)
            if allowed.data_parallel and not self._cuts_data:
                search.data_parallel += self._to_compare(trial, allowed)
                continue
            made = list(self._fitting(trial, allowed).plans(search))
            if allowed.data_parallel and trial.chooser.pricing.cost.machine == self.machine:
                search.data_parallel += made[:1]
            if made:
                search.tried(trial, allowed.key, min(candidate.seconds for candidate in made))

    def _fitting(self, trial: PricedTrial, allowed: Strategies) -> Fitting:
        mask = self._masked(trial.graph, allowed.mask)
        return Fitting(trial, allowed, mask, self._short.more > 0)

    @property
    def _cuts_data(self) -> bool:
        return self.dimensions is None or IndexRole.DATA in self.dimensions

    def _to_compare(self, trial: PricedTrial, allowed: Strategies) -> PricedPlans:
        """What strategies come to that may not be used themselves, on all devices."""
        if trial.chooser.pricing.cost.machine != self.machine:
            return ()

        def judge(made: Simulated) -> PricedPlans:
            return tuple(self._judge(self._short.more).judged(trial.chooser, made, 0.0))

        apart = replace(trial, judge=judge)
        try:
            return next(apart.choices(0.0, allowed.mask, brief=True)).judged[:1]
        except NotAlike:
            return ()

    def _masked(self, graph: Graph, mask: Allowed) -> Allowed:
        """What a family may use, of the dimensions that are allowed."""
        return mask if self.dimensions is None else both(mask, along(graph, self.dimensions))

    def _chooser(self, graph: Graph, cost: CostModel, turned: bool, first: int) -> Chooser:
        """The chooser for a graph; graphs of the same rules share what it learns."""
        windows = cuts_windows(graph, cost.machine.devices, self.dimensions)
        rules = self.library.concrete(graph)
        key = first, cost.machine.devices, windows, turned, id(rules)
        if key not in self._choosers:
            cuts, more = Cuts(rules, windows=windows), self._short.more
            self._choosers[key] = Chooser.on(cost, cuts, turned=turned, more=more)
        return self._choosers[key]

    def _trial(
        self,
        variant: Variant,
        cost: CostModel,
        search: SearchState,
        *,
        turned: bool = False,
        first: int = 0,
    ) -> PricedTrial:
        """``first``: the number of the device that is the first of those of the cost model."""
        of = variant.graph, cost, turned, first
        chooser = self._phases.timed("rules", lambda: self._chooser(*of))

        def judge(made: Simulated) -> PricedPlans:
            plans = tuple(self._judge(self._short.more).judged(chooser, made, search.known))
            if self.family == "zero" and not made.choice.fully_sharded:
                return plans  # on the way to fully sharded weights, and none of what was asked for
            search.priced |= dict.fromkeys(plans, trial)
            self._phases.has_plan = True
            self.teller.priced(min((c.seconds for c in plans if c.fits), default=inf))
            return plans

        self._variants_of[variant.graph] = variant

        def unfit(choice: Choice, cut: PlacedGraph, steps: Schedule) -> PricedPlans | None:
            plans = self._judge(self._short.more).unfit(chooser, choice, cut, steps)
            search.priced |= dict.fromkeys(plans or (), trial)
            return plans

        early = unfit if self._short.more else None
        trial = Trial(chooser, variant.graph, variant.derivation, judge, self._phases, early)
        if first:
            search.firsts[trial] = first
        if variant.is_rewritten:
            search.rewritten.add(trial)
        return trial

    def _variants(self, graph: Graph, search: SearchState) -> Iterator[Variant]:
        one = self._cost(self.machine.with_devices(1))
        mode = self.mode if self.family == "joint" else Mode.PARALLEL
        alone = Chooser.on(one, Cuts(()), more=self._short.more)
        self.teller.works_on("rewriting", "substitute")
        return variants(graph, self.library, mode, alone, self._limits(search))

    def _rewritten(self, base: PricedTrial, search: SearchState) -> Variant | None:
        self.teller.works_on("rewriting as it is cut", "substitute")
        limits = replace(self._limits(search), least=least_gain(base.graph))
        return rewritten(self._variants_of[base.graph], self.library, base.chooser, limits)

    def _limits(self, search: SearchState) -> Limits:
        return Limits(self.threshold, is_over=lambda: self._phases.is_over, tell=search.surveyed)

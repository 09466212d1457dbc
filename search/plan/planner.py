"""The planner over strategies: the fastest plan of a model that fits the memory of its machine.

Problem: choose a variant of the model's graph, a strategy for every operator, and whether weights
are fully sharded and results recomputed, so that a simulated step takes least time and all devices
have enough memory.

Method: for each variant and each family of strategies, find the choices that are fastest with
overlap (``overlap``). If these do not fit, find choices with a price of memory (``fitting``). Do
the same on fewer devices, as long as that is faster. A variant whose bound is slower than the best
plan so far is left out. The rewritten form of a large graph is planned only with families that came
near the best plan of that graph. A plan of another kind is asked for (``rival``): for a deep model
once data parallelism was tried, for others once all graphs were tried on all devices. Strategies
whose bound is not below that plan are left out, unless plans are refined later. Each candidate is
simulated and its memory counted. The selection of candidates is a heuristic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from typing import NamedTuple

from pcg.collection import seldom_collected
from pcg.errors import InputError, one_of
from pcg.graph.graph import Graph
from pcg.machine import Machine
from pcg.placement.schedule import Schedule
from pcg.plan.training import Training
from search.choices import USUAL_REWRITES, IndexRole, Mode, Recompute, RewriteSettings
from search.cost.cost import SGD, CostModel
from search.cost.derivation import Derivation
from search.cost.efficiency import Speed
from search.cost.planned import NoFasterPlan, NoPlanInTime, Planned, Stop
from search.cost.progress import OutOfTime, Phases, Teller, now
from search.cost.unroll import NotAlike
from search.map.building import Builder
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.cuts import Cuts
from search.map.rules.fully_sharded import PlacedGraph
from search.map.space.axes import Mesh
from search.plan.complete import Completion
from search.plan.families import EVERY, PLANNERS, TURNED, Family, cuts_windows
from search.plan.family_tries import FamilyTries, cuts_data
from search.plan.fewer_devices import PartOfMachine, of_each_kind, try_fewer
from search.plan.finish import does_not_fit
from search.plan.incumbent import PricedPlans, PricedTrial, SearchState
from search.plan.judging import Judge
from search.plan.recomputing import recompute_less
from search.plan.refining import Rewriting, may_refine, move_once, refine
from search.plan.reordering import reordered
from search.plan.rival import RivalPlans, RivalQuestion
from search.plan.tight import refine_to_fit
from search.refine.overlap import Trial
from search.refine.pieces import OperatorPieces
from search.refine.rows import TableRows
from search.refine.tried import SimulatedChoice
from search.split.blocks import Folded, folded
from search.substitute.rewrites import Limits, is_large, least_gain
from search.substitute.variants import Variant, rewritten, variants
from substitutions.rules.store import Library

NEAR_KNOWN = 1.1
"""A large graph is looked at further on a part of the machine if its first plans there take at most
this many times as long as the fastest plan so far. Further settings gain some percent."""

_Key = tuple[int, int, bool, bool, int]
"""What graphs have in common if they share anything: the first device, the number of devices,
whether windows are cut, whether the mesh is turned, and the identity of their rules, which the
library keeps alive."""


class _Shared(NamedTuple):
    """What graphs with the same rules share: the chooser, and what is known of their plans."""

    chooser: Chooser
    rows: TableRows


@dataclass
class MeshPlanner:
    """Finds the fastest plan that fits a machine, among the strategies of one family."""

    machine: Machine
    library: Library
    family: str = "joint"
    seconds: float = 600.0
    training: Training = SGD
    speed: Speed | None = None
    """The speed of devices; by default by the efficiency curves that come with Unity."""
    mode: Mode = Mode.JOINT
    dimensions: frozenset[IndexRole] | None = None
    """The roles of indices that may be cut; all by default."""
    teller: Teller = field(default_factory=Teller)
    recompute: Recompute = Recompute.AUTO
    """Which tensors may be recomputed in the backward pass."""
    rewrites: RewriteSettings = USUAL_REWRITES
    """How far the search for rewrites goes."""
    rival: RivalPlans | None = None
    _phases: Phases = field(init=False, default_factory=Phases)
    _by_rules: dict[_Key, _Shared] = field(init=False, default_factory=dict[_Key, _Shared])
    _short: Folded = field(init=False)
    """The graph that is searched."""
    _variants_of: dict[Graph, Variant] = field(init=False, default_factory=dict[Graph, Variant])
    """The variant of each graph that is tried."""
    _tries: FamilyTries = field(init=False)

    def __post_init__(self) -> None:
        one_of("planner", self.family, PLANNERS)
        joint = self.family == "joint" and self.mode is not Mode.ALGEBRA
        if not (joint or cuts_data(self.dimensions)):
            what = self.family if self.family != "joint" else self.mode
            raise InputError(f"planner {what}", "cuts along data, expected data in --allow")

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
        """The plan of ``graph``, found with ``short`` in its place. Raises NotAlike if the two
        turn out to differ in more than the number of blocks."""
        self._short, self._by_rules, self._variants_of = short, {}, {}
        given = self.machine, self.dimensions, self._judge(short.more), short.more > 0, self.teller
        self._tries = FamilyTries(*given)
        search = SearchState()
        stop = self._searched(name, graph, search)
        is_early = stop != "exhausted" or self._phases.is_over
        priced = search.priced
        if not priced:
            raise NoPlanInTime(name, self.seconds)
        known = sum(own.chooser.pricing.known for own in self._by_rules.values())
        report = search.report(stop, self._phases.seconds, known)
        if not any(c.fits for c in priced):
            if search.rival < inf:
                raise NoFasterPlan(name, report, search.data_parallel_step)
            over = min(c.memory - c.limit for c in priced)
            raise does_not_fit(name, self.machine, over, stop)
        if search.rival < min(c.seconds for c in priced if c.fits):
            raise NoFasterPlan(name, report, search.data_parallel_step)
        given = graph, short, self.library, self._cost(self.machine), self._judge(short.more)
        completion = Completion(*given, self._variants_of, is_early)
        plan = self._phases.completed(lambda: completion.plan(name, search))
        return Planned(plan, report, now() - start, search.data_parallel_step)

    def _judge(self, more: int) -> Judge:
        return Judge(self._phases, more, self._short.more > 0, self.recompute)

    def _searched(self, name: str, graph: Graph, search: SearchState) -> Stop:
        """Search until all is tried, time is up, or the user interrupts. Returns which it was."""
        try:
            with self._phases.under_way():
                with self._reordered(search):
                    self._try_choices(name, graph, search)
                recompute_less(search, self._judge(self._short.more), self.teller)
        except OutOfTime:
            return "time"
        except KeyboardInterrupt:
            if search.known == inf:
                raise
            return "interrupted"
        return "exhausted"

    def _reordered(self, search: SearchState) -> AbstractContextManager[None]:
        """Improve orders of issue in the end. A refined plan has one already."""
        if self._short.more or not self._is_whole:
            return nullcontext()
        return reordered(search, self.teller, self._phases, reserves=not may_refine(self.machine))

    @property
    def _is_whole(self) -> bool:
        """Whether other devices and orders are tried than those of a family, or of algebra."""
        return self.family == "joint" and self.mode is not Mode.ALGEBRA

    def _try_choices(self, name: str, graph: Graph, search: SearchState) -> None:
        """Try choices of strategies for all graphs and devices, and refine the fastest plans."""
        brief = not self._short.more and may_refine(self.machine)
        asking = RivalQuestion(self.rival, name, graph, search, brief, self._forget)
        self._on_all_devices(self._short.graph, search, asking)
        if not self._is_whole:
            return
        self._on_fewer_devices(search)
        if not search.is_far_behind:
            move_once(search, self._tries.allowed)
        if not self._short.more and self.dimensions is None:
            refine(graph, search, self.machine, self.teller, self._rewriting(search))
            refine_to_fit(graph, search, self.machine, self.teller)

    def _on_all_devices(self, graph: Graph, search: SearchState, asking: RivalQuestion) -> None:
        """Try the graph, and its rewritten forms before and after it is cut. The rival of a deep
        model, whose plans take long to find, is asked for after the first one. Others begin then.
        """
        cost = self._cost(self.machine)
        rewrites = self.family == "joint" and self.mode is Mode.JOINT
        graphs = self._variants(graph, search)
        trials = [self._trial(variant, cost, search) for variant in islice(graphs, 1)]
        if rewrites and cuts_data(self.dimensions):
            # A first plan is found early: the first graph is the model's, without rewrites.
            (data,) = PLANNERS["data-parallel"](trials[0].graph, trials[0].chooser)
            self._tries.first_look(trials[0], data)
        if self._short.more:
            asking.ask()
        else:
            asking.begin()
        rest = self._phases.timed("rewriting", lambda: list(graphs))
        trials += [self._trial(variant, cost, search) for variant in rest]
        for trial in trials if len(trials) == 1 else sorted(trials, key=lambda one: one.at_best):
            self._try(trial, search, at_first=rewrites)
        if not search.fastest:
            raise NotAlike  # no plan came out alike in all blocks
        if rewrites and not search.is_far_behind:
            base = search.base
            self._tries.look_further(base, search)
            again = self._phases.timed("rewriting", lambda: self._rewritten(base, search))
            if again is not None:
                better = self._trial(again, cost, search)
                search.rewritten_from[better] = base
                self._try(better, search)
        self._with_axes_turned(search)
        if not self._short.more:
            asking.ask()

    def _with_axes_turned(self, search: SearchState) -> None:
        """Try all graphs with the mesh axes within a node in reverse order, if that is another
        mesh. Graphs without a plan are left out, and large ones that were faster once rewritten."""
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
        fastest_first = sorted(search.trials, key=lambda one: search.fastest.get(one, inf))
        variants = [self._variants_of[one.graph] for one in fastest_first]
        # A small graph spends most time on kernels' latency; for several kinds no bound is known.
        work = 0.0 if base.is_small or is_mixed else base.least_work()

        def attempt(part: PartOfMachine) -> float:
            self._on_part(part, variants, search)
            return search.known

        try_fewer(PartOfMachine(0, self.machine), work, search.known, attempt)
        for part in of_each_kind(self.machine):
            try_fewer(part, work, attempt(part), attempt)

    def _forget(self) -> None:
        """Drop the tables of all choosers, which take much memory."""
        for own in self._by_rules.values():
            own.chooser.forget()

    def _on_part(self, part: PartOfMachine, variants: list[Variant], search: SearchState) -> None:
        """Try all graphs on a part of the machine alone. Once the first plans of a large one are
        far from the fastest plan so far, other large ones are left out."""
        self._forget()
        is_far = False
        for variant in variants:
            is_big = is_large(variant.graph)
            if is_far and is_big:
                continue
            trial = self._trial(variant, self._cost(part.machine), search, first=part.first)
            self._try(trial, search, at_first=True)
            if search.fastest.get(trial, inf) <= NEAR_KNOWN * search.known:
                self._tries.look_further(trial, search)
            else:
                is_far |= is_big

    def _cost(self, machine: Machine) -> CostModel:
        return CostModel(machine, self.training, self.speed)

    def _try(
        self,
        trial: PricedTrial,
        search: SearchState,
        families: Mapping[str, Family] = PLANNERS,
        *,
        at_first: bool = False,
    ) -> None:
        """Try all strategies of the family on one graph. ``at_first``: whether a first look at all
        strategies of a large graph is enough for now. A deep one has few blocks to plan."""
        if families is PLANNERS:  # those of a turned mesh are few: what each promises is enough
            search.trials.append(trial)
            if search.fastest and search.rules_out(trial):
                return
        family = "data-parallel" if self.mode is Mode.ALGEBRA else self.family
        of_graph = families[family](trial.graph, trial.chooser)
        puts_off = at_first and not self._short.more and is_large(trial.graph)
        self._tries.try_all(trial, of_graph, search, at_first=puts_off)

    def _shared(self, graph: Graph, cost: CostModel, turned: bool, first: int) -> _Shared:
        """What a graph shares with others that have the same rules."""
        windows = cuts_windows(graph, cost.machine.devices, self.dimensions)
        rules = self.library.concrete(graph)
        key = first, cost.machine.devices, windows, turned, id(rules)
        if key not in self._by_rules:
            cuts, more = Cuts.of_rules(rules, windows=windows), self._short.more
            chooser = Chooser.on(cost, cuts, turned=turned, more=more)
            rows = TableRows(OperatorPieces(Builder(chooser.spaces), cost))
            self._by_rules[key] = _Shared(chooser, rows)
        return self._by_rules[key]

    def _trial(
        self,
        variant: Variant,
        cost: CostModel,
        search: SearchState,
        *,
        turned: bool = False,
        first: int = 0,
    ) -> PricedTrial:
        """A trial of a variant. ``first``: the number of the cost model's first device."""
        of = variant.graph, cost, turned, first
        chooser, rows = self._phases.timed("rules", lambda: self._shared(*of))

        def judge(made: SimulatedChoice) -> PricedPlans:
            plans = tuple(self._judge(self._short.more).judged(chooser, made, search.known))
            if self.family == "zero" and not made.choice.fully_sharded:
                return plans  # a step towards fully sharded weights, but not what was asked for
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
        of_graph = chooser, variant.graph, variant.derivation, judge
        trial = Trial(*of_graph, self._phases, early, rows)
        if first:
            search.firsts[trial] = first
        if variant.is_rewritten:
            search.rewritten.add(trial)
        return trial

    def _variants(self, graph: Graph, search: SearchState) -> Iterator[Variant]:
        one = self._cost(self.machine.with_devices(1))
        mode = self.mode if self.family == "joint" else Mode.PARALLEL
        alone = Chooser.on(one, Cuts(), more=self._short.more)
        self.teller.works_on("rewriting", "substitute")
        return variants(graph, self.library, mode, alone, self._limits(search))

    def _rewritten(self, base: PricedTrial, search: SearchState) -> Variant | None:
        self.teller.works_on("rewriting as it is cut", "substitute")
        limits = replace(self._limits(search), least=least_gain(base.graph))
        tries, variant = self._tries, self._variants_of[base.graph]
        given = variant, self.library, base.chooser, limits, tries.allowed
        return rewritten(*given, base.counted(tries.fitting(base, EVERY).mask))

    def _rewriting(self, search: SearchState) -> Rewriting | None:
        """How a refined graph is rewritten; None if the mode has no such rewrites."""
        if self.mode is not Mode.JOINT:
            return None

        def trial_of(graph: Graph, derivation: Derivation) -> PricedTrial:
            return self._trial(Variant(graph, derivation), self._cost(self.machine), search)

        return Rewriting(self.library.concrete, trial_of)

    def _limits(self, search: SearchState) -> Limits:
        far, is_over = self.rewrites, lambda: self._phases.is_over
        return Limits(far.threshold, far.reach, is_over=is_over, tell=search.surveyed)

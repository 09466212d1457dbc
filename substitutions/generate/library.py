"""The offline generator: from operator definitions to a library of proved rules.

The library is a function of the operator definitions alone. Nothing is written here, so an existing
library stays intact until the new one is complete.

1. *typings*: the parallel type of every operator is proved, since every rule about it rests on it.
2. *enumeration*: candidates around one operator and among parallel operators (``cuts``,
   ``chains``), algebraic ones (``algebra``) and decompositions (``decompose``), each part
   independently.
3. *proofs*: candidates are generalised and proved, the most general first. An instance of a proved
   rule needs no proof.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import perf_counter
from typing import TypeVar

from pcg.budget import Budget
from pcg.collection import uncollected
from pcg.errors import NegativeAnswer
from pcg.ops.stand_ins import STAND_INS
from pcg.types.operator import Operator
from substitutions.generate.algebra.algebra import algebra
from substitutions.generate.algebra.enumerate import RankedCall, computing, instances
from substitutions.generate.algebra.worlds import worlds
from substitutions.generate.attempt import attempt, first_form
from substitutions.generate.cuts.chains import chain_rules
from substitutions.generate.cuts.cuts import cut_rules
from substitutions.generate.decompose.decompose import decompositions
from substitutions.generate.limits import BUDGET, MAX_OPS
from substitutions.rules.candidate import Candidate, Enumeration
from substitutions.rules.general import GeneralForm, most_general
from substitutions.rules.limited import LostItem, limited_map
from substitutions.rules.store import (
    LibraryFile,
    RuleFile,
    UndecidedFile,
    library_of,
)
from substitutions.rules.workers import parallel_map
from verifier.decide import Decision, Verdict
from verifier.trusted.proof.local import prove_typing
from verifier.typings import missing, reason_against, remember

NARROW = "proved, left out"
"""The verdict in the report on candidates that hold only where products of sizes are equal
(``attempt``)."""

PhaseProgress = Callable[[str, int, int], None]
"""A callback with the phase, the number of its items that are done, and their total number."""
T = TypeVar("T")


@dataclass(frozen=True)
class GenerationReport:
    """Statistics of a run of the generator.

    ``typings``: the typing theorems that were proved. ``graphs``: the graphs that were enumerated,
    and ``values`` their different values. ``candidates``: the pairs that may be rules; ``derived``:
    those of them that are known to follow from smaller ones in one step. ``duplicates``: the
    candidates to prove that are renamings or instances of others. ``verdicts``: the numbers of
    verdicts on the rest. ``seconds``: time by phase. ``megabytes``: an upper bound on the peak
    memory of all processes.
    """

    typings: int
    graphs: int
    values: int
    candidates: int
    duplicates: int
    verdicts: dict[str, int]
    derived: int
    seconds: dict[str, float]
    megabytes: int


@dataclass(frozen=True)
class GenerationResult:
    """The result of a run: the library of proved candidates, and the rejected candidates with the
    decisions on them."""

    library: LibraryFile
    report: GenerationReport
    rejected: tuple[tuple[Candidate, Decision], ...]


def no_progress(phase: str, done: int, total: int) -> None:
    """Report no progress."""


@uncollected()
def generate(
    operators: Sequence[Operator] | None = None,
    *,
    max_ops: int = MAX_OPS,
    jobs: int | None = None,
    derived: bool = False,
    parallel: bool = True,
    progress: PhaseProgress = no_progress,
    budget: Budget = BUDGET,
) -> GenerationResult:
    """Generate and prove the library of some compute operators, by default all.

    ``max_ops``: the most operators per side in the algebraic enumeration. ``jobs``: the number of
    worker processes, by default one per core. ``derived``: also keep rules that follow from smaller
    ones in one step. ``parallel``: if false, only the algebraic enumeration runs. ``budget``: the
    budget of one candidate. Raises NegativeAnswer if an operator's parallel type is not proved.
    """
    chosen = list(computing() if operators is None else operators)
    jobs = jobs or os.cpu_count() or 1
    clock = _Clock()
    typings = _prove_typings(chosen, jobs, progress)
    clock.lap("typings")
    tasks = _tasks(chosen, max_ops, jobs, parallel=parallel)
    done = _with_progress(
        parallel_map(_run, tasks, jobs, chunk=1), "enumeration", len(tasks), progress
    )
    parts = list(done)
    candidates = list(dict.fromkeys(c for part in parts for c in part.candidates))
    clock.lap("enumeration")
    prover = _Prover(jobs, progress, budget)
    for steps in (0, 2, 1) if derived else (0, 2):
        # Derived candidates come after the others, and only those that the others do not cover.
        prover.run([candidate for candidate in candidates if candidate.steps == steps])
    clock.lap("proofs")
    asked = [candidate for candidate in candidates if derived or candidate.steps != 1]
    report = _report(typings, parts, candidates, len(asked), prover.verdicts(), clock, jobs)
    rules = prover.proved.values()
    library = library_of(rules, max_ops=max_ops, undecided=prover.undecided())
    return GenerationResult(library, report, tuple(prover.rejected))


def _report(
    typings: int,
    parts: Sequence[Enumeration],
    candidates: Sequence[Candidate],
    asked: int,
    verdicts: dict[str, int],
    clock: _Clock,
    jobs: int,
) -> GenerationReport:
    return GenerationReport(
        typings=typings,
        graphs=sum(part.graphs for part in parts),
        values=sum(part.values for part in parts),
        candidates=len(candidates),
        duplicates=asked - sum(verdicts.values()),
        verdicts=verdicts,
        derived=sum(candidate.steps == 1 for candidate in candidates),
        seconds=clock.seconds,
        megabytes=_peak_megabytes(jobs),
    )


def _prove_typings(chosen: Sequence[Operator], jobs: int, progress: PhaseProgress) -> int:
    """Prove the parallel types of the operators at all their ranks, and return the number of
    theorems. Raises NegativeAnswer if one is not proved."""
    around = [instance for operator in chosen for instance in instances(operator)]
    counts = _with_progress(parallel_map(_typings, around, jobs), "typings", len(around), progress)
    total = sum(counts)
    for instance in around:  # All are proved, but in workers that have ended.
        remember((instance.call, instance.ranks, instance.call.typing(instance.ranks)), None)
    return total


EnumerationTask = Callable[[], Enumeration]


def _tasks(
    chosen: Sequence[Operator], max_ops: int, jobs: int, *, parallel: bool
) -> list[EnumerationTask]:
    """The parts of the enumeration, the longest first. Several workers share the longest part,
    which would otherwise end last."""
    names = frozenset(operator.name for operator in chosen)
    tasks: list[EnumerationTask] = [
        partial(algebra, world, max_ops, 1 if number else jobs)
        for number, world in enumerate(worlds(names))
    ]
    if not parallel:
        return tasks
    tasks.append(chain_rules)
    tasks += [partial(cut_rules, o) for o in (*STAND_INS.values(), *chosen)]
    return tasks + [partial(_decomposed, operator) for operator in chosen]


def _decomposed(operator: Operator) -> Enumeration:
    pairs = decompositions(operator)
    candidates = tuple(Candidate.of(pair, "decomposition") for pair in pairs)
    return Enumeration(2 * len(pairs), len(pairs), candidates)


class _Prover:
    """Proves candidates that are no instances of other candidates or of proved rules."""

    def __init__(self, jobs: int, progress: PhaseProgress, budget: Budget) -> None:
        self._jobs, self._progress, self._budget = jobs, progress, budget
        self.proved: dict[GeneralForm, RuleFile] = {}
        """The proved rules: the entry of each general form."""
        self._kept: set[GeneralForm] = set()
        self.rejected: list[tuple[Candidate, Decision]] = []

    def run(self, candidates: Sequence[Candidate]) -> None:
        known = set(self.proved)
        work = list(self._to_prove(_forms(candidates, self._jobs)).items())
        self._prove_typings_of([form for form, _ in work])
        decisions = limited_map(attempt, work, self._jobs, self._budget, chunk=1)
        for done, ((_, candidate), decided) in enumerate(zip(work, decisions, strict=True), 1):
            if isinstance(decided, LostItem):
                unknown = Decision(Verdict.UNKNOWN, str(decided.spent))
                self.rejected.append((candidate, unknown))
            elif decided.entry is None or decided.form is None:
                self.rejected.append((candidate, decided.decision))
            else:
                self._keep(decided.form, decided.entry)
            self._progress("proofs", done, len(work))
        # The form that was proved in the end may be an instance of another proved form.
        general = known.union(most_general(list(self.proved)))
        self.proved = {form: rule for form, rule in self.proved.items() if form in general}

    def verdicts(self) -> dict[str, int]:
        """The number of candidates by verdict."""
        counts = Counter(
            NARROW if decision.verdict is Verdict.PROVED else str(decision.verdict)
            for _, decision in self.rejected
        )
        counts["proved"] = len(self.proved)
        return dict(sorted(counts.items()))

    def undecided(self) -> list[UndecidedFile]:
        """The candidates that are neither proved nor refuted."""
        return [
            UndecidedFile(inputs=dict(c.inputs), left=c.left, right=c.right, reason=decision.reason)
            for c, decision in self.rejected
            if decision.verdict is Verdict.UNKNOWN
        ]

    def _prove_typings_of(self, forms: Sequence[GeneralForm]) -> None:
        """Prove the typing theorems of the forms' operators, each in one worker. Later workers
        inherit the results."""
        wanted = missing(value for form in forms for value in form.both)
        reasons = limited_map(reason_against, wanted, self._jobs, self._budget)
        for theorem, reason in zip(wanted, reasons, strict=True):
            if not isinstance(reason, LostItem):
                remember(theorem, reason)

    def _keep(self, rule: GeneralForm, entry: RuleFile) -> None:
        if rule not in self._kept:
            self._kept.add(rule)
            self.proved[rule] = entry

    def _to_prove(self, forms: Mapping[GeneralForm, Candidate]) -> dict[GeneralForm, Candidate]:
        every = most_general([*self.proved, *forms])
        return {form: forms[form] for form in every if form in forms and form not in self._kept}


def _forms(candidates: Sequence[Candidate], jobs: int) -> dict[GeneralForm, Candidate]:
    """The candidates by their most general forms, small ones first, one for each form."""
    ordered = sorted(candidates, key=lambda c: (len(c.left) + len(c.right), str(c)))
    by_form: dict[GeneralForm, Candidate] = {}
    for candidate, form in zip(ordered, parallel_map(first_form, ordered, jobs), strict=True):
        known = by_form.get(form)
        if form.left != form.right and (known is None or _rank(candidate) < _rank(known)):
            by_form[form] = candidate
    return by_form


def _rank(candidate: Candidate) -> tuple[int, int]:
    """A sort key for candidates of the same form: fewer steps first, then more axes of one
    element."""
    return candidate.steps, -len(candidate.ones)


def _run(task: EnumerationTask) -> Enumeration:
    return task()


def _peak_megabytes(jobs: int) -> int:
    """An upper bound on the peak memory of this process, its workers and their workers, in MiB: as
    if all workers held the most of any at the same time."""
    own_peak = getrusage(RUSAGE_SELF).ru_maxrss
    worker_peak = getrusage(RUSAGE_CHILDREN).ru_maxrss * 2 * jobs if jobs > 1 else 0
    return (own_peak + worker_peak) >> 10


class _Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = perf_counter()

    def lap(self, phase: str) -> None:
        """Record the seconds of the phase that ends now."""
        now = perf_counter()
        self.seconds[phase], self._last = now - self._last, now


def _with_progress(
    items: Iterable[T], phase: str, total: int, progress: PhaseProgress
) -> Iterator[T]:
    progress(phase, 0, total)
    for done, item in enumerate(items, 1):
        yield item
        progress(phase, done, total)


def _typings(instance: RankedCall) -> int:
    """Prove the typing theorems of an instance and return their number. Raises NegativeAnswer if
    one is not proved."""
    if instance.call.operator.parallel is not None:
        return 0
    theorems = prove_typing(instance.call, instance.ranks)
    for theorem in theorems:
        if theorem.proof is None:
            ranks = ", ".join(map(str, instance.ranks))
            problem = f"its parallel type is not proved: {theorem.reason}"
            raise NegativeAnswer(f"{instance.call.name} at ranks {ranks}: {problem}")
    return len(theorems)

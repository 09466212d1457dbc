"""The offline generator: from operator definitions to a library of proved rules.

Enumerate, find candidates, generalise, prove. The library is a function of the operator definitions
alone; nothing is written here, so that what was there stays whole until all is done.

1. *typings*: the parallel type of every operator is proved; no rule about it could be otherwise.
2. *enumeration*: rules around one operator and among parallel operators (``cuts``, ``chains``),
   algebraic ones (``algebra``), decompositions (``decompose``), each part on its own.
3. *proofs*, most general candidates first: what is an instance of a proved rule needs no proof.
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
from substitutions.rules.candidate import Candidate, Enumerated
from substitutions.rules.general import General, most_general
from substitutions.rules.limited import Lost, limited_map
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
"""Of candidates that hold only where products of sizes are equal (``attempt``)."""

PhaseProgress = Callable[[str, int, int], None]
"""Told the phase, how much of it is done, and how much there is."""
T = TypeVar("T")


@dataclass(frozen=True)
class GenerationReport:
    """What a run of the generator did.

    ``typings``: theorems behind parallel types that were proved. ``graphs``: enumerated, of
    ``values`` different values. ``candidates``: pairs that may be rules, of which ``derived`` are
    known to follow from smaller ones in one step; ``duplicates`` of those to be proved are
    renamings and instances of others. ``verdicts``: of the rest. ``seconds`` by phase;
    ``megabytes``: the peak of all processes.
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
class Generated:
    """A library of the proved candidates, and the others with what was decided of them."""

    library: LibraryFile
    report: GenerationReport
    rejected: tuple[tuple[Candidate, Decision], ...]


def no_progress(phase: str, done: int, total: int) -> None:
    """Say nothing."""


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
) -> Generated:
    """Generate and prove the library of some computing operators (all, by default).

    ``max_ops``: operators a side in the algebraic enumeration. ``jobs`` worker processes share the
    work (by default one a core). ``derived``: keep rules that follow from smaller ones in one step
    too. ``parallel``: without it, rules of the algebraic enumeration alone. ``budget``: for one
    candidate. Raises NegativeAnswer where an operator's parallel type is not proved.
    """
    chosen = list(computing() if operators is None else operators)
    jobs = jobs or os.cpu_count() or 1
    clock = _Clock()
    typings = _prove_typings(chosen, jobs, progress)
    clock.lap("typings")
    tasks = _tasks(chosen, max_ops, jobs, parallel=parallel)
    done = _watched(parallel_map(_run, tasks, jobs, chunk=1), "enumeration", len(tasks), progress)
    parts = list(done)
    candidates = list(dict.fromkeys(c for part in parts for c in part.candidates))
    clock.lap("enumeration")
    prover = _Prover(jobs, progress, budget)
    for steps in (0, 2, 1) if derived else (0, 2):
        # What follows from others is proved after them, and where they leave it to be proved.
        prover.run([candidate for candidate in candidates if candidate.steps == steps])
    clock.lap("proofs")
    asked = [candidate for candidate in candidates if derived or candidate.steps != 1]
    report = _report(typings, parts, candidates, len(asked), prover.verdicts(), clock, jobs)
    rules = prover.proved.values()
    library = library_of(rules, max_ops=max_ops, undecided=prover.undecided())
    return Generated(library, report, tuple(prover.rejected))


def _report(
    typings: int,
    parts: Sequence[Enumerated],
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
    """Prove the parallel types of some operators at all of their ranks; how many theorems that
    took. Raises NegativeAnswer where one is not proved."""
    around = [instance for operator in chosen for instance in instances(operator)]
    counts = _watched(parallel_map(_typings, around, jobs), "typings", len(around), progress)
    total = sum(counts)
    for instance in around:  # all are proved, by workers that have ended
        remember((instance.call, instance.ranks, instance.call.typing(instance.ranks)), None)
    return total


EnumerationTask = Callable[[], Enumerated]


def _tasks(
    chosen: Sequence[Operator], max_ops: int, jobs: int, *, parallel: bool
) -> list[EnumerationTask]:
    """The parts of the enumeration, the longest first: while others have workers of their own,
    several share that one, which would else be waited for in the end."""
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


def _decomposed(operator: Operator) -> Enumerated:
    pairs = decompositions(operator)
    candidates = tuple(Candidate.of(pair, "decomposition") for pair in pairs)
    return Enumerated(2 * len(pairs), len(pairs), candidates)


class _Prover:
    """Proves candidates that are no instances of other candidates, or of what is proved."""

    def __init__(self, jobs: int, progress: PhaseProgress, budget: Budget) -> None:
        self._jobs, self._progress, self._budget = jobs, progress, budget
        self.proved: dict[General, RuleFile] = {}
        """The rules, each as it is written."""
        self._kept: set[General] = set()
        self.rejected: list[tuple[Candidate, Decision]] = []

    def run(self, candidates: Sequence[Candidate]) -> None:
        known = set(self.proved)
        work = list(self._uncovered(_forms(candidates, self._jobs)).items())
        self._prove_typings_of([form for form, _ in work])
        decisions = limited_map(attempt, work, self._jobs, self._budget, chunk=1)
        for done, ((_, candidate), decided) in enumerate(zip(work, decisions, strict=True), 1):
            if isinstance(decided, Lost):
                unknown = Decision(Verdict.UNKNOWN, str(decided.spent))
                self.rejected.append((candidate, unknown))
            elif decided.entry is None or decided.form is None:
                self.rejected.append((candidate, decided.decision))
            else:
                self._keep(decided.form, decided.entry)
            self._progress("proofs", done, len(work))
        # Of what was proved together, the form in the end may be an instance of another's.
        general = known.union(most_general(list(self.proved)))
        self.proved = {form: rule for form, rule in self.proved.items() if form in general}

    def verdicts(self) -> dict[str, int]:
        """How many candidates came to each verdict, by what is said of it."""
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

    def _prove_typings_of(self, forms: Sequence[General]) -> None:
        """Prove what the forms' operators have to say of their blocks, each theorem by one worker;
        those that follow know of it."""
        wanted = missing(value for form in forms for value in form.both)
        reasons = limited_map(reason_against, wanted, self._jobs, self._budget)
        for theorem, reason in zip(wanted, reasons, strict=True):
            if not isinstance(reason, Lost):
                remember(theorem, reason)

    def _keep(self, rule: General, entry: RuleFile) -> None:
        if rule not in self._kept:
            self._kept.add(rule)
            self.proved[rule] = entry

    def _uncovered(self, forms: Mapping[General, Candidate]) -> dict[General, Candidate]:
        every = most_general([*self.proved, *forms])
        return {form: forms[form] for form in every if form in forms and form not in self._kept}


def _forms(candidates: Sequence[Candidate], jobs: int) -> dict[General, Candidate]:
    """Candidates by their most general forms, small ones first; equal ones once."""
    ordered = sorted(candidates, key=lambda c: (len(c.left) + len(c.right), str(c)))
    by_form: dict[General, Candidate] = {}
    for candidate, form in zip(ordered, parallel_map(first_form, ordered, jobs), strict=True):
        known = by_form.get(form)
        if form.left != form.right and (known is None or _rank(candidate) < _rank(known)):
            by_form[form] = candidate
    return by_form


def _rank(candidate: Candidate) -> tuple[int, int]:
    """Of candidates of one form, what follows in the fewest steps, and may say most of sizes."""
    return candidate.steps, -len(candidate.ones)


def _run(task: EnumerationTask) -> Enumerated:
    return task()


def _peak_megabytes(jobs: int) -> int:
    """What this process, its workers and those that share the work of one of these held at most,
    if all had the most of any at once."""
    own = getrusage(RUSAGE_SELF).ru_maxrss
    workers = getrusage(RUSAGE_CHILDREN).ru_maxrss * 2 * jobs if jobs > 1 else 0
    return (own + workers) >> 10


class _Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = perf_counter()

    def lap(self, phase: str) -> None:
        """The phase that ends here."""
        now = perf_counter()
        self.seconds[phase], self._last = now - self._last, now


def _watched(items: Iterable[T], phase: str, total: int, progress: PhaseProgress) -> Iterator[T]:
    progress(phase, 0, total)
    for done, item in enumerate(items, 1):
        yield item
        progress(phase, done, total)


def _typings(instance: RankedCall) -> int:
    """How many theorems the parallel type of an instance takes; raises unless all are proved."""
    if instance.call.operator.parallel is not None:
        return 0
    theorems = prove_typing(instance.call, instance.ranks)
    for theorem in theorems:
        if theorem.proof is None:
            ranks = ", ".join(map(str, instance.ranks))
            problem = f"its parallel type is not proved: {theorem.reason}"
            raise NegativeAnswer(f"{instance.call.name} at ranks {ranks}: {problem}")
    return len(theorems)

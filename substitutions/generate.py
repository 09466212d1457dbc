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
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import perf_counter
from typing import TypeVar

from pcg.errors import NegativeAnswer
from pcg.graph import Value
from pcg.operator import Operator
from pcg.ops.stand_ins import STAND_INS
from pcg.text import parse_values
from substitutions.algebra import algebra
from substitutions.candidate import Candidate, Enumerated
from substitutions.chains import move_rules
from substitutions.cuts import cut_rules
from substitutions.decompose import decompositions
from substitutions.enumerate import Instance, computing, instances
from substitutions.general import General, canonical, general, most_general
from substitutions.requirements import parse_requirement
from substitutions.retype import TYPES_DIFFER, retyped
from substitutions.rule import Rule, input_ranks
from substitutions.store import (
    LibraryFile,
    ProofFile,
    RuleFile,
    library_of,
    rule_file,
    stated_name,
)
from substitutions.symbols import settled, variants
from substitutions.workers import parallel_map
from substitutions.worlds import worlds
from verifier.decide import Decision, Verdict, decide
from verifier.trusted.local import prove_typing
from verifier.trusted.runs import free_runs

MAX_OPS = 3
Pair = tuple[tuple[Value, ...], tuple[Value, ...]]

Progress = Callable[[str, int, int], None]
"""Told the phase, how much of it is done, and how much there is."""
T = TypeVar("T")


@dataclass(frozen=True)
class Report:
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
    report: Report
    rejected: tuple[tuple[Candidate, Decision], ...]


@dataclass(frozen=True)
class Proved:
    """A rule, and as it is written."""

    rule: General
    entry: RuleFile


def no_progress(phase: str, done: int, total: int) -> None:
    """Say nothing."""


def generate(
    operators: Sequence[Operator] | None = None,
    *,
    max_ops: int = MAX_OPS,
    jobs: int | None = None,
    derived: bool = False,
    parallel: bool = True,
    progress: Progress = no_progress,
) -> Generated:
    """Generate and prove the library of some computing operators (all, by default).

    ``max_ops``: operators a side in the algebraic enumeration. ``jobs`` worker processes share the
    work (by default one a core). ``derived``: keep rules that follow from smaller ones in one step
    too. ``parallel``: without it, rules of the algebraic enumeration alone. Raises NegativeAnswer
    where an operator's parallel type is not proved.
    """
    chosen = list(computing() if operators is None else operators)
    jobs = jobs or os.cpu_count() or 1
    clock = _Clock()
    around = [instance for operator in chosen for instance in instances(operator)]
    typings = sum(_watched(parallel_map(_typings, around, jobs), "typings", len(around), progress))
    clock.lap("typings")
    tasks = _tasks(chosen, max_ops, jobs, parallel=parallel)
    found_parts = parallel_map(_run, tasks, jobs, chunk=1)
    parts = list(_watched(found_parts, "enumeration", len(tasks), progress))
    found = dict.fromkeys(candidate for part in parts for candidate in part.candidates)
    clock.lap("enumeration")
    prover = _Prover(jobs, progress)
    for steps in (0, 2, 1) if derived else (0, 2):
        # What follows from others is proved after them, and where they leave it to be proved.
        prover.run([candidate for candidate in found if candidate.steps == steps])
    clock.lap("proofs")
    counts = Counter(str(decision.verdict) for _, decision in prover.rejected)
    counts["proved"] = len(prover.proved)
    follow = sum(candidate.steps == 1 for candidate in found)
    asked = len(found) if derived else len(found) - follow
    report = Report(
        typings,
        sum(part.graphs for part in parts),
        sum(part.values for part in parts),
        len(found),
        asked - sum(counts.values()),
        dict(sorted(counts.items())),
        follow,
        clock.seconds,
        _peak_megabytes(jobs),
    )
    library = library_of([p.entry for p in prover.proved], max_ops=max_ops)
    return Generated(library, report, tuple(prover.rejected))


Task = Callable[[], Enumerated]


def _tasks(chosen: Sequence[Operator], max_ops: int, jobs: int, *, parallel: bool) -> list[Task]:
    """The parts of the enumeration, the longest first: while others have workers of their own,
    several share that one, which would else be waited for in the end."""
    names = frozenset(operator.name for operator in chosen)
    found: list[Task] = [
        partial(algebra, world, max_ops, 1 if number else jobs)
        for number, world in enumerate(worlds(names))
    ]
    if not parallel:
        return found
    found.append(move_rules)
    found += [partial(cut_rules, o) for o in (*STAND_INS.values(), *chosen)]
    return found + [partial(_decomposed, operator) for operator in chosen]


def _decomposed(operator: Operator) -> Enumerated:
    pairs = [(found.left, found.right) for found in decompositions(operator)]
    candidates = tuple(Candidate.of(pair, "decomposition") for pair in pairs)
    return Enumerated(2 * len(pairs), len(pairs), candidates)


class _Prover:
    """Proves candidates in rounds: those that are no instance of another first; what is no
    instance of a proved rule is a candidate of the next round."""

    def __init__(self, jobs: int, progress: Progress) -> None:
        self._jobs, self._progress = jobs, progress
        self.proved: list[Proved] = []
        self._kept: set[General] = set()
        self.rejected: list[tuple[Candidate, Decision]] = []

    def run(self, candidates: Sequence[Candidate]) -> None:
        known, done = len(self.proved), 0
        forms = self._uncovered(_forms(candidates, self._jobs))
        while forms:
            work = [(form, forms.pop(form)) for form in most_general(list(forms))]
            decisions = parallel_map(_decide, work, self._jobs)
            for (_, candidate), decided in zip(work, decisions, strict=True):
                if decided.entry is None:
                    self.rejected.append((candidate, decided.decision))
                else:
                    self._keep(decided.entry)
                done += 1
                self._progress("proofs", done, done + len(forms))
            forms = self._uncovered(forms)
        # Of what was proved together, the form in the end may be an instance of another's.
        general = set(most_general([p.rule for p in self.proved]))
        self.proved[known:] = [p for p in self.proved[known:] if p.rule in general]

    def _keep(self, entry: RuleFile) -> None:
        left, right = (parse_values(side, entry.inputs) for side in (entry.left, entry.right))
        rule = General(left, right, free_runs(left, right), entry.requires)
        if rule not in self._kept:
            self._kept.add(rule)
            self.proved.append(Proved(rule, entry))

    def _uncovered(self, forms: Mapping[General, Candidate]) -> dict[General, Candidate]:
        rules = [p.rule for p in self.proved]
        every = most_general([*rules, *forms])
        return {form: forms[form] for form in every if form in forms and form not in self._kept}


def _forms(candidates: Sequence[Candidate], jobs: int) -> dict[General, Candidate]:
    """Candidates by their most general forms, small ones first; equal ones once."""
    ordered = sorted(candidates, key=lambda c: (len(c.left) + len(c.right), str(c)))
    found: dict[General, Candidate] = {}
    for candidate, text in zip(ordered, parallel_map(_form_text, ordered, jobs), strict=True):
        pair = text.parse()
        form = General(*pair, free_runs(*pair))
        known = found.get(form)
        if form.left != form.right and (known is None or _rank(candidate) < _rank(known)):
            found[form] = candidate
    return found


def _rank(candidate: Candidate) -> tuple[int, int]:
    """Of candidates of one form, what follows in the fewest steps, and may say most of sizes."""
    return candidate.steps, -len(candidate.ones)


def _form_text(candidate: Candidate) -> Candidate:
    form = next(_variants(candidate))
    return Candidate.of(form.pair, candidate.family, candidate.steps)


def _variants(candidate: Candidate) -> Iterator[General]:
    """The forms in which to try a candidate. Only the algebraic enumeration gives one symbol to all
    that is equal where it looks, and is at the least ranks; the others are general as they come."""
    pair = candidate.parse()
    if candidate.family == "algebra":
        yield from map(_form, variants(pair))
    else:
        yield canonical(General(*pair, free_runs(*pair)))


def _form(pair: Pair) -> General:
    """The most general form, with what its symbols are equal to put in."""
    form = settled(general(*pair).pair)
    return canonical(General(*form, free_runs(*form)))


@dataclass(frozen=True)
class _Decided:
    """What came of a candidate. ``entry``: the rule, where something was proved."""

    entry: RuleFile | None
    decision: Decision


def _decide(formed: tuple[General, Candidate]) -> _Decided:
    """Try to prove the most general form of a candidate, then those with less told apart, then
    those that a parallel operator gives equal types, then for axes of one element."""
    form, candidate = formed
    decided = _prove(form, candidate)
    if decided.entry is not None:
        return decided
    first = decided.decision
    for variant in islice(_variants(candidate), 1, None):
        decided = _prove(variant, candidate)
        if decided.entry is not None:
            return decided
    if first.reason == TYPES_DIFFER:
        for variant in retyped(candidate.parse()):
            decided = _prove(_form(variant), candidate)
            if decided.entry is not None:
                return decided
    for variant in _with_ones(candidate):
        decided = _prove(variant, candidate)
        if decided.entry is not None:
            return decided
    return _Decided(None, first)


def _with_ones(candidate: Candidate) -> Iterator[General]:
    """The most general form for fewest axes of one element, if the pair holds for those that had
    one where it was found."""
    pair = candidate.parse()
    texts = [f"|{name}.{dim}| = 1" for name, dim in candidate.ones]
    equal = [parse_requirement(text) for text in texts]
    if not texts or decide(*settled(pair, equal), equal, brief=True).verdict is not Verdict.PROVED:
        return
    form = canonical(general(*pair))
    runs = {axis for group in form.runs for axis in group}
    axes = [(name, dim) for name, rank in input_ranks(form.both) for dim in range(rank)]
    texts = [f"|{name}.{dim}| = 1" for name, dim in axes if (name, dim) not in runs]
    for chosen in (*combinations(texts, 1), *combinations(texts, 2)):
        settled_pair = settled(form.pair, [parse_requirement(text) for text in chosen])
        yield General(*settled_pair, free_runs(*settled_pair), chosen)


def _prove(form: General, candidate: Candidate) -> _Decided:
    equal = [parse_requirement(text) for text in form.requires]
    # The evidence holds operators, which cannot be sent between processes, and is not kept.
    decision = replace(decide(form.left, form.right, equal, brief=True), evidence=None)
    if decision.verdict is not Verdict.PROVED:
        return _Decided(None, decision)
    return _Decided(_rule(form, decision, candidate), decision)


def _rule(form: General, decision: Decision, candidate: Candidate) -> RuleFile:
    assert decision.proof is not None
    inputs = input_ranks(form.both)
    rule = Rule(
        stated_name(inputs, form.text, form.requires),
        inputs,
        form.left,
        form.right,
        conditions=decision.conditions,
        runs=form.runs,
        family=candidate.family,
        derived=candidate.steps,
        requires=form.requires,
    )
    proof = ProofFile(
        side_conditions=decision.proof.side_conditions,
        digest=decision.proof.digest,
        degrees={symbol: value for symbol, value in decision.degrees if value > 1},
    )
    return rule_file(rule, proof)


def _run(task: Task) -> Enumerated:
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


def _watched(items: Iterable[T], phase: str, total: int, progress: Progress) -> Iterator[T]:
    progress(phase, 0, total)
    for done, item in enumerate(items, 1):
        yield item
        progress(phase, done, total)


def _typings(instance: Instance) -> int:
    """How many theorems the parallel type of an instance takes; raises unless all are proved."""
    if instance.call.operator.parallel is not None:
        return 0
    found = prove_typing(instance.call, instance.ranks)
    for theorem in found:
        if theorem.proof is None:
            ranks = ", ".join(map(str, instance.ranks))
            problem = f"its parallel type is not proved: {theorem.reason}"
            raise NegativeAnswer(f"{instance.call.name} at ranks {ranks}: {problem}")
    return len(found)

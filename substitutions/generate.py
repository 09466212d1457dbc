"""The offline generator: from operator definitions to a library of proved rules.

Enumerate, find candidates, prove. The library is a function of the operator definitions alone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeVar

from pcg.errors import NegativeAnswer
from pcg.graph import Value
from pcg.operator import Operator
from pcg.text import parse_values
from substitutions.algebra import candidates, classes
from substitutions.chains import chain_pairs
from substitutions.derive import basic_pairs
from substitutions.enumerate import Instance, computing, core_instances, instances
from substitutions.rule import input_ranks, side_text
from substitutions.store import LibraryFile, ProofFile, RuleFile, operators_hash, rule_name
from substitutions.workers import parallel_map
from verifier.decide import Decision, Verdict, decide
from verifier.trusted.local import prove_typing

Pair = tuple[tuple[Value, ...], tuple[Value, ...]]
Progress = Callable[[str, int, int], None]
"""Told the phase, how much of it is done, and how much there is."""
T = TypeVar("T")


@dataclass(frozen=True)
class Candidate:
    """A pair of graphs as text, which crosses between processes."""

    inputs: tuple[tuple[str, int], ...]
    left: str
    right: str

    @staticmethod
    def of(pair: Pair) -> Candidate:
        left, right = pair
        return Candidate(input_ranks((*left, *right)), side_text(left), side_text(right))

    def parse(self) -> Pair:
        inputs = dict(self.inputs)
        return parse_values(self.left, inputs), parse_values(self.right, inputs)

    def __str__(self) -> str:
        ranks = " ".join(f"{name}:{rank}" for name, rank in self.inputs)
        return f"{ranks} | {self.left} == {self.right}"


@dataclass(frozen=True)
class Report:
    """What a run of the generator did; ``seconds`` by phase, ``typings`` how many theorems behind
    parallel types were proved."""

    typings: int
    graphs: int
    classes: int
    candidates: int
    verdicts: dict[str, int]
    seconds: dict[str, float]


@dataclass(frozen=True)
class Generated:
    """A library of the proved candidates, and the others with what was decided of them."""

    library: LibraryFile
    report: Report
    rejected: tuple[tuple[Candidate, Decision], ...]


def no_progress(phase: str, done: int, total: int) -> None:
    """Say nothing."""


def generate(
    operators: Sequence[Operator] | None = None,
    *,
    jobs: int | None = None,
    progress: Progress = no_progress,
) -> Generated:
    """Generate and prove the library of some computing operators (all, by default).

    ``jobs`` worker processes share the work (by default one a core). Raises NegativeAnswer where
    an operator's parallel type is not proved: no rule about it could be.
    """
    chosen = list(computing() if operators is None else operators)
    jobs = jobs or os.cpu_count() or 1
    clock = _Clock()
    around = [instance for operator in chosen for instance in instances(operator)]
    typings = sum(_watched(map(_typings, around), "typings", len(around), progress))
    clock.lap("typings")
    found = dict.fromkeys(map(Candidate.of, chain_pairs()))
    # The largest first, so that no worker is left with one at the end.
    around.sort(key=lambda i: -sum(i.ranks) - sum(i.outputs))
    for some in _watched(parallel_map(_cuts, around, jobs), "cuts", len(around), progress):
        found |= dict.fromkeys(some)
    clock.lap("cuts")
    groups, graphs = classes(core_instances(chosen), jobs)
    for pair in _watched(candidates(groups), "algebra", 0, progress):
        found.setdefault(Candidate.of(pair))
    clock.lap("algebra")
    ordered = sorted(found, key=lambda c: (len(c.left) + len(c.right), str(c)))
    decisions = list(
        _watched(parallel_map(_decide, ordered, jobs), "proofs", len(ordered), progress)
    )
    clock.lap("proofs")
    decided = list(zip(ordered, decisions, strict=True))
    verdicts = Counter(str(decision.verdict) for decision in decisions)
    counts = dict(sorted(verdicts.items()))
    report = Report(typings, graphs, len(groups), len(ordered), counts, clock.seconds)
    proved = tuple(_rule(c, d) for c, d in decided if d.verdict is Verdict.PROVED)
    library = LibraryFile(schema_version=1, operators=operators_hash(), rules=proved)
    rejected = tuple((c, d) for c, d in decided if d.verdict is not Verdict.PROVED)
    return Generated(library, report, rejected)


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


def _cuts(instance: Instance) -> list[Candidate]:
    return [Candidate.of(pair) for pair in basic_pairs(instance)]


def _decide(candidate: Candidate) -> Decision:
    # The evidence holds operators, which cannot be sent between processes, and is not kept.
    return replace(decide(*candidate.parse()), evidence=None)


def _rule(candidate: Candidate, decision: Decision) -> RuleFile:
    assert decision.proof is not None
    return RuleFile(
        name=rule_name(str(candidate)),
        inputs=dict(candidate.inputs),
        left=candidate.left,
        right=candidate.right,
        conditions=decision.conditions,
        verdict="proved",
        proof=ProofFile(
            side_conditions=decision.proof.side_conditions,
            digest=decision.proof.digest,
            degrees={symbol: value for symbol, value in decision.degrees if value > 1},
        ),
    )

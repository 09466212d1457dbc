"""Prints how rules of a file follow from a library: ``--explain FILE[:NAME]``.

The file is in the format of Unity, TASO or FlexFlow. Each of its rules is decided first. A proved
rule is then explained. If it has several cases of sizes, each case is explained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

from pcg.errors import InputError, NegativeAnswer
from pcg.graph.graph import Graph
from substitutions.explain.explain import Explainer, Explanation, RuleDerivation, named
from substitutions.rules.rule import Rule, side_text
from substitutions.rules.sources import Statement, read_source
from substitutions.rules.workers import parallel_map
from unity.support.cli import say, say_json
from verifier.decide import Decision, Verdict

RulesFor = Callable[[Graph], Iterable[Rule]]
"""The concrete rules of a library for the ranks and operators of a graph."""


@dataclass(frozen=True)
class RuleExplanation:
    """How a rule follows from a library.

    ``steps``: the length of the longest derivation among the cases; None if a case has none.
    ``lines``: the derivations, or why there is none, for readers. ``seconds``: the time of the
    search, without proofs.
    """

    name: str
    verdict: Verdict
    steps: int | None
    lines: tuple[str, ...]
    seconds: float


def explain_file(given: str, rules_for: RulesFor, jobs: int = 1, *, as_json: bool = False) -> None:
    """Print how each rule of FILE, or the one called NAME, follows from a library.

    Raises InputError if there is no such rule. Raises NegativeAnswer if a proved rule is not
    explained, or if no rule is proved.
    """
    file, statements = _chosen(given)
    explained = parallel_map(
        partial(explain_statement, RuleExplainers(rules_for)), statements, jobs
    )
    tally = Counter[int | None]()
    for explanation in explained:
        tally.update([explanation.steps] if explanation.verdict is Verdict.PROVED else [])
        if as_json:
            say_json(_record(file, explanation), indent=None)
        else:
            say("\n".join((_heading(explanation), *explanation.lines)))
    if not as_json and len(statements) > 1:
        counts = sorted((steps, n) for steps, n in tally.items() if steps is not None)
        say("; ".join(f"{n:,} in {_counted(steps)}" for steps, n in counts))
    if not tally:
        raise NegativeAnswer(f"{file}: none of its {len(statements)} rules is proved")
    if missing := tally[None]:
        raise NegativeAnswer(f"{file}: {missing} of {tally.total()} proved rules are not explained")


class RuleExplainers:
    """Explainers of a library, one for all graphs with the same rules."""

    def __init__(self, rules_for: RulesFor) -> None:
        self._rules_for = rules_for
        self._made: dict[int, tuple[Iterable[Rule], Explainer]] = {}

    def explainer(self, graph: Graph) -> Explainer:
        rules = self._rules_for(graph)
        # The rules are kept too, so that no others can have the same identity.
        known = self._made.get(id(rules))
        if known is None:
            known = self._made[id(rules)] = (rules, Explainer(rules))
        return known[1]


def explain_statement(prepared: RuleExplainers, statement: Statement) -> RuleExplanation:
    """Decide a rule. If it is proved, derive each of its cases."""
    outcome = statement.decide()
    if outcome.verdict is not Verdict.PROVED:
        lines = (f"  {outcome.reason}",) if outcome.reason else ()
        return RuleExplanation(statement.name, outcome.verdict, None, lines, 0.0)
    lines, steps = list[str](), list[int | None]()
    start = perf_counter()
    for proof in outcome.proofs:
        attempt = _attempt(prepared, proof)
        if len(outcome.proofs) > 1:
            assert proof.evidence is not None
            lines.append("  where " + ", ".join(f"{a} = {b}" for a, b in proof.evidence.equal))
        lines += _text(attempt, proof)
        steps.append(None if attempt.derivation is None else len(attempt.derivation.steps))
    longest = None if None in steps else max((s for s in steps if s is not None), default=None)
    seconds = perf_counter() - start
    return RuleExplanation(statement.name, outcome.verdict, longest, tuple(lines), seconds)


def _attempt(prepared: RuleExplainers, proof: Decision) -> Explanation:
    assert proof.evidence is not None
    left, right = proof.evidence.witness.pair
    explainer = prepared.explainer(Graph((*left, *right)))
    return explainer.attempt(left, right, proof.evidence.equal)


def _text(attempt: Explanation, proof: Decision) -> Iterator[str]:
    if attempt.derivation is not None:
        yield from derivation_lines(attempt.derivation)
        return
    assert proof.evidence is not None
    left, right = (side_text(side) for side in proof.evidence.witness.pair)
    yield f"  {left}"
    yield f"  == {right}"
    graphs = "{:,} graphs from the left, {:,} from the right".format(*attempt.reached)
    yield f"  {attempt.problem}" + (f": {graphs} were tried" if any(attempt.reached) else "")


def derivation_lines(derivation: RuleDerivation) -> Iterator[str]:
    """The first graph, and then a line for each step: the graph after it, and the rule."""
    yield f"  {side_text(named(derivation.start, derivation.names))}"
    for step in derivation.steps:
        after = side_text(named(step.graph, derivation.names))
        read = "" if step.forward else ", from right to left"
        yield f"  == {after}  by {step.rule.name}{read}: {step.rule.text}"


def _chosen(given: str) -> tuple[str, tuple[Statement, ...]]:
    """Return the file, and all its rules or the given one. Raises InputError."""
    file, colon, name = (given, "", "") if Path(given).exists() else given.rpartition(":")
    source = read_source(file if colon else given)
    if not colon:
        return source.file, source.statements
    chosen = tuple(s for s in source.statements if s.name == name)
    if not chosen:
        raise InputError(source.file, f"has no rule with the name {name}")
    return source.file, chosen


def _counted(steps: int) -> str:
    return f"{steps} step" if steps == 1 else f"{steps} steps"


def _heading(explanation: RuleExplanation) -> str:
    if explanation.verdict is not Verdict.PROVED:
        return f"{explanation.name}: {explanation.verdict}, so there is nothing to explain"
    if explanation.steps is None:
        return f"{explanation.name}: proved, but not explained"
    if explanation.steps == 0:
        return f"{explanation.name}: both sides are the same graph"
    return f"{explanation.name}: {_counted(explanation.steps)}"


def _record(file: str, explanation: RuleExplanation) -> dict[str, object]:
    return {
        "file": file,
        "rule": explanation.name,
        "verdict": str(explanation.verdict),
        "steps": explanation.steps,
        "derivation": list(explanation.lines),
        "seconds": round(explanation.seconds, 6),
    }

"""Tries to prove a candidate in the forms in which it may be a rule, the most general first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice

from pcg.graph.pairs import GraphPair
from substitutions.generate.cuts.retype import TYPES_DIFFER, retyped
from substitutions.rules.candidate import Candidate
from substitutions.rules.general import General, canonical, general
from substitutions.rules.requirements import parse_requirement
from substitutions.rules.rule import Rule, input_ranks
from substitutions.rules.store import ProofFile, RuleFile, rule_file, stated_name
from substitutions.rules.symbols import settled, variants
from verifier.decide import Decision, Verdict, decide
from verifier.trusted.sizes.runs import free_runs


def first_form(candidate: Candidate) -> General:
    """The most general form of a candidate."""
    return next(forms_of(candidate))


def forms_of(candidate: Candidate) -> Iterator[General]:
    """The forms in which to try a candidate. Only the algebraic enumeration gives one symbol to all
    that is equal where it looks, and is at the least ranks; the others are general as they come."""
    pair = candidate.parse()
    if candidate.family == "algebra":
        yield from map(_form, variants(pair))
    else:
        yield canonical(General(*pair, free_runs(*pair)))


def _form(pair: GraphPair) -> General:
    """The most general form, with what its symbols are equal to put in."""
    form = settled(general(*pair).pair)
    return canonical(General(*form, free_runs(*form)))


@dataclass(frozen=True)
class Attempt:
    """What came of a candidate. ``entry``: the rule, if there is one; ``form``: what it says."""

    entry: RuleFile | None
    decision: Decision
    form: General | None = None


def attempt(formed: tuple[General, Candidate]) -> Attempt:
    """Try to prove the most general form of a candidate, then those with less told apart, then
    those that a parallel operator gives equal types, then for axes of one element. What holds only
    where an equation between products of sizes does that no substitution solves is no rule: sizes
    hardly ever satisfy it, and solvers may not agree on what follows. Where no form is proved, each
    that was left unknown by a first instance is decided with all that there is."""
    form, candidate = formed
    tried: list[Decision] = []
    for variant in chain((form,), islice(forms_of(candidate), 1, None)):
        outcome = _prove(variant, candidate)
        if outcome.entry is not None:
            return outcome
        tried.append(outcome.decision)
    for outcome in _narrower(candidate, tried[0]):
        if outcome.entry is not None:
            return outcome
        if outcome.decision.verdict is Verdict.PROVED:
            tried.append(outcome.decision)
    return Attempt(None, _verdict(tried))


def _narrower(candidate: Candidate, first: Decision) -> Iterator[Attempt]:
    """Attempts at forms that say less than the candidate does."""
    if first.reason == TYPES_DIFFER:
        yield from (_prove(_form(pair), candidate) for pair in retyped(candidate.parse()))
    yield from _with_ones(candidate)


def _verdict(tried: Sequence[Decision]) -> Decision:
    """Of forms none of which is a rule, what is proved all the same or still unknown, or else the
    first one's verdict."""
    if proved := [decision for decision in tried if decision.verdict is Verdict.PROVED]:
        return proved[0]
    decided: list[Decision] = []
    for decision in tried:
        decided.append(decision.rest() if decision.rest else decision)
        if decided[-1].verdict is Verdict.UNKNOWN:
            return decided[-1]
    return decided[0]


def _with_ones(candidate: Candidate) -> Iterator[Attempt]:
    """Attempts at the most general form for fewest axes of one element, if the pair holds for those
    that had one where it was found. If an equation between sizes has to hold even there, it has to
    wherever fewer axes have one element: the attempt at all of them is the only one."""
    pair = candidate.parse()
    texts = tuple(f"|{name}.{dim}| = 1" for name, dim in candidate.ones)
    if not texts:
        return
    settled_pair = settled(pair, [parse_requirement(text) for text in texts])
    whole = _prove(General(*settled_pair, (), texts), candidate)
    if whole.decision.verdict is not Verdict.PROVED:
        return
    if whole.entry is None:
        yield whole
        return
    form = canonical(general(*pair))
    runs = {axis for group in form.runs for axis in group}
    axes = [(name, dim) for name, rank in input_ranks(form.both) for dim in range(rank)]
    texts = [f"|{name}.{dim}| = 1" for name, dim in axes if (name, dim) not in runs]
    for chosen in (*combinations(texts, 1), *combinations(texts, 2)):
        settled_pair = settled(form.pair, [parse_requirement(text) for text in chosen])
        yield _prove(General(*settled_pair, free_runs(*settled_pair), chosen), candidate)


def _prove(form: General, candidate: Candidate) -> Attempt:
    equal = [parse_requirement(text) for text in form.requires]
    # The evidence holds operators, which cannot be sent between processes, and is not kept.
    decision = replace(decide(form.left, form.right, equal, brief=True), evidence=None)
    if decision.verdict is not Verdict.PROVED:
        return Attempt(None, decision)
    if decision.hypotheses:
        return Attempt(None, replace(decision, reason=f"where {', '.join(decision.hypotheses)}"))
    return Attempt(_rule(form, decision, candidate), decision, form)


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

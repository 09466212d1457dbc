"""Tries to prove a candidate in each form in which it may be a rule, the most general first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice

from pcg.graph.pairs import GraphPair
from substitutions.generate.cuts.retype import TYPES_DIFFER, retyped
from substitutions.rules.candidate import Candidate
from substitutions.rules.general import GeneralForm, canonical, general
from substitutions.rules.requirements import parse_requirement
from substitutions.rules.rule import Rule, input_ranks
from substitutions.rules.store import ProofFile, RuleFile, rule_file, stated_name
from substitutions.rules.symbols import variants, with_solved_symbols
from verifier.decide import Decision, Verdict, decide
from verifier.trusted.sizes.runs import free_runs


def first_form(candidate: Candidate) -> GeneralForm:
    """The most general form of a candidate."""
    return next(forms_of(candidate))


def forms_of(candidate: Candidate) -> Iterator[GeneralForm]:
    """Yield the forms of a candidate to try to prove. The algebraic enumeration finds candidates at
    the least ranks and gives the same symbol to equal attributes, so these are generalised. All
    other candidates are general already."""
    pair = candidate.parse()
    if candidate.family == "algebra":
        yield from map(_form, variants(pair))
    else:
        yield canonical(GeneralForm(*pair, free_runs(*pair)))


def _form(pair: GraphPair) -> GeneralForm:
    """The most general form, with the values of symbols that sizes determine substituted."""
    form = with_solved_symbols(general(*pair).pair)
    return canonical(GeneralForm(*form, free_runs(*form)))


@dataclass(frozen=True)
class Attempt:
    """The result for a candidate. ``entry``: the proved rule and ``form`` its general form, if
    there is one."""

    entry: RuleFile | None
    decision: Decision
    form: GeneralForm | None = None


def attempt(formed: tuple[GeneralForm, Candidate]) -> Attempt:
    """Try to prove a candidate: first its most general form, then forms with fewer different
    symbols, then forms with one more parallel operator that makes types agree, then with axes of
    one element.

    A form that holds only under an equation between products of sizes, which substitution does not
    solve, is no rule: sizes hardly ever satisfy the equation, and solvers may not agree on its
    consequences. If no form is proved, the search for counterexamples that ``decide`` put off is
    done for each form that is unknown.
    """
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
    """Yield attempts at forms that state less than the candidate."""
    if first.reason == TYPES_DIFFER:
        yield from (_prove(_form(pair), candidate) for pair in retyped(candidate.parse()))
    yield from _with_ones(candidate)


def _verdict(tried: Sequence[Decision]) -> Decision:
    """The decision on a candidate of which no form is a rule: the first that is proved under an
    open equation, else the first that stays unknown, else that on the first form."""
    if proved := [decision for decision in tried if decision.verdict is Verdict.PROVED]:
        return proved[0]
    decided: list[Decision] = []
    for decision in tried:
        decided.append(decision.rest() if decision.rest else decision)
        if decided[-1].verdict is Verdict.UNKNOWN:
            return decided[-1]
    return decided[0]


def _with_ones(candidate: Candidate) -> Iterator[Attempt]:
    """Yield attempts at the most general form with one or two axes of one element, if the pair is
    proved with all the axes that had one element where it was found.

    If an open equation has to hold even with all these axes, it has to hold with fewer too. Then
    the attempt with all of them is the only one.
    """
    pair = candidate.parse()
    texts = tuple(f"|{name}.{dim}| = 1" for name, dim in candidate.ones)
    if not texts:
        return
    solved_pair = with_solved_symbols(pair, [parse_requirement(text) for text in texts])
    with_all = _prove(GeneralForm(*solved_pair, (), texts), candidate)
    if with_all.decision.verdict is not Verdict.PROVED:
        return
    if with_all.entry is None:
        yield with_all
        return
    form = canonical(general(*pair))
    runs = {axis for group in form.runs for axis in group}
    axes = [(name, dim) for name, rank in input_ranks(form.both) for dim in range(rank)]
    texts = [f"|{name}.{dim}| = 1" for name, dim in axes if (name, dim) not in runs]
    for chosen in (*combinations(texts, 1), *combinations(texts, 2)):
        solved_pair = with_solved_symbols(form.pair, [parse_requirement(text) for text in chosen])
        yield _prove(GeneralForm(*solved_pair, free_runs(*solved_pair), chosen), candidate)


def _prove(form: GeneralForm, candidate: Candidate) -> Attempt:
    equal = [parse_requirement(text) for text in form.requires]
    # The evidence is dropped: it holds operators, which cannot be sent between processes.
    decision = replace(decide(form.left, form.right, equal, brief=True), evidence=None)
    if decision.verdict is not Verdict.PROVED:
        return Attempt(None, decision)
    if decision.hypotheses:
        return Attempt(None, replace(decision, reason=f"where {', '.join(decision.hypotheses)}"))
    return Attempt(_rule(form, decision, candidate), decision, form)


def _rule(form: GeneralForm, decision: Decision, candidate: Candidate) -> RuleFile:
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

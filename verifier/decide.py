"""Decides whether two graphs are equal: proved, refuted, vacuous, ill-typed or unknown.

Problem: does the right graph compute the same as the left one, for all sizes, degrees, copies and
partials at which both are typed?
Method: both sides are typed symbolically. The typing of an operator is a theorem: its tasks, each
on its own blocks, compute the operator's equation (``trusted.proof.local``). If these theorems are
proved and the types of both sides agree, it remains to prove that the composed equations are equal
(``trusted.proof.prove``). One instance is replayed before the proof, more if the proof fails.
Exact: a proof and a counterexample are certain. The verdict unknown says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import chain, product

from pcg.errors import OperatorError
from pcg.graph.graph import Node, Value
from pcg.graph.pairs import GraphPair, both
from pcg.language.poly import Poly
from verifier.agreement import WHOLE, Agreement, agree, agree_alike, typed_sides, witness
from verifier.concrete import Valuation
from verifier.counterexample import Counterexample, replay
from verifier.guided import drawn_instances, solving_instances
from verifier.instances import Instance, instances
from verifier.shrink import shrink
from verifier.trusted import smt
from verifier.trusted.errors import TooLarge, Undecided, Unproved, Unsolvable
from verifier.trusted.proof.expansion import obligations
from verifier.trusted.proof.prove import Proof
from verifier.trusted.proof.same import is_same
from verifier.trusted.sizes.degrees import Typing
from verifier.trusted.sizes.sizes import SizeEquation, Sizes, different_ranks, pair_sizes
from verifier.trusted.steps import SearchSteps
from verifier.typings import problem_of


class Verdict(StrEnum):
    PROVED = "proved"
    REFUTED = "refuted"
    VACUOUS = "vacuous"
    ILL_TYPED = "ill-typed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Evidence:
    """What a proof rests on besides its side conditions.

    ``equal``: the sizes assumed equal. ``requires``: the conditions of the right side beyond those
    of the left. ``typings``: the number of each side's typing. ``witness``: an instance at which
    both sides have the same types. ``whole``: whether the proof is about whole tensors only.
    """

    equal: tuple[SizeEquation, ...]
    requires: tuple[str, ...]
    typings: tuple[int, int]
    witness: Valuation
    whole: bool


@dataclass(frozen=True)
class Decision:
    """A verdict with its grounds.

    ``conditions``: the conditions under which the right side has the types of the left, if the left
    side is typed. ``degrees``: a choice of degrees that satisfies them. ``rest``: the search for a
    counterexample to an unproved pair, if it was put off. ``hypotheses``: the conditions that are
    equations between products of sizes, which substitution does not solve.
    """

    verdict: Verdict
    reason: str = ""
    conditions: tuple[str, ...] = ()
    degrees: tuple[tuple[str, int], ...] = ()
    proof: Proof | None = None
    counterexample: Counterexample | None = None
    evidence: Evidence | None = None
    rest: Callable[[], Decision] | None = None
    hypotheses: tuple[str, ...] = ()


class _Stop(Exception):
    """Ends the decision of a pair early, with the decision."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.reason)
        self.decision = decision


class _Refuted(Exception):
    """An instance on which a pair differs, and its counterexample before shrinking."""

    def __init__(self, reason: str, instance: Instance, counterexample: Counterexample) -> None:
        super().__init__(reason)
        self.reason, self.instance, self.found = reason, instance, counterexample

    def decision(self, *, brief: bool) -> Decision:
        shrunk = self.found if brief else shrink(self.instance, self.found)
        return Decision(Verdict.REFUTED, self.reason, counterexample=shrunk)


def decide(
    left: Sequence[Value],
    right: Sequence[Value],
    equal: Sequence[SizeEquation] = (),
    *,
    whole: bool = False,
    brief: bool = False,
) -> Decision:
    """Decide whether two graphs over the same inputs, with paired outputs, are equal.

    ``equal``: equations between sizes; the verdict is for all sizes that satisfy them. ``whole``:
    the verdict is for tensors that are neither cut nor copied, and graphs without parallel
    operators. ``brief``: a pair that is neither proved nor refuted by the first instance is
    unknown, further search is left to ``Decision.rest``, and counterexamples are not shrunk.
    """
    pair = (tuple(left), tuple(right))
    try:
        sizes, conditions = _sizes(pair, equal)
        agreement, degrees = (WHOLE, {}) if whole else _agreement(pair, sizes)
        conditions += agreement.conditions
        proof, valuation = _value(pair, sizes, degrees, whole=whole, brief=brief)
    except _Stop as stop:
        return stop.decision
    except _Refuted as refuted:
        return refuted.decision(brief=brief)
    evidence = Evidence(tuple(equal), conditions, agreement.numbers, valuation, whole)
    shown = tuple(sorted(degrees.items()))
    hypotheses = tuple(f"{zero} = 0" for zero in sizes.zeros)
    return Decision(
        Verdict.PROVED, "", conditions, shown, proof, evidence=evidence, hypotheses=hypotheses
    )


def _sizes(pair: GraphPair, equal: Sequence[SizeEquation]) -> tuple[Sizes, tuple[str, ...]]:
    """The sizes of both sides, and the conditions of the right side beyond those of the left."""
    if len(pair[0]) != len(pair[1]):
        problem = f"{len(pair[0])} outputs against {len(pair[1])}"
        raise _Stop(Decision(Verdict.ILL_TYPED, problem))
    leaves = {node.leaf for node in both(pair).leaves}
    if len(leaves) > len({leaf.name for leaf in leaves}):
        raise _Stop(Decision(Verdict.ILL_TYPED, "an input has two ranks"))
    for side, outputs in zip(("left", "right"), pair, strict=True):
        try:
            side_sizes = Sizes.where(equal)
            side_sizes.visit_all(outputs)
        except (Unsolvable, OperatorError) as error:
            raise _Stop(Decision(Verdict.ILL_TYPED, f"{side}: {error}")) from None
        if not _satisfiable(side_sizes):
            raise _Stop(Decision(Verdict.ILL_TYPED, f"{side}: no sizes fit"))
    if ranks_differ := different_ranks(*pair):
        raise _Stop(Decision(Verdict.ILL_TYPED, ranks_differ))
    try:
        sizes, conditions = pair_sizes(*pair, equal, carry=True)
    except Unsolvable as error:
        raise _Stop(Decision(Verdict.VACUOUS, f"sizes: {error}")) from None
    if not _satisfiable(sizes):
        raise _Stop(Decision(Verdict.VACUOUS, "no sizes fit both sides"))
    return sizes, conditions


def _satisfiable(sizes: Sizes) -> bool:
    """Whether some sizes of at least 1, and attributes of at least 0, satisfy all conditions. True
    if the solver does not know."""
    resolved = [sizes.resolve(size) for size in sizes.positive]
    naturals = [sizes.resolve(value) for value in sizes.naturals]
    plain = all(c > 0 for value in (*resolved, *naturals) for _, c in value.terms)
    if plain and all(size.terms for size in resolved) and not sizes.open:
        return True
    zeros = sizes.zeros
    symbols = frozenset[str]().union(*(v.symbols for v in (*resolved, *naturals, *zeros)))
    known = [smt.at_least(size, 1) for size in resolved]
    known += [smt.at_least(Poly.of(s), 1 if s.startswith("|") else 0) for s in sorted(symbols)]
    known += [*(smt.at_least(value, 0) for value in naturals), *map(smt.is_zero, zeros)]
    return smt.check(smt.script(known)) != "unsat"


def _agreement(pair: GraphPair, sizes: Sizes) -> tuple[Agreement, Mapping[str, int]]:
    """The most general typings under which both sides have the same types, and degrees for them."""
    alike = all(is_same(a, b) for a, b in zip(*pair, strict=True))
    try:
        if alike and (agreed_alike := agree_alike(pair[0])) is not None:
            return agreed_alike
        lefts, rights = typed_sides(*pair)
        agreed = agree(lefts, rights)
    except Undecided as error:
        raise _Stop(Decision(Verdict.UNKNOWN, str(error))) from None
    except (OperatorError, ValueError) as error:
        raise _Stop(Decision(Verdict.ILL_TYPED, str(error))) from None
    for side, options in (("left", lefts), ("right", rights)):
        if not options:
            raise _Stop(Decision(Verdict.ILL_TYPED, f"{side}: no degrees fit"))
    if agreed is None:
        raise _Stop(_types_differ(pair, sizes, lefts, rights))
    return agreed


def _types_differ(
    pair: GraphPair, sizes: Sizes, lefts: Mapping[int, Typing], rights: Mapping[int, Typing]
) -> Decision:
    for typings in product(lefts.values(), rights.values()):
        degrees = witness(typings)
        for instance in () if degrees is None else instances(*pair, sizes, degrees):
            if refuting := replay(instance):
                raise _Refuted("the types differ", instance, refuting)
    return Decision(Verdict.VACUOUS, "no degrees fit both sides")


def _value(
    pair: GraphPair, sizes: Sizes, degrees: Mapping[str, int], *, whole: bool, brief: bool
) -> tuple[Proof, Valuation]:
    """Prove the outputs equal, or find inputs on which they differ.

    One instance is replayed first: that is cheap and refutes most false pairs. It also shows that
    some sizes are divisible by the degrees; a proof about no sizes would say nothing.
    """
    concrete = instances(*pair, sizes, degrees)
    first = next(concrete, None)
    if first is None or first.valuation is None:
        raise _Stop(Decision(Verdict.UNKNOWN, "no small sizes fit the degrees"))
    if refuting := replay(first, once=True):
        raise _Refuted("the values differ", first, refuting)
    try:
        if not whole:
            _check_typings(both(pair).nodes)
        steps = SearchSteps()
        proved = obligations(*pair, sizes, steps, smt.check)
        return Proof(proved, tuple(steps.taken)), first.valuation
    except (Unproved, TooLarge) as error:
        search = partial(_refuted, error, first, concrete, brief=brief)
        unknown = Decision(Verdict.UNKNOWN, str(error), rest=search)
        raise _Stop(unknown if brief else search()) from None


def _refuted(
    error: Unproved | TooLarge, first: Instance, others: Iterator[Instance], *, brief: bool
) -> Decision:
    """The verdict on a pair that is not proved: refuted by an instance, or unknown. The instances
    include those that solve the condition at which the proof failed."""
    assert first.valuation is not None
    solved = (
        solving_instances(error.condition, first.valuation) if isinstance(error, Unproved) else ()
    )
    for instance in chain((first,), solved, drawn_instances(first.valuation), others):
        if refuting := replay(instance):
            return _Refuted("the values differ", instance, refuting).decision(brief=brief)
    return Decision(Verdict.UNKNOWN, str(error))


def _check_typings(nodes: Sequence[Node]) -> None:
    """Raise Unproved if the tasks of an operator are not proved to compute its equation."""
    for node in nodes:
        if (reason := problem_of(node)) is not None:
            raise Unproved(f"the parallel type of {node.name}: {reason}")

"""Every mutant that evaluation shows to be false is refuted, and none is proved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from support.cases import each
from support.rules import judging
from support.rules.judging import (
    Judgement,
    crossed,
    distinguishes,
    examine,
    examine_mutants,
    judge,
    table,
)
from support.rules.mutation import Kind, Mutant, Outputs, mutants, spread

from pcg.ops import OPERATORS
from pcg.plan.text import parse_values
from pcg.types.operator import Operator
from substitutions.rules.rule import operators_in, side_text
from substitutions.rules.store import load_library
from verifier.decide import Decision, Verdict, decide

JOBS = 2
FEWEST = 8
RULES = [
    rule for rule in load_library().rules if operators_in(rule.left) + operators_in(rule.right) >= 2
]
SAMPLE = sorted(RULES, key=lambda rule: rule.name)[:3]
"""Names are hashes of the rules' texts, so these are of all kinds and stay the same."""
MOST = 12

SLICED = Operator(
    "sliced", "x[a..., n@axis] -> out[a..., j < size] = x[a..., j + start]", ("start", "size")
)
ONES = Operator("ones", "out[i < size] = 1", sizes=("size",))
OWN = {**OPERATORS, "sliced": SLICED, "ones": ONES}


def _pair(left: str, right: str, **inputs: int) -> tuple[Outputs, Outputs]:
    return parse_values(left, inputs, "left", OWN), parse_values(right, inputs, "right", OWN)


def _texts(mutants: Iterable[Mutant], kind: Kind) -> list[str]:
    return [f"{side_text(a)} == {side_text(b)}" for k, a, b in mutants if k is kind]


@pytest.mark.parametrize("rule", SAMPLE, ids=[rule.name for rule in SAMPLE])
def test_mutants_that_differ_are_refuted(rule):
    findings = examine_mutants([(rule.left, rule.right)], most=MOST)
    assert len(findings) >= FEWEST
    assert [str(finding) for finding in findings if finding.problem] == []
    # A rule without a mutant that evaluation shows to be false would test nothing.
    assert any(finding.verdict != Verdict.PROVED for finding in findings)


def test_rules_have_mutants():
    some = RULES[:: len(RULES) // 100]
    assert [rule.text for rule in some if len(mutants(rule.left, rule.right)) < FEWEST] == []


@pytest.mark.soak
def test_mutants_of_all_rules():
    """``-s`` shows the counts of the README."""
    findings = examine_mutants([(rule.left, rule.right) for rule in RULES], jobs=JOBS)
    wrong = [str(finding) for finding in findings if finding.problem]
    few = [rule.text for rule in RULES if len(mutants(rule.left, rule.right)) < FEWEST]
    print(f"\n{len(RULES)} rules\n{table(findings)}\n\n{crossed(findings)}", *wrong, sep="\n")
    assert wrong == []
    assert few == []


MATMUL = _pair(
    "matmul(reduce(x, degree=k), y)",
    "reduce(matmul(x, replicate(y, degree=k)), degree=k)",
    x=2,
    y=2,
)


def _halves(*ports: int, axis: int = 0, at: str = "at") -> str:
    whole = "concat(x, y, axis=0)"
    return ", ".join(f"split({whole}, axis={axis}, at={at}).{port}" for port in ports)


SPLIT = _pair(_halves(0, 1), "x, y", x=2, y=2)
TWO = _pair("relu(x), relu(y)", "relu(x), relu(relu(y))", x=1, y=1)


@each(
    ("pair", "kind", "text"),
    [
        (MATMUL, Kind.OPERANDS, "matmul(y, reduce(x, degree=k)) == {right}"),
        (MATMUL, Kind.DEGREE, "matmul(reduce(x, degree=2*k), y) == {right}"),
        (MATMUL, Kind.DEGREE, "{left} == reduce(matmul(x, replicate(y, degree=3)), degree=k)"),
        (MATMUL, Kind.DEGREE, "{left} == reduce(matmul(x, replicate(y, degree=m)), degree=k)"),
        (MATMUL, Kind.MOVE, "matmul(combine(x, dim=1, degree=k), y) == {right}"),
        (MATMUL, Kind.MOVE, "matmul(replicate(x, degree=k), y) == {right}"),
        (MATMUL, Kind.MOVE, "{left} == reduce(matmul(x, partition(y, dim=0, degree=k)), degree=k)"),
        (MATMUL, Kind.MOVE, "{left} == reduce(matmul(x, join(y, y)), degree=k)"),
        (MATMUL, Kind.DROPPED, "{left} == reduce(matmul(x, y), degree=k)"),
        (MATMUL, Kind.DROPPED, "{left} == reduce(x, degree=k)"),
        (MATMUL, Kind.DOUBLED, "matmul(reduce(reduce(x, degree=k), degree=k), y) == {right}"),
        (MATMUL, Kind.DOUBLED, "matmul(y, y) == {right}"),
        (MATMUL, Kind.INSERTED, "matmul(reduce(x, degree=k), relu(y)) == {right}"),
        (MATMUL, Kind.OPERATOR, "add(reduce(x, degree=k), y) == {right}"),
        (MATMUL, Kind.INPUTS, "{left} == reduce(matmul(y, replicate(x, degree=k)), degree=k)"),
        (SPLIT, Kind.OUTPUTS, _halves(1, 0) + " == x, y"),
        (SPLIT, Kind.POSITION, _halves(0, 1, axis=1) + " == x, y"),
        (SPLIT, Kind.NUMBER, _halves(0, 1, at="at + 1") + " == x, y"),
        (TWO, Kind.OUTPUTS, "{left} == relu(relu(y)), relu(x)"),
    ],
)
def test_mutants_of_each_kind_are_made(pair, kind, text):
    left, right = (side_text(side) for side in pair)
    assert text.format(left=left, right=right) in _texts(mutants(*pair), kind)


def test_mutants_are_always_the_same_and_all_different():
    mutations = mutants(*MATMUL)
    texts = [(side_text(a), side_text(b)) for _, a, b in mutations]
    assert texts == [(side_text(a), side_text(b)) for _, a, b in mutants(*MATMUL)]
    assert len(set(texts)) == len(texts)
    assert tuple(map(side_text, MATMUL)) not in texts
    # One side is changed, and it never becomes the other side.
    assert all((a == MATMUL[0]) != (b == MATMUL[1]) and a != b for _, a, b in mutations)


def test_a_commuted_sum_is_no_mutant():
    pair = _pair("add(x, y)", "reduce(join(x, y), degree=2)", x=1, y=1)
    assert _texts(mutants(*pair), Kind.OPERANDS) == []


def test_spread_takes_from_every_kind():
    mutations = mutants(*MATMUL)
    kinds = {kind for kind, _, _ in mutations}
    some = spread(mutations, len(kinds))
    assert {kind for kind, _, _ in some} == kinds
    assert len(spread(mutations, 10_000)) == len(mutations)


def test_each_mutant_is_examined_once():
    once = examine_mutants([MATMUL], most=5)
    assert len(once) == 5
    assert examine_mutants([MATMUL, MATMUL], most=5) == once
    _, *mutant = mutants(*MATMUL)[0]
    others = examine_mutants([MATMUL, (mutant[0], mutant[1])], most=5)
    assert once[0] not in others


def test_attributes_of_an_operator_of_ones_own():
    """Positions, sizes and constants are known from the declaration."""
    pair = _pair("add(sliced(x, axis=0, start=s, size=2), ones(size=n))", "y", x=1, y=1)
    texts = _texts(mutants(*pair, OWN), Kind.NUMBER)
    for changed in (
        "add(sliced(x, axis=0, start=s + 1, size=2), ones(size=n)) == y",
        "add(sliced(x, axis=0, start=s, size=3), ones(size=n)) == y",
        "add(sliced(x, axis=0, start=2, size=s), ones(size=n)) == y",
        "add(sliced(x, axis=0, start=s, size=2), ones(size=n + 1)) == y",
    ):
        assert changed in texts
    wide = _pair(
        "sliced(x, axis=1, start=s, size=2)", "sliced(y, axis=1, start=0, size=2)", x=2, y=2
    )
    # Only the last dimension can be sliced. The equation refuses another one.
    assert _texts(mutants(*wide, OWN), Kind.POSITION) == []


RELU_TWICE = _pair("relu(relu(x))", "relu(x)", x=1)
SWAPPED = _pair("matmul(x, y)", "matmul(y, x)", x=2, y=2)
OTHER_CUT = _pair("partition(x, dim=0, degree=k)", "partition(x, dim=1, degree=k)", x=2)
LONGER = _pair("concat(x, y, axis=0)", "x", x=2, y=2)
REFUSED = _pair("relu(join(x, x))", "relu(x)", x=1)
"""A relu of partial sums has no type."""


@each(
    ("pair", "judgement", "apart"),
    [
        (RELU_TWICE, Judgement.SAME, False),
        (MATMUL, Judgement.SAME, False),
        (SPLIT, Judgement.SAME, False),
        (SWAPPED, Judgement.VALUE, True),
        (_pair("gelu(x)", "relu(x)", x=1), Judgement.VALUE, True),
        (_pair("scale(x, factor=c)", "x", x=1), Judgement.VALUE, True),
        (_pair("embedding(x, add(y, y))", "embedding(x, y)", x=1, y=2), Judgement.VALUE, True),
        (OTHER_CUT, Judgement.DEGREES, True),
        (_pair("replicate(x, degree=2)", "reduce(x, degree=2)", x=1), Judgement.DEGREES, True),
        (LONGER, Judgement.SHAPE, None),
        (_pair("flatten(x, axis=0)", "x", x=2), Judgement.SHAPE, None),
        (REFUSED, Judgement.UNTYPED, None),
    ],
)
def test_judgement_of_a_mutant_matches_evaluation(pair, judgement, apart):
    assert judge(*pair) is judgement
    assert distinguishes(*pair) is apart


@pytest.mark.parametrize(
    ("pair", "accepted"),
    [
        (MATMUL, {Verdict.PROVED, Verdict.UNKNOWN, Verdict.REFUTED}),
        (SWAPPED, {Verdict.REFUTED}),
        (OTHER_CUT, {Verdict.REFUTED}),
        (LONGER, set(Verdict) - {Verdict.PROVED}),
        (REFUSED, set(Verdict) - {Verdict.PROVED}),
    ],
)
def test_a_verifier_that_is_wrong_is_found_out(monkeypatch, pair, accepted):
    """For any verdict that it gives for all pairs."""
    for verdict in Verdict:
        monkeypatch.setattr(judging, "decide", lambda *_, v=verdict: Decision(v, "so I say"))
        finding = examine(*pair)
        assert bool(finding.problem) == (verdict not in accepted), finding


def test_a_refutation_has_to_show_a_difference(monkeypatch):
    decision = decide(*SWAPPED)
    assert decision.counterexample is not None
    assert examine(*SWAPPED).problem == ""
    same = replace(decision.counterexample, right=decision.counterexample.left)
    monkeypatch.setattr(judging, "decide", lambda *_: replace(decision, counterexample=same))
    assert "not by its counterexample" in examine(*SWAPPED).problem


def test_mutant_refuted_for_types_that_agree_is_reported(monkeypatch):
    decision = Decision(Verdict.REFUTED, "the types differ")
    monkeypatch.setattr(judging, "decide", lambda *_: decision)
    assert "yet same" in examine(*MATMUL).problem


def test_exception_of_the_verifier_is_reported(monkeypatch):
    def fail(*_: object):
        raise KeyError("k")

    monkeypatch.setattr(judging, "decide", fail)
    finding = examine(*MATMUL, "of mine")
    assert finding.problem == "raised KeyError: 'k'"
    assert "of mine" in table([finding])
    assert "raised" in crossed([finding])

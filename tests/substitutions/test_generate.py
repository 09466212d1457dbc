"""The committed library is what the generator writes: a part of it is generated again."""

from __future__ import annotations

import json

import pytest

from pcg.errors import NegativeAnswer
from pcg.graph import Graph
from pcg.local import Axis, LocalTyping
from pcg.operator import Operator
from pcg.ops import OPERATORS
from pcg.text import parse_values
from substitutions.generate import Candidate, Generated, generate
from substitutions.store import LibraryFile, RuleFile, default_path, operators_hash, rule_name
from verifier.decide import Verdict

PART = ("matmul", "relu", "add", "join")


@pytest.fixture(scope="module")
def part() -> Generated:
    return generate([OPERATORS[name] for name in PART], jobs=2)


@pytest.fixture(scope="module")
def committed() -> LibraryFile:
    return LibraryFile.model_validate_json(default_path().read_text())


def computing(rule: RuleFile) -> set[str]:
    """The operators of a rule but the parallel ones."""
    sides = parse_values(rule.left, rule.inputs) + parse_values(rule.right, rule.inputs)
    nodes = Graph(sides).nodes
    return {node.name for node in nodes if not node.is_leaf and not node.is_parallel}


def as_text(rules) -> list[str]:
    return [json.dumps(rule.model_dump(mode="json")) for rule in rules]


def test_a_part_is_generated_again(part, committed):
    expected = [rule for rule in committed.rules if computing(rule) <= set(PART)]
    assert len(expected) > 100
    assert as_text(part.library.rules) == as_text(expected)
    assert part.library.operators == committed.operators == operators_hash()


def test_the_report_adds_up(part):
    report = part.report
    assert report.typings > len(PART)
    assert report.graphs > report.classes > 0
    assert sum(report.verdicts.values()) == report.candidates
    assert report.verdicts["proved"] == len(part.library.rules)
    assert len(part.rejected) == report.candidates - len(part.library.rules)
    assert set(report.seconds) == {"typings", "cuts", "algebra", "proofs"}


def test_what_is_not_proved_does_not_enter(part):
    names = {rule.name for rule in part.library.rules}
    for candidate, decision in part.rejected:
        assert decision.verdict is not Verdict.PROVED
        assert decision.reason
        assert rule_name(str(candidate)) not in names
    refuted = [d for _, d in part.rejected if d.verdict is Verdict.REFUTED]
    assert refuted
    assert all(d.counterexample is not None for d in refuted)


def test_candidates_survive_text():
    sides = parse_values("relu(x)", {"x": 2}), parse_values("gelu(x)", {"x": 2})
    candidate = Candidate.of(sides)
    assert candidate.parse() == sides
    assert str(candidate) == "x:2 | relu(x) == gelu(x)"


def test_progress_is_told():
    told: list[tuple[str, int, int]] = []
    generate([OPERATORS["relu"]], jobs=1, progress=lambda *event: told.append(event))
    phases = list(dict.fromkeys(phase for phase, _, _ in told))
    assert phases == ["typings", "cuts", "algebra", "proofs"]
    for phase in ("typings", "cuts", "proofs"):
        last = [event for event in told if event[0] == phase][-1]
        assert last[1] == last[2] > 0


def test_an_operator_of_ones_own_takes_part(monkeypatch):
    monkeypatch.setitem(OPERATORS, "square", Operator("square", "out[i...] = x[i...] * x[i...]"))
    found = generate([OPERATORS["square"]], jobs=1)
    rules = {f"{rule.left} == {rule.right}" for rule in found.library.rules}
    assert "square(x) == combine(square(partition(x, dim=0, degree=k)), dim=0, degree=k)" in rules
    assert "square(reduce(x, degree=k)) == reduce(square(x), degree=k)" not in rules


def test_nothing_starts_from_a_wrong_type(monkeypatch):
    """A softmax that may be cut along its axis is noticed before any rule is made."""
    softmax = Operator("softmax", OPERATORS["softmax"].equation)
    wrong = LocalTyping((Axis("j", (0,), (0,)),), ())
    monkeypatch.setattr(Operator, "typing", lambda self, ranks, positions: wrong)
    with pytest.raises(NegativeAnswer, match=r"softmax at ranks .*parallel type is not proved"):
        generate([softmax], jobs=1)

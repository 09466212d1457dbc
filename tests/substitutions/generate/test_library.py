"""The generator: its report, that it is deterministic, and that the committed library contains the
rules of a part of it."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from support.graphs.operators import known_within

from pcg.errors import NegativeAnswer
from pcg.ops import OPERATORS
from pcg.plan.text import parse_values
from pcg.types.local import Axis, LocalTyping
from pcg.types.operator import Operator
from substitutions.generate.library import GenerationResult, generate
from substitutions.rules.candidate import Candidate
from substitutions.rules.general import GeneralForm, is_instance
from substitutions.rules.store import LibraryFile, load_library, operators_hash, parse_entry
from verifier.decide import Verdict

PART = ("matmul", "relu", "add", "join")


@pytest.fixture(scope="module")
def part() -> GenerationResult:
    return generate([OPERATORS[name] for name in PART], max_ops=2, jobs=2)


@dataclass(frozen=True)
class Own:
    """What the generator made of an operator of one's own, and the progress that it reported."""

    generated: GenerationResult
    progress: list[tuple[str, int, int]]


@pytest.fixture(scope="module")
def own() -> Own:
    """Rules of a declared operator and of one's own."""
    square = Operator("square", "out[i...] = x[i...] * x[i...]")
    progress: list[tuple[str, int, int]] = []
    with known_within(square):
        generated = generate(
            [OPERATORS["add"], square],
            max_ops=2,
            jobs=2,
            progress=lambda *event: progress.append(event),
        )
    return Own(generated, progress)


def as_text(library: LibraryFile) -> list[str]:
    return [json.dumps(rule.model_dump(mode="json")) for rule in library.rules]


@pytest.mark.soak  # a test of the command compares a smaller part
def test_a_part_is_in_the_committed_library(part):
    rules = [GeneralForm(r.left, r.right, r.runs) for r in load_library().rules]
    assert len(part.library.rules) > 20
    for entry in part.library.rules:
        rule = parse_entry(entry)
        own = GeneralForm(rule.left, rule.right, rule.runs)
        assert any(is_instance(own, rule) for rule in rules), rule.text


@pytest.mark.soak  # tests of the command write a library twice
def test_two_runs_write_the_same(part):
    again = generate([OPERATORS[name] for name in PART], max_ops=2, jobs=1)
    assert as_text(again.library) == as_text(part.library)
    assert part.library.operators == operators_hash()
    assert part.library.options.max_ops == 2


def test_the_report_adds_up(own):
    made, report = own.generated, own.generated.report
    assert report.typings > 2
    assert report.graphs > report.values > 0
    decided = sum(report.verdicts.values())
    assert decided + report.duplicates + report.derived == report.candidates
    assert report.verdicts["proved"] == len(made.library.rules)
    assert len(made.rejected) == decided - len(made.library.rules)
    assert set(report.seconds) == {"typings", "enumeration", "proofs"}
    assert report.megabytes > 50


@pytest.mark.soak
def test_derived_rules_are_marked():
    library = generate([OPERATORS["matmul"]], max_ops=1, jobs=1, derived=True).library
    own = [rule for rule in library.rules if not rule.derived]
    least = generate([OPERATORS["matmul"]], max_ops=1, jobs=1).library
    assert 0 < len(own) < len(library.rules)
    assert {rule.left for rule in least.rules} <= {rule.left for rule in library.rules}


@pytest.mark.soak
def test_rejected_candidates_are_unproved_and_have_a_reason(part):
    for _, decision in part.rejected:
        assert decision.verdict is not Verdict.PROVED
        assert decision.reason
    refuted = [d for _, d in part.rejected if d.verdict is Verdict.REFUTED]
    assert all(d.counterexample is not None for d in refuted)


def test_candidates_survive_text():
    sides = parse_values("relu(x)", {"x": 2}), parse_values("gelu(x)", {"x": 2})
    candidate = Candidate.of(sides, "algebra")
    assert candidate.parse() == sides
    assert str(candidate) == "x:2 | relu(x) == gelu(x)"


def test_an_operator_of_ones_own_takes_part(own):
    """The progress of the run is reported too."""
    told = own.progress
    rules = {f"{rule.left} == {rule.right}" for rule in own.generated.library.rules}
    cut = "combine(pointwise(partition(x, dim=1, degree=k)), dim=1, degree=k)"
    assert {f"{cut} == pointwise(x)", f"pointwise(x) == {cut}"} & rules
    assert not any("reduce(square" in rule for rule in rules)
    phases = list(dict.fromkeys(phase for phase, _, _ in told))
    assert phases == ["typings", "enumeration", "proofs"]
    for phase in phases:
        last = [event for event in told if event[0] == phase][-1]
        assert last[1] == last[2] > 0


def test_operator_with_an_unproved_type_is_refused(monkeypatch):
    """A softmax that may be cut along its axis is found before any rule is made."""
    softmax = Operator("softmax", OPERATORS["softmax"].equation)
    wrong = LocalTyping((Axis("j", (0,), (0,)),), ())
    monkeypatch.setattr(Operator, "typing", lambda self, ranks, positions: wrong)
    with pytest.raises(NegativeAnswer, match=r"softmax at ranks .*parallel type is not proved"):
        generate([softmax], max_ops=1, jobs=1)

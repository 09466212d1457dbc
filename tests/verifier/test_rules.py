"""Every line of ``tests/rules`` gets the verdict of its folder."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.cases import a_third, check_each
from support.rules.refuted import decided
from support.rules.rule_files import lines, parse

from pcg.graph.graph import Graph
from pcg.plan.text import parse_graph
from pcg.readings.evaluate import evaluate_shards, meaning
from pcg.readings.ring import Reals
from verifier.counterexample import Counterexample
from verifier.decide import Verdict, decide

VERDICTS = {
    "sound": Verdict.PROVED,
    "unsound": Verdict.REFUTED,
    "vacuous": Verdict.VACUOUS,
    "ill_typed": Verdict.ILL_TYPED,
    "unknown": Verdict.UNKNOWN,
}


def parts() -> Iterator[object]:
    """Each folder with the first of its rules in each part. A folder may have fewer rules than
    parts."""
    for folder in VERDICTS:
        yield pytest.param(folder, 0)
        for first in range(1, min(6, len([*lines(folder)]))):
            yield pytest.param(folder, first, marks=pytest.mark.soak)


@pytest.mark.parametrize(("folder", "first"), [*parts()])
def test_each_rule_of_the_folders_has_its_verdict(folder: str, first: int) -> None:
    verdict = VERDICTS[folder]

    def check(line: str) -> None:
        decision = decided(line)[0] if folder == "unsound" else decide(*parse(line))
        assert decision.verdict is verdict, decision
        assert (decision.proof is not None) == (verdict is Verdict.PROVED)
        assert (decision.counterexample is not None) == (verdict is Verdict.REFUTED)
        if verdict is not Verdict.PROVED:
            assert decision.reason

    check_each([*lines(folder)][first::6], check)


@pytest.mark.parametrize("third", a_third(range(3)))
def test_verdict_does_not_depend_on_the_direction(third: int) -> None:
    def check(line: str) -> None:
        left, right = parse(line)
        assert decide(right, left).verdict is Verdict.PROVED

    check_each(lines("sound")[third::3], check)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_counterexample_is_real(step: int) -> None:
    """The report is enough to see the difference again, from its text and values alone."""

    def check(line: str) -> None:
        counterexample = decided(line)[0].counterexample
        assert counterexample is not None
        left, right = (parse_graph(text) for text in (counterexample.left, counterexample.right))
        types = [tuple(value.type for value in side.outputs) for side in (left, right)]
        assert types[0] != types[1] or _values_differ(counterexample, left, right)

    check_each([*lines("unsound")][::step], check)


def _values_differ(counterexample: Counterexample, left: Graph, right: Graph) -> bool:
    ring = Reals()
    leaves = {name: np.array(values, np.float64) for name, values in counterexample.values}
    with np.errstate(all="ignore"):
        results = [evaluate_shards(side, leaves, ring) for side in (left, right)]
    pairs = zip(*results, strict=True)
    return any(not np.allclose(meaning(a, ring), meaning(b, ring)) for a, b in pairs)


def test_at_least_40_different_unsound_rules_are_tried():
    assert len(lines("unsound")) >= 40
    assert len(set(lines("unsound"))) == len(lines("unsound"))

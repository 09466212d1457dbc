"""Every line of ``tests/rules`` gets the verdict that its folder says."""

from __future__ import annotations

import numpy as np
import pytest
from rule_files import lines, parse

from pcg.evaluate import evaluate_shards, meaning
from pcg.graph import Graph
from pcg.ring import Reals
from pcg.text import parse_graph
from verifier.counterexample import Counterexample
from verifier.decide import Verdict, decide

VERDICTS = {
    "sound": Verdict.PROVED,
    "unsound": Verdict.REFUTED,
    "vacuous": Verdict.VACUOUS,
    "ill_typed": Verdict.ILL_TYPED,
    "unknown": Verdict.UNKNOWN,
}

CASES = [(verdict, line) for folder, verdict in VERDICTS.items() for line in lines(folder)]


@pytest.mark.parametrize(("verdict", "line"), CASES, ids=[line for _, line in CASES])
def test_verdict(verdict, line):
    decision = decide(*parse(line))
    assert decision.verdict is verdict, decision
    assert (decision.proof is not None) == (verdict is Verdict.PROVED)
    assert (decision.counterexample is not None) == (verdict is Verdict.REFUTED)
    if verdict is not Verdict.PROVED:
        assert decision.reason


@pytest.mark.parametrize("line", lines("sound"))
def test_verdict_does_not_depend_on_the_direction(line):
    left, right = parse(line)
    assert decide(right, left).verdict is Verdict.PROVED


@pytest.mark.parametrize("line", lines("unsound"))
def test_counterexample_is_real(line):
    """What is reported is enough to see the difference again, from its text and values alone."""
    found = decide(*parse(line)).counterexample
    assert found is not None
    left, right = (parse_graph(text) for text in (found.left, found.right))
    types = [tuple(value.type for value in side.outputs) for side in (left, right)]
    assert types[0] != types[1] or _values_differ(found, left, right)


def _values_differ(found: Counterexample, left: Graph, right: Graph) -> bool:
    ring = Reals()
    leaves = {name: np.array(values, np.float64) for name, values in found.values}
    with np.errstate(all="ignore"):
        results = [evaluate_shards(side, leaves, ring) for side in (left, right)]
    pairs = zip(*results, strict=True)
    return any(not np.allclose(meaning(a, ring), meaning(b, ring)) for a, b in pairs)


def test_enough_neighbours_are_refuted():
    assert len(lines("unsound")) >= 40
    assert len(set(lines("unsound"))) == len(lines("unsound"))

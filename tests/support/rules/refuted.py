"""The false pairs of ``tests/rules/unsound``, each with the first counterexample that is found."""

from __future__ import annotations

from functools import cache

import pytest
from support.rules import rule_files
from support.rules.rule_files import parse

from pcg.graph.pairs import Outputs
from verifier import decide as deciding
from verifier.counterexample import Counterexample, replay
from verifier.instances import Instance


def lines() -> list[str]:
    return rule_files.lines("unsound")


@cache
def decided(line: str) -> tuple[deciding.Decision, Instance, Counterexample]:
    """The decision about a pair, the instance at which it is first refuted, and the counterexample
    found there."""
    return _refuted(*parse(line))


def first(line: str) -> tuple[Instance, Counterexample]:
    """The instance at which a pair is first refuted, and the counterexample found there."""
    _, instance, decision = decided(line)
    return instance, decision


def shrunk(line: str) -> Counterexample:
    """The first counterexample to a pair, shrunk."""
    counterexample = decided(line)[0].counterexample
    assert counterexample is not None
    return counterexample


def refute(left: Outputs, right: Outputs) -> tuple[Instance, Counterexample]:
    _, instance, counterexample = _refuted(left, right)
    return instance, counterexample


def _refuted(left: Outputs, right: Outputs) -> tuple[deciding.Decision, Instance, Counterexample]:
    met: list[tuple[Instance, Counterexample]] = []

    def recorded(instance: Instance, *, once: bool = False) -> Counterexample | None:
        replayed = replay(instance, once=once)
        if replayed is not None:
            met.append((instance, replayed))
        return replayed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deciding, "replay", recorded)
        decision = deciding.decide(left, right)
    assert decision.verdict is deciding.Verdict.REFUTED, decision
    return decision, *met[0]

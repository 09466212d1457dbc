"""The false pairs of ``tests/rules/unsound``, each with the first counterexample that is met."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from pcg.graph import Value
from pcg.text import parse_values
from verifier import decide as deciding
from verifier.counterexample import Counterexample, replay
from verifier.instances import Instance
from verifier.shrink import shrink

UNSOUND = Path(__file__).parent / "rules" / "unsound"

Side = tuple[Value, ...]


def lines() -> list[str]:
    text = [line for path in sorted(UNSOUND.glob("*.txt")) for line in path.read_text().split("\n")]
    return [line.strip() for line in text if line.strip() and not line.startswith("#")]


def parse(line: str) -> tuple[Side, Side]:
    """A line such as ``x:2 w:2 | LEFT == RIGHT``."""
    given, sides = line.split("|", 1)
    inputs = {name: int(rank) for name, rank in (i.split(":") for i in given.split())}
    left, right = sides.split(" == ")
    return parse_values(left, inputs, line), parse_values(right, inputs, line)


@cache
def first(line: str) -> tuple[Instance, Counterexample]:
    """The instance at which a pair is first refuted, and the counterexample as it is met there."""
    return refute(*parse(line))


@cache
def shrunk(line: str) -> Counterexample:
    """The first counterexample to a pair, made small."""
    return shrink(*first(line))


def refute(left: Side, right: Side) -> tuple[Instance, Counterexample]:
    met: list[tuple[Instance, Counterexample]] = []

    def recorded(instance: Instance, *, once: bool = False) -> Counterexample | None:
        found = replay(instance, once=once)
        if found is not None:
            met.append((instance, found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deciding, "replay", recorded)
        decision = deciding.decide(left, right)
    assert decision.verdict is deciding.Verdict.REFUTED, decision
    return met[0]

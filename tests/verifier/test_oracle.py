"""No random rule is proved that an independent evaluator refutes, which shares no code with the
project."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from support.rules import oracle
from support.rules.random_rules import SYMBOLS, Maker

from pcg.errors import InputError
from pcg.plan.text import parse_values
from verifier import decide as deciding
from verifier.decide import Verdict

RANKS = {"x": 2, "y": 2, "z": 2}
SHAPES = ((1, 2, 3), (2, 2, 2), (1, 1, 1), (6, 4, 2), (4, 6, 4))
"""With sizes of few values, dimensions are equal often enough for products to have types."""
WORLDS = 30
"""Enough for shapes, equal shapes and kinds of numbers to meet: 5 * 2 * 3."""


def worlds(rng: random.Random) -> Iterator[tuple[dict[str, oracle.Tensor], dict[str, float]]]:
    """Inputs and symbols at many shapes. Elements are often 0, negative, or equal."""
    for number in range(WORLDS):
        sizes = SHAPES[number % len(SHAPES)]
        seed = np.random.default_rng(number)
        inputs: dict[str, oracle.Tensor] = {}
        same = rng.choice(sizes), rng.choice(sizes)
        for name in RANKS:
            shape = same if number % 2 else (rng.choice(sizes), rng.choice(sizes))
            values = seed.integers(-2, 4, shape) / 2 if number % 3 else seed.uniform(0.1, 2, shape)
            inputs[name] = oracle.Tensor.whole(values)
        symbols: dict[str, float] = {s: rng.randint(0, 3) for s in SYMBOLS}
        yield inputs, {**symbols, "d": rng.choice((2, 3)), "c": rng.choice((-1.5, 0.0, 2.0))}


def disagreement(left: str, right: str) -> Mapping[str, object] | None:
    """Inputs on which both sides have different values."""
    for inputs, symbols in worlds(random.Random(len(left))):
        try:
            values = [oracle.read(side, inputs, symbols) for side in (left, right)]
        except oracle.NoMeaning:
            continue
        if not oracle.agree(*values):
            return {**{n: t.meaning.tolist() for n, t in inputs.items()}, **symbols}
    return None


def proved(left: str, right: str) -> bool:
    try:
        sides = [parse_values(side, RANKS, side) for side in (left, right)]
    except InputError:
        return False
    return deciding.decide(sides[0], sides[1]).verdict is Verdict.PROVED


@pytest.fixture(autouse=True)
def _without_replay(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """The proof alone decides."""
    monkeypatch.setattr(deciding, "replay", lambda *_args, **_options: None)


def judge(seeds: range) -> int:
    """Check the rules that are proved, and return their number."""
    count = 0
    for seed in seeds:
        left, right = Maker(seed).rule()
        if proved(left, right):
            count += left != right
            assert disagreement(left, right) is None, f"{seed}: {left} == {right}"
    return count


def test_oracle_tells_false_rules_from_true_ones():
    assert disagreement("subtract(x, y)", "subtract(y, x)")
    assert disagreement("subtract(log(x), log(x))", "subtract(x, x)")
    assert disagreement("relu(scale(x, factor=c))", "scale(relu(x), factor=c)")
    later = "slice(x, axis=0, start=n + 1, size=m)"
    assert disagreement("slice(x, axis=0, start=n, size=m)", later)
    assert disagreement("matmul(x, y)", "matmul(y, x)")
    assert not disagreement("matmul(add(x, y), z)", "add(matmul(x, z), matmul(y, z))")
    summed = "matmul(partition(x, dim=1, degree=d), partition(y, dim=0, degree=d))"
    assert not disagreement("matmul(x, y)", f"reduce({summed}, degree=d)")


PARTS = [range(start, start + 63) for start in range(0, 504, 63)]


@pytest.mark.parametrize(
    "seeds", [range(20), *(pytest.param(part, marks=pytest.mark.soak) for part in PARTS)]
)
def test_no_false_rule_is_proved(seeds: range):
    """504 rules in all. A good part of them is proved."""
    assert judge(seeds) > 5


@pytest.mark.soak
def test_no_false_rule_of_many_is_proved():
    assert judge(range(1000, 11000)) > 1000

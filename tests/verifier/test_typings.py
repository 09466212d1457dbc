"""Theorems about operators are proved once, and known to processes that are forked later."""

from __future__ import annotations

import pytest

from pcg.graph.graph import Value
from pcg.plan.text import parse_values
from verifier import typings
from verifier.typings import missing, problem_of, reason_against, remember


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(typings, "_REASONS", {})


def twice() -> tuple[Value, ...]:
    return parse_values("relu(relu(x)), matmul(partition(x, dim=0, degree=k), y)", {"x": 2, "y": 2})


def test_theorems_are_listed_once_and_without_parallel_operators():
    assert sorted(call.name for call, _, _ in missing(twice())) == ["matmul", "relu"]


def test_known_theorems_are_not_missing():
    for theorem in missing(twice()):
        assert reason_against(theorem) is None
    assert missing(twice()) == []


def test_answers_of_another_process_are_remembered():
    (value,) = parse_values("relu(x)", {"x": 1})
    (theorem,) = missing([value])
    remember(theorem, "told so")
    assert problem_of(value.node) == "told so"

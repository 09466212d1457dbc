"""The machine views that the search considers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcg.errors import InputError
from pcg.machine import load_machine
from pcg.placement.view import MachineView, ViewGenerator
from pcg.plan.text import parse_graph
from search.backtracking import views
from search.backtracking.mapping import Mapper
from search.backtracking.views import (
    MAX_VIEWS,
    candidate_views,
    load_views,
    register_views,
    spread_views,
    views_on,
)
from search.cost.cost import CostModel

SUMMIT = load_machine("summit").with_nodes(2)


def test_candidate_views():
    assert len(candidate_views((2, 2, 2), (0, 8))) == 6
    assert candidate_views((4,), (0, 3)) == ()
    views = candidate_views((2, 1, 2), (4, 12))
    assert len(views) == len(set(views)) == 6
    assert {view.start for view in views} == {4, 8, 12}
    for shape in ((1,), (2, 3), (2, 2, 2, 2), (2, 2, 2, 2, 2), (1, 1)):
        found = candidate_views(shape, (0, 64))
        assert 1 <= len(set(found)) == len(found) <= MAX_VIEWS
        assert all(view.is_injective and max(view.devices) < 64 for view in found)


def test_views_of_figure_7():
    """Paper, figure 7, on two nodes of two sockets: one device a socket and one a node, and two
    axes over nodes and some devices of each."""
    spread = {view.devices for view in spread_views((2,), SUMMIT, (0, 12))}
    assert spread == {(0, 3), (0, 6)}
    assert {view.devices for view in spread_views((4,), SUMMIT, (0, 12))} == {(0, 3, 6, 9)}
    assert (0, 1, 6, 7) in {view.devices for view in spread_views((2, 2), SUMMIT, (0, 12))}
    assert not list(spread_views((2,), SUMMIT, (0, 3)))


shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


@given(shapes, st.integers(0, 20), st.integers(1, 24))
@settings(max_examples=30)
def test_views_are_of_the_grid_and_in_the_range(shape, first, size):
    machine = SUMMIT.with_nodes(8)
    found = views_on(machine, shape, (first, size))
    assert len(set(found)) == len(found)
    for view in found:
        assert view.shape == shape
        assert view.is_injective
        assert first <= min(view.devices) <= max(view.devices) < first + size


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(views, "_generators", dict(views._generators))


OWN = """
from pcg.placement.view import MachineView, ViewGenerator

def backwards(shape, machine, devices):
    first, size = devices
    if len(shape) == 1 and shape[0] <= size:
        yield MachineView(first + shape[0] - 1, shape, (-1,))

generator = ViewGenerator("backwards", backwards)
"""


def test_a_users_views_take_part(tmp_path: Path):
    path = tmp_path / "views.py"
    path.write_text(OWN)
    before = views_on(SUMMIT, (3,), (0, 12))
    (generator,) = load_views(path)
    assert generator.name == "backwards"
    assert set(views_on(SUMMIT, (3,), (0, 12))) - set(before) == {MachineView(2, (3,), (-1,))}
    with pytest.raises(InputError, match="view generator backwards: the name is taken"):
        load_views(path)


def test_the_mapping_asks_a_users_generator():
    graph = parse_graph("x = input[12, 12]\nw = weight[12, 12]\nreturn mean_loss(matmul(x, w))")
    graph.check()
    asked: list[tuple[int, ...]] = []

    def noted(shape: tuple[int, ...], machine: Any, devices: Any) -> Iterator[MachineView]:
        asked.append(shape)
        yield from ()

    register_views(ViewGenerator("noted", noted))
    assert Mapper(SUMMIT, CostModel(SUMMIT)).best(graph) is not None
    assert asked


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (lambda *_: [3], "expected machine views, got 3"),
        (lambda *_: [MachineView(0, (2, 1), (1, 1))], "expected views of the grid"),
        (lambda *_: [MachineView(0, (2,), (0,))], "each once, got 0"),
        (lambda *_: [MachineView(11, (2,), (1,))], "expected devices 0 to 11, each once"),
        (lambda *_: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_wrong_generator_is_named(made: Any, problem: str):
    register_views(ViewGenerator("wrong", made))
    with pytest.raises(InputError, match="view generator wrong") as caught:
        views_on(SUMMIT, (2,), (0, 12))
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [("x = 1", "has no view generator"), ("1 / 0", "ZeroDivisionError")],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, problem: str):
    path = tmp_path / "wrong.py"
    path.write_text(text)
    with pytest.raises(InputError, match=problem):
        load_views(path)

"""Machine code and its tables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.cases import examples

from search.cost.native.columns import numbers
from search.cost.native.compiled import FOLDER, SOURCES, cache_folder, compiled
from search.refine.compile import compile_annealing
from search.refine.native import tables
from search.refine.native.tables import ABSENT, GrowingHashTable, pair, place_of


def test_no_place_beyond_an_array_is_touched():
    """Machine code checks no bounds, but Python does: the tests of plans and messages pass in
    Python too."""
    tests = (
        "tests/search/refine/test_delta.py",
        "tests/search/refine/test_message_moves.py",
        "tests/search/refine/test_moves.py",
        "tests/search/cost/test_messages.py",
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [*command, *tests], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_code_of_other_sources_is_not_loaded(tmp_path):
    """The code of a function contains functions and types of other files."""
    sources = [tmp_path / "a.py", tmp_path / "b.py"]
    folders: list[Path] = []
    for text in ("old", "new", "old"):
        sources[0].write_text("same")
        sources[1].write_text(text)
        folders.append(cache_folder(tmp_path, sources))
    assert folders[0] == folders[2] != folders[1]
    assert {Path(compiled.__code__.co_filename), Path(tables.__file__)} <= {*SOURCES}
    statistics: Any = place_of
    assert FOLDER in Path(statistics.stats.cache_path).parents


def test_compiling_anneals_a_plan():
    assert compile_annealing() > 0


@examples(20)
@given(
    st.dictionaries(st.tuples(st.integers(0, 2**21 - 1), st.integers(0, 2**42 - 1)), st.integers(0))
)
def test_a_growing_table_has_what_was_added(added):
    table = GrowingHashTable(places=2)
    for number, key in enumerate(added):
        table.add(pair(*key), number, -number)
    for number, key in enumerate(added):
        assert table.table[place_of(table.table, pair(*key))].tolist() == [
            pair(*key),
            number,
            -number,
        ]
    free = (table.table[:, 0] == ABSENT).sum()
    assert free >= len(table.table) / 2


def test_a_column_grows():
    column = numbers(2)
    for number in range(3000):
        column.extend([(number, -number)], 1)
    column.extend([], 0)
    assert column.count == 3000
    assert column.rows[:3000].tolist() == [[number, -number] for number in range(3000)]

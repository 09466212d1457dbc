"""The frequency of garbage collection, during a piece of work and after it."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from pcg.collection import SELDOM, seldom_collected, uncollected


@pytest.fixture
def _restored():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.enable()


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(("given", "during"), [(700, SELDOM), (SELDOM + 1, SELDOM + 1), (0, 0)])
def test_garbage_collection_is_seldom_during_the_work_and_restored_after(given: int, during: int):
    gc.set_threshold(given, 7, 9)

    @seldom_collected()
    def work():
        assert gc.get_threshold() == (during, 7, 9)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert gc.get_threshold() == (given, 7, 9)


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("is_on", [True, False])
def test_garbage_collection_is_off_during_the_work_and_restored_after(is_on: bool):
    (gc.enable if is_on else gc.disable)()

    @uncollected()
    def work():
        assert not gc.isenabled()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert gc.isenabled() == is_on


CYCLE = """
from pcg.collection import uncollected_at_exit

class Node:
    def __del__(self, print=print):
        print("freed")

node = Node()
node.itself = node
del node
"""


@pytest.mark.parametrize("is_left_out", [False, True])
def test_cycles_are_not_searched_for_at_exit(is_left_out: bool):
    code = CYCLE + "uncollected_at_exit()\n" * is_left_out
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert printed == (b"" if is_left_out else b"freed\n")

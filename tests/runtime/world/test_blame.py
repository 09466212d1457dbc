"""The rank to blame: the one that is silent, has left or is elsewhere, never its victim."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

import pytest

from runtime.world.blame import Beat, Pulse, judge

WAITS = Beat(9, 7, "messages with [1]", True, 30.0, "here", 1, 1)
READS = replace(WAITS, doing="reading its data", waits=False)


@pytest.mark.parametrize(
    ("beats", "silent", "expected"),
    [
        ({0: WAITS, 1: READS, 2: WAITS}, [], "rank 1 hangs in step 7, reading its data for 30 s"),
        (
            {0: WAITS, 1: WAITS, 2: WAITS},
            [2],
            "rank 2 is silent in step 7, messages with [1] for 30 s",
        ),
        ({0: WAITS, 1: READS, 2: WAITS}, [2], "rank 2 is silent in step 7"),
        ({0: WAITS, 1: None, 2: WAITS}, [1], "rank 1 is silent, it never came"),
        ({0: WAITS, 1: replace(WAITS, left="no data"), 2: READS}, [1], "rank 1 has left: no data"),
        ({0: WAITS, 1: replace(WAITS, blames="rank 2 hangs")}, [1], "rank 2 hangs"),
        ({0: WAITS, 1: replace(WAITS, step=6), 2: WAITS}, [], "rank 1 is behind in step 6"),
        ({0: WAITS, 1: replace(READS, step=0)}, [], "rank 1 hangs before the first step"),
        ({0: WAITS, 1: WAITS}, [], ""),
        ({0: READS, 1: WAITS}, [0], ""),
    ],
)
def test_judgement_of_heartbeats(beats, silent, expected):
    assert judge(beats, silent, 0)[0].startswith(expected)
    assert bool(judge(beats, silent, 0)[0]) == bool(expected)


class Memory:
    """A store of one process."""

    def __init__(self):
        self.held, self.lock = {}, threading.Lock()

    def set(self, key, value):
        self.held[key] = value

    def get(self, key):
        return self.held[key].encode()

    def check(self, keys):
        return all(key in self.held for key in keys)

    def compare_set(self, key, expected, desired):
        with self.lock:
            if self.held.get(key, "") == expected:
                self.held[key] = desired
            return self.held[key].encode()


@dataclass
class FakeActivity:
    rank: int
    size: int = 3
    step: int = 4
    doing: str = "computing"
    waits: bool = True
    since: float = 0.0


def test_all_ranks_blame_the_same_rank_and_one_reports_it(monkeypatch):
    monkeypatch.setattr("runtime.world.blame.BEAT", 0.02)
    monkeypatch.setattr("runtime.world.blame.SILENT", 0.2)
    store = Memory()
    pulses = [
        Pulse(store, FakeActivity(rank, waits=rank != 1, since=time.monotonic()))
        for rank in (0, 1, 2)
    ]
    verdicts = [pulses[0].verdict(), pulses[2].verdict()]
    assert [verdict.text for verdict in verdicts] == [
        "rank 1 hangs in step 4, computing for 0 s"
    ] * 2
    assert [verdict.speaks for verdict in verdicts] == [True, False]
    pulses[1].leave("its own fault")


def test_rank_that_left_by_its_own_fault_is_named_and_not_repeated(monkeypatch):
    monkeypatch.setattr("runtime.world.blame.BEAT", 0.02)
    store = Memory()
    first, second = (
        Pulse(store, FakeActivity(rank, size=2, since=time.monotonic())) for rank in (0, 1)
    )
    second.leave("data: no such file")
    verdict = first.verdict()
    assert verdict.text == "rank 1 has left: data: no such file"
    assert not verdict.speaks

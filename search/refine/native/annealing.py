"""An annealing: a walk from state to state, as long as all that it needs is in the tables.

Metropolis' rule draws its threshold before a state is simulated, so most states are ruled out by a
bound, or by a part of their simulation.

Complexity: for each state, that of ``moves`` and ``states``.
"""

from __future__ import annotations

from math import inf, log
from typing import NamedTuple

import numpy as np

from search.cost.native.compiled import compiled
from search.refine.native.mappings import copy_state, has_room, is_equal
from search.refine.native.moves import REISSUED, move
from search.refine.native.random_mappings import MoveTables
from search.refine.native.states import StateTables, state_seconds
from search.refine.native.tables import ABSENT, Numbers, Seconds, Tables
from search.refine.native.timing import Scratch
from search.refine.native.xorshift import fraction

# The places of numbers and of seconds.
TURN, TURNS, IS_DRAWN, IS_ASKED, HAS_BEST = range(5)
NOW, LEAST, BEST, LIMIT, HEAT, LAST_HEAT = range(6)
# What a walk waits for.
ENDED, GOES_ON, MISSES, NEEDS_ROOM, ASKS = range(5)


class AnnealingWalk(NamedTuple):
    """Where an annealing is."""

    now: Numbers
    """[2, operators]: the state."""
    other: Numbers
    """[2, operators]: the one that may follow it."""
    best: Numbers
    """[2, operators]: the fastest state so far, if it is faster than the first one."""
    numbers: Numbers
    """The number of states so far, and of all; whether ``other`` is drawn and not yet decided;
    whether another function prices states; and whether there is a best state."""
    seconds: Seconds
    """Seconds of the state, of the fastest in this walk, of the best of all walks, and those at
    which ``other`` is not accepted; and the first and the last temperature as fractions of the
    fastest."""
    shares: Seconds
    """See ``search.refine.moves.Shares``."""


def walk(operators: int, *, is_asked: bool) -> AnnealingWalk:
    """A walk that has not begun. ``is_asked``: whether another function prices states."""
    made = AnnealingWalk(
        np.zeros((2, operators), np.int64),
        np.zeros((2, operators), np.int64),
        np.zeros((2, operators), np.int64),
        np.zeros(5, np.int64),
        np.full(6, inf),
        np.zeros(REISSUED + 1),
    )
    made.numbers[IS_ASKED] = is_asked
    return made


@compiled
def walk_on(
    tables: Tables,
    states: StateTables,
    scratch: Scratch,
    moves: MoveTables,
    walk: AnnealingWalk,
    states_at_once: int,
) -> int:
    """Go on with a walk for so many states. Returns what it waits for."""
    numbers = walk.numbers
    for _ in range(states_at_once):
        if numbers[TURN] == numbers[TURNS]:
            return ENDED
        if not numbers[IS_DRAWN]:
            if not has_room(states.mappings, walk.now.shape[1] + 1):
                return NEEDS_ROOM
            if 2 * (states.used[0] + len(states.operands)) > len(states.lists):
                return NEEDS_ROOM
            if not _draw(states, moves, walk):
                numbers[TURN] += 1
                continue
        if numbers[IS_ASKED]:
            return ASKS
        seconds = state_seconds(tables, states, scratch, walk.other, walk.seconds[LIMIT])
        if seconds == ABSENT:
            return MISSES
        decide(walk, seconds if seconds >= 0.0 else inf)
    return GOES_ON


@compiled
def _draw(states: StateTables, moves: MoveTables, walk: AnnealingWalk) -> bool:
    """Draw a state, and the seconds at which it is not accepted. False if nothing changes."""
    seconds, numbers = walk.seconds, walk.numbers
    move(moves, states.mappings, walk.shares, walk.now, walk.other)
    if is_equal(walk.now, walk.other):
        return False
    part = numbers[TURN] / numbers[TURNS]
    warm = seconds[LEAST] * seconds[HEAT] * (seconds[LAST_HEAT] / seconds[HEAT]) ** part
    seconds[LIMIT] = seconds[NOW] - warm * log(fraction(moves.random))
    numbers[IS_DRAWN] = True
    return True


@compiled
def decide(walk: AnnealingWalk, seconds: float) -> None:
    """Go to the state that was drawn if it is fast enough. ``seconds``: of its step."""
    walk.numbers[IS_DRAWN] = False
    walk.numbers[TURN] += 1
    if seconds < walk.seconds[LIMIT]:
        copy_state(walk.other, walk.now)
        walk.seconds[NOW] = seconds
        keep(walk)


@compiled
def keep(walk: AnnealingWalk) -> None:
    """Keep the state if it is the fastest so far."""
    seconds = walk.seconds
    seconds[LEAST] = min(seconds[LEAST], seconds[NOW])
    if seconds[NOW] < seconds[BEST]:
        seconds[BEST], walk.numbers[HAS_BEST] = seconds[NOW], True
        copy_state(walk.now, walk.best)

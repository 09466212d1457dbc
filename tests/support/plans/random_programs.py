"""Random programs, of tasks on all devices, on some, and in groups."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from search.cost.cost import NOTHING, Duration
from search.cost.tasks import ProgramStep, TaskProgram

DEVICES = 4
POOL = [
    Duration(np.array(groups, np.intp), np.array(seconds, float))
    for groups, seconds in (
        ([[0, 1, 2, 3]], [3.0]),
        ([[0, 1, 2, 3]], [0.7]),
        ([[0, 1], [2, 3]], [2.0, 2.0]),
        ([[0, 2], [1, 3]], [1.0, 4.0]),
        ([[3], [1], [0], [2]], [1.0, 1.0, 1.0, 1.0]),
        ([[2]], [5.0]),
        ([[1], [3]], [2.5, 0.3]),
        ([[0, 3]], [1.1]),
    )
]


@st.composite
def programs(draw: st.DrawFn, most: int = 24) -> TaskProgram:
    count, weights = draw(st.integers(1, most)), draw(st.integers(0, 3))
    steps: list[ProgramStep] = []
    for i in range(count):
        reads = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set[int]()
        added = draw(st.sets(st.integers(0, weights - 1), max_size=2)) if weights else set[int]()
        back = draw(st.sampled_from([NOTHING, *POOL]))
        again = tuple(sorted(reads)) if draw(st.booleans()) else ()
        kept = tuple(sorted(added)) if back is not NOTHING else ()
        moves = draw(st.booleans())
        forward = draw(st.sampled_from([*POOL, NOTHING]))
        late = _half(back) if draw(st.booleans()) else NOTHING
        own = tuple(sorted(reads))
        steps.append(ProgramStep(forward, back, own, kept, moves, again, late))
    pairs = st.tuples(st.sampled_from([NOTHING, *POOL]), st.sampled_from(POOL))
    used = sorted({weight for step in steps for weight in step.weights})
    numbers = {weight: i for i, weight in enumerate(used)}
    steps = [s._replace(weights=tuple(numbers[w] for w in s.weights)) for s in steps]
    return TaskProgram(steps, [draw(pairs) for _ in used])


def _half(whole: Duration) -> Duration:
    return Duration(whole.groups, whole.seconds / 2) if whole is not NOTHING else NOTHING

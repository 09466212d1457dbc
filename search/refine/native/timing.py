"""Seconds of a plan, if it is faster than a limit.

Plans are ruled out in three steps: by the longest path of operators (``is_path_longer``), by the
work of the busiest stream of a device, and by the simulation, which ends when a task begins too
late for the longest path that begins with it (as in ``search.cost.bounded``). The seconds are those
of ``search.cost.simulate``, to the last bit. The bounds are added up in other orders than these, so
they must exceed the limit by more than rounding.

Complexity: the operands of all operators, two or three times; then the tasks and their
dependencies, each with the devices that take part.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from search.cost.bounded import ROUNDING
from search.cost.native.compiled import compiled, inlined
from search.refine.native.issue import (
    BEGIN,
    DURATION,
    END,
    HANDS_ON,
    LESS,
    STREAM,
    TASKS,
    Issue,
    issue_tasks,
)
from search.refine.native.listing import (
    MISSING,
    NOTHING,
    Listing,
    leave_outputs,
    list_gradients,
    list_steps,
    list_weights,
)
from search.refine.native.message_moves import price_missing
from search.refine.native.tables import (
    ABSENT,
    DEVICE,
    FIRST_OPERAND,
    FIRST_RESULT,
    GROUP,
    GROUPS,
    MADE_IN,
    PASSES,
    WANTED,
    WIDTH,
    Durations,
    Numbers,
    Seconds,
    Tables,
    pair,
    place_of,
)

# The columns of tasks and operators.
ENDS, REST, OWN = range(3)


class PlanClocks(NamedTuple):
    """The times of one plan. They are used again for the next plan."""

    times: Seconds
    """[tasks or operators, 3]: of an operator, the longest path that ends with it, the longest one
    between its forward and its backward pass, and the longest one of backward passes that ends with
    it; of a task, the longest path that begins with it, in the second column."""
    ready: Seconds
    """[tasks, devices]: when each device has the result."""
    streams: Seconds
    """[streams, devices]: until when each device is busy."""


def plan_clocks(tasks: int, devices: int) -> PlanClocks:
    """Clocks for so many tasks."""
    return PlanClocks(np.zeros((tasks, 3)), np.zeros((tasks, devices)), np.zeros((2, devices)))


@compiled
def is_path_longer(tables: Tables, pieces: Numbers, limit: float, times: Seconds) -> bool:
    """Whether a path of operators, forward and backward, takes ``limit`` seconds or longer. Where a
    resharding is not priced or is made of two, it counts nothing."""
    rows, seconds, edge = tables.pieces.rows, tables.pieces.seconds, tables.shape.edge
    edges, moves = tables.shape.edges, tables.moves
    _find_after(rows, seconds, edge, edges, pieces, times)
    for number in range(len(pieces)):
        piece = pieces[number]
        passes = rows[piece, PASSES]
        start, back = 0.0, seconds[piece, 2]
        for at in range(edge[number], edge[number + 1]):
            maker = edges[at, 0]
            source = pieces[maker]
            end, rest = times[maker, ENDS], times[maker, OWN]
            made_in = tables.pieces.results[rows[source, FIRST_RESULT] + edges[at, 1], MADE_IN]
            wanted = tables.pieces.operands[rows[piece, FIRST_OPERAND] + edges[at, 2], WANTED]
            if made_in != wanted:
                key = pair(made_in, wanted)
                place = place_of(moves, key)
                if moves[place, 0] == key and moves[place, 1] >= 0:
                    end += tables.durations.shortest[moves[place, 1]]
                    rest += tables.durations.shortest[moves[place, 2]]
            start = max(start, end)
            if passes and rows[source, PASSES]:
                back = max(back, rest)
        end = start + seconds[piece, 0]
        back = back + seconds[piece, 1] if passes else 0.0
        times[number, ENDS], times[number, OWN] = end, back
        if end + times[number, REST] + back >= limit:
            return True
    return False


@inlined
def _find_after(
    rows: Numbers, seconds: Seconds, edge: Numbers, edges: Numbers, pieces: Numbers, times: Seconds
) -> None:
    """For each operator, find the longest path between the end of its forward pass and the start of
    its backward pass, without reshardings."""
    for number in range(len(pieces)):
        times[number, REST] = 0.0
    for number in range(len(pieces) - 1, -1, -1):
        piece = pieces[number]
        if rows[piece, PASSES]:
            longest = times[number, REST] + seconds[piece, 0] + seconds[piece, 1]
            for at in range(edge[number], edge[number + 1]):
                maker = edges[at, 0]
                times[maker, REST] = max(times[maker, REST], longest)


@compiled
def simulated(durations: Durations, issued: Issue, limit: float, clock: PlanClocks) -> float:
    """Seconds of a step; inf if it takes ``limit`` seconds or longer."""
    if _busiest(durations, issued, clock.streams) >= limit * (1 + ROUNDING):
        return inf
    _find_rest(durations, issued, clock.times)
    return _run(durations, issued, limit, clock)


@inlined
def _find_rest(durations: Durations, issued: Issue, times: Seconds) -> None:
    """For each task, find the longest path of tasks that begins with it."""
    count, tasks = issued.counts[TASKS], issued.tasks
    for task in range(count):
        times[task, REST] = 0.0
    for task in range(count - 1, -1, -1):
        row = tasks[task]
        longest = times[task, REST] + _shortest(durations, row, issued.added[task])
        times[task, REST] = longest
        for at in range(row[BEGIN], row[END]):
            other = issued.dependencies[at]
            if times[other, REST] < longest and _waits(durations, tasks, task, other):
                times[other, REST] = longest


@inlined
def _busiest(durations: Durations, issued: Issue, loads: Seconds) -> float:
    """The seconds for which a stream of a device is busy, of that which is busy for longest.
    ``loads``: scratch, as of ``PlanClocks.streams``."""
    most = 0.0
    for device in range(loads.shape[1]):
        loads[0, device] = loads[1, device] = 0.0
    for task in range(issued.counts[TASKS]):
        row = issued.tasks[task]
        stream, duration = row[STREAM], durations.rows[row[DURATION]]
        width, member = duration[WIDTH], duration[DEVICE]
        for group in range(duration[GROUPS]):
            seconds = _group_seconds(durations, row, issued.added[task], group)
            for at in range(member, member + width):
                device = durations.devices[at]
                if at == member or device != durations.devices[at - 1]:  # it may be listed again
                    loads[stream, device] += seconds
            member += width
    for device in range(loads.shape[1]):
        most = max(most, loads[0, device], loads[1, device])
    return most


@inlined
def _run(durations: Durations, issued: Issue, limit: float, clock: PlanClocks) -> float:
    """Simulate all tasks, as long as the step may be faster than the limit."""
    last, most, ready, streams = 0.0, limit * (1 + ROUNDING), clock.ready, clock.streams
    for device in range(ready.shape[1]):
        streams[0, device] = streams[1, device] = 0.0
    for task in range(issued.counts[TASKS]):
        row, first = issued.tasks[task], inf
        stream, duration = row[STREAM], durations.rows[row[DURATION]]
        begin, end, hands_on = row[BEGIN], row[END], row[HANDS_ON] != 0
        width, member = duration[WIDTH], duration[DEVICE]
        _hand_on(issued.dependencies, begin, end if hands_on else begin, ready, task)
        for group in range(duration[GROUPS]):
            start = 0.0
            for at in range(member, member + width):
                device = durations.devices[at]
                start = max(start, streams[stream, device], ready[task, device])
                if not hands_on:
                    for other in range(begin, end):
                        start = max(start, ready[issued.dependencies[other], device])
            first = min(first, start)
            seconds = _group_seconds(durations, row, issued.added[task], group)
            ended = start + seconds
            last = max(last, ended)
            for at in range(member, member + width):
                device = durations.devices[at]
                streams[stream, device] = ready[task, device] = ended
            member += width
        if duration[GROUPS] and (first + clock.times[task, REST] >= most or last >= limit):
            return inf
    return float(last)


@inlined
def _hand_on(dependencies: Numbers, begin: int, end: int, ready: Seconds, task: int) -> None:
    """Note when devices that take no part in a task have its result: as soon as they have those of
    the tasks from ``begin`` to ``end``."""
    for device in range(ready.shape[1]):
        ready[task, device] = 0.0
    for at in range(begin, end):
        other = dependencies[at]
        for device in range(ready.shape[1]):
            ready[task, device] = max(ready[task, device], ready[other, device])


@inlined
def _group_seconds(durations: Durations, row: Numbers, added: float, group: int) -> float:
    """The seconds of a group of a task."""
    seconds = durations.seconds[durations.rows[row[DURATION], GROUP] + group] + added
    if row[LESS] != NOTHING:
        seconds -= durations.seconds[durations.rows[row[LESS], GROUP] + group]
    return float(seconds)


@inlined
def _shortest(durations: Durations, row: Numbers, added: float) -> float:
    """The seconds of the group of a task that is busy for the shortest time."""
    if row[LESS] == NOTHING:
        return float(durations.shortest[row[DURATION]] + added)
    least = inf
    for group in range(durations.rows[row[DURATION], GROUPS]):
        least = min(least, _group_seconds(durations, row, added, group))
    return least


@inlined
def _waits(durations: Durations, tasks: Numbers, task: int, other: int) -> bool:
    """Whether each group of a task has a device that takes part in another task."""
    busy, duration = durations.busy[tasks[other, DURATION]], durations.rows[tasks[task, DURATION]]
    for group in range(duration[GROUP], duration[GROUP] + duration[GROUPS]):
        waits = False
        for word in range(len(busy)):
            waits = waits or (durations.busy_groups[group, word] & busy[word]) != 0
        if not waits:
            return False
    return True


class Scratch(NamedTuple):
    """What one plan is made of. It is used again for the next plan."""

    made: Listing
    issued: Issue
    clock: PlanClocks
    outputs: Numbers
    """The slots in which outputs are left."""


@compiled
def list_plan(tables: Tables, pieces: Numbers, order: Numbers, scratch: Scratch) -> bool:
    """List the steps of a plan, forward and backward. ``order``: the operators in the order of
    issue. False if that depends on something that is missing."""
    made = scratch.made
    if not list_steps(tables, pieces, order, made):
        return False
    if not leave_outputs(tables, pieces, made, scratch.outputs):
        return False
    list_gradients(tables, made, scratch.outputs)
    list_weights(made)
    return True


@compiled
def plan_seconds(
    tables: Tables, pieces: Numbers, order: Numbers, limit: float, scratch: Scratch
) -> float:
    """Seconds of a step of a plan; inf if they are no less than ``limit``, and ABSENT if something
    is missing in the tables. ``pieces``: the number of that of each operator; ``order``: the
    operators in the order of issue.

    What is missing counts nothing at first. The order of tasks does not depend on it, so it can
    only make the step longer, and need not be priced if the step takes too long without it."""
    made, issued, clock, _ = scratch
    most = limit * (1.0 + ROUNDING)
    while True:
        if limit < inf and is_path_longer(tables, pieces, most, clock.times):
            return inf
        if not list_plan(tables, pieces, order, scratch):
            return ABSENT
        issue_tasks(tables, made, issued)
        seconds = simulated(tables.durations, issued, limit, clock)
        if not made.counts[MISSING] or seconds >= limit:
            return seconds
        if not price_missing(tables, made):
            return ABSENT

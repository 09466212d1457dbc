"""The tasks of a plan in the order of issue: those of ``search.cost.tasks``, with overlap.

Complexity: the steps, what they read, and the weights; in a bucket of gradients also the tasks that
add to them, which are sorted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pcg.plan.timeline import COMMUNICATE, COMPUTE
from search.cost.collectives import BUCKET, FULL
from search.cost.native.compiled import compiled, inlined
from search.refine.native.listing import (
    AHEAD,
    BACK,
    FIRST,
    HOMES,
    LAYOUT,
    MISSING,
    NOTHING,
    PIECE,
    READ,
    RESHARDING,
    SECOND,
    SHARED,
    STEPS,
    WEIGHT,
    Listing,
    insert,
)
from search.refine.native.tables import (
    ABSENT,
    BLOCK,
    EXCHANGING,
    LATE,
    SYNC,
    UPDATE,
    WIDTH,
    HashTable,
    Layouts,
    Numbers,
    Seconds,
    Tables,
    pair,
    place_of,
)

# The places of counts.
TASKS, DEPENDENCIES, DONE, BUCKETS = range(4)
# The columns of tasks.
DURATION, LESS, STREAM, HANDS_ON, BEGIN, END = range(6)
# The columns of steps.
PASSED, USER = range(2)
# The columns of weights.
FIRST_STEP, ADDING, ADDERS, FILLED, EXCHANGE, BUCKET_OF, NEXT, IS_COMPLETE = range(8)
SENT_BEGIN, SENT_END = 8, 9
# The columns of buckets.
GROUPS, HEAD, TAIL, SIZE, COMPLETE, WAS_FULL, IS_FULL = range(7)


class Issue(NamedTuple):
    """The tasks of one plan. It is used again for the next plan."""

    counts: Numbers
    """The tasks, their dependencies, the weights that were exchanged, and the buckets."""
    tasks: Numbers
    """[tasks, 6]: the duration; that of a part which is a task of its own, or NOTHING; the stream;
    whether devices that take no part have the result as soon as they have its inputs; and the range
    of its dependencies."""
    added: Seconds
    """For each task: the seconds of adding gradients, within the duration."""
    dependencies: Numbers
    """Numbers of tasks."""
    steps: Numbers
    """[steps, 2]: the task of its backward pass, or ABSENT; the first of its users."""
    users: Numbers
    """The steps that read the result of a step, in order."""
    adders: Numbers
    """The tasks that add to the gradient of a weight."""
    weights: Numbers
    """[weights, 10]: the first step that adds to its gradient, and the number of such steps; the
    range of ``adders``, as far as it is filled; the duration of its exchange; its bucket, and the
    weight after it there; whether its gradient is complete; and the range of tasks for which its
    update waits."""
    buckets: Numbers
    """[buckets, 7]: the groups that exchange; the first and the last weight; the number of weights,
    and of complete ones; whether an earlier bucket of these groups is full, and whether this one
    is."""
    bytes: Numbers
    """For each bucket: its bytes."""
    done: Numbers
    """The weights in the order in which their exchange was issued."""


def issue(steps: int, reads: int, weights: int) -> Issue:
    """An empty list of tasks. ``reads``: of all steps, of other steps or of weights."""
    tasks = 3 * steps + 2 * weights

    def empty(*shape: int) -> Numbers:
        return np.zeros(shape, np.int64)

    return Issue(
        empty(4),
        empty(tasks, 6),
        np.zeros(tasks, np.float64),
        empty(4 * reads + 3 * steps + weights),
        empty(steps + 1, 2),
        empty(reads),
        empty(reads),
        empty(weights, 10),
        empty(weights, 7),
        empty(weights),
        empty(weights),
    )


@compiled
def issue_tasks(tables: Tables, made: Listing, issued: Issue) -> None:
    """List the tasks of a plan whose steps are listed. Where the seconds of an exchange are not
    known, it is noted as missing, and has no task."""
    _fill_buckets(tables.layouts, tables.shared, made, issued)
    count, steps = issued.counts, made.steps
    count[TASKS] = count[DEPENDENCIES] = count[DONE] = 0
    _find_users(made, issued)
    for step in range(made.counts[STEPS]):
        begin = count[DEPENDENCIES]
        for at in range(steps[step, READ], steps[step + 1, READ]):
            _wait_for(issued, made.reads[at])
        stream, reshards = COMPUTE, steps[step, PIECE] == RESHARDING
        if reshards and tables.durations.rows[steps[step, AHEAD], WIDTH] > 1:
            stream = COMMUNICATE
        task = _add(issued, steps[step, AHEAD], stream, begin)
        issued.tasks[task, HANDS_ON] = reshards
    for step in range(made.counts[STEPS] - 1, -1, -1):
        if steps[step, BACK] != NOTHING:
            _issue_backward(tables.pieces.rows, made, issued, step)
    for weight in range(made.counts[HOMES] - 1, -1, -1):
        if issued.weights[weight, SENT_BEGIN] == ABSENT:
            _exchange(issued, weight)
    for at in range(count[DONE]):
        row = issued.weights[issued.done[at]]
        update = tables.layouts.rows[_kept_in(made, issued.done[at]), UPDATE]
        task = _add(issued, update, COMPUTE, row[SENT_BEGIN])
        issued.tasks[task, END] = row[SENT_END]


@inlined
def _add(issued: Issue, duration: int, stream: int, begin: int) -> int:
    """Add a task that depends on the tasks noted from ``begin`` on. Returns its number."""
    task = issued.counts[TASKS]
    row = issued.tasks[task]
    row[DURATION], row[LESS], row[STREAM], row[HANDS_ON] = duration, NOTHING, stream, False
    row[BEGIN], row[END] = begin, issued.counts[DEPENDENCIES]
    issued.added[task] = 0.0
    issued.counts[TASKS] = task + 1
    return task


@inlined
def _wait_for(issued: Issue, task: int) -> None:
    """Note a dependency of the next task."""
    issued.dependencies[issued.counts[DEPENDENCIES]] = task
    issued.counts[DEPENDENCIES] += 1


@inlined
def _find_users(made: Listing, issued: Issue) -> None:
    """Find the steps that read each step (a counting sort of what steps read)."""
    own, steps, reads = issued.steps, made.counts[STEPS], made.steps
    for step in range(steps + 1):
        own[step, USER] = 0
    for at in range(reads[steps, READ]):
        own[made.reads[at] + 1, USER] += 1
    for step in range(steps):
        own[step + 1, USER] += own[step, USER]
        own[step, PASSED] = own[step, USER]
    for step in range(steps):
        for at in range(reads[step, READ], reads[step + 1, READ]):
            source = made.reads[at]
            issued.users[own[source, PASSED]] = step
            own[source, PASSED] += 1
    for step in range(steps):
        own[step, PASSED] = ABSENT


@inlined
def _issue_backward(pieces: Numbers, made: Listing, issued: Issue, step: int) -> None:
    """Issue the backward pass of a step, and the exchanges of the gradients that it completes."""
    row, after, own = made.steps[step], made.steps[step + 1], issued.steps
    begin = issued.counts[DEPENDENCIES]
    _wait_for(issued, step)
    for at in range(own[step, USER], own[step + 1, USER]):
        back = own[issued.users[at], PASSED]
        if back != ABSENT:
            _wait_for(issued, back)
    reshards, late = row[PIECE] == RESHARDING, NOTHING
    is_one = not reshards and after[WEIGHT] == row[WEIGHT] + 1
    # To the gradient of a weight with a late part, only this step adds.
    if is_one and issued.weights[made.weights[row[WEIGHT]], ADDING] == 1:
        late = pieces[row[PIECE], LATE]
    stream = issued.tasks[step, STREAM]
    task = _add(issued, row[BACK], stream, begin)
    issued.tasks[task, LESS], issued.tasks[task, HANDS_ON] = late, reshards
    issued.added[task] = made.added[step]
    own[step, PASSED] = task
    if late != NOTHING:
        begin = issued.counts[DEPENDENCIES]
        _wait_for(issued, task)
        task = _add(issued, late, stream, begin)
    for at in range(row[WEIGHT], after[WEIGHT]):
        weight = issued.weights[made.weights[at]]
        issued.adders[weight[FILLED]] = task
        weight[FILLED] += 1
    for at in range(row[WEIGHT], after[WEIGHT]):
        if issued.weights[made.weights[at], FIRST_STEP] == step:
            _exchange(issued, made.weights[at])


@inlined
def _exchange(issued: Issue, weight: int) -> None:
    """Note that a weight's gradient is complete. Exchange its bucket if all of it is."""
    row = issued.weights[weight]
    bucket = issued.buckets[row[BUCKET_OF]]
    if not row[IS_COMPLETE]:
        row[IS_COMPLETE] = True
        bucket[COMPLETE] += 1
    if bucket[COMPLETE] < bucket[SIZE]:
        return
    begin = end = issued.counts[DEPENDENCIES]
    other = bucket[HEAD]
    while other != ABSENT:
        row = issued.weights[other]
        for at in range(row[ADDERS], row[FILLED]):
            end = insert(issued.dependencies, begin, end, issued.adders[at])
        other = row[NEXT]
    issued.counts[DEPENDENCIES] = end
    _send(issued, bucket[HEAD], begin, end)


@inlined
def _send(issued: Issue, head: int, begin: int, end: int) -> None:
    """Issue the exchange of a bucket, which depends on the tasks noted from ``begin`` to ``end``.
    ``head``: its first weight."""
    sent_begin, sent_end, other = begin, end, head
    while other != ABSENT:
        row = issued.weights[other]
        if row[EXCHANGE] != NOTHING:
            task = _add(issued, row[EXCHANGE], COMMUNICATE, begin)
            issued.tasks[task, HANDS_ON], issued.tasks[task, END] = True, end
            sent_begin = issued.counts[DEPENDENCIES]
            _wait_for(issued, task)
            sent_end = sent_begin + 1
        issued.done[issued.counts[DONE]] = other
        issued.counts[DONE] += 1
        other = row[NEXT]
    # All sums are ready when the last part of the bucket is.
    other = head
    while other != ABSENT:
        row = issued.weights[other]
        row[SENT_BEGIN], row[SENT_END] = sent_begin, sent_end
        other = row[NEXT]


@inlined
def _kept_in(made: Listing, weight: int) -> int:
    """The layout of a trained weight."""
    return int(made.slots[made.homes[1, weight], LAYOUT])


@inlined
def _fill_buckets(layouts: Layouts, shared: HashTable, made: Listing, issued: Issue) -> None:
    """Fill the buckets of gradients, and find the seconds of exchanges."""
    _find_adders(made, issued)
    weights, order, count = issued.weights, issued.done, 0
    issued.counts[BUCKETS] = 0
    for at in range(made.steps[made.counts[STEPS], WEIGHT]):
        weight = made.weights[at]
        if weights[weight, NEXT] == ABSENT:
            weights[weight, NEXT] = weight
            order[count] = weight
            count += 1
    for at in range(count - 1, -1, -1):
        row = layouts.rows[_kept_in(made, order[at])]
        if row[EXCHANGING] != ABSENT:
            _fill(issued, order[at], row[EXCHANGING], row[BLOCK])
    for weight in range(made.counts[HOMES]):
        layout = _kept_in(made, weight)
        if weights[weight, BUCKET_OF] == ABSENT:
            weights[weight, EXCHANGE] = layouts.rows[layout, SYNC]
            _begin_bucket(issued, ABSENT, False)
            _put(issued, issued.counts[BUCKETS] - 1, weight)
            continue
        together = int(issued.bytes[weights[weight, BUCKET_OF]])
        key = pair(layout, together)
        place = place_of(shared, key)
        if shared[place, 0] != key:
            missing = SHARED, layout, together
            made.counts[MISSING], made.counts[FIRST], made.counts[SECOND] = missing
            weights[weight, EXCHANGE] = NOTHING
        else:
            weights[weight, EXCHANGE] = shared[place, 1]


@inlined
def _find_adders(made: Listing, issued: Issue) -> None:
    """Find the steps that add to the gradient of each weight, and make room for them."""
    weights, steps, count = issued.weights, made.counts[STEPS], made.counts[HOMES]
    for weight in range(count):
        row = weights[weight]
        row[FIRST_STEP], row[ADDING], row[IS_COMPLETE] = steps, 0, False
        row[BUCKET_OF] = row[NEXT] = row[SENT_BEGIN] = ABSENT
    for step in range(steps - 1, -1, -1):
        for at in range(made.steps[step, WEIGHT], made.steps[step + 1, WEIGHT]):
            row = weights[made.weights[at]]
            row[FIRST_STEP] = step
            row[ADDING] += 1
    first = 0
    for weight in range(count):
        row = weights[weight]
        row[ADDERS] = row[FILLED] = first
        first += row[ADDING]


@inlined
def _fill(issued: Issue, weight: int, groups: int, block: int) -> None:
    """Put a weight into the bucket of the groups that exchange its gradient."""
    was_full, own = False, ABSENT
    for number in range(issued.counts[BUCKETS]):
        bucket = issued.buckets[number]
        if bucket[GROUPS] == groups:
            if bucket[IS_FULL]:
                was_full = True
            else:
                own = number
    if own == ABSENT:
        _begin_bucket(issued, groups, was_full)
        own = issued.counts[BUCKETS] - 1
    _put(issued, own, weight)
    issued.bytes[own] += block
    bucket = issued.buckets[own]
    bucket[IS_FULL] = issued.bytes[own] >= (FULL if bucket[WAS_FULL] else BUCKET)


@inlined
def _begin_bucket(issued: Issue, groups: int, was_full: bool) -> None:
    number = issued.counts[BUCKETS]
    bucket = issued.buckets[number]
    bucket[GROUPS], bucket[HEAD], bucket[TAIL], bucket[SIZE] = groups, ABSENT, ABSENT, 0
    bucket[COMPLETE], bucket[WAS_FULL], bucket[IS_FULL] = 0, was_full, False
    issued.bytes[number] = 0
    issued.counts[BUCKETS] = number + 1


@inlined
def _put(issued: Issue, number: int, weight: int) -> None:
    """Put a weight at the end of a bucket."""
    bucket, row = issued.buckets[number], issued.weights[weight]
    if bucket[HEAD] == ABSENT:
        bucket[HEAD] = weight
    else:
        issued.weights[bucket[TAIL], NEXT] = weight
    bucket[TAIL] = weight
    bucket[SIZE] += 1
    row[BUCKET_OF], row[NEXT] = number, ABSENT

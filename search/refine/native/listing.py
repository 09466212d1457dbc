"""The steps of a plan's forward pass, and what the backward pass makes of them.

The steps are those that ``pcg.placement.schedule`` makes of the cut graph, and the gradients those
of ``pcg.placement.backward``.

Complexity: the operators and their operands, each a few steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from search.cost.native.compiled import compiled
from search.refine.native.tables import (
    ABSENT,
    BACKWARD,
    FIRST_OPERAND,
    FIRST_RESULT,
    FORWARD,
    HOME,
    IS_DIFFERENTIATED,
    IS_INPUT,
    IS_TRAINED,
    LEFT,
    OPERANDS,
    PASSES,
    PIECES,
    RESULTS,
    SLOT,
    VALUE,
    Numbers,
    Seconds,
    Tables,
    pair,
    place_of,
)

NOTHING = 0
"""The number of the duration that takes no time on no device."""
UNKNOWN = 1
"""The same, where a resharding is not priced yet."""
RESHARDING = -1
"""The piece of a step that is a resharding."""

# The places of counts.
STEPS, WEIGHTS, HOMES, TIME, MISSING, FIRST, SECOND = range(7)
# What is missing in the tables, if anything.
MOVE, SHARED, CUT = 1, 2, 3


# The columns of steps.
PIECE, AHEAD, BACK, OPERAND, RESULT, READ, WEIGHT = range(7)
# The columns of slots: the numbers of plans for which they are true, or an entry is valid.
MADE, MAKER_OF, MAKER, LIVE, WAS_READ, PARTS_OF, PARTS, NUMBER_OF, NUMBER = range(9)
# The columns of values.
PRODUCED, STORED = range(2)


class Listing(NamedTuple):
    """The steps of one plan. It is used again for the next plan."""

    counts: Numbers
    """The steps, the weights in order of reading, and the trained weights; the number of the plan,
    by which entries about slots are told from older ones; what is missing, if anything, and the
    two numbers that name it."""
    steps: Numbers
    """[steps, 7]: the piece, or RESHARDING; the durations forward and backward; the first of its
    operands, results, and steps that it reads; the first weight to whose gradient it adds."""
    added: Seconds
    """For each step: the seconds of adding gradients, within the backward pass."""
    operands: Numbers
    results: Numbers
    """The slots of all steps."""
    reads: Numbers
    weights: Numbers
    """The numbers of weights, in order for each step."""
    held: Numbers
    """The operands of the step that is listed next; or the row of an output."""
    homes: Numbers
    """[2, weights]: the slots of all weights, then of those that are trained."""
    values: Numbers
    """[values, 2]: the slot in which it is made, and that of a leaf."""
    slots: Numbers
    """[slots, 9]: whether a tensor was moved there; the step that makes it; whether it gets a
    gradient; whether a later step reads it; the gradients that are added up; the number of a
    weight."""


def listing(operators: int, values: int, operands: int, results: int, slots: int) -> Listing:
    """An empty listing. ``operands`` and ``results``: of all operators and outputs together;
    ``slots``: the number of slots for which there is room."""
    steps = operators + operands

    def empty(*shape: int) -> Numbers:
        return np.zeros(shape, np.int64)

    return Listing(
        empty(8),
        empty(steps + 1, 7),
        np.zeros(steps, np.float64),
        empty(2 * operands),
        empty(results + operands),
        empty(2 * operands),
        empty(2 * operands),
        empty(max(operands, 4)),
        empty(2, values),
        empty(values, 2),
        empty(slots, 9),
    )


@compiled
def list_steps(tables: Tables, pieces: Numbers, made: Listing) -> bool:
    """List the steps of a plan. Where a resharding is not priced, it is noted as missing, and its
    duration is UNKNOWN. False if it is of a weight that may not move at all: that decides the order
    of exchanges."""
    count, rows, operands = made.counts, tables.pieces.rows, tables.pieces.operands
    count[STEPS] = count[WEIGHTS] = count[MISSING] = 0
    count[TIME] += 1
    for column in range(OPERAND, WEIGHT + 1):
        made.steps[0, column] = 0
    for value in range(len(made.values)):
        made.values[value, STORED] = ABSENT
    for number in range(len(pieces)):
        piece = pieces[number]
        first, own = rows[piece, FIRST_OPERAND], rows[piece, OPERANDS]
        for at in range(own):
            wanted = operands[first + at]
            slot = _fetched(tables, made, wanted)
            if slot == ABSENT:
                return False
            made.held[at] = slot
        _add_operator(rows[piece], tables.pieces.results, made, piece)
    return True


@compiled
def leave_outputs(tables: Tables, pieces: Numbers, made: Listing, outputs: Numbers) -> bool:
    """List the reshardings of outputs, and note the slots in which these are left."""
    rows, results = tables.pieces.rows, tables.pieces.results
    for at in range(len(outputs)):
        output = tables.shape.outputs[at]
        value, maker, port = output[0], output[1], output[2]
        if maker != ABSENT:
            slot = results[rows[pieces[maker], FIRST_RESULT] + port, LEFT]
            if slot == ABSENT:
                outputs[at] = made.values[value, PRODUCED]
                continue
            # A made tensor has no home, and is no input.
            made.held[0], made.held[1], made.held[2], made.held[3] = value, slot, ABSENT, False
        else:
            made.held[0], made.held[1] = value, output[3]
            made.held[2], made.held[3] = output[4], output[5]
        outputs[at] = _fetched(tables, made, made.held)
        if outputs[at] == ABSENT:
            return False
    return True


@compiled
def _fetched(tables: Tables, made: Listing, wanted: Numbers) -> int:
    """The slot of an operand. Adds a resharding if one is needed or may be. ABSENT if a weight may
    not move, and that is not known. ``wanted``: its row (``Pieces.operands``)."""
    count, slots, values, moves = made.counts, made.slots, made.values, tables.moves
    is_weight = tables.shape.is_weight
    value, slot, home = wanted[VALUE], wanted[SLOT], wanted[HOME]
    if home == ABSENT:
        start = values[value, PRODUCED]
    elif wanted[IS_INPUT]:
        start = home
        slots[home, MADE] = count[TIME]
    else:
        if values[value, STORED] == ABSENT:
            values[value, STORED] = home
            if is_weight[value]:
                made.homes[0, count[WEIGHTS]] = home
                count[WEIGHTS] += 1
        start = values[value, STORED]
    if start == slot:
        return start
    key = pair(start, slot)
    place = place_of(moves, key)
    ahead, back = moves[place, 1], moves[place, 2]
    if moves[place, 0] != key:
        ahead = back = UNKNOWN
        count[MISSING], count[FIRST], count[SECOND] = MOVE, start, slot
        own = tables.slots.rows
        if is_weight[value] and own[start, PIECES] == own[slot, PIECES]:
            return ABSENT
    if ahead == ABSENT:
        return start
    if slots[slot, MADE] != count[TIME]:
        slots[slot, MADE] = count[TIME]
        row = made.steps[count[STEPS]]
        row[PIECE], row[AHEAD], row[BACK] = RESHARDING, ahead, back
        made.operands[row[OPERAND]] = start
        made.results[row[RESULT]] = slot
        _end_step(made, 1, 1)
    return slot


@compiled
def _add_operator(piece: Numbers, results: Numbers, made: Listing, number: int) -> None:
    """Add the step of an operator, whose operands are held. ``piece``: its row; ``number``: the
    number of that row."""
    row = made.steps[made.counts[STEPS]]
    row[PIECE], row[AHEAD], row[BACK] = number, piece[FORWARD], piece[BACKWARD]
    for at in range(piece[OPERANDS]):
        made.operands[row[OPERAND] + at] = made.held[at]
    for port in range(piece[RESULTS]):
        result = results[piece[FIRST_RESULT] + port]
        made.results[row[RESULT] + port] = result[SLOT]
        made.values[result[VALUE], PRODUCED] = result[SLOT]
    _end_step(made, piece[OPERANDS], piece[RESULTS])


@compiled
def _end_step(made: Listing, operands: int, results: int) -> None:
    """Note which steps this one reads, and which slots it makes."""
    step, time, slots, reads = made.counts[STEPS], made.counts[TIME], made.slots, made.reads
    row = made.steps[step]
    begin = end = row[READ]
    for at in range(row[OPERAND], row[OPERAND] + operands):
        slot = made.operands[at]
        if slots[slot, MAKER_OF] == time:
            maker, is_new = slots[slot, MAKER], True
            for other in range(begin, end):
                is_new = is_new and reads[other] != maker
            if is_new:
                reads[end] = maker
                end += 1
    for at in range(row[RESULT], row[RESULT] + results):
        slot = made.results[at]
        slots[slot, MAKER_OF], slots[slot, MAKER] = time, step
    after = made.steps[step + 1]
    after[READ], after[OPERAND], after[RESULT] = end, row[OPERAND] + operands, row[RESULT] + results
    made.counts[STEPS] = step + 1


@compiled
def list_gradients(tables: Tables, made: Listing, outputs: Numbers) -> None:
    """Complete the backward pass of each step."""
    time, first, slots, has_loss = made.counts[TIME], outputs[0], made.slots, tables.shape.has_loss
    for at in range(1 if has_loss else len(outputs)):
        slots[outputs[at], LIVE] = time
    for step in range(made.counts[STEPS] - 1, -1, -1):
        row, passed = made.steps[step], NOTHING
        if row[PIECE] != RESHARDING:
            piece = tables.pieces.rows[row[PIECE]]
            if piece[PASSES]:
                passed = row[BACK]
                made.added[step] = _sums(tables.slots.sum_seconds, made, step)
                _pass_through(tables.pieces.operands, piece, made, row[OPERAND])
        else:
            source, target = int(made.operands[row[OPERAND]]), made.results[row[RESULT]]
            if tables.slots.rows[source, IS_TRAINED] and slots[target, LIVE] == time:
                slots[source, LIVE] = time
                _add_part(slots, source, time)
                # The last resharding of the loss has nothing to send back.
                is_last = has_loss and target == first
                if not is_last or slots[first, WAS_READ] == time:
                    passed = row[BACK]
                    made.added[step] = _sums(tables.slots.sum_seconds, made, step)
        row[BACK] = passed
        for at in range(row[OPERAND], made.steps[step + 1, OPERAND]):
            slots[made.operands[at], WAS_READ] = time


@compiled
def _pass_through(operands: Numbers, piece: Numbers, made: Listing, first: int) -> None:
    """Note the gradients that an operator sends back. ``piece``: its row; ``first``: the first of
    its operands in the listing."""
    time = made.counts[TIME]
    for at in range(piece[OPERANDS]):
        slot = int(made.operands[first + at])
        made.slots[slot, LIVE] = time
        if operands[piece[FIRST_OPERAND] + at, IS_DIFFERENTIATED]:
            _add_part(made.slots, slot, time)


@compiled
def _add_part(slots: Numbers, slot: int, time: int) -> None:
    """Count one more gradient of a tensor."""
    if slots[slot, PARTS_OF] != time:
        slots[slot, PARTS_OF], slots[slot, PARTS] = time, 0
    slots[slot, PARTS] += 1


@compiled
def _sums(sum_seconds: Seconds, made: Listing, step: int) -> float:
    """Seconds of adding up the gradients of a step's results."""
    more, slots = 0.0, made.slots
    for at in range(made.steps[step, RESULT], made.steps[step + 1, RESULT]):
        slot = made.results[at]
        if slots[slot, PARTS_OF] == made.counts[TIME] and slots[slot, PARTS] > 1:
            more += (slots[slot, PARTS] - 1) * sum_seconds[slot]
    return more


@compiled
def list_weights(made: Listing) -> None:
    """Number the trained weights, and note to which of them each step adds a gradient."""
    time, slots, number, count = made.counts[TIME], made.slots, 0, made.counts
    for at in range(count[WEIGHTS]):
        slot = made.homes[0, at]
        if slots[slot, LIVE] == time:
            made.homes[1, number] = slot
            slots[slot, NUMBER_OF], slots[slot, NUMBER] = time, number
            number += 1
    count[HOMES] = number
    for step in range(count[STEPS]):
        row, after = made.steps[step], made.steps[step + 1]
        begin = end = row[WEIGHT]
        if row[BACK] != NOTHING:
            for at in range(row[OPERAND], after[OPERAND]):
                slot = made.operands[at]
                if slots[slot, NUMBER_OF] == time:
                    end = insert(made.weights, begin, end, slots[slot, NUMBER])
        after[WEIGHT] = end


@compiled
def insert(ordered: Numbers, begin: int, end: int, number: int) -> int:
    """Insert a number into an ordered range, unless it is there. Returns the range's new end."""
    at = begin
    while at < end and ordered[at] < number:
        at += 1
    if at < end and ordered[at] == number:
        return end
    for other in range(end, at, -1):
        ordered[other] = ordered[other - 1]
    ordered[at] = number
    return end + 1

"""The steps of a plan's forward pass, and what the backward pass makes of them.

The steps are those that ``pcg.placement.schedule`` makes of the cut graph, and the gradients those
of ``pcg.placement.backward``.

Complexity: the operators and their operands, each a few steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from search.cost.native.compiled import compiled, inlined
from search.refine.native.tables import (
    ABSENT,
    BACKWARD,
    FIRST_OPERAND,
    FIRST_RESULT,
    FORWARD,
    HOME,
    IS_DIFFERENTIATED,
    IS_INPUT,
    LEFT,
    MADE_IN,
    OPERANDS,
    PASSES,
    PIECES,
    RESULTS,
    VIA,
    WANTED,
    HashTable,
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
STEPS, WEIGHTS, HOMES, SLOTS, MISSING, FIRST, SECOND = range(7)
# What is missing in the tables, if anything.
MOVE, SHARED, CUT = 1, 2, 3


# The columns of steps.
PIECE, AHEAD, BACK, OPERAND, RESULT, READ, WEIGHT = range(7)
# The columns of slots.
VALUE, LAYOUT, NEXT, MADE, MAKER, LIVE, WAS_READ, PARTS, NUMBER = range(9)
# The columns of values.
PRODUCED, STORED, LAST_SLOT = range(3)


class Listing(NamedTuple):
    """The steps of one plan. It is used again for the next plan."""

    counts: Numbers
    """The steps, the weights in order of reading, the trained weights, and the slots; what is
    missing, if anything, and the two numbers that name it."""
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
    """The operands of the step that is listed next."""
    homes: Numbers
    """[2, weights]: the slots of all weights, then of those that are trained."""
    values: Numbers
    """[values, 3]: the slot in which it is made, that of a leaf, and the last one of all."""
    slots: Numbers
    """[slots, 9]: values in layouts, with the slot before of the same value; whether a tensor was
    moved there; the step that makes it; whether it gets a gradient; whether a later step reads it;
    the gradients that are added up; the number of a trained weight."""


def listing(operators: int, values: int, operands: int, results: int) -> Listing:
    """An empty listing. ``operands`` and ``results``: of all operators and outputs together."""
    steps = operators + 2 * operands

    def empty(*shape: int) -> Numbers:
        return np.zeros(shape, np.int64)

    return Listing(
        empty(8),
        empty(steps + 1, 7),
        np.zeros(steps, np.float64),
        empty(3 * operands),
        empty(results + 2 * operands),
        empty(3 * operands),
        empty(3 * operands),
        empty(operands),
        empty(2, values),
        empty(values, 3),
        empty(results + 3 * operands, 9),
    )


@compiled
def list_steps(tables: Tables, pieces: Numbers, order: Numbers, made: Listing) -> bool:
    """List the steps of a plan. ``order``: the operators in the order of issue. Where a resharding
    is not priced, it is noted as missing, and its duration is UNKNOWN. False if it is of a weight
    that may not move at all: that decides the order of exchanges."""
    count, rows, operands = made.counts, tables.pieces.rows, tables.pieces.operands
    count[STEPS] = count[WEIGHTS] = count[SLOTS] = count[MISSING] = 0
    for column in range(OPERAND, WEIGHT + 1):
        made.steps[0, column] = 0
    for value in range(len(made.values)):
        made.values[value, STORED] = made.values[value, LAST_SLOT] = ABSENT
    for turn in range(len(order)):
        number = int(order[turn])
        piece, read = pieces[number], tables.shape.operand[number]
        first = rows[piece, FIRST_OPERAND]
        for at in range(rows[piece, OPERANDS]):
            own, value = operands[first + at], int(tables.shape.reads[read + at])
            slot = _fetched(tables, made, value, own[WANTED], own[HOME], own[IS_INPUT] != 0)
            if slot == ABSENT:
                return False
            made.held[at] = slot
        _add_operator(tables, made, number, piece)
    return True


@compiled
def leave_outputs(tables: Tables, pieces: Numbers, made: Listing, outputs: Numbers) -> bool:
    """List the reshardings of outputs, and note the slots in which these are left."""
    rows, results = tables.pieces.rows, tables.pieces.results
    for at in range(len(outputs)):
        output = tables.shape.outputs[at]
        value, maker, port = output[0], output[1], output[2]
        if maker != ABSENT:
            layout = results[rows[pieces[maker], FIRST_RESULT] + port, LEFT]
            if layout == ABSENT:
                outputs[at] = made.values[value, PRODUCED]
                continue
            # A made tensor has no home, and is no input.
            outputs[at] = _fetched(tables, made, value, layout, ABSENT, False)
        else:
            outputs[at] = _fetched(tables, made, value, output[3], output[4], output[5] != 0)
        if outputs[at] == ABSENT:
            return False
    return True


@inlined
def _slot(made: Listing, value: int, layout: int) -> int:
    """The slot of a value in a layout."""
    slots, last = made.slots, made.values[value, LAST_SLOT]
    at = last
    while at != ABSENT:
        if slots[at, LAYOUT] == layout:
            return int(at)
        at = slots[at, NEXT]
    number = int(made.counts[SLOTS])
    row = slots[number]
    row[VALUE], row[LAYOUT], row[NEXT] = value, layout, last
    row[MADE] = row[LIVE] = row[WAS_READ] = row[PARTS] = 0
    row[MAKER] = row[NUMBER] = ABSENT
    made.values[value, LAST_SLOT] = number
    made.counts[SLOTS] = number + 1
    return number


@inlined
def _fetched(
    tables: Tables, made: Listing, value: int, wanted: int, home: int, is_input: bool
) -> int:
    """The slot of an operand. Adds a resharding if one is needed or may be. ABSENT if a weight may
    not move, and that is not known. ``wanted``, ``home``, ``is_input``: see ``Pieces.operands``."""
    count, slots, values, moves = made.counts, made.slots, made.values, tables.moves
    is_weight = tables.shape.is_weight
    if home == ABSENT:
        start = values[value, PRODUCED]
    elif is_input:
        start = _slot(made, value, home)
        slots[start, MADE] = True
    else:
        if values[value, STORED] == ABSENT:
            values[value, STORED] = _slot(made, value, home)
            if is_weight[value]:
                made.homes[0, count[WEIGHTS]] = values[value, STORED]
                count[WEIGHTS] += 1
        start = values[value, STORED]
    layout = slots[start, LAYOUT]
    if layout == wanted:
        return int(start)
    key = pair(layout, wanted)
    place = place_of(moves, key)
    if moves[place, 0] != key:
        own = tables.layouts.rows
        if is_weight[value] and own[layout, PIECES] == own[wanted, PIECES]:
            count[MISSING], count[FIRST], count[SECOND] = MOVE, layout, wanted
            return ABSENT
    elif moves[place, 1] == VIA:
        start = _moved(moves, made, start, moves[place, 2])
    return _moved(moves, made, int(start), wanted)


@inlined
def _moved(moves: HashTable, made: Listing, start: int, wanted: int) -> int:
    """The slot of the same value in another layout. Adds a resharding if one is needed or may
    be."""
    slots, count = made.slots, made.counts
    value, layout = slots[start, VALUE], slots[start, LAYOUT]
    key = pair(layout, wanted)
    place = place_of(moves, key)
    ahead, back = moves[place, 1], moves[place, 2]
    if moves[place, 0] != key:
        ahead = back = UNKNOWN
        count[MISSING], count[FIRST], count[SECOND] = MOVE, layout, wanted
    if ahead == ABSENT:
        return start
    slot = _slot(made, value, wanted)
    if not slots[slot, MADE]:
        slots[slot, MADE] = True
        row = made.steps[count[STEPS]]
        row[PIECE], row[AHEAD], row[BACK] = RESHARDING, ahead, back
        made.operands[row[OPERAND]] = start
        made.results[row[RESULT]] = slot
        _end_step(made, 1, 1)
    return slot


@inlined
def _add_operator(tables: Tables, made: Listing, operator: int, number: int) -> None:
    """Add the step of an operator, whose operands are held. ``number``: that of its piece."""
    piece, results = tables.pieces.rows[number], tables.pieces.results
    step = made.steps[made.counts[STEPS]]
    step[PIECE], step[AHEAD], step[BACK] = number, piece[FORWARD], piece[BACKWARD]
    for at in range(piece[OPERANDS]):
        made.operands[step[OPERAND] + at] = made.held[at]
    for port in range(piece[RESULTS]):
        value = int(tables.shape.makes[tables.shape.result[operator] + port])
        slot = _slot(made, value, results[piece[FIRST_RESULT] + port, MADE_IN])
        made.results[step[RESULT] + port] = made.values[value, PRODUCED] = slot
    _end_step(made, piece[OPERANDS], piece[RESULTS])


@inlined
def _end_step(made: Listing, operands: int, results: int) -> None:
    """Note which steps this one reads, and which slots it makes."""
    step, slots, reads = made.counts[STEPS], made.slots, made.reads
    row = made.steps[step]
    begin = end = row[READ]
    for at in range(row[OPERAND], row[OPERAND] + operands):
        slot = made.operands[at]
        maker, is_new = slots[slot, MAKER], True
        if maker != ABSENT:
            for other in range(begin, end):
                is_new = is_new and reads[other] != maker
            if is_new:
                reads[end] = maker
                end += 1
    for at in range(row[RESULT], row[RESULT] + results):
        slots[made.results[at], MAKER] = step
    after = made.steps[step + 1]
    after[READ], after[OPERAND], after[RESULT] = end, row[OPERAND] + operands, row[RESULT] + results
    made.counts[STEPS] = step + 1


@compiled
def list_gradients(tables: Tables, made: Listing, outputs: Numbers) -> None:
    """Complete the backward pass of each step."""
    first, slots, has_loss = outputs[0], made.slots, tables.shape.has_loss
    for at in range(1 if has_loss else len(outputs)):
        slots[outputs[at], LIVE] = True
    for step in range(made.counts[STEPS] - 1, -1, -1):
        row, passed = made.steps[step], NOTHING
        if row[PIECE] != RESHARDING:
            piece = tables.pieces.rows[row[PIECE]]
            if piece[PASSES]:
                passed = row[BACK]
                made.added[step] = _sums(tables.layouts.sum_seconds, made, step)
                _pass_through(tables.pieces.operands, piece, made, row[OPERAND])
        else:
            source, target = int(made.operands[row[OPERAND]]), made.results[row[RESULT]]
            if tables.shape.is_trained[slots[source, VALUE]] and slots[target, LIVE]:
                slots[source, LIVE] = True
                slots[source, PARTS] += 1
                # The last resharding of the loss has nothing to send back.
                is_last = has_loss and target == first
                if not is_last or slots[first, WAS_READ]:
                    passed = row[BACK]
                    made.added[step] = _sums(tables.layouts.sum_seconds, made, step)
        row[BACK] = passed
        for at in range(row[OPERAND], made.steps[step + 1, OPERAND]):
            slots[made.operands[at], WAS_READ] = True


@inlined
def _pass_through(operands: Numbers, piece: Numbers, made: Listing, first: int) -> None:
    """Note the gradients that an operator sends back. ``piece``: its row; ``first``: the first of
    its operands in the listing."""
    for at in range(piece[OPERANDS]):
        slot = made.slots[made.operands[first + at]]
        slot[LIVE] = True
        if operands[piece[FIRST_OPERAND] + at, IS_DIFFERENTIATED]:
            slot[PARTS] += 1


@inlined
def _sums(sum_seconds: Seconds, made: Listing, step: int) -> float:
    """Seconds of adding up the gradients of a step's results."""
    more, slots = 0.0, made.slots
    for at in range(made.steps[step, RESULT], made.steps[step + 1, RESULT]):
        slot = slots[made.results[at]]
        if slot[PARTS] > 1:
            more += (slot[PARTS] - 1) * sum_seconds[slot[LAYOUT]]
    return more


@compiled
def list_weights(made: Listing) -> None:
    """Number the trained weights, and note to which of them each step adds a gradient."""
    slots, number, count = made.slots, 0, made.counts
    for at in range(count[WEIGHTS]):
        slot = made.homes[0, at]
        if slots[slot, LIVE]:
            made.homes[1, number] = slot
            slots[slot, NUMBER] = number
            number += 1
    count[HOMES] = number
    for step in range(count[STEPS]):
        row, after = made.steps[step], made.steps[step + 1]
        begin = end = row[WEIGHT]
        if row[BACK] != NOTHING:
            for at in range(row[OPERAND], after[OPERAND]):
                weight = slots[made.operands[at], NUMBER]
                if weight != ABSENT:
                    end = insert(made.weights, begin, end, weight)
        after[WEIGHT] = end


@inlined
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

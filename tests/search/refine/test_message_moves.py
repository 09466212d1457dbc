"""Reshardings that machine code prices take as long as the cost model says."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import examples
from support.small.random_layouts import layout_at_random

from pcg.machine import load_machine
from pcg.placement.layout import Layout
from pcg.placement.transfer import transfer
from search.cost.cost import CostModel, Duration
from search.cost.messages import FEW_DEVICES
from search.map.building import Builder
from search.map.choose.choosing import Chooser
from search.map.rules.cuts import Cuts
from search.refine.native.message_moves import price_messages
from search.refine.native.tables import ABSENT, VIA, pair, place_of
from search.refine.pieces import OperatorPieces
from search.refine.rows import DurationRows, SharedTables, TableRows

MACHINES = [("p3-16xlarge", 16), ("summit", 6), ("dgx-a100", 40)]


def rows_on(machine: tuple[str, int]) -> TableRows:
    """Empty tables of a machine."""
    cost = CostModel(load_machine(machine[0]).with_nodes(5).with_devices(machine[1]))
    return TableRows(OperatorPieces(Builder(Chooser.on(cost, Cuts()).spaces), cost))


def layouts(rows: TableRows, random: Random) -> tuple[Layout, Layout]:
    """The layouts between which a tensor might move."""
    machine = rows.operators.cost.machine
    partials = random.choice([1, 1, 2])
    source = layout_at_random(machine, random, partials * random.choice([1, 1, 2]), overlaps=True)
    return source, layout_at_random(machine, random, partials, overlaps=True)


def is_priced(tables: SharedTables, source: int, target: int) -> bool:
    """Price a resharding, if machine code does."""
    moved, places = (tables.moves, tables.moved), tables.layouts.places
    return price_messages(*moved, tables.durations, places, tables.messages, source, target)


def devices_in(words: list[int]) -> set[int]:
    """The devices of a mask."""
    return {64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1}


@examples(150)
@given(st.sampled_from(MACHINES), st.randoms(use_true_random=False))
def test_seconds_are_those_of_the_cost_model(machine, random):
    rows = rows_on(machine)
    ends = layouts(rows, random)
    source, target = (rows.operators.layouts.number[layout] for layout in ends)
    tables = rows.tables()
    key = pair(source, target)
    was_priced = is_priced(tables, source, target)
    first, second = tables.moves[place_of(tables.moves, key), 1:].tolist()
    assert not is_priced(rows.tables(), source, target), "it is there already"
    if not was_priced:
        assert first == ABSENT
        return
    expected = rows.operators.moves[source, target]
    assert expected is not None
    assert transfer(*ends).kind == "messages"
    assert rows.operators.between[source, target] is None
    assert first == second
    for ours, theirs in zip([rows.durations.duration[first]] * 2, expected, strict=True):
        np.testing.assert_array_equal(ours.groups, theirs.groups)
        np.testing.assert_array_equal(ours.seconds, theirs.seconds)


@pytest.mark.parametrize("machine", MACHINES)
def test_what_moves_to_devices_without_it_is_priced(machine):
    rows, random = rows_on(machine), Random(1)
    pairs = [layouts(rows, random) for _ in range(100)]
    numbers = [tuple(rows.operators.layouts.number[layout] for layout in ends) for ends in pairs]
    kinds = set[tuple[bool, bool]]()
    for (source, target), ends in zip(pairs, numbers, strict=True):
        same = source.type.degrees.partials == target.type.degrees.partials
        gets = same and not set(target.devices) <= set(source.devices)
        kinds.add((gets, is_priced(rows.tables(), *ends)))
    few = machine[1] <= FEW_DEVICES
    assert kinds == {(False, False), (True, few)}


def test_nothing_is_priced_where_there_is_no_room():
    """What is not priced by machine code is priced in Python, which makes room."""
    rows, random = rows_on(("summit", 6)), Random(2)
    priced = added = 0
    pairs = [layouts(rows, random) for _ in range(3000)]
    for ends in [tuple(rows.operators.layouts.number[layout] for layout in own) for own in pairs]:
        moves = rows.tables().moves
        if moves[place_of(moves, pair(*ends)), 0] != ABSENT or ends[0] == ends[1]:
            continue
        if is_priced(rows.tables(), *ends):
            priced += 1
        else:
            rows.add_move(*ends)
            added += 1
    moves = rows.tables().moves
    assert (moves[:, 0] != ABSENT).sum() == priced + added == rows.tables().moved[0]
    assert 2 * (priced + added) <= len(moves)
    assert priced > 0 < added
    for key, first, second in moves[moves[:, 0] != ABSENT].tolist():
        expected = rows.operators.moves[divmod(key, pair(1, 0))]
        found = [rows.durations.duration[row] for row in (first, second) if first >= 0]
        assert first == VIA or [own.longest for own in found] == [
            own.longest for own in expected or ()
        ]


@examples(30)
@given(st.integers(1, 130), st.randoms(use_true_random=False))
def test_a_table_has_the_durations_that_were_added(devices, random):
    rows = DurationRows(devices)
    added: list[Duration] = []
    for _ in range(random.choice([1, 10, 1200])):
        members = random.randint(1, devices)
        groups = random.randint(1, devices // members)
        chosen = np.array(random.sample(range(devices), groups * members)).reshape(groups, members)
        added.append(Duration(chosen, np.array([random.random() for _ in range(groups)])))
    numbers = [rows.row[duration] for duration in added]
    assert numbers == [rows.row[duration] for duration in added]
    assert rows.count == len(added) + 2
    table, of = rows.table(), {*map(id, added)}
    rows.duration.clear()
    for number, duration in zip(numbers, added, strict=True):
        made = rows.duration[number]
        assert id(made) not in of
        np.testing.assert_array_equal(made.groups, duration.groups)
        np.testing.assert_array_equal(made.seconds, duration.seconds)
        assert table.shortest[number] == duration.shortest
        assert devices_in(table.busy[number].tolist()) == duration.devices
        first = table.rows[number, 0]
        masks = table.busy_groups[first : first + len(duration.groups)].tolist()
        for group, mask in zip(duration.groups.tolist(), masks, strict=True):
            assert devices_in(mask) == {*group}

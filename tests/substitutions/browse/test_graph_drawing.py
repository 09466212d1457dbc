"""Layouts of drawings: boxes do not overlap, wires lead down, and few of them cross."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from substitutions.browse.graph_drawing import GAP, BoxLayout, Wire, increasing, layout


@st.composite
def graphs(draw) -> tuple[list[float], list[Wire], list[int]]:
    """Boxes with wires from lower to higher numbers. Boxes that nothing reads come last."""
    widths = draw(st.lists(st.integers(10, 90).map(float), min_size=1, max_size=9))
    pairs = list(combinations(range(len(widths)), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=12)) if pairs else []
    wires = [Wire(a, b) for a, b in chosen]
    read = {wire.source for wire in wires}
    return widths, wires, [box for box in range(len(widths)) if box not in read]


def rows(drawing: BoxLayout) -> dict[int, list[int]]:
    by_layer: dict[int, list[int]] = {}
    for box, layer in enumerate(drawing.layers):
        by_layer.setdefault(layer, []).append(box)
    return by_layer


@given(graphs())
def test_boxes_do_not_overlap_and_lie_inside(graph):
    widths, wires, sinks = graph
    drawing = layout(widths, wires, sinks)
    for row in rows(drawing).values():
        row.sort(key=lambda box: drawing.centres[box])
        for a, b in pairwise(row):
            apart = drawing.centres[b] - drawing.centres[a]
            assert apart >= (widths[a] + widths[b]) / 2 + GAP - 1e-6
    for centre, width in zip(drawing.centres, widths, strict=True):
        assert centre - width / 2 >= -1e-6
        assert centre + width / 2 <= drawing.width + 1e-6


@given(graphs())
def test_wires_lead_down_with_a_bend_in_each_layer_between(graph):
    widths, wires, sinks = graph
    drawing = layout(widths, wires, sinks)
    for wire, bends in zip(wires, drawing.bends, strict=True):
        between = drawing.layers[wire.target] - drawing.layers[wire.source] - 1
        assert len(bends) == between >= 0
    for sink in sinks:
        assert drawing.layers[sink] == drawing.depth - 1


@given(graphs())
def test_bends_keep_clear_of_boxes(graph):
    widths, wires, sinks = graph
    drawing = layout(widths, wires, sinks)
    for wire, bends in zip(wires, drawing.bends, strict=True):
        for number, place in enumerate(bends):
            layer = drawing.layers[wire.source] + 1 + number
            for box in rows(drawing).get(layer, []):
                assert abs(drawing.centres[box] - place) >= widths[box] / 2 + GAP - 1e-6


@given(graphs())
def test_a_layout_depends_on_the_graph_alone(graph):
    assert layout(*graph) == layout(*graph)


def test_operands_stand_in_their_order():
    drawing = layout([30.0] * 4, [Wire(1, 3, 0, -13), Wire(0, 3, 0, 0), Wire(2, 3, 0, 13)], [3])
    assert drawing.centres[1] < drawing.centres[0] < drawing.centres[2]
    assert drawing.centres[3] == pytest.approx(drawing.centres[0])


def test_crossings_are_taken_out():
    # Two rows of two, wired crosswise: the order of the upper row has to be reversed.
    drawing = layout([30.0] * 4, [Wire(0, 3), Wire(1, 2)], [2, 3])
    assert (drawing.centres[0] < drawing.centres[1]) == (drawing.centres[3] < drawing.centres[2])


def test_leaf_is_drawn_one_layer_above_its_reader():
    # 0 -> 1 -> 2 <- 3
    drawing = layout([30.0] * 4, [Wire(0, 1), Wire(1, 2), Wire(3, 2)], [2])
    assert drawing.layers == (0, 1, 2, 1)


@given(st.lists(st.floats(-100, 100), max_size=8))
def test_increasing_numbers_are_the_nearest(wanted):
    actual = increasing(wanted)
    assert all(a <= b + 1e-9 for a, b in pairwise(actual))

    def distance(numbers: list[float]) -> float:
        return sum((a - b) ** 2 for a, b in zip(numbers, wanted, strict=True))

    # No block of numbers can be moved up or down to come nearer. Every such move keeps the order.
    for at in range(len(actual)):
        for step in (-0.01, 0.01):
            part = range(at, len(actual)) if step > 0 else range(at + 1)
            moved = [v + step if i in part else v for i, v in enumerate(actual)]
            assert distance(moved) >= distance(actual) - 1e-9


def test_increasing_by_example():
    assert increasing([3.0, 1.0, 2.0, 5.0]) == [2.0, 2.0, 2.0, 5.0]

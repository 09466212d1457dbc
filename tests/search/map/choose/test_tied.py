"""Tied variables have the same sum with fewer variables, and no plan is lost if blocks are
alike."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.plan.text import parse_graph
from search.cost.cost import CostModel
from search.map.choose import choosing
from search.map.choose.choosing import Chooser, Exposed, least_places, tied_places
from search.map.choose.factors import UNIT, Factor
from search.map.choose.tied import TiedVariables, saves
from search.map.rules.cuts import Cuts
from search.map.space.allow import data_parallel, everything
from search.split.colours import colours
from substitutions.rules.store import load_library

BLOCK = """
w{i} = weight[48, 96]
v{i} = weight[96, 48]
h{i} = matmul(gelu(matmul(x{i}, w{i})), v{i})
x{n} = relu(add(h{i}, x{i}))
"""


def blocks(count: int) -> Graph:
    """A graph of equal blocks."""
    inside = "".join(BLOCK.format(i=i, n=i + 1) for i in range(count))
    return parse_graph(f"x0 = input[24, 48]{inside}return mean_loss(x{count})")


def chooser_of(graph: Graph) -> Chooser:
    cost = CostModel(load_machine("dgx-a100").with_devices(8))
    return Chooser.on(cost, Cuts.of_rules(load_library().concrete(graph)))


@st.composite
def tied_sums(draw):
    """Factors over variables of a few colours. Variables of one colour have one size."""
    count = draw(st.integers(2, 7))
    colour = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    size = draw(st.lists(st.integers(1, 4), min_size=4, max_size=4))
    sizes = [size[own] for own in colour]
    whole = st.integers(0, 50).map(lambda n: n * 1e-3)
    shared: dict[tuple[int, ...], np.ndarray] = {}
    factors: list[Factor] = []
    for variables in draw(
        st.lists(
            st.lists(st.integers(0, count - 1), min_size=1, max_size=2, unique=True).map(sorted),
            min_size=1,
            max_size=12,
        )
    ):
        shape = tuple(sizes[v] for v in variables)
        if shape not in shared or draw(st.booleans()):
            entries = draw(st.lists(whole, min_size=prod(shape), max_size=prod(shape)))
            shared[shape] = np.array(entries).reshape(shape)
        times = draw(st.sampled_from([1.0, 2.0, 0.5]))
        factors.append(Factor(tuple(variables), shared[shape], times))
    masks = {
        own: np.array(
            sorted(draw(st.sets(st.integers(0, size[own] - 1), min_size=1, max_size=size[own])))
        )
        for own in range(4)
    }
    return colour, sizes, [masks[own] for own in colour], factors


def value(factors: list[Factor], places: list[int]) -> float:
    return sum(float(f.scaled[tuple(places[v] for v in f.variables)]) for f in factors)


@settings(max_examples=150, deadline=None)
@given(tied_sums())
def test_the_least_of_all_choices_that_take_one_value_together(asked):
    colour, sizes, masks, factors = asked
    seconds, places = tied_places(colour, sizes, masks, factors)
    assert all(place in mask for place, mask in zip(places, masks, strict=True))
    assert seconds == pytest.approx(value(factors, places), abs=1e-9)
    tied = TiedVariables.of(colour, masks)
    first = tied.picked(masks)
    every = (
        value(factors, tied.spread([int(mask[at]) for mask, at in zip(first, row, strict=True)]))
        for row in np.ndindex(*(len(mask) for mask in first))
    )
    assert seconds == pytest.approx(min(every), abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(tied_sums())
def test_variables_that_nothing_is_like_are_chosen_as_before(asked):
    _, sizes, masks, factors = asked
    apart = list(range(len(sizes)))
    tied, free = tied_places(apart, sizes, masks, factors), least_places(sizes, masks, factors)
    assert tied[0] == pytest.approx(free[0], abs=1e-9)


def test_choice_with_unequal_values_in_a_group_is_none():
    masks = [np.arange(3)] * 3
    tied = TiedVariables.of([5, 5, 7], masks)
    assert tied.row([1, 1, 2]) == [1, 2]
    assert tied.row([1, 0, 2]) is None
    assert TiedVariables.of([5, 5], [np.arange(3), np.arange(2)]).members == [[0], [1]]


def test_blocks_look_alike_but_for_the_first_and_the_last():
    few, many = (colours(blocks(n), chooser_of(blocks(1)).spaces.kind) for n in (16, 32))
    assert len(set(few.values())) == len(set(many.values()))
    assert max(Counter(many.values()).values()) >= 16


@pytest.mark.parametrize("exposed", [Exposed(), Exposed(exchange=0.0, loss=0.0)])
@pytest.mark.parametrize("family", ["everything", "data"])
def test_tied_blocks_cost_no_more(monkeypatch: pytest.MonkeyPatch, exposed, family):
    graph = blocks(16)
    chooser = chooser_of(graph)
    allowed = everything if family == "everything" else data_parallel(graph)
    free = chooser.choose(graph, 0.0, allowed, exposed)
    monkeypatch.setattr(choosing, "MOST_FREE", 0)
    tied = chooser.choose(graph, 0.0, allowed, exposed, also=[free.strategies])
    # Sums are exact to one unit for each table: of each operator, and of each operand.
    tables = sum(1 + len(node.inputs) for node in graph.operators)
    assert tied.seconds <= free.seconds + tables * UNIT
    looks = chooser.pricing.colours(graph)
    by_look: dict[int, set[object]] = {}
    for node, strategy in tied.strategies.items():
        by_look.setdefault(looks[node], set()).add(strategy)
    assert all(len(own) == 1 for own in by_look.values())


@given(st.integers(2, 40))
def test_layers_in_a_row_are_tied(layers: int):
    """Three operators a layer. The last one reads the first one as well."""
    row = [(i, i + 1) for i in range(3 * layers - 1)] + [(3 * i, 3 * i + 2) for i in range(layers)]
    assert saves([i % 3 for i in range(3 * layers)], row)


@given(st.integers(2, 12))
def test_distant_alike_variables_in_unlike_surroundings_are_not_tied(count: int):
    """Each variable that occurs twice would tie a chain to itself, in a cycle of its own."""
    colours = [*range(2 * count), *range(0, 2 * count, 2), *range(2 * count, 4 * count)]
    chain = [(i, i + 1) for i in range(len(colours) - 1)]
    assert not saves(colours, chain)


@given(st.integers(1, 30))
def test_variables_that_are_all_different_are_not_tied(count: int):
    assert not saves(range(count), [(i, i + 1) for i in range(count - 1)])

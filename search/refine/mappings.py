"""States of annealings, as plans and as machine code knows them, and the numbers of mappings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pcg.graph.graph import Node
from pcg.memo import Answers
from search.map.choose.choosing import Choice
from search.map.choose.spaces import Spaces
from search.map.space.mapping import MappedAxis, OperatorMapping
from search.map.space.strategies import passes
from search.refine.native.mappings import (
    AXES,
    FIRST_AXIS,
    START,
    MappingTable,
    add_axis,
    begin_draft,
    has_room,
    number_of,
    place_of_mapping,
)
from search.refine.native.tables import ABSENT, Numbers

FEW_AXES = 2
"""The axes for which there is room at first."""


class PlanState(NamedTuple):
    """The plan of a graph: the mapping of each operator, in the order of the graph, and the numbers
    of the operators in the order of issue."""

    mappings: tuple[OperatorMapping, ...]
    order: tuple[int, ...]

    @staticmethod
    def of(choice: Choice, mapping: Callable[[Node], OperatorMapping]) -> PlanState:
        """The state of a choice. ``mapping``: a function from an operator to its mapping."""
        nodes = choice.graph.operators
        numbers = {node: number for number, node in enumerate(nodes)}
        order = tuple(numbers[node] for node in choice.order or nodes)
        return PlanState(tuple(map(mapping, nodes)), order)

    def chosen(self, choice: Choice) -> Choice:
        """The choice with the mappings and the order of this state."""
        nodes = choice.graph.operators
        issued = tuple(nodes[number] for number in self.order)
        mappings = dict(zip(nodes, self.mappings, strict=True))
        return replace(choice, mappings=mappings, order=() if issued == nodes else issued)


class NumberedMappings:
    """The mappings that occurred, by number."""

    def __init__(self) -> None:
        self.table = _empty(FEW_AXES, 1024)
        self._numbers, self._mappings = Answers(self._number), Answers(self._mapping)

    def encoded(self, state: PlanState) -> Numbers:
        """A state in numbers (``native.mappings``)."""
        return np.array([[self._numbers[own] for own in state.mappings], state.order], np.int64)

    def decoded(self, state: Numbers) -> PlanState:
        """The state with these numbers."""
        mapped, issued = state.tolist()
        return PlanState(tuple(map(self.mapping, mapped)), tuple(issued))

    def mapping(self, number: int) -> OperatorMapping:
        """The mapping with a number."""
        return self._mappings[number]

    def make_room(self, more: int) -> None:
        """Make room for so many more mappings."""
        while not has_room(self.table, more):
            self._enlarge(self._axes, 2 * len(self.table.rows))

    @property
    def _axes(self) -> int:
        """The axes for which a row has room."""
        return (self.table.rows.shape[1] - FIRST_AXIS) // 3

    def _number(self, mapping: OperatorMapping) -> int:
        if len(mapping.axes) > self._axes:
            self._enlarge(len(mapping.axes), len(self.table.rows))
        self.make_room(1)
        begin_draft(self.table)
        for axis in mapping.axes:
            add_axis(self.table, *axis)
        return number_of(self.table, mapping.start)

    def _mapping(self, number: int) -> OperatorMapping:
        row = self.table.rows[number].tolist()
        ends = range(FIRST_AXIS, FIRST_AXIS + 3 * row[AXES], 3)
        return OperatorMapping(row[START], tuple(MappedAxis(*row[at : at + 3]) for at in ends))

    def _enlarge(self, axes: int, mappings: int) -> None:
        old, count = self.table, int(self.table.used[0])
        self.table = new = _empty(axes, mappings)
        new.rows[:count, : old.rows.shape[1]] = old.rows[:count]
        new.used[0] = count
        for number in range(count):
            new.numbers[place_of_mapping(new, new.rows[number])] = number


def passing_axes(nodes: Sequence[Node], spaces: Spaces) -> Numbers:
    """[operators, axes]: whether an axis stands for partial sums that pass through."""
    axes = [spaces.of(node).axes for node in nodes]
    through = np.zeros((len(nodes), max([1, *map(len, axes)])), np.int64)
    for number, own in enumerate(axes):
        through[number, : len(own)] = [passes(axis) for axis in own]
    return through


def _empty(axes: int, mappings: int) -> MappingTable:
    width = FIRST_AXIS + 3 * axes
    return MappingTable(
        np.zeros((mappings, width), np.int64),
        np.full(2 * mappings, ABSENT),
        np.zeros(1, np.int64),
        np.zeros(width, np.int64),
    )

"""Seconds of plans that differ in an operator or two, put together of known pieces.

Problem: a descent asks for thousands of choices of strategies whether their plans are faster than
the best so far, and few are. Cutting, scheduling and simulating a graph takes milliseconds, most of
them for parts that are the same for all plans.

Method: delta simulation (Jia et al., MLSys 2019, section 5.3). A program is put together of the
``pieces`` of its operators, few of which are new after a change, and of reshardings that were
priced before. If the longest path of its operators is no shorter than the best, it is not put
together at all. Otherwise its tasks are simulated until they are known to be no faster. All this is
compiled to machine code (``native``), which asks for the rows that are missing in its tables.

The program is that of the schedule of the cut graph, and its seconds are the same to the last bit.
A choice takes time in proportion to its operators and tasks, plus the time to cut each operator
that is new, and to price each resharding that is new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf

import numpy as np

from pcg.graph.graph import Graph
from search.cost.cost import NOTHING, CostModel
from search.cost.progress import check_time
from search.cost.tasks import ProgramStep, TaskProgram, trained_weights
from search.map.building import Builder
from search.map.choose.choosing import Choice
from search.refine.kinds import GraphKinds
from search.refine.mappings import PlanState
from search.refine.native.issue import issue
from search.refine.native.listing import (
    AHEAD,
    BACK,
    CUT,
    FIRST,
    HOMES,
    LAYOUT,
    MISSING,
    MOVE,
    PARTS,
    PIECE,
    READ,
    RESHARDING,
    RESULT,
    SECOND,
    SHARED,
    STEPS,
    WEIGHT,
    listing,
)
from search.refine.native.mappings import ISSUED, MAPPED
from search.refine.native.states import NO_PIECE, StateTables, find_pieces, state_seconds
from search.refine.native.tables import ABSENT, LATE, Numbers, Tables
from search.refine.native.timing import Scratch, list_plan, plan_clocks
from search.refine.pieces import OperatorPieces
from search.refine.rows import TableRows
from search.refine.states import GraphTables


@dataclass(eq=False)
class DeltaSimulator:
    """Simulates the plans of choices for one graph. ``rows``: what is known of plans of any graph;
    simulators may share it. ``by_class``: whether one device stands for all that are busy alike
    (``device_classes``). That is faster for many devices, as long as no mapping changes."""

    graph: GraphKinds
    rows: TableRows
    by_class: bool = False
    _scratch: Scratch = field(init=False)

    def __post_init__(self) -> None:
        self.states = GraphTables(self.graph, self.rows, by_class=self.by_class)
        self._scratch = self._room()

    @staticmethod
    def of(
        graph: Graph, builder: Builder, cost: CostModel, rows: TableRows | None = None
    ) -> DeltaSimulator:
        """A simulator for the plans that a builder makes of a graph. ``rows``: those of a simulator
        with the same spaces and costs."""
        rows = TableRows(OperatorPieces(builder, cost)) if rows is None else rows
        return DeltaSimulator(GraphKinds(graph, rows.operators), rows)

    @property
    def pieces(self) -> OperatorPieces:
        """The pieces of operators."""
        return self.rows.operators

    def takes_less(self, choice: Choice, limit: float) -> bool | None:
        """Whether a step of the plan of a choice takes less than ``limit`` seconds. None if this
        simulator can't tell (see ``program``)."""
        state = self._state_of(choice)
        seconds = NO_PIECE if state is None else self.seconds_of(state, limit)
        return None if seconds == NO_PIECE else seconds < limit

    def seconds(self, choice: Choice, limit: float = inf) -> float | None:
        """Seconds of a step of the plan of a choice. None if they are no less than ``limit``, or if
        this simulator can't tell (see ``program``)."""
        state = self._state_of(choice)
        return None if state is None else _below(limit, self.seconds_of(state, limit))

    def seconds_of(self, state: Numbers, limit: float) -> float:
        """Seconds of a step of the plan of a state. ``inf`` if they are no less than ``limit``, and
        NO_PIECE if this simulator can't tell."""
        self.states.make_room()
        while True:
            seconds = state_seconds(*self.tables(), state, limit)
            if seconds != ABSENT:
                return seconds
            check_time()  # a large graph has many rows that are missing at first
            self.add_missing()

    def _state_of(self, choice: Choice) -> Numbers | None:
        if choice.fully_sharded:
            return None
        return self.encoded(choice)

    def encoded(self, choice: Choice) -> Numbers:
        """The state of a choice, in numbers."""
        mapping = partial(self.pieces.builder.mapping, choice)
        return self.states.mappings.encoded(PlanState.of(choice, mapping))

    def tables(self) -> tuple[Tables, StateTables, Scratch]:
        """The tables as they are now, and scratch."""
        tables, states = self.states.tables()
        clock, busy = self._scratch.clock, self.states.busy
        if clock.ready.shape[1] != busy:
            self._scratch = self._scratch._replace(clock=plan_clocks(len(clock.times), busy))
        return tables, states, self._scratch

    @cached_property
    def by_classes(self) -> DeltaSimulator:
        """The same simulator with ``by_class``."""
        return DeltaSimulator(self.graph, self.rows, by_class=True)

    def add_missing(self) -> None:
        """Add the row that is missing in the tables."""
        kind, first, second = self._scratch.made.counts[[MISSING, FIRST, SECOND]].tolist()
        rows = self.rows
        add = {MOVE: rows.add_move, SHARED: rows.add_shared, CUT: self.states.add_piece}
        add[kind](first, second)

    def _room(self) -> Scratch:
        """Scratch for a plan of the graph."""
        graph = self.graph
        operators, operands = len(graph.nodes), sum(map(len, graph.reads)) + len(graph.outputs)
        results, weights = sum(map(len, graph.makes)), sum(graph.is_weight)
        steps = operators + 2 * operands
        return Scratch(
            listing(operators, len(graph.values), operands, results),
            issue(steps, 3 * operands, weights),
            plan_clocks(3 * steps + 2 * weights, self.states.busy),
            np.zeros(len(graph.outputs), np.int64),
        )

    def program(self, choice: Choice) -> TaskProgram | None:
        """The program of the plan of a choice. None if an operator has no piece, or weights are
        fully sharded."""
        state = self._state_of(choice)
        if state is None or self.seconds_of(state, inf) == NO_PIECE:
            return None
        tables, states, scratch = self.tables()
        find_pieces(tables, states, state[MAPPED], scratch.made.counts)
        list_plan(tables, states.pieces, state[ISSUED], scratch)
        return self._listed(scratch)

    def _listed(self, scratch: Scratch) -> TaskProgram:
        """The program of the plan that is listed."""
        made, cost, layouts = scratch.made, self.pieces.cost, self.pieces.layouts.layout
        durations, steps = self.rows.durations.duration, list[ProgramStep]()
        own = self.rows.pieces.table().rows
        for step in range(made.counts[STEPS]):
            row, after = made.steps[step].tolist(), made.steps[step + 1].tolist()
            results = made.slots[made.results[row[RESULT] : after[RESULT]]]
            lying, counts = ([*results[:, column].tolist()] for column in (LAYOUT, PARTS))
            back = cost.with_sums(durations[row[BACK]], [layouts[own] for own in lying], counts)
            reads = made.reads[row[READ] : after[READ]].tolist()
            weights, piece = made.weights[row[WEIGHT] : after[WEIGHT]].tolist(), row[PIECE]
            late = NOTHING if piece == RESHARDING else durations[int(own[piece, LATE])]
            times, read, added = (durations[row[AHEAD]], back), tuple(reads), tuple(weights)
            steps.append(ProgramStep(*times, read, added, piece == RESHARDING, late=late))
        order = tuple(dict.fromkeys(weight for step in steps for weight in step.weights))
        kept = made.slots[made.homes[1, : made.counts[HOMES]], LAYOUT].tolist()
        homes = [layouts[layout] for layout in kept]
        return TaskProgram(steps, *trained_weights(order, homes, cost))


def _below(limit: float, seconds: float) -> float | None:
    """Seconds, if they are known and below a limit."""
    return seconds if 0.0 <= seconds < limit else None

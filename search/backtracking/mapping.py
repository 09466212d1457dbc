"""The lowest level of the search: on which devices each operator of a graph runs.

Dynamic programming over machine views with sequence and parallel splits (paper, section 5.2). A
sequence split is made at every operator through which all paths go: the best views before and after
it are independent once its own view is given. What lies between two of them falls into components
that depend on each other in nothing, and these run either one after the other with all devices, or
side by side on disjoint ranges of devices; both are computed and the faster is taken. A component
that has neither kind of split is solved by variable elimination over all its operators, exactly
while the tables stay small, and by setting some views to what looks best where they don't.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pcg.graph.components import components
from pcg.graph.graph import Graph, Node
from pcg.machine import Machine
from pcg.placement.view import MachineView, Range
from search.backtracking.elimination import BestChoice, Elimination, Table, add_tables, aligned
from search.backtracking.network import OperatorNetwork, Pricer, network
from search.backtracking.tables import Tables
from search.cost.cost import CostModel
from search.cost.simulate import price

MAX_SPLITS = 8
"""How many ways to divide a range of devices between two sides are considered."""


@dataclass(frozen=True)
class Mapped:
    """A view for every compute operator and join, and the seconds of a step with them. ``sync``:
    those of them at the end in which gradients are exchanged and nothing else is done."""

    views: Mapping[Node, MachineView]
    seconds: float
    sync: float


class Mapper:
    """Finds machine views on one machine, and remembers what it learnt from graph to graph."""

    def __init__(self, machine: Machine, cost: CostModel) -> None:
        self._devices = machine.devices
        self._tables = Tables(cost)

    def best(self, graph: Graph) -> Mapped | None:
        """The fastest views found for a graph that has been checked, as simulated.

        None where an operator, a stored leaf or an output takes more devices than there are.
        """
        net = network(graph, self._tables)
        if net.devices > self._devices:
            return None
        solver = _Solver(net, self._tables)
        found, side_by_side = self._mapped(net, solver, parallel=True)
        if not side_by_side:
            return found
        # The estimate of a parallel split leaves out that branches may use devices of what comes
        # before them; the simulation knows.
        one_by_one, _ = self._mapped(net, solver, parallel=False)
        return min(found, one_by_one, key=lambda mapped: mapped.seconds)

    def _mapped(
        self, net: OperatorNetwork, solver: _Solver, *, parallel: bool
    ) -> tuple[Mapped, bool]:
        """The best views, and whether branches run side by side; only if ``parallel`` says so."""
        everything = tuple(range(len(net.readings)))
        part = solver.solve(everything, (0, self._devices), {}, parallel)
        chosen: dict[int, int] = {}
        side_by_side = part.choose({}, chosen)
        numbers = [chosen[i] for i in range(len(net.readings))]
        program = Pricer(net, self._tables, numbers).program()
        views = {
            reading.node: self._tables.views[number]
            for reading, number in zip(net.readings, numbers, strict=True)
        }
        step = price(program, self._devices)
        return Mapped(views, step.step_seconds, step.sync), side_by_side


Outer = Mapping[int, Range]
"""The operators around a part whose views are given, with the ranges of their candidates."""


Problem = tuple[tuple[int, ...], Range, frozenset[tuple[int, Range]], bool]
"""What a part is solved for: its operators, devices, those around, and whether in parallel."""


class _Part(Protocol):
    """The best views of some operators for each choice of views of those around them."""

    @property
    def table(self) -> Table:
        """Seconds by the views of the operators around, as far as they matter."""
        ...

    @property
    def is_divided(self) -> bool:
        """Whether it was considered to run parts of it side by side."""
        ...

    @property
    def width(self) -> int:
        """How many devices it can make use of, with what can run side by side doing so."""
        ...

    def choose(self, outer: Mapping[int, int], views: dict[int, int]) -> bool:
        """Set the views, given the positions of the views around among their candidates.

        True if branches run side by side.
        """
        ...


@dataclass(frozen=True, eq=False)
class _Sequence:
    """Operators that are decided one after the other, and the parts between them."""

    table: Table
    width: int
    is_divided: bool
    decisions: Sequence[BestChoice]
    candidates: Mapping[int, tuple[int, ...]]
    parts: Sequence[_Part]

    def choose(self, outer: Mapping[int, int], views: dict[int, int]) -> bool:
        chosen = dict(outer)
        for decision in reversed(self.decisions):
            position = decision.choose(chosen)
            chosen[decision.variable] = position
            views[decision.variable] = self.candidates[decision.variable][position]
        inside = [part.choose(chosen, views) for part in self.parts]
        return any(inside)


@dataclass(frozen=True, eq=False)
class _Choice:
    """The fastest of several ways to run some components; the first is one after the other."""

    table: Table
    width: int
    is_divided: bool
    which: NDArray[np.intp]
    options: Sequence[tuple[_Part, ...]]

    def choose(self, outer: Mapping[int, int], views: dict[int, int]) -> bool:
        option = int(self.which[tuple(outer[v] for v in self.table.variables)])
        inside = [part.choose(outer, views) for part in self.options[option]]
        return option > 0 or any(inside)


class _Solver:
    """Solves the parts of one network."""

    def __init__(self, net: OperatorNetwork, tables: Tables) -> None:
        self._net = net
        self._tables = tables
        self._solved: dict[Problem, _Part] = {}

    def solve(self, nodes: tuple[int, ...], devices: Range, outer: Outer, parallel: bool) -> _Part:
        """The best views of ``nodes``, in ascending order, within a range of devices.

        Only if ``parallel`` says so does anything run side by side.
        """
        around = frozenset(outer.items())
        found = self._solved.get((nodes, devices, around, parallel))
        if found is None and not parallel:
            found = self._solved.get((nodes, devices, around, True))
            found = None if found is not None and found.is_divided else found
        if found is None:
            parts = _components(self._net, nodes)
            if len(parts) == 1:
                found = self._sequence(nodes, devices, outer, parallel)
            else:
                found = self._together(parts, devices, outer, parallel)
            self._solved[nodes, devices, around, parallel] = found
        return found

    def _sequence(
        self, nodes: tuple[int, ...], devices: Range, outer: Outer, parallel: bool
    ) -> _Part:
        """One component, split at every operator through which all its paths go."""
        cuts, between = sequence_splits(self._net, nodes)
        if not cuts:
            cuts, between = nodes, []
        ranges = {**outer, **dict.fromkeys(cuts, devices)}
        parts = [self.solve(inner, devices, ranges, parallel) for inner in between]
        tables = [part.table for part in parts]
        for i in cuts:
            tables += self._around(i, ranges, outer)
        elimination = Elimination(tables, cuts)
        if cuts is nodes:
            elimination.run_smallest_first()
        else:
            elimination.run()
        readings = self._net.readings
        candidates = {i: self._tables.candidates(readings[i].kind, devices) for i in cuts}
        width = max([readings[i].tasks for i in cuts] + [part.width for part in parts])
        divided = any(part.is_divided for part in parts)
        rest = elimination.rest()
        return _Sequence(rest, width, divided, elimination.decisions, candidates, parts)

    def _around(self, i: int, ranges: Outer, outer: Outer) -> list[Table]:
        """What an operator costs, with what passes between it and those decided before it or
        around it; each once."""
        readings, profile = self._net.readings, self._net.profiles[i]
        found: list[Table] = []
        for arc in self._net.before[i]:
            if arc.source not in ranges:
                continue
            source = (readings[arc.source].kind, ranges[arc.source])
            if found:
                seconds = self._tables.between(source, (profile.kind, ranges[i]), arc.link)
            else:
                seconds = self._tables.into(source, (profile, ranges[i]), arc.link)
            # The source comes first in the graph's order, hence in the table.
            found.append(Table((arc.source, i), seconds))
        if not found:
            found.append(Table((i,), self._tables.own(profile, ranges[i])))
        for arc in self._net.after[i]:
            if arc.target in outer:
                target = (readings[arc.target].kind, outer[arc.target])
                seconds = self._tables.between((profile.kind, ranges[i]), target, arc.link)
                found.append(Table((i, arc.target), seconds))
        return found

    def _together(
        self,
        parts: Sequence[tuple[int, ...]],
        devices: Range,
        outer: Outer,
        parallel: bool,
    ) -> _Part:
        """Independent components: one after the other, or side by side if that is faster.

        SplitSide by side, the first few run on one end of the devices and the rest on the other.
        """
        in_turn = tuple(self.solve(part, devices, outer, parallel) for part in parts)
        options: list[tuple[_Part, ...]] = [in_turn]
        tables = [add_tables([part.table for part in in_turn])]
        width = sum(part.width for part in in_turn)
        for count in range(1, len(parts)) if parallel else ():
            left = tuple(sorted(i for part in parts[:count] for i in part))
            right = tuple(sorted(i for part in parts[count:] for i in part))
            use = sum(part.width for part in in_turn[:count])
            sides = (SplitSide(self._tasks(left), use), SplitSide(self._tasks(right), width - use))
            for a, b in divisions(devices, *sides):
                option = (self.solve(left, a, outer, True), self.solve(right, b, outer, True))
                options.append(option)
                tables.append(_side_by_side(option[0].table, option[1].table))
        best, which = _fastest(tables)
        divided = len(options) > 1 or any(part.is_divided for part in in_turn)
        return _Choice(best, width, divided, which, options)

    def _tasks(self, nodes: tuple[int, ...]) -> int:
        return max(self._net.readings[i].tasks for i in nodes)


def _fastest(tables: Sequence[Table]) -> tuple[Table, NDArray[np.intp]]:
    """The best of several tables for each choice of their variables, and which one that is."""
    if len(tables) == 1:
        return tables[0], np.zeros(tables[0].seconds.shape[1:], np.intp)
    variables = tuple(sorted({v for table in tables for v in table.variables}))
    seconds = np.stack(np.broadcast_arrays(*(aligned(table, variables) for table in tables)))
    which = seconds[:, 0].argmin(axis=0)
    best = np.take_along_axis(seconds, which[None, None], axis=0)[0]
    return Table(variables, best), which


def _side_by_side(left: Table, right: Table) -> Table:
    """Both at the same time: forward takes as long as the slower one, and so does backward."""
    variables = tuple(sorted({*left.variables, *right.variables}))
    a, b = aligned(left, variables), aligned(right, variables)
    forward = np.maximum(a[1], b[1])
    return Table(variables, np.stack([forward + np.maximum(a[0] - a[1], b[0] - b[1]), forward]))


@dataclass(frozen=True)
class SplitSide:
    """One side of a parallel split."""

    need: int
    """The devices of its largest operator."""
    use: int
    """The devices that it can use at most."""


def divisions(devices: Range, left: SplitSide, right: SplitSide) -> list[tuple[Range, Range]]:
    """Ways to divide a range between two sides.

    The side with the larger need gets any multiple of it that it can use, and the other side the
    rest. Which devices they are matters only as far as either side may come first.
    """
    first, size = devices
    large, small = (left, right) if left.need >= right.need else (right, left)
    found: list[tuple[Range, Range]] = []
    for amount in range(large.need, min(large.use, size - small.need) + 1, large.need)[:MAX_SPLITS]:
        mine = amount if large is left else size - amount
        found.append(((first, mine), (first + mine, size - mine)))
        found.append(((first + size - mine, mine), (first, size - mine)))
    return found


def _components(net: OperatorNetwork, nodes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The parts of ``nodes`` between which nothing passes, by their first operators."""

    def beside(i: int) -> list[int]:
        return [arc.source for arc in net.before[i]] + [arc.target for arc in net.after[i]]

    return components(nodes, beside)


def sequence_splits(
    net: OperatorNetwork, nodes: tuple[int, ...]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The operators through which all paths through ``nodes`` go, and what lies between them.

    In one pass over a topological order: all paths go through an operator exactly if nothing
    passes by it, from before it to after it; a path starts at an operator that gets nothing from
    ``nodes`` and ends at one from which none of them gets anything.
    """
    position = {i: p for p, i in enumerate(nodes)}
    starts = (
        p for p, i in enumerate(nodes) if all(a.source not in position for a in net.before[i])
    )
    reach = max(starts)
    cuts: list[int] = []
    between: list[tuple[int, ...]] = []
    begin = 0
    for p, i in enumerate(nodes):
        if reach <= p:
            cuts.append(i)
            if begin < p:
                between.append(nodes[begin:p])
            begin = p + 1
        ends = [position[a.target] for a in net.after[i] if a.target in position]
        reach = max([reach, *ends]) if ends or p == len(nodes) - 1 else len(nodes)
    if begin < len(nodes):
        between.append(nodes[begin:])
    return tuple(cuts), between

"""The integer linear program that chooses one strategy for every operator.

Problem: tables of one and two variables add up to seconds. Find the values with the least sum, such
that the bytes which values hold add up to at most a limit.

Method: the integer linear program of Alpa (Zheng et al., OSDI 2022, section 4.2). Every variable is
a one-hot vector. A table of two variables is quadratic in them. It is linearized by a variable for
each pair of values, whose sums over one side are the one-hot vector of the other side. Values with
equal rows in a table share the pair variables, which changes nothing and leaves fewer. So these
need not be declared integer. The linear relaxation is solved first. If its solution is integral, it
is the answer. If its sum is no better than the known one, there is no answer. Otherwise HiGHS
branches.

Complexity: exponential in the worst case; the relaxation of chains is integral. Exact up to ``GAP``
if the solver reports an optimum, as the gap in the answer shows; or up to the gap that is asked
for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from pcg.lazy import highspy
from search.cost.progress import check_time, time_left
from search.map.choose.factors import Factor
from search.map.choose.resharding import NEVER

Vector = NDArray[np.float64]
UNITS = 1e4
"""The value to which the smallest possible sum is scaled, as the solver's tolerances are
absolute."""
WHOLE = 1e-6
"""The largest distance from an integer of a value that counts as integral."""
GAP = 1e-9
"""The fraction of the sum by which another choice may still be better."""


@dataclass(frozen=True)
class HeldBytes:
    """The bytes that each value of each variable holds, and the limit of their sum."""

    bytes: Sequence[Vector]
    limit: float


@dataclass(frozen=True)
class Solution:
    """The least sum in seconds, the place of each variable's value, and the bound by relaxation."""

    seconds: float
    places: tuple[int, ...]
    relaxed: float
    """Seconds of the linear relaxation: a lower bound of all choices."""
    gap: float
    """The fraction of the sum within which the solver did not exclude a better choice."""

    is_relaxed: bool
    """Whether the solution of the relaxation was integral."""

    @property
    def relaxation_gap(self) -> float:
        """The fraction by which the relaxation is below the least sum."""
        return max(0.0, 1 - self.relaxed / self.seconds) if self.seconds > 0 else 0.0


@dataclass
class Tally:
    """Statistics of integer programs: the number that had an answer, the number solved by the
    linear relaxation alone, the largest gap between both, and the largest gap that the solver left
    open."""

    solved: int = 0
    integral: int = 0
    relaxation_gap: float = 0.0
    open_gap: float = 0.0

    def add(self, solution: Solution) -> None:
        self.solved += 1
        self.integral += solution.is_relaxed
        self.relaxation_gap = max(self.relaxation_gap, solution.relaxation_gap)
        self.open_gap = max(self.open_gap, solution.gap)

    @property
    def line(self) -> str:
        """The statistics as a line for people."""
        noun = "integer program" if self.solved == 1 else "integer programs"
        return (
            f"solved {self.solved:,} {noun}, {self.integral:,} by the linear relaxation alone,"
            f" which is {self.relaxation_gap:.2%} below the answer at most"
        )


def solve(
    sizes: Sequence[int],
    factors: Sequence[Factor],
    held: HeldBytes | None = None,
    better_than: float = inf,
    seconds: float = 60.0,
    gap: float = GAP,
) -> Solution | None:
    """Return the least sum of tables of one or two variables, up to a relative ``gap``. None if no
    choice fits, if none is below ``better_than``, or if none was found within ``seconds``. Raises
    OutOfTime if the search under way has to end."""
    check_time()
    program = _Program(sizes, factors, held)
    relaxed = program.relaxed()
    if relaxed is None or relaxed[0] >= better_than:
        return None
    bound, values = relaxed
    left, is_relaxed = 0.0, program.is_whole(values)
    if not is_relaxed:
        branched = program.branched(seconds, gap)
        if branched is None:
            return None
        values, left = branched
    places = program.places(values)
    total = program.summed(places)
    return Solution(total, places, bound, left, is_relaxed) if total < better_than else None


@dataclass
class _Columns:
    """The columns and rows of a linear program while it is built."""

    costs: list[Vector] = field(default_factory=list[Vector])
    count: int = 0
    rows: int = 0
    row_of: list[NDArray[np.intp]] = field(default_factory=list[NDArray[np.intp]])
    column_of: list[NDArray[np.intp]] = field(default_factory=list[NDArray[np.intp]])
    entries: list[Vector] = field(default_factory=list[Vector])
    bounds: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def add(self, costs: Vector) -> NDArray[np.intp]:
        """Add columns with the given costs. Returns their numbers."""
        first, self.count = self.count, self.count + len(costs)
        self.costs.append(costs)
        return np.arange(first, self.count)

    def row(self, columns: NDArray[np.intp], entries: Vector, low: float, high: float) -> None:
        self.row_of.append(np.full(len(columns), self.rows, np.intp))
        self.column_of.append(columns)
        self.entries.append(entries)
        self.bounds.append((low, high))
        self.rows += 1


class _Program:
    def __init__(
        self, sizes: Sequence[int], factors: Sequence[Factor], held: HeldBytes | None
    ) -> None:
        self._own = [np.zeros(size) for size in sizes]
        self._pairs: dict[tuple[int, int], Vector] = {}
        for factor in factors:
            first, *second = factor.variables
            if second:
                known = self._pairs.get((first, second[0]))
                scaled = factor.scaled
                self._pairs[first, second[0]] = scaled if known is None else known + scaled
            else:
                self._own[first] = self._own[first] + factor.scaled
        self._columns = _Columns()
        self._variables = [self._columns.add(own) for own in self._own]
        for own in self._variables:
            self._columns.row(own, np.ones(len(own)), 1.0, 1.0)
        self._link()
        if held is not None:
            bytes_held = np.concatenate([*held.bytes, np.zeros(0)]) / max(held.limit, 1.0)
            self._columns.row(np.concatenate(self._variables), bytes_held, -inf, 1.0)
        self._solver = self._loaded()

    def _link(self) -> None:
        """Add columns and rows for the tables of two variables."""
        for (first, second), table in self._pairs.items():
            rows, left = np.unique(table, axis=0, return_inverse=True)
            small, right = np.unique(rows, axis=1, return_inverse=True)
            if small.size == 1 and small[0, 0] < NEVER:
                self._columns.costs[first] = self._columns.costs[first] + small[0, 0]
                continue
            made = small < NEVER
            numbers = np.full(small.shape, -1, np.intp)
            numbers[made] = self._columns.add(small[made])
            ends = (first, left.ravel(), numbers), (second, right.ravel(), numbers.T)
            for variable, kinds, lines in ends:
                for kind, line in enumerate(lines):
                    pairs, own = line[line >= 0], self._variables[variable][kinds == kind]
                    entries = np.concatenate([np.ones(len(pairs)), -np.ones(len(own))])
                    self._columns.row(np.concatenate([pairs, own]), entries, 0.0, 0.0)

    def _loaded(self) -> highspy.Highs:
        made = self._columns
        costs = np.concatenate([*made.costs, np.zeros(0)])
        least = sum(float(own.min()) for own in self._own)
        self._unit = UNITS / max(least, float(np.abs(costs).max(initial=0.0)) * 1e-3, 1e-30)
        rows, columns = (np.concatenate(part) for part in (made.row_of, made.column_of))
        entries = np.concatenate(made.entries)
        lines = np.argsort(rows, kind="stable")
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = made.count, made.rows
        model.col_cost_ = (costs * self._unit).tolist()
        model.col_lower_, model.col_upper_ = [0.0] * made.count, [1.0] * made.count
        model.row_lower_ = [low for low, _ in made.bounds]
        model.row_upper_ = [high for _, high in made.bounds]
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        counts = np.bincount(rows, minlength=made.rows)
        model.a_matrix_.start_ = [0, *np.cumsum(counts).tolist()]
        model.a_matrix_.index_ = columns[lines].tolist()
        model.a_matrix_.value_ = entries[lines].tolist()
        solver = highspy.Highs()
        solver.silent()
        solver.setOptionValue("threads", 1)
        solver.passModel(model)
        return solver

    def relaxed(self) -> tuple[float, Vector] | None:
        """The sum of the linear relaxation, and its values; None if nothing fits."""
        self._run(inf)
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        values = np.array(self._solver.getSolution().col_value)
        return self._solver.getInfo().objective_function_value / self._unit, values

    def branched(self, seconds: float, gap: float) -> tuple[Vector, float] | None:
        """The values of the best choice within the time limit, or of the first one within ``gap``
        of the optimum, and its gap. None if no choice was found."""
        solver, whole = self._solver, int(sum(map(len, self._own)))
        kinds = np.full(whole, highspy.HighsVarType.kInteger)
        solver.changeColsIntegrality(whole, np.arange(whole, dtype=np.int32), kinds)
        solver.setOptionValue("mip_rel_gap", gap)
        self._run(seconds)
        info = solver.getInfo()
        if not np.isfinite(info.mip_gap):
            return None
        return np.array(solver.getSolution().col_value), max(0.0, float(info.mip_gap))

    def _run(self, seconds: float) -> None:
        """Run the solver for so many seconds at most. Raises OutOfTime if the search under way has
        to end."""
        limit = max(0.0, min(seconds, time_left()))
        self._solver.setOptionValue("time_limit", self._solver.getRunTime() + limit)
        self._solver.run()
        check_time()

    def is_whole(self, values: Vector) -> bool:
        """Whether every variable has exactly one value."""
        own = np.concatenate([values[own] for own in self._variables])
        return bool(np.abs(own - np.rint(own)).max(initial=0.0) <= WHOLE)

    def places(self, values: Vector) -> tuple[int, ...]:
        return tuple(int(values[own].argmax()) for own in self._variables)

    def summed(self, places: Sequence[int]) -> float:
        """The sum of the tables at given places."""
        alone = sum(float(own[at]) for own, at in zip(self._own, places, strict=True))
        pairs = (float(t[places[a], places[b]]) for (a, b), t in self._pairs.items())
        return alone + sum(pairs)

"""Recomputation that takes less time: tensors that are kept, or recomputed in place of others.

Problem: a plan fits because some units are recomputed (``search.cost.units``). They were taken by
the bytes of their tensors. But a tensor that is not there when a device is fullest frees nothing if
it is recomputed, and of two that were taken together one may be enough.

Method: local search over sets of units. A unit is dropped if the plan fits without it, the slowest
first. Then units are exchanged: one that frees few bytes for its seconds is dropped, and others are
taken by their worth until the plan fits. The exchange is made if the others take less time.

Complexity: at most ``most`` counts of memory. Memory is counted. The seconds are those of the
units, and may overlap with communication: the result is to be simulated. A heuristic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from search.cost.units import CountBytes, Unit, union

Units = tuple[Unit, ...]


@dataclass
class KeptUnits:
    """Looks for units that can be kept. ``units``: all units, in descending worth; ``counted`` and
    ``limit``: as for ``recomputations_to_fit``; ``itemsize``: bytes of an element; ``most``: the
    most counts of memory."""

    units: Sequence[Unit]
    counted: CountBytes
    limit: int
    itemsize: int
    most: int
    _missing: dict[Unit, int] = field(init=False, default_factory=dict[Unit, int])
    """The bytes by which the plan misses if a unit is kept, as last counted."""

    def fewer(self, recomputed: Units) -> Units:
        """The units to recompute in place of those with which a plan fits. It fits with them too,
        and they take no more seconds."""
        chosen = self._without_idle(recomputed)
        for unit in sorted(chosen, key=self._missing_a_second):
            chosen = self._exchanged(chosen, unit)
        return chosen

    def _without_idle(self, chosen: Units) -> Units:
        """The units without those that need not be recomputed for the plan to fit."""
        for unit in sorted(chosen, key=lambda unit: -unit.seconds):
            rest = _without(chosen, unit)
            missing = self._over(rest)
            if missing is None:
                break
            self._missing[unit] = missing
            chosen = rest if missing <= 0 else chosen
        return chosen

    def _missing_a_second(self, unit: Unit) -> float:
        missing = self._missing.get(unit, inf)
        return missing / unit.seconds if unit.seconds else inf

    def _exchanged(self, chosen: Units, unit: Unit) -> Units:
        """The units with others in place of one, if these take less time; else as they are."""
        others, rest = (), _without(chosen, unit)
        seconds, freed = 0.0, 0
        for other in self.units:
            is_idle = self._missing.get(other, inf) <= 0
            if is_idle or other in chosen or seconds + other.seconds >= unit.seconds:
                continue
            others = *others, other
            seconds, freed = seconds + other.seconds, freed + other.bytes * self.itemsize
            if freed < self._missing.get(unit, 0):
                continue
            over = self._over((*rest, *others))
            if over is None:
                break
            if over <= 0:
                return *rest, *others
        return chosen

    def _over(self, chosen: Units) -> int | None:
        """The bytes by which a plan misses that recomputes some units; None if no count is left."""
        self.most -= 1
        return self.counted(union(chosen)) - self.limit if self.most >= 0 else None


def _without(units: Units, unit: Unit) -> Units:
    return tuple(other for other in units if other is not unit)

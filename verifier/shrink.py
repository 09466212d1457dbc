"""Shrinks a counterexample: sizes and degrees first, then the values of attributes and inputs.

Method: greedy descent. Each step replaces the smallest counterexample so far by one with a smaller
``Measure`` and the same kind of difference.
Complexity: at most ``MAX_EVALUATIONS`` evaluations of both sides.
Exact: the result is replayed. A smaller one may exist. All runs give the same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import lcm
from typing import NamedTuple

import numpy as np

from pcg.readings.ring import Array, Reals
from verifier.concrete import DegreeSystem, Valuation
from verifier.counterexample import (
    VALUES,
    Counterexample,
    Difference,
    difference,
    index_leaves,
    input_values,
    random_leaves,
    replayable,
    report,
    type_difference,
    value_difference,
)
from verifier.instances import Instance, instantiate

MAX_EVALUATIONS = 60
"""The most evaluations of both sides for one counterexample."""
MAX_FOR_TYPES = 36
"""The most of these before real attributes and the values of inputs are simplified."""
MAX_INSTANCES = 150
"""How many choices of types are tried; most do not fit, or need no evaluation."""
RELATIVE, ABSOLUTE = 1e-3, 1e-6
"""Tolerances: by more than these, a smaller counterexample has to differ."""
SIMPLE_REALS = (1.0, 2.0, -1.0, 0.5, 3.0)
"""Values that are tried for real attributes, in order."""
PATTERN = (1.0, -1.0, 2.0, 3.0, -2.0)
"""Values of inputs, repeated. They have both signs and are rarely equal, so that few differences
cancel."""
INDICES = (0.0, 1.0, 2.0)
FEW = 8
"""Up to so many elements, inputs of the opposite sign are tried too: all elements may have the sign
that shows no difference."""


class Measure(NamedTuple):
    """The size of a counterexample, compared field by field.

    ``elements``: the elements of all inputs, those of every partial counted. ``degrees``: the sum
    of the degrees of the inputs and of the integer attributes that were symbols. ``nonzero``: the
    input values that are not 0. ``numbers``: the sum of the absolute values of all numbers, plus
    0.5 for each negative one and 10 for each that is no integer.
    """

    elements: int
    degrees: int
    nonzero: int
    numbers: float


def shrink(instance: Instance, counterexample: Counterexample) -> Counterexample:
    """Return a counterexample to the same pair with a smaller ``Measure``, or the given one.

    The result has been replayed from its own text. Raises ValueError if the two sides of
    ``instance`` do not differ on the inputs of ``counterexample``.
    """
    inputs = input_values(counterexample)
    known = difference(instance, inputs)
    if known is None:
        raise ValueError(f"the two sides do not differ: {counterexample}")
    first = _Best(instance, inputs, known, measure(instance, inputs))
    search = _Search(first)
    search.shrink_degrees()
    search.shrink_sizes()
    search.shrink_reals()
    search.shrink_values()
    best = search.best
    if best is first:
        return counterexample
    smaller = report(best.instance, best.inputs, best.difference)
    return smaller if difference(*replayable(smaller)) is not None else counterexample


def measure(instance: Instance, inputs: Mapping[str, Array]) -> Measure:
    """The measure of a counterexample."""
    values = _flat(inputs)
    degrees = 0
    for leaf in instance.leaves.values():
        assert leaf.type is not None
        type_degrees = leaf.type.degrees
        degrees += sum(
            (*type_degrees.dims, *type_degrees.slices, type_degrees.copies, type_degrees.partials)
        )
    attributes = [v for s, v in instance.symbols.items() if not s.startswith("|")]
    degrees += sum(v for v in attributes if isinstance(v, int))
    reals = np.array([v for v in attributes if isinstance(v, float)])
    written = np.concatenate([values, reals])
    fractional = written != np.rint(written)
    numbers = np.abs(written).sum() + 0.5 * (written < 0).sum() + 10 * fractional.sum()
    return Measure(values.size, degrees, int(np.count_nonzero(values)), float(numbers))


def _flat(inputs: Mapping[str, Array]) -> Array:
    return np.concatenate([np.zeros(0), *(np.ravel(inputs[name]) for name in sorted(inputs))])


def _shaped(values: Array, like: Mapping[str, Array]) -> dict[str, Array]:
    """``values`` in the order of ``_flat``, in the shapes of ``like``."""
    arrays: dict[str, Array] = {}
    start = 0
    for name in sorted(like):
        arrays[name] = values[start : start + like[name].size].reshape(like[name].shape)
        start += like[name].size
    return arrays


@dataclass(frozen=True)
class _Best:
    instance: Instance
    inputs: Mapping[str, Array]
    difference: Difference
    measure: Measure


@dataclass
class _Search:
    """The smallest counterexample so far, and how many evaluations and instances it took."""

    best: _Best
    evaluations: int = 0
    instances: int = 0

    @property
    def _of_types(self) -> bool:
        return self.best.difference.kind not in VALUES

    def shrink_degrees(self) -> None:
        """Try degrees, copies and partials of 1 for inputs, and degrees of 2 for operators, for as
        many as fit together."""
        valuation = self.best.instance.valuation
        system = DegreeSystem.around(valuation.pair, valuation.degrees) if valuation else None
        if valuation is None or system is None:
            return
        largest = sorted(system.symbols, key=lambda s: (-valuation.degrees.get(s, 1), s))
        wishes = [(s, 1 if "." in s else 2) for s in largest if not s.isdigit()]
        degrees = system.pinned(wishes)
        if degrees is not None and degrees != valuation.degrees:
            self._small_sizes(replace(valuation, degrees=degrees))

    def shrink_sizes(self) -> None:
        """Shrink all sizes together, then one after the other as long as that helps."""
        if self.best.instance.valuation is None:
            return
        self._small_sizes(self.best.instance.valuation)
        before = None
        while before is not self.best:
            before = self.best
            self._shrink_each_size()

    def _small_sizes(self, valuation: Valuation) -> None:
        cuts = lcm(*valuation.degrees.values())
        for size in dict.fromkeys((1, 2, cuts)):
            if self._try(replace(valuation, values=dict.fromkeys(valuation.values, size))):
                return
        self._try(valuation)

    def _shrink_each_size(self) -> None:
        valuation = self.best.instance.valuation
        assert valuation is not None
        for size, symbol in sorted((-size, symbol) for symbol, size in valuation.values.items()):
            for smaller in _smaller(-size):
                changed = replace(valuation, values={**valuation.values, symbol: smaller})
                if self._try(changed):
                    valuation = changed
                    break

    def shrink_reals(self) -> None:
        """Try simple values for real attributes, on the same inputs."""
        valuation = self.best.instance.valuation
        if valuation is None:
            return
        for symbol in sorted(valuation.reals):
            for value in SIMPLE_REALS:
                simpler = replace(valuation, reals={**valuation.reals, symbol: value})
                instance = instantiate(simpler)
                if instance is not None and self._accept(instance, self.best.inputs):
                    valuation = simpler
                    break

    def _try(self, valuation: Valuation) -> bool:
        """Try the pair at other values of its symbols. Return whether that gave a smaller
        counterexample."""
        if self.instances >= MAX_INSTANCES or self.evaluations >= MAX_FOR_TYPES:
            return False
        self.instances += 1
        instance = instantiate(valuation)
        if instance is None:
            return False
        return any(self._accept(instance, inputs) for inputs in self._fills(instance))

    def _fills(self, instance: Instance) -> Iterator[Mapping[str, Array]]:
        """Yield inputs on which a difference may show: small integers first, then random
        numbers."""
        shapes = random_leaves(instance, Reals(), np.random.default_rng(0))
        if self._of_types:
            yield {name: np.zeros(values.shape) for name, values in shapes.items()}
            return
        indices = index_leaves(instance)
        rolled = {name: np.roll(PATTERN, -i) for i, name in enumerate(shapes)}
        for sign in (1.0, -1.0) if _flat(shapes).size <= FEW else (1.0,):
            yield {
                name: np.resize(INDICES if name in indices else sign * rolled[name], values.shape)
                for name, values in shapes.items()
            }
        yield shapes

    def _accept(self, instance: Instance, inputs: Mapping[str, Array]) -> bool:
        """Keep an instance and inputs if they are smaller and the kind of difference is the same.
        Return whether they were kept."""
        smaller = measure(instance, inputs)
        if smaller >= self.best.measure:
            return False
        differs = type_difference(instance)
        if differs is None and not self._of_types and self.evaluations < MAX_EVALUATIONS:
            self.evaluations += 1
            differs = value_difference(instance, inputs, RELATIVE, ABSOLUTE)
        if differs is None or differs.kind is not self.best.difference.kind:
            return False
        self.best = _Best(instance, inputs, differs, smaller)
        return True

    def shrink_values(self) -> None:
        """Try integers for all values, then zeros for ranges of values, from long to short, then
        small integers for each value."""
        instance, like = self.best.instance, self.best.inputs
        self._accept_values(np.clip(np.rint(_flat(like)), -2, 2) + 0.0)
        size = count = _flat(like).size
        while size:
            for start in range(0, count, size):
                self._accept_values(_with(_flat(self.best.inputs), slice(start, start + size), 0))
            size //= 2
        indices = index_leaves(instance)
        signed = _flat({n: np.full(v.shape, n not in indices) for n, v in like.items()})
        for position in np.flatnonzero(_flat(self.best.inputs)).tolist():
            for value in (1, -1, 2, -2) if signed[position] else (1, 2):
                if self._accept_values(_with(_flat(self.best.inputs), position, value)):
                    break

    def _accept_values(self, values: Array) -> bool:
        return self._accept(self.best.instance, _shaped(values, self.best.inputs))


def _with(values: Array, position: slice | int, value: float) -> Array:
    changed = values.copy()
    changed[position] = value
    return changed


def _smaller(size: int) -> list[int]:
    """Smaller sizes to try, the smallest first: up to 3, and quotients by 2, 3 and 5."""
    parts = (size // prime for prime in (2, 3, 5) if size % prime == 0)
    return sorted(s for s in {1, 2, 3, *parts} if s < size)

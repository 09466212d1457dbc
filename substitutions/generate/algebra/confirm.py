"""Confirms equal values a second time: over another prime field, on other inputs.

The table tells values apart by hashes over one field. Terms with the same hash are evaluated again
here, element by element, and only terms that agree become candidates. Two different polynomials of
degree d agree in an element over both fields with a probability of at most d^2 over the product of
both primes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from pcg.readings.ring import PrimeField
from substitutions.generate.algebra.prime_field import FieldArray, Shape
from substitutions.generate.algebra.table import ClassTable
from substitutions.generate.algebra.terms import INPUTS, ClassTerm, TermNames, TermPart

SECOND = PrimeField(2_147_483_629, generic=True)
"""The next prime below that of the table."""


class Confirmation:
    """Evaluates the terms of a table over a second field."""

    def __init__(self, table: ClassTable, field: PrimeField = SECOND, seed: int = 7) -> None:
        self._classes = table.classes
        self._steps = table.world.steps(field)
        self._inputs: dict[Shape, FieldArray] = {}
        rng = np.random.default_rng(seed)
        for shape in (*table.world.inputs, *table.world.inner):
            drawn = rng.integers(1, field.prime, (2 * INPUTS, 1, int(np.prod(shape))))
            self._inputs[shape] = drawn

    def agreeing(self, terms: Sequence[tuple[ClassTerm, TermNames]]) -> list[list[int]]:
        """The positions of equal terms, in groups. Input i is the variable ``names[i]`` of each
        term. The other variables of a term must not matter to its value; they get further
        inputs."""
        groups: dict[bytes, list[int]] = defaultdict(list)
        for place, (term, names) in enumerate(terms):
            groups[self.value(term, names).tobytes()].append(place)
        return list(groups.values())

    def value(self, term: ClassTerm, names: TermNames) -> FieldArray:
        """The value of a term with input i for its variable ``names[i]``."""
        number = {name: i for i, name in enumerate(names)}
        env: dict[int, FieldArray] = {}
        for part, own in term[1]:
            for name, shape in zip(own, self._classes[part].variables, strict=True):
                fresh = number.setdefault(name, INPUTS + len(number) - len(names))
                env[name] = self._inputs[shape][fresh]
        return self._term(term, env)

    def part(self, part: TermPart) -> FieldArray:
        """The value of a class with its variables named by numbers of inputs."""
        number, names = part
        shapes = self._classes[number].variables
        return self._part(
            part, {n: self._inputs[shape][n] for n, shape in zip(names, shapes, strict=True)}
        )

    def _term(self, term: ClassTerm, env: Mapping[int, FieldArray]) -> FieldArray:
        step, parts = term
        operands = [self._part(part, env) for part in parts]
        return operands[0] if step < 0 else self._steps[step].evaluate(operands)

    def _part(self, part: TermPart, env: Mapping[int, FieldArray]) -> FieldArray:
        number, names = part
        own = self._classes[number].term
        if own is None:
            return env[names[0]]
        return self._term(own, {i: env[name] for i, name in enumerate(names)})

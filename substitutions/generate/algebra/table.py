"""Fills the table of classes of equal values (see ``terms``), size by size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcg.readings.ring import PrimeField
from substitutions.generate.algebra.evaluation import EvaluatedTerms, Evaluation
from substitutions.generate.algebra.prime_field import Shape
from substitutions.generate.algebra.terms import (
    INPUTS,
    ORDERS,
    ClassTerm,
    Hasher,
    TermBatch,
    TermNames,
    TermPart,
    TermValues,
    ValueClass,
    canonical,
    fixed_inputs,
    ignores_input,
    keys,
    namings,
    symmetries,
)
from substitutions.generate.algebra.worlds import AlgebraWorld, ShapedOutput

ClassSignature = tuple[Shape, tuple[Shape, ...]]
"""The shape of a class and the shapes of its variables."""


@dataclass(frozen=True)
class ClassMember:
    """A term of a class: variable i of the class is variable ``names[i]`` of the term."""

    term: ClassTerm
    names: TermNames


@dataclass(frozen=True)
class LargeTerms:
    """A range of terms of the greatest size, with only their keys, and for each the number of the
    order with the least hash."""

    batch: TermBatch
    rows: range
    keys: NDArray[np.uint64]
    least: NDArray[np.uint8]


class ClassTable:
    """Classes of equal values, and all terms of each class.

    ``found``: the members of each class. ``index``: the class of each term, and the names of the
    class's variables in the term. ``terms``: how many terms have been recorded.
    """

    def __init__(self, world: AlgebraWorld, field: PrimeField, seed: int = 0) -> None:
        self.world, self.field = world, field
        self.steps: list[ShapedOutput] = world.steps(field)
        self.classes: list[ValueClass] = []
        self.found: list[list[ClassMember]] = []
        self.index: dict[ClassTerm, tuple[int, TermNames]] = {}
        self.terms = 0
        self.numbers: dict[int, int] = {}
        """The class of each key."""
        self._least: list[tuple[int, ...]] = []
        self._hasher = Hasher(field, seed)
        self._evaluation = Evaluation(self.steps, self._hasher)
        self._sizes: dict[int, dict[ClassSignature, list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._siblings = self._ports()
        self._allowed = frozenset(world.inputs)
        self._last = False
        shapes = (*world.inputs, *world.inner)
        self._variables = {shape: i for i, shape in enumerate(shapes)}
        numbers: dict[object, int] = {}
        self.calls = [numbers.setdefault((s.call, s.inputs), len(numbers)) for s in self.steps]
        for shape, values in fixed_inputs(shapes, field, seed + 1).items():
            variable = ValueClass(shape, (shape,), 0, None, ((0,),))
            self._append(variable, values, self._hasher.hashes(values.astype(np.int64), shape))

    def grow(self, size: int) -> None:
        """Add the classes of values of ``size`` operators. All smaller ones have to be there."""
        for evaluated in self._evaluation.of(list(self.batches(size))):
            self._record(evaluated)

    def large(self, size: int) -> Iterator[LargeTerms]:
        """Yield the keys of the terms of a size without recording the terms."""
        pieces = self._evaluation.of(self.batches(size, last=True))
        for evaluated in pieces:
            least_keys, least = keys(evaluated.hashes)
            yield LargeTerms(evaluated.batch, evaluated.rows, least_keys, least.astype(np.uint8))

    def parts(self, batch: TermBatch, row: int) -> tuple[TermPart, ...]:
        """The operands of one term of a batch."""
        return _parts(batch, row, self.classes)

    def is_zero(self, key: int, step: int) -> bool:
        """Whether a term of a step is 0 everywhere."""
        return key == self._hasher.zeros[self.steps[step].shape]

    def variable(self, shape: Shape) -> int | None:
        """The class of an input of a shape; None if the world has no such input."""
        return self._variables.get(shape)

    def named(self, least: int, used: TermNames) -> TermNames:
        """The variables of a term in an order that is the same for all terms of its class: that of
        the inputs that they are under the order ``least``. ``used``: the old names of the
        canonical term's variables."""
        given = [ORDERS[least][v] for v in used]
        return tuple(sorted(range(len(used)), key=given.__getitem__))

    def names_in(self, number: int, least: int, used: TermNames) -> TermNames | None:
        """The variable of a term for each variable of its class; None if the term lacks one.
        ``used``: the old names of the canonical term's variables."""
        given = [ORDERS[least][v] for v in used]
        wanted = self._least[number]
        return tuple(given.index(w) for w in wanted) if set(wanted) <= set(given) else None

    # -- what to evaluate ---------------------------------------------------------------------

    def batches(self, size: int, *, last: bool = False) -> Iterator[TermBatch]:
        """Yield all terms of a size, each at most twice. With ``last``, terms have no inputs of
        inner shapes: these are needed only in smaller terms, as patterns of larger ones."""
        self._last = last
        for number, step in enumerate(self.steps):
            match len(step.inputs):
                case 0 if size == 1:
                    yield TermBatch(number, None, None, (), size)
                case 1:
                    yield from self._unary(number, step, size)
                case 2:
                    yield from self._binary(number, step, size)
                    yield from self._shared(number, step, size)
                case _:
                    pass

    def _of_size(self, size: int) -> Iterator[tuple[ClassSignature, list[int]]]:
        for signature, members in self._sizes[size].items():
            if not self._last or self._allowed.issuperset(signature[1]):
                yield signature, members

    def _unary(self, number: int, step: ShapedOutput, size: int) -> Iterator[TermBatch]:
        for (shape, _), members in self._of_size(size - 1):
            if shape == step.inputs[0]:
                yield TermBatch(number, _ids(members), None, (), size)

    def _binary(self, number: int, step: ShapedOutput, size: int) -> Iterator[TermBatch]:
        for i in range(size):
            j = size - 1 - i
            if step.call.operator.commutative and i < j:
                continue
            for (shape, own), first in self._of_size(i):
                if shape != step.inputs[0]:
                    continue
                for (other, more), second in self._of_size(j):
                    if other == step.inputs[1]:
                        for names in namings(more, own):
                            pair = _ids(first), _ids(second)
                            yield TermBatch(number, *pair, names, size, cross=True)

    def _shared(self, number: int, step: ShapedOutput, size: int) -> Iterator[TermBatch]:
        """Yield the terms of which one operand is a part of the other, or both are outputs of the
        same operator."""
        grouped: dict[tuple[ClassSignature, TermNames, bool], list[tuple[int, int]]] = defaultdict(
            list
        )
        for signature, members in self._of_size(size - 1):
            for outer in members:
                for part, names in self._within(outer):
                    shapes = (signature[0], self.classes[part].shape)
                    if shapes == step.inputs:
                        grouped[signature, names, False].append((outer, part))
                    flipped = not step.call.operator.commutative and outer != part
                    if flipped and shapes[::-1] == step.inputs:
                        grouped[signature, names, True].append((outer, part))
        for (_, names, swapped), pairs in grouped.items():
            first, second = _ids([a for a, _ in pairs]), _ids([b for _, b in pairs])
            yield TermBatch(number, first, second, names, size, cross=False, swapped=swapped)

    def _within(self, number: int) -> Iterator[TermPart]:
        """Yield a class itself and the classes that its least term computes, in its own
        variables."""
        own = self.classes[number]
        yield number, tuple(range(len(own.variables)))
        if own.term is None:
            return
        step, parts = own.term
        for part, names in parts:
            if self.classes[part].size:
                for inner, under in self._within(part):
                    yield inner, tuple(names[v] for v in under)
        for sibling in self._siblings.get(step, ()):
            known = self.index.get((sibling, parts))
            if known is not None and known[0] != number:
                yield known

    def siblings(self, step: int) -> tuple[int, ...]:
        """The steps that are other outputs of the same operator."""
        return self._siblings[step]

    def _ports(self) -> dict[int, tuple[int, ...]]:
        """For each step, the steps that are other outputs of the same operator."""
        by_call: dict[object, list[int]] = defaultdict(list)
        for number, step in enumerate(self.steps):
            by_call[step.call, step.inputs].append(number)
        return {
            number: tuple(other for other in group if other != number)
            for group in by_call.values()
            for number in group
        }

    # -- classes ------------------------------------------------------------------------------

    def _record(self, evaluated: EvaluatedTerms) -> None:
        batch, hashes = evaluated.batch, evaluated.hashes
        least_keys, least = keys(hashes)
        shape = self.steps[batch.step].shape
        for i, row in enumerate(evaluated.rows):
            term, used = canonical(
                batch.step, _parts(batch, row, self.classes), self.steps, self.classes
            )
            if term in self.index or int(least_keys[i]) == self._hasher.zeros[shape]:
                continue
            self.terms += 1
            number = self.numbers.get(int(least_keys[i]))
            if number is None:
                order = _reordering(used)
                if ignores_input(hashes[i][order], len(used)):
                    continue
                number = self._new(
                    term, batch.size, evaluated.values[i][order].astype(np.uint32), hashes[i][order]
                )
                names: TermNames | None = tuple(range(len(used)))
            else:
                names = self.names_in(number, int(least[i]), used)
            if names is not None:
                self.index[term] = (number, names)
                self.found[number].append(ClassMember(term, names))

    def _new(
        self, term: ClassTerm, size: int, values: TermValues, hashes: NDArray[np.uint64]
    ) -> int:
        step, parts = term
        shapes: dict[int, Shape] = {}
        for number, names in parts:
            shapes.update(zip(names, self.classes[number].variables, strict=True))
        variables = tuple(shapes[v] for v in range(len(shapes)))
        return self._append(
            ValueClass(
                self.steps[step].shape, variables, size, term, symmetries(hashes, len(variables))
            ),
            values,
            hashes,
        )

    def _append(self, new: ValueClass, values: TermValues, hashes: NDArray[np.uint64]) -> int:
        number = len(self.classes)
        self.classes.append(new)
        self._evaluation.append(new.shape, values)
        self.found.append([])
        (key,), (least,) = keys(hashes[None])
        self.numbers[int(key)] = number
        self._least.append(ORDERS[least][: len(new.variables)])
        self._sizes[new.size][new.shape, new.variables].append(number)
        return number


def _ids(numbers: Sequence[int]) -> NDArray[np.int32]:
    return np.array(numbers, np.int32)


def _parts(batch: TermBatch, row: int, classes: Sequence[ValueClass]) -> tuple[TermPart, ...]:
    """The operands of one term of a batch."""
    if batch.first is None:
        return ()
    if batch.second is None:
        number = int(batch.first[row])
        return ((number, tuple(range(len(classes[number].variables)))),)
    a, b = divmod(row, len(batch.second)) if batch.cross else (row, row)
    first = int(batch.first[a])
    pair = (
        (first, tuple(range(len(classes[first].variables)))),
        (int(batch.second[b]), batch.names),
    )
    return pair[::-1] if batch.swapped else pair


def _reordering(used: TermNames) -> NDArray[np.int64]:
    """For each order of a canonical term's variables, the order of the evaluated term's."""
    rest = [v for v in range(INPUTS) if v not in used]
    full = (*used, *rest)
    place = {order: i for i, order in enumerate(ORDERS)}
    orders: list[int] = []
    for order in ORDERS:
        raw = [0] * INPUTS
        for i, v in enumerate(full):
            raw[v] = order[i]
        orders.append(place[tuple(raw)])
    return np.array(orders)

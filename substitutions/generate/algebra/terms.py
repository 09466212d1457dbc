"""Represents all graphs up to a size as classes of equal values.

Method: the table is an e-graph that is built bottom up (equality by evaluation, as in Ruler, Nandi
et al., OOPSLA 2021): a *term* is an operator applied to classes, and a class holds the terms that
compute the same. So a sub-graph is evaluated once, and graphs that differ only by an equality of
their parts are one term. Inputs are variables; a class is known up to their names: its values are
kept for every way to hand out four fixed random inputs of each shape to its variables, and the
least hash over these is its key. Commuted operands, renamings and symmetries of a class are divided
out where terms are made.

Complexity: memory grows with the number of classes below the greatest size; of the terms of that
size, which are most, hashes are all that is kept.

Exact: a true match is never missed, as values are equal where functions are, and the key does not
depend on names. Chance of a false match: hashes are linear in the values over the field of p =
2**31 - 1 with two independent random vectors, so two different tensors agree with probability
p**-2, and two different polynomials of degree d on random inputs in one element with at most d/p
(Schwartz and Zippel). What agrees by chance is compared again on fresh inputs at other sizes before
any proof is tried (``verifier.decide``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from pcg.memo import Answers
from pcg.readings.ring import PrimeField
from substitutions.generate.algebra.prime_field import Shape
from substitutions.generate.algebra.worlds import ShapedOutput

INPUTS = 4
"""Variables of a graph: three operators of two operands have no more."""

ORDERS = tuple(permutations(range(INPUTS)))
_PLACE = {order: place for place, order in enumerate(ORDERS)}

TermNames = tuple[int, ...]
TermPart = tuple[int, TermNames]
"""A class, and the variables of the term that its own stand for."""
ClassTerm = tuple[int, tuple[TermPart, ...]]
"""(step, operands)."""
TermValues = NDArray[np.uint32]


@dataclass(frozen=True)
class Class:
    """Equal values. ``term``: the first term found, which has the fewest operators; None for an
    input. ``symmetries``: renamings of its variables that change nothing."""

    shape: Shape
    variables: tuple[Shape, ...]
    size: int
    term: ClassTerm | None
    symmetries: tuple[TermNames, ...]


@dataclass(frozen=True)
class TermBatch:
    """Terms to evaluate together: a step on every pair (or each) of some classes.

    ``names``: which variable of the term each variable of the second operand is.
    """

    step: int
    first: NDArray[np.int32] | None
    second: NDArray[np.int32] | None
    names: TermNames
    size: int
    cross: bool = False
    """Whether every first goes with every second, or they are paired."""
    swapped: bool = False
    """Whether the second is the operand before the first."""

    @property
    def terms(self) -> int:
        if self.first is None:
            return 1
        return len(self.first) * (len(self.second) if self.second is not None and self.cross else 1)


def fixed_inputs(shapes: Sequence[Shape], field: PrimeField, seed: int) -> dict[Shape, TermValues]:
    """For each shape, the values of an input under every order: (orders, elements)."""
    rng = np.random.default_rng(seed)
    inputs: dict[Shape, TermValues] = {}
    for shape in shapes:
        four = rng.integers(1, field.prime, (INPUTS, prod(shape))).astype(np.uint32)
        inputs[shape] = four[[order[0] for order in ORDERS]]
    return inputs


def renaming(names: TermNames) -> NDArray[np.int64]:
    """For each order of the term's variables, the order in which an operand sees its own."""
    rest = [v for v in range(INPUTS) if v not in names]
    full = (*names, *rest)
    return np.array([_PLACE[tuple(order[v] for v in full)] for order in ORDERS])


def namings(own: Sequence[Shape], taken: Sequence[Shape]) -> Iterator[TermNames]:
    """Every way to name an operand's variables, given those of the operand before: each is one of
    those, of the same shape, or the next new one."""

    def extend(chosen: TermNames, fresh: int) -> Iterator[TermNames]:
        if len(chosen) == len(own):
            yield chosen
            return
        shape = own[len(chosen)]
        for v, other in enumerate(taken):
            if other == shape and v not in chosen:
                yield from extend((*chosen, v), fresh)
        if len(taken) + fresh < INPUTS:
            yield from extend((*chosen, len(taken) + fresh), fresh + 1)

    yield from extend((), 0)


class Hasher:
    """Hashes of values that are linear over the field."""

    def __init__(self, field: PrimeField, seed: int) -> None:
        self._field = field
        self._rng = np.random.default_rng(seed)
        self._vectors = Answers[Shape, NDArray[np.int64]](
            lambda shape: self._rng.integers(1, field.prime, (2, prod(shape) + 1))
        )
        self.zeros = Answers(self._zero)
        """The hash of a tensor of zeros, by its shape."""

    def hashes(self, values: NDArray[np.int64], shape: Shape) -> NDArray[np.uint64]:
        """Of values of shape (rows, elements), one hash a row; equal for equal shape and values."""
        halves: list[NDArray[np.uint64]] = []
        for vector in self._vectors[shape]:
            products = values * vector[:-1] % self._field.prime
            halves.append(((products.sum(-1) + vector[-1]) % self._field.prime).astype(np.uint64))
        return halves[0] << np.uint64(32) | halves[1]

    def _zero(self, shape: Shape) -> int:
        return int(self.hashes(np.zeros((1, prod(shape)), np.int64), shape)[0])


def keys(hashes: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """The least hash over the orders of each term (rows of shape (terms, orders)), and where."""
    least = hashes.argmin(1)
    return np.take_along_axis(hashes, least[:, None], 1)[:, 0], least


def symmetries(hashes: NDArray[np.uint64], variables: int) -> tuple[TermNames, ...]:
    """The renamings of the variables under which the hashes of one term stay as they are."""
    renamings: list[TermNames] = []
    for names in permutations(range(variables)):
        place = _PLACE[(*names, *range(variables, INPUTS))]
        if hashes[place] == hashes[0]:
            renamings.append(names)
    return tuple(renamings)


def ignores_input(hashes: NDArray[np.uint64], variables: int) -> bool:
    """Whether a term's value does not depend on one of its variables; it is then a constant, or a
    function of fewer, for which there is another term or no operator."""
    for v in range(variables if variables < INPUTS else 0):
        order = list(range(INPUTS))
        order[v], order[variables] = order[variables], order[v]
        if hashes[_PLACE[tuple(order)]] == hashes[0]:
            return True
    return False


def least_names(part: TermPart, classes: Sequence[Class]) -> TermPart:
    """An operand named as its class' symmetries allow at best."""
    number, names = part
    options = classes[number].symmetries
    if len(options) == 1:
        return part
    return number, min(tuple(names[v] for v in option) for option in options)


def canonical(
    step: int, parts: Sequence[TermPart], steps: Sequence[ShapedOutput], classes: Sequence[Class]
) -> tuple[ClassTerm, TermNames]:
    """A term with its variables named in order of first use, and which variable each was.

    Among the orders of commuting operands and the symmetries of classes, the least.
    """
    orders = [tuple(parts)]
    if len(parts) == 2 and steps[step].call.operator.commutative:
        orders.append((parts[1], parts[0]))
    best: tuple[tuple[TermPart, ...], TermNames] | None = None
    for order in orders:
        for options in product(*(classes[number].symmetries for number, _ in order)):
            used: dict[int, int] = {}
            renamed: list[TermPart] = []
            for (number, names), option in zip(order, options, strict=True):
                own = tuple(used.setdefault(names[v], len(used)) for v in option)
                renamed.append((number, own))
            candidate = (tuple(renamed), tuple(used))
            if best is None or candidate[0] < best[0]:
                best = candidate
    assert best is not None
    return (step, best[0]), best[1]

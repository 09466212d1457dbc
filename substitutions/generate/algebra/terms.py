"""Represents all graphs up to a size as classes of equal values.

Method: the table is an e-graph that is built bottom up, with equality by evaluation (as in Ruler,
Nandi et al., OOPSLA 2021). A *term* is an operator applied to classes, and a class holds the terms
with the same value. So a sub-graph is evaluated once, and graphs that differ only by an equality of
their parts are one term. Inputs are variables, and the key of a class does not depend on their
names. There are four fixed random inputs of each shape. A class has one value for every order in
which these are given to its variables, and its key is the least hash over these orders. Commuted
operands, renamings and symmetries of classes are divided out when terms are built.

Complexity: memory grows with the number of classes below the greatest size. Terms of the greatest
size, which are most, are represented by hashes alone.

Exact: a true match is never missed, since equal functions have equal values, and keys do not depend
on names. False matches have a small probability. Hashes are linear in the values over the field of
p = 2**31 - 1 with two independent random vectors, so two different tensors agree with probability
p**-2. Two different polynomials of degree d agree in one element on random inputs with probability
at most d/p (Schwartz and Zippel). Matches are compared again on other inputs and at other sizes
before a proof is tried (``verifier.decide``).
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
"""The most variables of a graph: three operators with two operands each have no more."""

ORDERS = tuple(permutations(range(INPUTS)))
_PLACE = {order: place for place, order in enumerate(ORDERS)}

TermNames = tuple[int, ...]
TermPart = tuple[int, TermNames]
"""An operand: a class, and the names in the term of the class's variables."""
ClassTerm = tuple[int, tuple[TermPart, ...]]
"""(step, operands)."""
TermValues = NDArray[np.uint32]


@dataclass(frozen=True)
class ValueClass:
    """A class of terms with equal values. ``term``: the first term found, which has the fewest
    operators; None for an input. ``symmetries``: the renamings of its variables that do not change
    its value."""

    shape: Shape
    variables: tuple[Shape, ...]
    size: int
    term: ClassTerm | None
    symmetries: tuple[TermNames, ...]


@dataclass(frozen=True)
class TermBatch:
    """Terms to evaluate together: a step applied to pairs of classes, or to single classes.

    ``names``: the names in the term of the second operand's variables.
    """

    step: int
    first: NDArray[np.int32] | None
    second: NDArray[np.int32] | None
    names: TermNames
    size: int
    cross: bool = False
    """Whether every class of ``first`` is combined with every one of ``second``; else they are
    paired in order."""
    swapped: bool = False
    """Whether ``second`` has the first operands and ``first`` the second ones."""

    @property
    def terms(self) -> int:
        if self.first is None:
            return 1
        return len(self.first) * (len(self.second) if self.second is not None and self.cross else 1)


def fixed_inputs(shapes: Sequence[Shape], field: PrimeField, seed: int) -> dict[Shape, TermValues]:
    """For each shape, the values of an input under every order, of shape (orders, elements)."""
    rng = np.random.default_rng(seed)
    inputs: dict[Shape, TermValues] = {}
    for shape in shapes:
        four = rng.integers(1, field.prime, (INPUTS, prod(shape))).astype(np.uint32)
        inputs[shape] = four[[order[0] for order in ORDERS]]
    return inputs


def renaming(names: TermNames) -> NDArray[np.int64]:
    """For each order of a term's variables, the order of an operand's variables."""
    rest = [v for v in range(INPUTS) if v not in names]
    full = (*names, *rest)
    return np.array([_PLACE[tuple(order[v] for v in full)] for order in ORDERS])


def namings(own: Sequence[Shape], taken: Sequence[Shape]) -> Iterator[TermNames]:
    """Yield every way to name an operand's variables, given those of the operand before it: each is
    one of these with the same shape, or the next new variable."""

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
    """Computes hashes that are linear in the values over the field."""

    def __init__(self, field: PrimeField, seed: int) -> None:
        self._field = field
        self._rng = np.random.default_rng(seed)
        self._vectors = Answers[Shape, NDArray[np.int64]](
            lambda shape: self._rng.integers(1, field.prime, (2, prod(shape) + 1))
        )
        self.zeros = Answers(self._zero)
        """The hash of a tensor of zeros, by its shape."""

    def hashes(self, values: NDArray[np.int64], shape: Shape) -> NDArray[np.uint64]:
        """One hash for each row of values, of shape (rows, elements). Equal values of the same
        shape have equal hashes."""
        halves: list[NDArray[np.uint64]] = []
        for vector in self._vectors[shape]:
            products = values * vector[:-1] % self._field.prime
            halves.append(((products.sum(-1) + vector[-1]) % self._field.prime).astype(np.uint64))
        return halves[0] << np.uint64(32) | halves[1]

    def _zero(self, shape: Shape) -> int:
        return int(self.hashes(np.zeros((1, prod(shape)), np.int64), shape)[0])


def keys(hashes: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """The least hash of each term over its orders, and the number of that order. ``hashes`` has the
    shape (terms, orders)."""
    least = hashes.argmin(1)
    return np.take_along_axis(hashes, least[:, None], 1)[:, 0], least


def symmetries(hashes: NDArray[np.uint64], variables: int) -> tuple[TermNames, ...]:
    """The renamings of the variables that do not change the hash of a term."""
    renamings: list[TermNames] = []
    for names in permutations(range(variables)):
        place = _PLACE[(*names, *range(variables, INPUTS))]
        if hashes[place] == hashes[0]:
            renamings.append(names)
    return tuple(renamings)


def ignores_input(hashes: NDArray[np.uint64], variables: int) -> bool:
    """Whether a term's value does not depend on one of its variables. Then another term with fewer
    variables has the same value, or no operator computes it."""
    for v in range(variables if variables < INPUTS else 0):
        order = list(range(INPUTS))
        order[v], order[variables] = order[variables], order[v]
        if hashes[_PLACE[tuple(order)]] == hashes[0]:
            return True
    return False


def least_names(part: TermPart, classes: Sequence[ValueClass]) -> TermPart:
    """An operand with the least names that the symmetries of its class allow."""
    number, names = part
    options = classes[number].symmetries
    if len(options) == 1:
        return part
    return number, min(tuple(names[v] for v in option) for option in options)


def canonical(
    step: int,
    parts: Sequence[TermPart],
    steps: Sequence[ShapedOutput],
    classes: Sequence[ValueClass],
) -> tuple[ClassTerm, TermNames]:
    """A term with its variables named in order of first use, and the old names of these variables.

    It is the least over the orders of commuting operands and the symmetries of classes.
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

"""The number systems in which equations are evaluated: real numbers, and a prime field.

Indices are always numpy integers; only element values belong to the ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from pcg.language.functions import FUNCTIONS
from pcg.types.operator import Attribute

Array = Any
"""An array of ring elements: numpy here, a torch tensor in the runtime."""
IndexArray = NDArray[np.int64]


class Ring(Protocol):
    """The operations of a number system that the evaluator needs."""

    @property
    def dtype(self) -> Any:
        """The numpy or torch type of an element."""
        ...

    def constant(self, value: Fraction) -> Array: ...

    def real(self, value: Attribute) -> Array:
        """Return a real attribute. A symbol stands for some fixed element."""
        ...

    def numbers(self, values: IndexArray) -> Array:
        """Return indices as ring elements."""
        ...

    def gather(self, block: Array, index: Sequence[IndexArray], valid: NDArray[np.bool_]) -> Array:
        """Return elements of a block, 0 where not ``valid``."""
        ...

    def take(self, block: Array, cut: tuple[slice, ...], order: tuple[int, ...]) -> Array:
        """Return a part of a block with its axes in another order."""
        ...

    def plus(self, a: Array, b: Array) -> Array: ...

    def times(self, a: Array, b: Array) -> Array: ...

    def chosen(self, values: Array, held: NDArray[np.bool_]) -> Array:
        """Return the values where ``held``, and 0 elsewhere, even if they are undefined there."""
        ...

    def total(self, values: Array, axis: int) -> Array: ...

    def greatest(self, values: Array, axis: int, valid: NDArray[np.bool_]) -> Array:
        """Return the greatest ``valid`` value along an axis, minus infinity if there is none."""
        ...

    def apply(self, function: str, args: Sequence[Array]) -> Array: ...

    def expand(self, values: Array, shape: tuple[int, ...]) -> Array:
        """Broadcast values to a shape."""
        ...

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Return an array of zeros, to be filled."""
        ...

    def concatenate(self, arrays: Sequence[Array]) -> Array:
        """Concatenate arrays along their first axis."""
        ...


class _NumpyRing:
    """Operations that do not depend on the number system."""

    dtype: np.dtype[Any]

    def expand(self, values: Array, shape: tuple[int, ...]) -> Array:
        return np.broadcast_to(values, shape)

    def zeros(self, shape: tuple[int, ...]) -> Array:
        return np.zeros(shape, self.dtype)

    def concatenate(self, arrays: Sequence[Array]) -> Array:
        return np.concatenate(arrays)


class Reals(_NumpyRing):
    """Real numbers in double precision. Undefined values (logarithms of numbers that are not
    positive, 1/0, the maximum of nothing as a number) are infinite or NaN, and so is everything
    computed from them: ``verifier.trusted.values.domain`` has the rule. An overflow is infinite
    too, but counts as rounding."""

    dtype: np.dtype[Any] = np.dtype(np.float64)

    def constant(self, value: Fraction) -> Array:
        return np.float64(value)

    def real(self, value: Attribute) -> Array:
        if isinstance(value, (int, float)):
            return np.float64(value)
        return np.float64(0.5 + (crc32(str(value).encode()) % 1009) / 1009)

    def numbers(self, values: IndexArray) -> Array:
        return values.astype(np.float64)

    def gather(self, block: Array, index: Sequence[IndexArray], valid: NDArray[np.bool_]) -> Array:
        return np.where(valid, block[tuple(index)], 0.0)

    def take(self, block: Array, cut: tuple[slice, ...], order: tuple[int, ...]) -> Array:
        values = block[cut].transpose(order)
        return values if values.dtype.kind == "f" else values.astype(np.float64)

    def plus(self, a: Array, b: Array) -> Array:
        return a + b

    def times(self, a: Array, b: Array) -> Array:
        return a * b

    def chosen(self, values: Array, held: NDArray[np.bool_]) -> Array:
        return np.where(held, values, 0.0)

    def total(self, values: Array, axis: int) -> Array:
        return values.sum(axis=axis)

    def greatest(self, values: Array, axis: int, valid: NDArray[np.bool_]) -> Array:
        return np.where(valid, values, -np.inf).max(axis=axis, initial=-np.inf)

    def apply(self, function: str, args: Sequence[Array]) -> Array:
        return FUNCTIONS[function].real(*args)


class PrimeField(_NumpyRing):
    """Integers modulo a prime below 2**31, so that products fit in 64 bits.

    Functions are pseudo-random maps determined by their name. Exceptions are ``recip`` (the
    inverse, 0 for 0), ``eq`` (a test of equality), and ``max`` and ``relu`` (by a pseudo-random
    order, in which minus infinity, the element -1, is least). With ``generic``, ``eq`` is such a
    map too: random elements are hardly ever equal, so a look-up would otherwise find nothing.
    """

    dtype: np.dtype[Any] = np.dtype(np.int64)

    def __init__(self, prime: int = 2_147_483_647, *, generic: bool = False) -> None:
        self.prime = prime
        self.generic = generic

    def constant(self, value: Fraction) -> Array:
        inverse = pow(value.denominator, -1, self.prime)
        return np.int64(value.numerator * inverse % self.prime)

    def real(self, value: Attribute) -> Array:
        if isinstance(value, (int, float)):
            return self.constant(Fraction(value))
        symbols = {symbol: self._symbol(symbol) for symbol in value.symbols}
        return np.int64(value.evaluate(symbols) % self.prime)

    def _symbol(self, name: str) -> int:
        """Return a number for a symbol, determined by its name."""
        return int(_mix(np.array(crc32(name.encode()), np.uint64)) % np.uint64(self.prime))

    def numbers(self, values: IndexArray) -> Array:
        return values % self.prime

    def gather(self, block: Array, index: Sequence[IndexArray], valid: NDArray[np.bool_]) -> Array:
        return np.where(valid, block[tuple(index)], 0)

    def take(self, block: Array, cut: tuple[slice, ...], order: tuple[int, ...]) -> Array:
        return block[cut].transpose(order)

    def plus(self, a: Array, b: Array) -> Array:
        return (a + b) % self.prime

    def times(self, a: Array, b: Array) -> Array:
        return a * b % self.prime

    def chosen(self, values: Array, held: NDArray[np.bool_]) -> Array:
        return np.where(held, values, 0)

    def total(self, values: Array, axis: int) -> Array:
        return values.sum(axis=axis) % self.prime

    def greatest(self, values: Array, axis: int, valid: NDArray[np.bool_]) -> Array:
        values = np.where(valid, values, self.prime - 1)
        if not values.shape[axis]:
            return np.full(np.delete(values.shape, axis), self.prime - 1)
        best = np.expand_dims(self._order(values).argmax(axis=axis), axis)
        return np.take_along_axis(values, best, axis).squeeze(axis)

    def apply(self, function: str, args: Sequence[Array]) -> Array:
        if function in ("max", "relu"):
            x, y = np.broadcast_arrays(args[0], args[1] if function == "max" else 0)
            return np.where(self._order(x) >= self._order(y), x, y)
        if function == "recip":
            return self._inverse(np.asarray(args[0]))
        if function == "eq" and not self.generic:
            return np.equal(args[0], args[1]).astype(np.int64)
        key = np.array(crc32(function.encode()), np.uint64)
        with np.errstate(over="ignore"):
            for arg in args:
                key = _mix(np.asarray(arg).astype(np.uint64) + key * np.uint64(0x9E3779B9))
        return (key % np.uint64(self.prime)).astype(np.int64)

    def _order(self, values: Array) -> NDArray[np.uint64]:
        """Return keys of a pseudo-random total order with -1 as least, and 0 in the middle."""
        with np.errstate(over="ignore"):
            middle = np.uint64(1 << 63) - _mix(np.zeros((), np.uint64))
            key = _mix(np.asarray(values).astype(np.uint64)) + middle
        return np.where(values == self.prime - 1, np.uint64(0), key | np.uint64(1))

    def _inverse(self, values: Array) -> Array:
        """Return values ** (prime - 2), the inverse by Fermat's theorem, by squaring."""
        result = np.ones_like(values)
        exponent = self.prime - 2
        while exponent:
            if exponent & 1:
                result = result * values % self.prime
            values = values * values % self.prime
            exponent >>= 1
        return result


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every input bit affects every output bit."""
    with np.errstate(over="ignore"):
        z = values + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

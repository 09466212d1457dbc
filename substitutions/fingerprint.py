"""Fingerprints: what a graph computes on fixed inputs over a prime field.

Every named input has fixed pseudo-random elements that depend on its name and shape alone, so
that a graph's fingerprint is that of its value. Sizes are as equal as the graph allows: a true
rule holds at those sizes too and is never missed; a false match is told apart by the proof, which
is for all sizes. Over p = 2**31 - 1 two different values of polynomial degree d agree by chance in
one element with probability at most d/p (Schwartz and Zippel), and fingerprints compare at least
three elements but for sums of everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from zlib import crc32

import numpy as np

from pcg.errors import OperatorError
from pcg.evaluate import concrete, evaluate_call
from pcg.graph import Graph, Node, Value
from pcg.ring import Array, PrimeField
from verifier.errors import Unsolvable
from verifier.sizes import Sizes, input_size

BASE = 3
LARGER = (2 * BASE, BASE * BASE)
"""Sizes of a dimension that is split in two, or unflattened."""

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
FIELD = PrimeField(generic=True)


class Evaluator:
    """Evaluates graphs that share operators, each operator once for each shape of its inputs."""

    def __init__(self) -> None:
        self._values: dict[tuple[Node, Shapes], tuple[Array, ...]] = {}

    def fingerprint(self, outputs: tuple[Value, ...], symbols: Mapping[str, int]) -> bytes | None:
        """A hash of the values of the outputs; None if the sizes do not fit."""
        digest = blake2b(digest_size=16)
        for value in outputs:
            try:
                result = self._value(value, symbols)
            except (OperatorError, ValueError):
                return None
            digest.update(str(result.shape).encode())
            digest.update(np.ascontiguousarray(result, np.int64).tobytes())
        return digest.digest()

    def _value(self, value: Value, symbols: Mapping[str, int]) -> Array:
        return self._node(value.node, symbols)[value.port]

    def _node(self, node: Node, symbols: Mapping[str, int]) -> tuple[Array, ...]:
        if node.is_leaf:
            shape = tuple(symbols[input_size(node.leaf.name, i)] for i in range(node.leaf.rank))
            return (_elements(node.leaf.name, shape),)
        key = (node, _relevant(node, symbols))
        if key not in self._values:
            inputs = [self._value(value, symbols) for value in node.inputs]
            if node.is_parallel:
                self._values[key] = (inputs[0],)
            else:
                call = concrete(node.operator_call, symbols)
                self._values[key] = evaluate_call(call, inputs, FIELD)
        return self._values[key]


def _elements(name: str, shape: tuple[int, ...]) -> Array:
    seed = crc32(f"{name}{shape}".encode())
    return np.random.default_rng(seed).integers(1, FIELD.prime, shape)


def _relevant(node: Node, symbols: Mapping[str, int]) -> Shapes:
    leaves = (n.leaf for n in Graph((node.value(),)).leaves)
    return tuple(
        (leaf.name, tuple(symbols[input_size(leaf.name, i)] for i in range(leaf.rank)))
        for leaf in leaves
    )


def sizings(outputs: tuple[Value, ...], *, varied: bool) -> Iterator[dict[str, int]]:
    """Sizes for all symbols of a graph: the smallest that fit, and (``varied``) with one of them
    larger, as the other side of a rule may need."""
    sizes = Sizes()
    try:
        for node in Graph(outputs).nodes:
            sizes.visit(node)
    except (Unsolvable, OperatorError):
        return
    free = sorted({s for size in sizes.positive for s in sizes.resolve(size).symbols})
    base = _smallest(sizes, free)
    if base is None:
        return
    options = [base]
    if varied:
        options += [base | {s: larger} for s in free for larger in LARGER]
    for values in options:
        full = _full(sizes, values)
        if full is not None:
            yield full


def _smallest(sizes: Sizes, free: list[str]) -> dict[str, int] | None:
    """All sizes ``BASE``, but twice that where a part is taken off."""
    values = dict.fromkeys(free, BASE)
    for size in sizes.positive:
        resolved = sizes.resolve(size)
        if resolved.evaluate(values) >= 1:
            continue
        for symbol in sorted(resolved.symbols):
            if (resolved.coefficient(symbol).constant or 0) > 0:
                values[symbol] = 2 * BASE
    return values if _full(sizes, values) is not None else None


def _full(sizes: Sizes, values: Mapping[str, int]) -> dict[str, int] | None:
    full = dict(values)
    for symbol, size in sizes.solved.items():
        full[symbol] = sizes.resolve(size).evaluate(values)
    positive = all(sizes.resolve(size).evaluate(values) >= 1 for size in sizes.positive)
    return full if positive and all(v >= 1 for v in full.values()) else None

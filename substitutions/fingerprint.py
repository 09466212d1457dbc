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
from pcg.graph import Graph, Leaf, Node, Value
from pcg.poly import Poly
from pcg.ring import Array, PrimeField
from verifier.trusted.errors import Unsolvable
from verifier.trusted.sizes import Sizes, input_size

BASE = 3
LARGER = (2 * BASE, BASE * BASE)
"""Sizes of a dimension that is split in two, or unflattened."""

Relevant = tuple[tuple[str, tuple[int, ...]], ...]
FIELD = PrimeField(generic=True)


class Evaluator:
    """Evaluates graphs that share operators, each operator once for the sizes it depends on."""

    def __init__(self) -> None:
        self._values: dict[tuple[Node, Relevant], tuple[Array, ...]] = {}

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


def _relevant(node: Node, symbols: Mapping[str, int]) -> Relevant:
    """The sizes that a node's value depends on: shapes of inputs, and attributes."""
    found: list[tuple[str, tuple[int, ...]]] = []
    for part in Graph((node.value(),)).nodes:
        if isinstance(part.call, Leaf):
            name, rank = part.call.name, part.call.rank
            found.append((name, tuple(symbols[input_size(name, i)] for i in range(rank))))
            continue
        for _, value in part.call.attributes:
            if isinstance(value, Poly):
                found.append((str(value), tuple(symbols.get(s, 0) for s in sorted(value.symbols))))
    return tuple(found)


def sizings(outputs: tuple[Value, ...], *, varied: bool) -> Iterator[dict[str, int]]:
    """Sizes for all symbols of a graph: the smallest that fit, and (``varied``) with one of them
    larger, as the other side of a rule may need."""
    sizes = Sizes()
    try:
        for node in Graph(outputs).nodes:
            sizes.visit(node)
    except (Unsolvable, OperatorError):
        return
    positive = list(dict.fromkeys(sizes.resolve(size) for size in sizes.positive))
    solved = {symbol: sizes.resolve(size) for symbol, size in sizes.solved.items()}
    free = sorted({s for size in positive for s in size.symbols})
    base = _smallest(positive, free)
    larger = [base | {s: size} for s in free for size in LARGER] if varied else []
    for values in (base, *larger):
        full = values | {symbol: size.evaluate(values) for symbol, size in solved.items()}
        fits = all(v >= 1 for v in (*full.values(), *(s.evaluate(values) for s in positive)))
        if fits:
            yield full
        elif values is base:
            return


def _smallest(positive: list[Poly], free: list[str]) -> dict[str, int]:
    """All sizes ``BASE``, but twice that where a part is taken off."""
    values = dict.fromkeys(free, BASE)
    for size in positive:
        if size.evaluate(values) >= 1:
            continue
        for symbol in sorted(size.symbols):
            if (size.coefficient(symbol).constant or 0) > 0:
                values[symbol] = 2 * BASE
    return values

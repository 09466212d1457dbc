"""Searches for inputs on which two graphs differ, and replays them by the reference evaluation.

Evaluation over a prime field is exact. Functions are uninterpreted there, so ``relu(relu(x))``
differs from ``relu(x)`` although they are equal. So only graphs that differ in real numbers too are
counterexamples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from pcg.graph.graph import Graph
from pcg.language.expr import Apply, accesses, walk
from pcg.ops import BUILT_IN, OPERATORS
from pcg.plan.text import parse_graph, print_graph
from pcg.readings.evaluate import evaluate_shards, meaning
from pcg.readings.ring import Array, PrimeField, Reals
from pcg.types.operator import Operator
from verifier.instances import Instance

FEW_ELEMENTS = 8
DRAWS = 12
"""How many inputs are drawn if outputs have few elements: a maximum hides most of its arguments."""
FIELD_TRIES = 8
"""How many inputs over a prime field are drawn to show that a difference is no rounding error."""
EXACT = 2
"""Inputs that show which side is undefined are multiples of 1/2."""
MAX_INDEX = 4
"""Random token ids are below this number, so that some of them are the index of a row."""

Nested = float | tuple["Nested", ...]
"""An array as nested tuples, outermost dimension first."""


class DifferenceKind(StrEnum):
    """In what two sides differ, the most telling kind first."""

    DEGREES = "degrees"
    SHAPE = "shape"
    VALUE = "value"
    UNDEFINED = "undefined"
    """One side is a number and the other is undefined (``verifier.trusted.values.domain``)."""


VALUES = (DifferenceKind.VALUE, DifferenceKind.UNDEFINED)


@dataclass(frozen=True)
class Difference:
    """How two sides differ: the kind, and a line of text."""

    kind: DifferenceKind
    text: str


@dataclass(frozen=True)
class Counterexample:
    """Types and values of inputs and values of symbols at which two sides differ, and where."""

    inputs: tuple[tuple[str, str], ...]
    """(name, type)."""
    symbols: tuple[tuple[str, float], ...]
    """(name, value) of every symbolic attribute."""
    left: str
    """The left side as the text of a graph with concrete types and attributes."""
    right: str
    difference: str
    values: tuple[tuple[str, Nested], ...]
    """(name, V) of every input, V of shape (partials, *shape)."""
    operators: tuple[Operator, ...] = ()
    """The operators of both sides that do not come with Unity, without kernels."""

    def __str__(self) -> str:
        inputs = [f"{name}: {kind}" for name, kind in self.inputs]
        symbols = [f"{name} = {value}" for name, value in self.symbols]
        return f"{', '.join(inputs + symbols) or 'no inputs'}: {self.difference}"


def replay(instance: Instance, seed: int = 0, *, once: bool = False) -> Counterexample | None:
    """Evaluate both sides shard by shard on random inputs. Return how they differ, or None.

    ``once``: draw inputs once only, however few elements the outputs have.
    """
    small = all(v.type.elements <= FEW_ELEMENTS for v in instance.left.outputs)
    for attempt in range(DRAWS if small and not once else 1):
        inputs = random_leaves(instance, Reals(), np.random.default_rng(seed + attempt))
        differs = difference(instance, inputs)
        if differs is None:
            continue
        if differs.kind is DifferenceKind.UNDEFINED:
            break
        hidden = differs.kind is DifferenceKind.VALUE and not _differs_in_field(instance, seed)
        return None if hidden else report(instance, inputs, differs)
    else:
        if once:
            return None
    return _undefined(instance, seed)


def _undefined(instance: Instance, seed: int) -> Counterexample | None:
    """A counterexample where exactly one side is undefined, or None.

    The inputs are multiples of 1/2, so that sums and products are exact. With others, rounding may
    move a number out of the domain of a function, or turn 1/0 into a number.
    """
    drawn = random_leaves(instance, Reals(), np.random.default_rng(seed))
    inputs = {name: np.round(values * EXACT) / EXACT for name, values in drawn.items()}
    differs = difference(instance, inputs)
    if differs is None or differs.kind is not DifferenceKind.UNDEFINED:
        return None
    return report(instance, inputs, differs)


def _differs_in_field(instance: Instance, seed: int) -> bool:
    """Whether the sides differ over a prime field, where no rounding is mistaken for a difference.
    Several inputs are tried, since a maximum hides most of its arguments."""
    field = PrimeField(generic=True)
    for attempt in range(FIELD_TRIES):
        inputs = random_leaves(instance, field, np.random.default_rng(seed + attempt))
        left, right = outputs(instance, inputs, field)
        if not all(np.array_equal(x, y) for x, y in zip(left, right, strict=True)):
            return True
    return False


def replayable(counterexample: Counterexample) -> tuple[Instance, dict[str, Array]]:
    """The graphs of a counterexample, parsed from their texts, and V of its inputs."""
    operators = {**OPERATORS} | {operator.name: operator for operator in counterexample.operators}
    left = parse_graph(counterexample.left, "left", operators)
    right = parse_graph(counterexample.right, "right", operators)
    return Instance(left, right, dict(counterexample.symbols)), input_values(counterexample)


def input_values(counterexample: Counterexample) -> dict[str, Array]:
    """V of each input, by name."""
    return {name: np.array(values, np.float64) for name, values in counterexample.values}


def difference(instance: Instance, inputs: Mapping[str, Array]) -> Difference | None:
    """How the two sides differ in type or, on the given inputs, in real numbers. None if they do
    not."""
    return type_difference(instance) or value_difference(instance, inputs)


def value_difference(
    instance: Instance, inputs: Mapping[str, Array], relative: float = 1e-6, absolute: float = 1e-9
) -> Difference | None:
    """An element that differs in real numbers by more than the tolerance, or that is undefined on
    one side only. The second kind does not count if arithmetic overflows, which is rounding."""
    undefined: Difference | None = None
    left, right, overflows = _real_outputs(instance, inputs)
    for output, (x, y) in enumerate(zip(left, right, strict=True)):
        numbers = np.isfinite(x) & np.isfinite(y)
        finite = numbers & ~np.isclose(x, y, relative, absolute)
        differs = finite if overflows else finite | (np.isfinite(x) != np.isfinite(y))
        if not differs.any():
            continue
        kind = DifferenceKind.VALUE if finite.any() else DifferenceKind.UNDEFINED
        index = tuple(int(i) for i in np.argwhere(finite if finite.any() else differs)[0])
        where = f"element {list(index)} of output {output}"
        difference = Difference(kind, f"{where} is {x[index]} on the left, {y[index]} on the right")
        if kind is DifferenceKind.VALUE:
            return difference
        undefined = undefined or difference
    return undefined


def _real_outputs(
    instance: Instance, inputs: Mapping[str, Array]
) -> tuple[list[Array], list[Array], bool]:
    """The outputs of both sides in real numbers, and whether an operation overflowed."""
    overflows: list[str] = []
    with np.errstate(over="call", call=lambda kind, _: overflows.append(kind)):
        left, right = outputs(instance, inputs, Reals())
    return left, right, bool(overflows)


def outputs(
    instance: Instance, inputs: Mapping[str, Array], ring: PrimeField | Reals
) -> tuple[list[Array], list[Array]]:
    """G of the outputs of both sides, from V of the inputs."""
    with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
        sides = [evaluate_shards(side, inputs, ring) for side in (instance.left, instance.right)]
        left, right = ([meaning(values, ring) for values in side] for side in sides)
    return left, right


def random_leaves(
    instance: Instance, ring: PrimeField | Reals, rng: np.random.Generator
) -> dict[str, Array]:
    """Random V of every input, of shape (partials, *shape). In real numbers, an input that is
    compared with an index, such as token ids, holds small indices."""
    indices = index_leaves(instance)
    leaves: dict[str, Array] = {}
    for name, leaf in instance.leaves.items():
        assert leaf.type is not None
        shape = (leaf.type.degrees.partials, *leaf.type.shape)
        if isinstance(ring, PrimeField):
            leaves[name] = rng.integers(0, ring.prime, shape)
        elif name in indices:
            leaves[name] = rng.integers(0, MAX_INDEX, shape).astype(np.float64)
        else:
            leaves[name] = rng.standard_normal(shape)
    return leaves


def index_leaves(instance: Instance) -> set[str]:
    """The names of inputs whose elements occur in a test of equality, such as token ids."""
    names: set[str] = set()
    for node in (n for side in (instance.left, instance.right) for n in side.nodes):
        if node.is_leaf:
            continue
        equation = node.operator_call.instance(tuple(v.type.rank for v in node.inputs))
        for part in (part for output in equation.outputs for part in walk(output.body)):
            if isinstance(part, Apply) and part.function == "eq":
                read = {access.operand for access in accesses(part)}
                names |= {
                    v.node.leaf.name
                    for i, v in enumerate(node.inputs)
                    if i in read and v.node.is_leaf
                }
    return names


def report(
    instance: Instance, inputs: Mapping[str, Array], difference: Difference
) -> Counterexample:
    """The counterexample of an instance and inputs on which its sides differ."""
    return Counterexample(
        tuple((name, str(leaf.type)) for name, leaf in instance.leaves.items()),
        tuple(sorted((s, v) for s, v in instance.symbols.items() if not s.startswith("|"))),
        print_graph(instance.left),
        print_graph(instance.right),
        difference.text,
        tuple((name, _nested(inputs[name].tolist())) for name in instance.leaves),
        _own_operators(instance),
    )


def _own_operators(instance: Instance) -> tuple[Operator, ...]:
    """The operators that do not come with Unity, sorted by name. They have no kernels, since a
    counterexample is sent between processes."""
    nodes = Graph((*instance.left.outputs, *instance.right.outputs)).nodes
    used = {node.operator_call.operator for node in nodes if not node.is_leaf}
    further = sorted(used - BUILT_IN, key=lambda operator: operator.name)
    return tuple(replace(operator, kernel=None) for operator in further)


def _nested(values: Any) -> Nested:
    return tuple(map(_nested, values)) if isinstance(values, list) else float(values)


def type_difference(instance: Instance) -> Difference | None:
    """The first output whose types differ; None if there is none."""
    pairs = zip(instance.left.outputs, instance.right.outputs, strict=True)
    for output, (a, b) in enumerate(pairs):
        if a.type != b.type:
            kind = (
                DifferenceKind.DEGREES if a.type.degrees != b.type.degrees else DifferenceKind.SHAPE
            )
            text = f"output {output} has type {a.type} on the left, {b.type} on the right"
            return Difference(kind, text)
    return None

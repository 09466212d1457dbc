"""Works out how a rule can be used: in which directions, and which values it creates.

A rule can be applied in a direction if matching the one side determines the other, except for
symbols that are free to choose.

Some of the values that it creates read only some of the inputs. Where the rule is used, these may
be weights: ``concat(y, z)`` in ``matmul(x, concat(y, z))``. If the elements of such a value are
those of the weights, the value is a re-parametrisation. It may be trained in place of the weights,
and takes the same values under an optimizer that treats elements one by one. That holds with
constants between the elements too, as long as these are not trained. Any other value has to be
computed in every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Literal

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Node, Value, topological
from pcg.graph.pairs import Outputs
from substitutions.rules.origins import OriginKind, kind_of
from substitutions.rules.rule import Rule, variables
from verifier.agreement import Agreement, agree, typed_sides
from verifier.concrete import Valuation
from verifier.instances import instances
from verifier.trusted.errors import Undecided, Unsolvable
from verifier.trusted.sizes.degrees import Typing
from verifier.trusted.sizes.sizes import Sizes, input_size, pair_sizes

ReadingOrder = Literal["left to right", "right to left"]
INSTANCES = 2
"""The number of instances at which the origins of elements are traced."""


@dataclass(frozen=True)
class CreatedValue:
    """A value that a rule creates from some of its inputs, and how it depends on them."""

    value: Value
    kind: OriginKind


@dataclass(frozen=True)
class Direction:
    """A direction in which to read a rule.

    ``applicable``: whether matching the one side determines the other, except for free symbols.
    ``unbound``: the inputs that are not determined. ``free``: the symbols to choose.
    ``conditions``: the conditions of the new side beyond those of the old. ``created``: the values
    that the rule creates from some of its inputs.
    """

    way: ReadingOrder
    applicable: bool
    unbound: tuple[str, ...]
    free: tuple[str, ...]
    conditions: tuple[str, ...]
    created: tuple[CreatedValue, ...]


def directions(rule: Rule) -> tuple[Direction, Direction]:
    """Both directions of a rule."""
    known = _RuleTypings(rule)
    valuations = tuple(_valuations(known))
    return (
        _direction(known, "left to right", valuations),
        _direction(_RuleTypings(rule.reversed), "right to left", valuations),
    )


@dataclass(frozen=True)
class _RuleTypings:
    """The sizes and types of a rule, each inferred once."""

    rule: Rule

    @cached_property
    def agreed(self) -> tuple[Agreement, Mapping[str, int]] | None:
        """The typings under which both sides have the same types, and degrees for them. None if
        there are none."""
        return agree(*self._typed) if self._typed else None

    @cached_property
    def sizes(self) -> tuple[Sizes, tuple[str, ...]] | None:
        """The sizes of both sides, and the conditions of the right side beyond those of the left.
        None if no sizes fit."""
        try:
            return pair_sizes(self.rule.left, self.rule.right, self.rule.requirements)
        except (OperatorError, Undecided, Unsolvable):
            return None

    @cached_property
    def _typed(self) -> tuple[Mapping[int, Typing], Mapping[int, Typing]] | None:
        """The typings of each side; None if they are not found."""
        try:
            return typed_sides(self.rule.left, self.rule.right)
        except (OperatorError, ValueError, Undecided):
            return None

    @property
    def fits(self) -> bool:
        """Whether the typings of both sides are known, and some sizes fit."""
        return self._typed is not None and self.sizes is not None


def _direction(
    known: _RuleTypings, way: ReadingOrder, valuations: Sequence[Valuation]
) -> Direction:
    rule = known.rule
    return Direction(
        way,
        rule.is_applicable,
        tuple(sorted(variables(rule.right) - variables(rule.left))),
        tuple(sorted(rule.free_symbols)),
        _conditions(known),
        _created(rule, valuations),
    )


def _conditions(known: _RuleTypings) -> tuple[str, ...]:
    """The conditions of the right side's types and sizes beyond those of the left; empty if no
    types fit."""
    if not known.fits or known.sizes is None:
        return ()
    _, asked = known.sizes
    return asked if known.agreed is None else asked + known.agreed[0].conditions


def _created(rule: Rule, valuations: Sequence[Valuation]) -> tuple[CreatedValue, ...]:
    """The values of ``_partial_values``, each with its kind at the given values of symbols."""
    values = tuple(_partial_values(rule))
    kinds: dict[Value, set[OriginKind]] = {value: set() for value in values}
    for valuation in valuations if values else ():
        symbols = {s: int(v) for s, v in valuation.symbols.items() if s not in valuation.reals}
        shapes = {
            name: tuple(symbols[input_size(name, dim)] for dim in range(rank))
            for name, rank in rule.inputs
        }
        for value in values:
            kinds[value].add(kind_of(value, shapes, symbols))
    return tuple(CreatedValue(value, _in_all(kind)) for value, kind in kinds.items())


def _in_all(kinds: set[OriginKind]) -> OriginKind:
    """The kind of a value at all sizes, by its kinds at some sizes; computed if none is known."""
    if not kinds or "computed" in kinds:
        return "computed"
    return next(iter(kinds)) if len(kinds) == 1 else "padded"


def _partial_values(rule: Rule) -> Iterator[Value]:
    """Yield the values that a rule creates from some of its inputs, each once, outputs in order.

    They are values of the right side that the left side lacks, that read fewer inputs than the
    whole right side, and that parallel operators alone do not compute. Of nested ones, only the
    outermost are yielded.
    """
    old = _values(rule.left)
    everything = variables(rule.right)
    pending = list(reversed(rule.right))
    seen: set[Value] = set()
    while pending:
        value = pending.pop()
        if value in seen or value in old or value.node.is_leaf:
            continue
        seen.add(value)
        if variables((value,)) < everything and _computes(value.node):
            yield value
        else:
            pending += reversed(value.node.inputs)


def _values(side: Outputs) -> frozenset[Value]:
    nodes = Graph(side).nodes
    return frozenset((*side, *(value for node in nodes for value in node.inputs)))


def _computes(node: Node) -> bool:
    """Whether the node, or a node that it depends on, is a compute operator."""
    return any(not (n.is_leaf or n.is_parallel) for n in topological([node]))


def _valuations(known: _RuleTypings) -> Iterator[Valuation]:
    """Yield values of a rule's symbols at which both sides have the same types; none unless a
    direction creates a value."""
    rule = known.rule
    if not any(any(_partial_values(way)) for way in (rule, rule.reversed)):
        return
    if not known.fits or known.sizes is None:
        return
    sizes, _ = known.sizes
    degrees = known.agreed[1] if known.agreed is not None else {}
    instance_valuations = (
        instance.valuation for instance in instances(rule.left, rule.right, sizes, degrees)
    )
    yield from islice(
        (valuation for valuation in instance_valuations if valuation is not None), INSTANCES
    )

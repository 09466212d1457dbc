"""Works out how a rule can be used: in which direction, and what it computes anew.

Read from left to right or back, a rule can be applied where matching the one side determines the
other but for what is free to choose. Some of what it makes reads few inputs only, and may read
nothing but weights where the rule is used: ``concat(y, z)`` in ``matmul(x, concat(y, z))``. If its
elements are those of the weights, it is a re-parametrisation: trained in their place by an
optimizer that treats elements one by one, it takes the same values. So it does with constants
beside, as long as these are held. Anything else has to be computed in every step.
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
from verifier.concrete import Origin
from verifier.instances import instances
from verifier.trusted.errors import Undecided, Unsolvable
from verifier.trusted.sizes.degrees import Typing
from verifier.trusted.sizes.sizes import Sizes, input_size, pair_sizes

ReadingOrder = Literal["left to right", "right to left"]
INSTANCES = 2
"""At how many choices of sizes it is looked where elements come from."""


@dataclass(frozen=True)
class Created:
    """A value that a rule makes of few of its inputs, and what it is to them."""

    value: Value
    kind: OriginKind


@dataclass(frozen=True)
class Direction:
    """One way to read a rule.

    ``applicable``: whether what it starts from determines all that it makes but what is free.
    ``unbound``: the inputs that are not determined. ``free``: symbols to be chosen. ``conditions``:
    what the new side asks beyond the old. ``created``: see ``Created``.
    """

    way: ReadingOrder
    applicable: bool
    unbound: tuple[str, ...]
    free: tuple[str, ...]
    conditions: tuple[str, ...]
    created: tuple[Created, ...]


def directions(rule: Rule) -> tuple[Direction, Direction]:
    """Both ways to read a rule that holds for some sizes and degrees."""
    known = _Known(rule)
    origins = tuple(_origins(known))
    return (
        _direction(known, "left to right", origins),
        _direction(_Known(rule.reversed), "right to left", origins),
    )


@dataclass(frozen=True)
class _Known:
    """What is known of a rule's sizes and types, each worked out once."""

    rule: Rule

    @cached_property
    def agreed(self) -> tuple[Agreement, Mapping[str, int]] | None:
        """How both sides are typed alike, and degrees for that; None where they are not."""
        return agree(*self._typed) if self._typed else None

    @cached_property
    def sizes(self) -> tuple[Sizes, tuple[str, ...]] | None:
        """The sizes of both sides, and what the right one asks of them; None where none fit."""
        try:
            return pair_sizes(self.rule.left, self.rule.right, self.rule.requirements)
        except (OperatorError, Undecided, Unsolvable):
            return None

    @cached_property
    def _typed(self) -> tuple[Mapping[int, Typing], Mapping[int, Typing]] | None:
        """The ways in which each side is typed; None where that is not known."""
        try:
            return typed_sides(self.rule.left, self.rule.right)
        except (OperatorError, ValueError, Undecided):
            return None

    @property
    def fits(self) -> bool:
        """Whether it is known how the sides are typed, and some sizes fit."""
        return self._typed is not None and self.sizes is not None


def _direction(known: _Known, way: ReadingOrder, origins: Sequence[Origin]) -> Direction:
    rule = known.rule
    return Direction(
        way,
        rule.is_applicable,
        tuple(sorted(variables(rule.right) - variables(rule.left))),
        tuple(sorted(rule.free_symbols)),
        _conditions(known),
        _created(rule, origins),
    )


def _conditions(known: _Known) -> tuple[str, ...]:
    """What typing asks of the right side beyond the left; nothing where no types fit."""
    if not known.fits or known.sizes is None:
        return ()
    _, asked = known.sizes
    return asked if known.agreed is None else asked + known.agreed[0].conditions


def _created(rule: Rule, origins: Sequence[Origin]) -> tuple[Created, ...]:
    """The values of the right side that the left does not have and that read fewer inputs than the
    whole; of these, the ones that are no part of another. Cuts and copies alone are none."""
    values = tuple(_partial_values(rule))
    kinds: dict[Value, set[OriginKind]] = {value: set() for value in values}
    for origin in origins if values else ():
        symbols = {s: int(v) for s, v in origin.symbols.items() if s not in origin.reals}
        shapes = {
            name: tuple(symbols[input_size(name, dim)] for dim in range(rank))
            for name, rank in rule.inputs
        }
        for value in values:
            kinds[value].add(kind_of(value, shapes, symbols))
    return tuple(Created(value, _in_all(kind)) for value, kind in kinds.items())


def _in_all(kinds: set[OriginKind]) -> OriginKind:
    """What a value is at all sizes, by what it is at some; computed, if none is known."""
    if not kinds or "computed" in kinds:
        return "computed"
    return next(iter(kinds)) if len(kinds) == 1 else "padded"


def _partial_values(rule: Rule) -> Iterator[Value]:
    """The values that a rule creates, each once, in the order of its outputs."""
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
    """Whether anything but parallel operators has a part in it."""
    return any(not (n.is_leaf or n.is_parallel) for n in topological([node]))


def _origins(known: _Known) -> Iterator[Origin]:
    """Some values of the symbols of a rule at which both of its sides are typed alike, if either
    direction creates anything."""
    rule = known.rule
    if not any(any(_partial_values(way)) for way in (rule, rule.reversed)):
        return
    if not known.fits or known.sizes is None:
        return
    sizes, _ = known.sizes
    degrees = known.agreed[1] if known.agreed is not None else {}
    made = (instance.origin for instance in instances(rule.left, rule.right, sizes, degrees))
    yield from islice((origin for origin in made if origin is not None), INSTANCES)

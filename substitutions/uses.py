"""Direction and use of a rule: which way it can be applied, and what it computes anew.

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
from itertools import islice
from typing import Literal

from pcg.errors import OperatorError
from pcg.graph import Graph, Node, Value, topological
from substitutions.origins import Kind, kind_of
from substitutions.rule import Rule, variables
from verifier.agreement import agree, typed_sides
from verifier.concrete import Origin
from verifier.counterexample import instances
from verifier.trusted.degrees import Typing
from verifier.trusted.errors import Undecided, Unsolvable
from verifier.trusted.sizes import input_size, pair_sizes

Way = Literal["left to right", "right to left"]
INSTANCES = 2
"""At how many choices of sizes it is looked where elements come from."""


@dataclass(frozen=True)
class Created:
    """A value that a rule makes of few of its inputs, and what it is to them."""

    value: Value
    kind: Kind


@dataclass(frozen=True)
class Direction:
    """One way to read a rule.

    ``applicable``: whether what it starts from determines all that it makes but what is free.
    ``unbound``: the inputs that are not determined. ``free``: symbols to be chosen. ``conditions``:
    what the new side asks beyond the old. ``created``: see ``Created``.
    """

    way: Way
    applicable: bool
    unbound: tuple[str, ...]
    free: tuple[str, ...]
    conditions: tuple[str, ...]
    created: tuple[Created, ...]


def directions(rule: Rule) -> tuple[Direction, Direction]:
    """Both ways to read a rule that holds for some sizes and degrees."""
    known = _Known.of(rule)
    origins = tuple(_origins(rule, known)) if known else ()
    back = _Known(known.rights, known.lefts) if known else None
    return (
        _direction(rule, "left to right", known, origins),
        _direction(rule.reversed, "right to left", back, origins),
    )


@dataclass(frozen=True)
class _Known:
    """The ways in which each side is typed."""

    lefts: Mapping[int, Typing]
    rights: Mapping[int, Typing]

    @staticmethod
    def of(rule: Rule) -> _Known | None:
        """None where that is not known."""
        try:
            return _Known(*typed_sides(rule.left, rule.right))
        except (OperatorError, ValueError, Undecided):
            return None


def _direction(rule: Rule, way: Way, known: _Known | None, origins: Sequence[Origin]) -> Direction:
    return Direction(
        way,
        rule.is_applicable,
        tuple(sorted(variables(rule.right) - variables(rule.left))),
        tuple(sorted(rule.free_symbols)),
        _conditions(rule, known),
        _created(rule, origins),
    )


def conditions(rule: Rule) -> tuple[str, ...]:
    """What typing asks of the right side beyond the left; nothing where no types fit."""
    return _conditions(rule, _Known.of(rule))


def _conditions(rule: Rule, known: _Known | None) -> tuple[str, ...]:
    if known is None:
        return ()
    try:
        _, asked = pair_sizes(rule.left, rule.right, rule.requirements)
    except (OperatorError, Undecided, Unsolvable):
        return ()
    found = agree(known.lefts, known.rights)
    return asked if found is None else asked + found[0].conditions


def created(rule: Rule) -> tuple[Created, ...]:
    """The values of the right side that the left does not have and that read fewer inputs than the
    whole; of these, the ones that are no part of another. Cuts and copies alone are none."""
    known = _Known.of(rule)
    return _created(rule, tuple(_origins(rule, known)) if known else ())


def _created(rule: Rule, origins: Sequence[Origin]) -> tuple[Created, ...]:
    found = tuple(_partial_values(rule))
    kinds: dict[Value, set[Kind]] = {value: set() for value in found}
    for origin in origins if found else ():
        symbols = {s: int(v) for s, v in origin.symbols.items() if s not in origin.reals}
        shapes = {
            name: tuple(symbols[input_size(name, dim)] for dim in range(rank))
            for name, rank in rule.inputs
        }
        for value in found:
            kinds[value].add(kind_of(value, shapes, symbols))
    return tuple(Created(value, _in_all(kind)) for value, kind in kinds.items())


def _in_all(kinds: set[Kind]) -> Kind:
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


def _values(side: tuple[Value, ...]) -> frozenset[Value]:
    nodes = Graph(side).nodes
    return frozenset((*side, *(value for node in nodes for value in node.inputs)))


def _computes(node: Node) -> bool:
    """Whether anything but parallel operators has a part in it."""
    return any(not (n.is_leaf or n.is_parallel) for n in topological([node]))


def _origins(rule: Rule, known: _Known) -> Iterator[Origin]:
    """Some values of the symbols of a rule at which both of its sides are typed alike, if either
    direction creates anything."""
    if not any(any(_partial_values(way)) for way in (rule, rule.reversed)):
        return
    try:
        sizes, _ = pair_sizes(rule.left, rule.right, rule.requirements)
    except (OperatorError, Undecided, Unsolvable):
        return
    found = agree(known.lefts, known.rights)
    degrees = found[1] if found is not None else {}
    made = (instance.origin for instance in instances(rule.left, rule.right, sizes, degrees))
    yield from islice((origin for origin in made if origin is not None), INSTANCES)

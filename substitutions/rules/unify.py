"""Matches a general pair of graphs against a special one.

Method: backtracking. A unifier binds each input of the general pair to a value of the special one,
each attribute symbol to an attribute, and each stand-in to an operator with its attributes.
Operands of a commutative operator match in either order.
Complexity: exponential in the number of commutative operators.
Exact: all unifiers are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache

from pcg.errors import OperatorError
from pcg.graph.graph import Leaf, Node, Value
from pcg.graph.pairs import GraphPair
from pcg.language.poly import Poly
from pcg.ops.stand_ins import STAND_INS, stand_in
from pcg.types.operator import Attribute, Call, Operator
from verifier.trusted.errors import Undecided, Unsolvable
from verifier.trusted.sizes.sizes import Sizes, input_size, pair_sizes

OPEN = "?"
"""The symbol to solve for: one of the general pair that is no attribute by itself."""


@dataclass(frozen=True)
class Unifier:
    """The bindings of a general pair's inputs, attribute symbols and stand-ins. ``asked``:
    attributes that are sums, products or sizes of inputs, each with its required value."""

    values: Mapping[str, Value] = field(default_factory=dict[str, Value])
    symbols: Mapping[str, Attribute] = field(default_factory=dict[str, Attribute])
    calls: Mapping[str, Call] = field(default_factory=dict[str, Call])
    asked: tuple[tuple[Poly, Attribute], ...] = ()


def unifiers(form: GraphPair, special: GraphPair, *, loose: bool = False) -> Iterator[Unifier]:
    """Yield the unifiers under which ``form`` is ``special``, with outputs paired in order.
    ``loose``: ranks and positions of axes may differ, and ``asked`` is not checked."""
    pairs = [pair for a, b in zip(form, special, strict=True) for pair in zip(a, b, strict=True)]
    for binding in _unified(tuple(pairs), Unifier(), loose):
        if loose or not binding.asked or _fits(binding, special):
            yield binding


def _unified(
    pairs: tuple[tuple[Value, Value], ...], binding: Unifier, loose: bool
) -> Iterator[Unifier]:
    if not pairs:
        yield binding
        return
    (pattern, given), rest = pairs[0], pairs[1:]
    if isinstance(pattern.node.call, Leaf):
        bound = _with_value(pattern.node.call, given, binding, loose)
        if bound is not None:
            yield from _unified(rest, bound, loose)
        return
    call = given.node.call
    if isinstance(call, Leaf) or pattern.port != given.port:
        return
    bound = _with_call(pattern.node.call, call, binding, loose)
    if bound is None:
        return
    for operands in _orders(given.node):
        inner = zip(pattern.node.inputs, operands, strict=True)
        yield from _unified((*inner, *rest), bound, loose)


def _orders(node: Node) -> Iterator[tuple[Value, ...]]:
    yield node.inputs
    if node.operator_call.operator.commutative and node.inputs != node.inputs[::-1]:
        yield node.inputs[::-1]


def _with_value(leaf: Leaf, given: Value, binding: Unifier, loose: bool) -> Unifier | None:
    known = binding.values.get(leaf.name)
    if known is not None:
        return binding if known == given else None
    if not loose and leaf.rank != given.rank:
        return None
    values = {**binding.values, leaf.name: given}
    return Unifier(values, binding.symbols, binding.calls, binding.asked)


def _with_call(pattern: Call, given: Call, binding: Unifier, loose: bool) -> Unifier | None:
    if pattern.operator != given.operator:
        covered = pattern.name in STAND_INS and stand_in(given.operator) is pattern.operator
        if not covered:
            return None
    if pattern.name in STAND_INS:
        known = binding.calls.get(pattern.name)
        if known is not None:
            return binding if known == given else None
        calls = {**binding.calls, pattern.name: given}
        return Unifier(binding.values, binding.symbols, calls, binding.asked)
    if not pattern.attributes and not given.attributes:
        return binding
    return _with_attributes(pattern, given, binding, loose)


def _with_attributes(pattern: Call, given: Call, binding: Unifier, loose: bool) -> Unifier | None:
    if len(pattern.attributes) != len(given.attributes):
        return None
    places = _places(pattern.operator)
    symbols, asked = dict(binding.symbols), list(binding.asked)
    for (name, wanted), (_, value) in zip(pattern.attributes, given.attributes, strict=True):
        if loose and name in places:
            continue
        if not isinstance(wanted, Poly) or wanted.constant is not None:
            if _plain(wanted) != _plain(value):
                return None
        elif (symbol := wanted.symbol) and not symbol.startswith("|"):
            if _plain(symbols.setdefault(symbol, value)) != _plain(value):
                return None
        else:
            asked.append((wanted, value))
    return Unifier(binding.values, symbols, binding.calls, tuple(asked))


@cache
def _places(operator: Operator) -> frozenset[str]:
    """The attributes that are positions of axes."""
    return frozenset((*operator.template.positions, *(("dim",) if operator.parallel else ())))


def _plain(value: Attribute) -> Attribute:
    """The attribute, with a constant polynomial as a number."""
    constant = value.constant if isinstance(value, Poly) else None
    return value if constant is None else constant


def _fits(binding: Unifier, special: GraphPair) -> bool:
    """Whether the equations in ``asked`` hold, given the sizes of the special pair. A symbol that
    is still unbound is chosen so that its equation holds."""
    sizes = _sizes(special)
    known = {s: Poly.of(v) for s, v in binding.symbols.items() if not isinstance(v, float)}
    known |= _known_sizes(binding, sizes)
    for wanted, value in sorted(binding.asked, key=lambda a: len(a[0].symbols - known.keys())):
        if isinstance(value, float):
            return False
        unknown = sorted(wanted.symbols - known.keys())
        # The special pair may have symbols of the same names.
        apart = {symbol: Poly.of(OPEN) for symbol in unknown}
        left = Poly.of(value) - wanted.substitute(known | apart)
        left = sizes.resolve(left) if sizes else left
        if not unknown and not left.terms:
            continue
        if len(unknown) != 1 or (chosen := _solved(left)) is None:
            return False
        known[unknown[0]] = chosen
    return True


def _known_sizes(binding: Unifier, sizes: Sizes | None) -> dict[str, Poly]:
    """The sizes of the values that the inputs of the general pair are bound to."""
    sizes_of_inputs: dict[str, Poly] = {}
    for name, bound in binding.values.items():
        if isinstance(bound.node.call, Leaf):
            leaf = bound.node.call.name
            shape = tuple(Poly.of(input_size(leaf, dim)) for dim in range(bound.rank))
        else:
            shape = sizes.shape(bound) if sizes else ()
        sizes_of_inputs |= {input_size(name, dim): size for dim, size in enumerate(shape)}
    return sizes_of_inputs


def _solved(left: Poly) -> Poly | None:
    """The value of ``OPEN`` at which ``left`` is 0; None unless it is a polynomial that is never
    negative."""
    rest = left + Poly.of(OPEN)
    never_negative = all(number > 0 for _, number in rest.terms)
    return rest if OPEN not in rest.symbols and never_negative else None


@lru_cache(maxsize=256)
def _sizes(pair: GraphPair) -> Sizes | None:
    """The sizes of a pair; None if no sizes fit or equations stay open."""
    try:
        return pair_sizes(*pair, ())[0]
    except (Unsolvable, Undecided, OperatorError):
        return None

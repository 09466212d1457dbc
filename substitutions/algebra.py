"""Algebraic candidates: graphs of up to two operators that compute the same.

Graphs are enumerated over named inputs and put into classes by fingerprint. Pairs that are
renamings or instances of another pair, or that share a part which a smaller rule covers, are left
out. What remains is for the prover.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from pcg.graph import Graph, Leaf, Node, Value, rebuild, tensor
from pcg.operator import Call
from pcg.ops.parallel import reduce
from pcg.poly import Poly
from substitutions.enumerate import (
    MAX_RANK,
    NAMES,
    Instance,
    pairs,
    single,
)
from substitutions.fingerprint import Evaluator, sizings
from substitutions.rule import (
    attribute_symbols,
    input_ranks,
    operators_in,
    side_text,
    variables,
)
from substitutions.workers import parallel_map

Side = tuple[Value, ...]
Pair = tuple[Side, Side]


def classes(operators: Sequence[Instance], jobs: int = 1) -> tuple[list[list[Side]], int]:
    """Graphs by fingerprint, those with company only; and how many graphs there were.

    ``jobs`` processes share the work.
    """
    found: dict[bytes, dict[str, Side]] = defaultdict(dict)
    count = 0
    families = [_Family(operators, first) for first in (None, *operators)]
    for family, keys in zip(families, parallel_map(_fingerprints, families, jobs), strict=True):
        for (side, _), own in zip(family.graphs(), keys, strict=True):
            count += 1
            for key in own:
                found[key].setdefault(_digest(side), side)
    groups = [list(members.values()) for members in found.values() if len(members) > 1]
    return groups, count


def _digest(side: Side) -> str:
    return Graph(side).digest


@dataclass(frozen=True)
class _Family:
    """The graphs of two operators that start with ``first``; if None, those with fewer."""

    operators: Sequence[Instance]
    first: Instance | None

    def graphs(self) -> Iterator[tuple[Side, bool]]:
        """Every graph; whether to try it at larger sizes too."""
        if self.first is None:
            yield from _small_graphs(self.operators)
            return
        for second in self.operators:
            for side in pairs(self.first, second):
                yield side, False


def _fingerprints(family: _Family) -> list[list[bytes]]:
    """The fingerprints of each graph of a family."""
    evaluator = Evaluator()
    found: list[list[bytes]] = []
    for side, varied in family.graphs():
        keys = (evaluator.fingerprint(side, sizes) for sizes in sizings(side, varied=varied))
        found.append([key for key in keys if key is not None])
    return found


def _small_graphs(operators: Sequence[Instance]) -> Iterator[tuple[Side, bool]]:
    for rank in range(MAX_RANK + 1):
        for name in NAMES:
            yield (tensor(name, rank),), True
    for names in combinations(NAMES, 2):
        for rank in range(1, MAX_RANK):
            yield tuple(tensor(name, rank) for name in names), True
    for instance in operators:
        for side in single(instance):
            yield side, True
            yield from ((s, False) for s in _joined(instance, side))


def _joined(instance: Instance, side: Side) -> Iterator[Side]:
    """A join followed by the reduce that sums what it joined."""
    if instance.call.operator.parallel == "join":
        yield (Value(Node(reduce(degree=len(instance.ranks)), side)),)


def candidates(groups: Iterable[Sequence[Side]]) -> list[Pair]:
    """The pairs worth a proof, small ones first, each once up to renaming and direction."""
    found: dict[str, Pair] = {}
    keys: dict[str, int] = {}
    for number, group in enumerate(groups):
        for side in group:
            keys.setdefault(_digest(side), number)
    for group in groups:
        # Every renaming of a class is a class; one side named in order of use stands for all.
        # A pair of larger graphs follows from the smallest of the class, in two steps.
        least = min(map(operators_in, group))
        small = [side for side in group if operators_in(side) == least]
        for left, right in ((a, b) for a in small for b in group if a is not b):
            if not (_is_canonical(left) or _is_canonical(right)):
                continue
            pair = _oriented(left, right)
            if pair is None or _shares_root(*pair, keys) or _shares_part(*pair):
                continue
            pair = _canonical(*pair)
            if _is_renaming(*pair):
                continue
            found.setdefault(_pair_text(pair), pair)
    ordered = sorted(found.values(), key=_rank)
    return _most_general(ordered)


def _is_canonical(side: Side) -> bool:
    """Whether its inputs are named in order of first use."""
    names = [name for name, _ in input_ranks(side)]
    return names == list(NAMES[: len(names)])


def _rank(pair: Pair) -> tuple[int, int, str]:
    """General and small pairs first."""
    names = variables(pair[0]) | variables(pair[1])
    return (operators_in(pair[0]) + operators_in(pair[1]), -len(names), _pair_text(pair))


def _pair_text(pair: Pair) -> str:
    return f"{side_text(pair[0])} == {side_text(pair[1])}"


def _oriented(left: Side, right: Side) -> Pair | None:
    """The pair with the side on the left that determines the inputs and symbols of the other."""
    if len(left) != len(right) or len(set(input_ranks((*left, *right)))) > len(
        variables(left) | variables(right)
    ):
        return None  # an input of one rank here and another there
    for a, b in ((left, right), (right, left)):
        if variables(b) <= variables(a) and (operators_in(a), side_text(a)) >= (
            operators_in(b),
            side_text(b),
        ):
            return a, b
    for a, b in ((left, right), (right, left)):
        if variables(b) <= variables(a):
            return a, b
    return None


def _shares_root(left: Side, right: Side, keys: Mapping[str, int]) -> bool:
    """Whether both are one operator on operands that are equal in pairs: a smaller rule's work."""
    if len(left) != 1 or left[0].node.is_leaf or right[0].node.is_leaf:
        return False
    a, b = left[0], right[0]
    if a.node.call != b.node.call or a.port != b.port:
        return False
    for x, y in zip(a.node.inputs, b.node.inputs, strict=True):
        if x == y:
            continue
        first, second = keys.get(_digest((x,))), keys.get(_digest((y,)))
        if first is None or first != second:
            return False
    return True


def _shares_part(left: Side, right: Side) -> bool:
    """Whether a computed value occurs in both sides: a rule about any such value is more general,
    if it is one; it is then a candidate of its own."""
    inner = {v for n in Graph(left).nodes for v in n.inputs if not v.node.is_leaf}
    common = [v for n in Graph(right).nodes for v in n.inputs if not v.node.is_leaf and v in inner]
    return bool(common)


def _canonical(left: Side, right: Side) -> Pair:
    """Inputs and symbols renamed in order of first use."""
    ranks = dict(input_ranks((*left, *right)))
    names = list(dict.fromkeys(name for name, _ in input_ranks(left)))
    names += [name for name in ranks if name not in names]
    renamed = {
        Value(Node(Leaf("tensor", old, ranks[old]))): tensor(new, ranks[old])
        for old, new in zip(names, NAMES, strict=False)
    }
    both = rebuild((*left, *right), renamed)
    both = _rename_symbols(both, _symbol_names(both))
    return both[: len(left)], both[len(left) :]


def _is_renaming(left: Side, right: Side) -> bool:
    """Whether the sides are one graph with attributes of different names."""
    if not attribute_symbols(left).isdisjoint(attribute_symbols(right)):
        return False
    return _rename_symbols(left, _symbol_names(left)) == _rename_symbols(
        right, _symbol_names(right)
    )


def _symbol_names(values: Side) -> dict[str, Poly]:
    """Symbols as ``at``, ``at2``, ... in order of first use."""
    seen: dict[str, None] = {}
    for node in Graph(values).nodes:
        if isinstance(node.call, Call):
            for _, value in node.call.attributes:
                if isinstance(value, Poly) and value.symbol:
                    seen.setdefault(value.symbol)
    found: dict[str, Poly] = {}
    counts: dict[str, int] = defaultdict(int)
    for symbol in seen:
        stem = symbol.rstrip("0123456789")
        counts[stem] += 1
        found[symbol] = Poly.of(stem if counts[stem] == 1 else f"{stem}{counts[stem]}")
    return found


def _rename_symbols(values: Side, names: Mapping[str, Poly]) -> Side:
    new: dict[Node, Node] = {}
    for node in Graph(values).nodes:
        inputs = tuple(Value(new[v.node], v.port) for v in node.inputs)
        call = node.call
        if isinstance(call, Call):
            attributes = tuple(
                (n, v.substitute(names) if isinstance(v, Poly) else v) for n, v in call.attributes
            )
            call = Call(call.operator, attributes)
        new[node] = Node(call, inputs)
    return tuple(Value(new[v.node], v.port) for v in values)


def _most_general(ordered: Sequence[Pair]) -> list[Pair]:
    """Leave out pairs that are another pair with inputs identified or in the other direction."""
    kept: list[Pair] = []
    by_roots: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in sorted(ordered, key=lambda p: -len(variables(p[0]) | variables(p[1]))):
        left, right = (side[0].node.name for side in pair)
        general = by_roots[left, right] + [(b, a) for a, b in by_roots[right, left]]
        if any(_is_instance(pair, other) for other in general):
            continue
        by_roots[left, right].append(pair)
        kept.append(pair)
    return sorted(kept, key=_rank)


def _is_instance(pair: Pair, general: Pair) -> bool:
    """Whether substituting for the inputs and symbols of ``general`` gives ``pair``."""
    if len(pair[0]) != len(general[0]):
        return False
    binding: dict[str, object] = {}
    wanted = (*general[0], *general[1])
    given = (*pair[0], *pair[1])
    return all(_unify(p, g, binding) for p, g in zip(wanted, given, strict=True))


def _unify(pattern: Value, given: Value, binding: dict[str, object]) -> bool:
    if isinstance(pattern.node.call, Leaf):
        return binding.setdefault(pattern.node.call.name, given) == given
    call = given.node.call
    if isinstance(call, Leaf) or pattern.port != given.port:
        return False
    if pattern.node.call.operator is not call.operator:
        return False
    for (_, a), (_, b) in zip(pattern.node.call.attributes, call.attributes, strict=True):
        if isinstance(a, Poly) and a.symbol:
            if binding.setdefault(f"${a.symbol}", b) != b:
                return False
        elif a != b:
            return False
    inputs = [given.node.inputs]
    if call.operator.commutative:
        inputs.append(given.node.inputs[::-1])
    for order in inputs:
        trial = dict(binding)
        if all(_unify(p, g, trial) for p, g in zip(pattern.node.inputs, order, strict=True)):
            binding.update(trial)
            return True
    return False

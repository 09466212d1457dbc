"""Conditions on sizes under which a pair that is false in general is true.

A published rule may hold only without groups, or for equal numbers of channels, and leave that
unsaid. The smallest set of such conditions under which it is proved becomes part of its verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from pcg.errors import OperatorError
from pcg.graph import Graph, Value
from pcg.poly import Poly
from verifier.decide import Decision, Verdict, decide
from verifier.trusted.errors import Unsolvable
from verifier.trusted.sizes import SizeEquation, Sizes

MAX_SETS = 64
"""How many sets of conditions are tried."""


def decide_under(
    left: Sequence[Value],
    right: Sequence[Value],
    equal: Sequence[SizeEquation] = (),
    *,
    whole: bool = False,
) -> Decision:
    """As ``decide``; and where that refutes the pair, the verdict under the fewest conditions for
    which it is proved, if there are any: a quotient of sizes is 1 (no groups), or two are equal."""
    decision = decide(left, right, equal, whole=whole)
    if decision.verdict is not Verdict.REFUTED:
        return decision
    for extra in _conditions(left, right, equal):
        found = decide(left, right, (*equal, *extra), whole=whole)
        if found.verdict is Verdict.PROVED:
            stated = tuple(f"{a} = {b}" for a, b in extra)
            return replace(found, conditions=(*stated, *found.conditions))
    return decision


def _conditions(
    left: Sequence[Value], right: Sequence[Value], equal: Sequence[SizeEquation]
) -> Iterator[tuple[SizeEquation, ...]]:
    """Sets of conditions, the smallest first."""
    sizes = Sizes.where(equal)
    try:
        for node in Graph((*left, *right)).nodes:
            sizes.visit(node)
    except (OperatorError, Unsolvable):
        return
    one = Poly.of(1)
    free = sorted({s for size in sizes.positive for s in sizes.resolve(size).symbols})
    groups = [q for q in sizes.quotients.values() if q.symbol in free]
    ungrouped = tuple((group, one) for group in dict.fromkeys(groups))
    own = [s for s in free if Poly.of(s) not in groups]
    pairs = tuple((Poly.of(a), Poly.of(b)) for a, b in combinations(own, 2))
    singles = [(condition,) for condition in (*ungrouped, *pairs)]
    several = [ungrouped] if len(ungrouped) > 1 else []
    mixed = [(*ungrouped, pair) for pair in pairs] if ungrouped else []
    count = 0
    for chosen in (*singles, *several, *mixed):
        if (count := count + 1) > MAX_SETS:
            return
        yield chosen

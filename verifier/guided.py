"""Searches for a counterexample after a proof failed: at sizes that solve the failed condition.

Problem: guessed sizes seldom show a difference, such as that of a slice that reaches beyond its
tensor.
Method: a solution of the failed condition gives sizes and attributes at which both sides give
different coefficients to the same elements. Z3 is asked for small solutions. If the proof failed
without such a condition, small sizes and attributes are drawn, the same in every run.
Heuristic: an instance is a counterexample only if both sides evaluate differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from pcg.language.poly import Poly
from verifier.concrete import Valuation
from verifier.instances import Instance, cuts_of, instantiate
from verifier.trusted import smt

LIMITS = (4, 8, 32)
"""Upper bounds on the sizes of an instance, as multiples of their degrees; tried in order."""
RESOURCES = 500_000
"""The limit of Z3's steps for a small solution."""
DRAWS = 100
"""How many times sizes are drawn; less than half of the draws are typed."""
LARGEST = 4
"""The largest size that is drawn, as a multiple of its degrees, and the largest attribute."""


def solving_instances(condition: str, valuation: Valuation) -> Iterator[Instance]:
    """Yield the pair at sizes that solve the condition, one solution for each limit that has one.
    The degrees stay the same."""
    cuts = cuts_of(valuation.pair, valuation.sizes, valuation.degrees)
    named = {smt.symbol_name(symbol): symbol for symbol in valuation.values}
    declared = [s for s in valuation.values if smt.declares(condition, s)]
    if not declared:
        return
    for limit in LIMITS:
        bounds = [smt.at_least(limit * cuts.get(s, 1) - Poly.of(s), 0) for s in declared]
        bounds += [smt.divides(cuts[s], Poly.of(s)) for s in declared if cuts.get(s, 1) > 1]
        solution = smt.model(
            "\n".join([condition, *(f"(assert {b.text})" for b in bounds)]), RESOURCES
        )
        if solution is None:
            continue
        values = {named[name]: value for name, value in solution.items() if name in named}
        instance = instantiate(replace(valuation, values={**valuation.values, **values}))
        if instance is not None:
            yield instance


def drawn_instances(valuation: Valuation) -> Iterator[Instance]:
    """Yield the pair at random small sizes and attributes, if it is typed there."""
    cuts = cuts_of(valuation.pair, valuation.sizes, valuation.degrees)
    random = Random(0)
    for _ in range(DRAWS):
        values = {
            s: random.randint(1, LARGEST) * cuts.get(s, 1)
            if s.startswith("|")
            else random.randint(0, LARGEST)
            for s in valuation.values
        }
        instance = instantiate(replace(valuation, values=values))
        if instance is not None:
            yield instance

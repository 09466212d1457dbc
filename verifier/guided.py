"""Searches for a counterexample where a proof failed: at sizes that solve the failed condition.

Problem: a guess of sizes seldom meets those that matter, such as a slice that reaches beyond its
tensor. Method: a condition that has a solution speaks of sizes and attributes at which the
coefficients differ that both sides give to the same elements, so Z3 is asked for small ones. Where
a proof fails for want of a way to go, there is no condition to solve: then small sizes and
attributes are drawn, the same in every run. Exact: no; an instance counts by how it is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from pcg.language.poly import Poly
from verifier.concrete import Origin
from verifier.instances import Instance, cuts_of, instantiate
from verifier.trusted import smt

LIMITS = (4, 8, 32)
"""How large the sizes of an instance may be; small ones are tried first."""
RESOURCES = 500_000
"""Steps of Z3 for a solution that is small."""
DRAWS = 100
"""How many sizes are drawn; hardly half of them are typed."""
LARGEST = 4
"""The largest size that is drawn, as a multiple of its degrees."""


def guided(condition: str, origin: Origin) -> Iterator[Instance]:
    """The pair at sizes that solve a condition, one for each limit that allows for any; the degrees
    stay as they are."""
    cuts = cuts_of(origin.pair, origin.sizes, origin.degrees)
    named = {smt.symbol_name(symbol): symbol for symbol in origin.values}
    declared = [s for s in origin.values if smt.declares(condition, s)]
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
        instance = instantiate(replace(origin, values={**origin.values, **values}))
        if instance is not None:
            yield instance


def drawn(origin: Origin) -> Iterator[Instance]:
    """The pair at small sizes, and attributes from 0, at random, where it is typed."""
    cuts = cuts_of(origin.pair, origin.sizes, origin.degrees)
    random = Random(0)
    for _ in range(DRAWS):
        values = {
            s: random.randint(1, LARGEST) * cuts.get(s, 1)
            if s.startswith("|")
            else random.randint(0, LARGEST)
            for s in origin.values
        }
        instance = instantiate(replace(origin, values=values))
        if instance is not None:
            yield instance

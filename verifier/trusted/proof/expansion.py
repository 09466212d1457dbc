"""Derives the side conditions under which two graphs are equal, by expansion to their inputs.

This is the trusted road: definitions, expansion, comparison of coordinates. Which way it takes
where there are several is told by ``steps``, found by search or read from a certificate; what the
conditions are worth is told by ``judge``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pcg.graph.graph import Value
from verifier.trusted import smt
from verifier.trusted.proof.prove import Prover
from verifier.trusted.proof.same import is_same
from verifier.trusted.sizes.sizes import Sizes
from verifier.trusted.steps import Steps
from verifier.trusted.values.meaning import Meaning, free_indices


def obligations(
    left: Sequence[Value],
    right: Sequence[Value],
    sizes: Sizes,
    steps: Steps,
    judge: smt.Judge,
) -> tuple[str, ...]:
    """What has to have no solution for the outputs to be equal, as SMT-LIB 2 scripts.

    Raises Unproved where no way leads to equality, and TooLarge.
    """
    positive = tuple(dict.fromkeys(sizes.resolve(size) for size in sizes.positive))
    naturals = tuple(dict.fromkeys(sizes.resolve(value) for value in sizes.naturals))
    scripts: list[str] = []
    for a, b in zip(left, right, strict=True):
        if is_same(a, b):
            continue
        prover = Prover(positive, {}, scripts, naturals, steps, judge, sizes.zeros)
        meaning = Meaning(sizes, prover.ranges, prover.is_digit)
        index = free_indices(sizes, a)
        forms = meaning.at(a, index), meaning.at(b, index)
        prover.equal(*forms, frozenset(name for i in index for name, _ in i.digits))
    return tuple(scripts)

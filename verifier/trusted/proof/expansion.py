"""Derives the side conditions under which two graphs are equal, by expansion to their inputs.

All of this is trusted: definitions, expansion, comparison of coordinates. Where there are several
ways to go on, ``steps`` says which to take, by search or from a certificate. ``judge`` decides
whether a side condition holds.
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
    """Return the side conditions of the equality of the paired outputs, as SMT-LIB 2 scripts.

    A condition holds if its script is unsatisfiable. Raises Unproved if no way leads to equality,
    and TooLarge if an expansion has too many terms.
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

"""The theorem behind the transfers of ``pcg.placement.transfer``, for all sizes and degrees: a
chain of parallel operators, executed by a collective or by messages, gives every device the block
that its type says.

A tensor of P partials is V(sigma; i). The blocks of the source have ``B`` elements. A target with
p = P/g partials means V'(tau; i) = sum j < g: V(tau g + j; i), by the definition of Reduce. Below,
``out`` is what a device receives and ``target`` the block that its type says, along one dimension,
with n blocks of one side in a block of the other:

    all_reduce       out[u]       = sum j < g: V(tau g + j; beta B + u)
                     target       V'(tau; beta B + u)
    all_gather       out[r B + u] = V(tau; (beta n + r) B + u), member r's piece in place r
                     target       V(tau; beta (n B) + (r B + u))
    reduce_scatter   out_r[u]     = sum j < g: V(tau g + j; beta (n B) + (r B + u)), place r of all
                     target       V'(tau; (beta n + r) B + u)
    all_to_all       an all_gather along one dimension and a scatter along another
    messages         out[i - lo]  = sum of the blocks q that [lo, hi) meets, each where it meets
                     target       V(tau; i), for lo <= i < hi, with or without a halo

It remains to prove that both sides read the same partials and elements, each once. These are claims
about digits, in which sizes and degrees are symbols. Dimensions do not depend on each other, and a
partial is a digit like others, so each claim is proved for one dimension.

Z3 proves a claim by finding its negation unsatisfiable. Solvers fail on products of symbols. So a
claim names the quotients, and assumes that the product of two numbers that are not negative is not
negative, which is a claim itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import z3

SolverTerm = Any
"""A term or condition of Z3, which has no useful static types."""
_V = z3.Function("V", z3.IntSort(), z3.IntSort(), z3.IntSort())
"""The elements of a tensor, by a partial and an index, or by two indices."""
RESOURCES = 20_000_000
"""The limit at which Z3 gives up, in its own count of steps."""


@dataclass(frozen=True)
class DigitClaim:
    """A claim about all integers: ``given`` implies ``then``. ``text``: the claim in words."""

    text: str
    given: tuple[SolverTerm, ...]
    then: SolverTerm


def _ints(names: str) -> list[SolverTerm]:
    return [z3.Int(name) for name in names.split()]


def _below(value: SolverTerm, size: SolverTerm) -> SolverTerm:
    return z3.And(value >= 0, value < size)


def digit_claims() -> tuple[DigitClaim, ...]:
    """A pair of digits (q, u) with q < d, u < B stands for exactly one index below d B, q B + u,
    and each such index has exactly one pair."""
    i, q, r, u, v, d, b = _ints("i q r u v d B")
    sizes = (d >= 1, b >= 1)
    return (
        DigitClaim(
            "q B + u lies below d B",
            (*sizes, _below(q, d), _below(u, b), (d - 1 - q) * b >= 0),
            _below(q * b + u, d * b),
        ),
        DigitClaim(
            "which rests on this: a product of what is not negative is not negative",
            (q >= 0, b >= 0),
            q * b >= 0,
        ),
        DigitClaim(
            "each index has digits",
            (*sizes, _below(i, d * b), i == q * b + u, _below(u, b)),
            _below(q, d),
        ),
        DigitClaim(
            "and no other ones",
            (*sizes, _below(u, b), _below(v, b), q * b + u == r * b + v),
            z3.And(q == r, u == v),
        ),
    )


def block_claims() -> tuple[DigitClaim, ...]:
    """Block r of the n blocks in block beta is block beta n + r. So the block that a gather puts in
    place r, or a scatter takes from there, is the block on the other side."""
    tau, beta, n, r, b, u, o, d = _ints("tau beta n r B u o d")
    return (
        DigitClaim(
            "both ends of a gather or a scatter name the same element",
            (o == r * b + u,),
            _V(tau, (beta * n + r) * b + u) == _V(tau, beta * (n * b) + o),
        ),
        DigitClaim(
            "blocks of blocks are blocks, as many",
            (n >= 1, d >= 1, _below(beta, d), _below(r, n), (d - 1 - beta) * n >= 0),
            _below(beta * n + r, d * n),
        ),
    )


def partial_claims() -> tuple[DigitClaim, ...]:
    """The partials tau g + j, for all tau < p and j < g, are all partials below p g, each once."""
    tau, rho, j, k, g, p = _ints("tau rho j k g p")
    sizes = (g >= 1, p >= 1)
    return (
        DigitClaim(
            "two members give different partials, and no partial is of two sums",
            (*sizes, _below(j, g), _below(k, g), tau * g + j == rho * g + k),
            z3.And(tau == rho, j == k),
        ),
        DigitClaim(
            "what is summed are partials",
            (*sizes, _below(tau, p), _below(j, g), (p - 1 - tau) * g >= 0),
            _below(tau * g + j, p * g),
        ),
    )


def exchange_claims() -> tuple[DigitClaim, ...]:
    """In an all_to_all, member r sends block q of its piece along one dimension to member q, which
    puts it in place r along another dimension."""
    beta, n, r, q, b, c, u, v, gamma, m, o, w = _ints("beta n r q B C u v gamma m o w")
    return (
        DigitClaim(
            "both ends name the same element",
            (o == r * b + u, w == q * c + v),
            _V((beta * n + r) * b + u, gamma * (m * c) + w)
            == _V(beta * (n * b) + o, (gamma * m + q) * c + v),
        ),
    )


def message_claims() -> tuple[DigitClaim, ...]:
    """Messages: of the blocks q that have elements in common with [lo, hi), exactly one has i."""
    i, q, r, u, lo, hi, b, d = _ints("i q r u lo hi B d")
    given = (b >= 1, d >= 1, lo >= 0, hi <= d * b, lo <= i, i < hi)

    def holds(block: SolverTerm) -> SolverTerm:
        start, stop = block * b, block * b + b
        first, last = z3.If(start > lo, start, lo), z3.If(stop < hi, stop, hi)
        return z3.And(first <= i, i < last)

    return (
        DigitClaim(
            "each element is in a message",
            (*given, i == q * b + u, _below(u, b)),
            z3.And(_below(q, d), holds(q)),
        ),
        DigitClaim("and in no other one", (*given, holds(q), holds(r)), q == r),
    )


KINDS: Mapping[str, tuple[DigitClaim, ...]] = {
    "all_reduce": (*partial_claims(), *digit_claims()),
    "all_gather": (*block_claims(), *digit_claims()),
    "reduce_scatter": (*partial_claims(), *block_claims(), *digit_claims()),
    "all_to_all": (*exchange_claims(), *block_claims(), *digit_claims()),
    "messages": (*partial_claims(), *message_claims(), *digit_claims()),
}
"""The claims that each kind of transfer rests on."""


def unproved(claim: DigitClaim) -> str | None:
    """Why a claim is not proved, with a counterexample if there is one; None if it is proved."""
    solver = z3.Solver()
    solver.set("rlimit", RESOURCES)
    solver.add(*claim.given, z3.Not(claim.then))
    outcome = solver.check()
    if outcome == z3.unsat:
        return None
    return f"{claim.text}: {solver.model()}" if outcome == z3.sat else f"{claim.text}: unknown"

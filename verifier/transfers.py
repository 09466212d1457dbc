"""The theorem behind the transfers of ``pcg.placement.transfer``: a chain of parallel operators,
carried out by a collective or by messages, gives every device the block that its type says. For all
sizes and degrees.

A tensor of P partials is V(sigma; i). Source pieces are blocks of ``B`` elements. Of a target with
p = P/g partials, the piece (tau, beta) means V'(tau; i) = sum j < g: V(tau g + j; i), as Reduce
has it. Along each dimension, with n blocks of one side in a block of the other:

    all_reduce       out[u]       = sum j < g: V(tau g + j; beta B + u)
                     target       V'(tau; beta B + u)
    all_gather       out[r B + u] = V(tau; (beta n + r) B + u), member r's piece in place r
                     target       V(tau; beta (n B) + (r B + u))
    reduce_scatter   out_r[u]     = sum j < g: V(tau g + j; beta (n B) + (r B + u)), place r of all
                     target       V'(tau; (beta n + r) B + u)
    all_to_all       an all_gather along one dimension of what is a scatter along another
    messages         out[i - lo]  = sum of the blocks q that [lo, hi) meets, each where it meets
                     target       V(tau; i), for lo <= i < hi, with or without a halo

So what has to be true is that both sides read the same partials and elements, each once: statements
about digits, in which sizes and degrees are symbols. No dimension matters to another, as an index
reads each of them by itself and a partial is a digit like others; so each is proved for one.

Each statement is the negation that Z3 finds to have no solution. Products of symbols are where
solvers get lost, so a statement names the quotients, and takes for given that a product of two
numbers that are not negative is not negative, which is one of the statements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import z3

SolverTerm = Any
"""A term or condition of Z3, whose types say little."""
_V = z3.Function("V", z3.IntSort(), z3.IntSort(), z3.IntSort())
"""The elements of a tensor, by a partial and an index, or by two indices."""
RESOURCES = 20_000_000
"""Z3's own count of its steps, at which it gives up."""


@dataclass(frozen=True)
class DigitClaim:
    """Something that holds for all integers: ``given`` implies ``then``. ``text`` in words."""

    text: str
    given: tuple[SolverTerm, ...]
    then: SolverTerm


def _ints(names: str) -> list[SolverTerm]:
    return [z3.Int(name) for name in names.split()]


def _below(value: SolverTerm, size: SolverTerm) -> SolverTerm:
    return z3.And(value >= 0, value < size)


def digits() -> tuple[DigitClaim, ...]:
    """A pair of digits (q, u) with q < d, u < B stands for just one index below d B, q B + u, and
    each index has one."""
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


def regrouped() -> tuple[DigitClaim, ...]:
    """Block r of n in block beta is block beta n + r: what a gather puts in place r, and what a
    scatter takes from there, is what the piece on the other side has."""
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


def summed() -> tuple[DigitClaim, ...]:
    """The partials tau g + j, j < g, of all tau < p are all partials below p g, each once."""
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


def swapped() -> tuple[DigitClaim, ...]:
    """In an all_to_all, what goes from member r to member q is block q of its piece along one
    dimension, and lands in place r along another."""
    beta, n, r, q, b, c, u, v, gamma, m, o, w = _ints("beta n r q B C u v gamma m o w")
    return (
        DigitClaim(
            "both ends name the same element",
            (o == r * b + u, w == q * c + v),
            _V((beta * n + r) * b + u, gamma * (m * c) + w)
            == _V(beta * (n * b) + o, (gamma * m + q) * c + v),
        ),
    )


def met() -> tuple[DigitClaim, ...]:
    """Messages: of the blocks q with which [lo, hi) has something in common, just one has i."""
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
    "all_reduce": (*summed(), *digits()),
    "all_gather": (*regrouped(), *digits()),
    "reduce_scatter": (*summed(), *regrouped(), *digits()),
    "all_to_all": (*swapped(), *regrouped(), *digits()),
    "messages": (*summed(), *met(), *digits()),
}
"""What each way to carry out a transfer rests on."""


def unproved(claim: DigitClaim) -> str | None:
    """What is in the way of a claim; None where it is proved."""
    solver = z3.Solver()
    solver.set("rlimit", RESOURCES)
    solver.add(*claim.given, z3.Not(claim.then))
    outcome = solver.check()
    if outcome == z3.unsat:
        return None
    return f"{claim.text}: {solver.model()}" if outcome == z3.sat else f"{claim.text}: unknown"

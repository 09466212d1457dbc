"""The claims behind transfers are proved for all sizes and degrees, and false claims are not."""

from __future__ import annotations

import pytest
import z3

from verifier.transfers import KINDS, DigitClaim, unproved


@pytest.mark.parametrize("kind", list(KINDS))
def test_each_way_to_carry_out_a_transfer_is_proved(kind):
    assert [problem for claim in KINDS[kind] if (problem := unproved(claim))] == []


FALSE = {
    "a gather one element off": "(beta*n + r)*b + u == beta*(n*b) + (r*b + u + 1)",
    "a gather with the parts in another order": "(beta*n + r)*b + u == beta*(n*b) + (u*n + r)",
    "a scatter of blocks of another size": "(beta*n + r)*b + u == beta*(n*b) + (r*n + u)",
    "partials that are not adjacent": "tau*g + j == j*p + tau",
}


@pytest.mark.parametrize("name", list(FALSE))
def test_false_claims_have_a_counterexample(name):
    names = {n: z3.Int(n) for n in ("beta", "n", "r", "b", "u", "tau", "g", "j", "p")}
    sizes = tuple(n >= 2 for n in names.values())
    claim = DigitClaim(name, sizes, eval(FALSE[name], {}, names))
    assert name in (unproved(claim) or "")


@pytest.mark.parametrize("kind", list(KINDS))
def test_no_claim_holds_for_want_of_a_case(kind):
    """The assumptions can be met, with several blocks of several elements."""
    for claim in KINDS[kind]:
        solver = z3.Solver()
        solver.add(*claim.given)
        for name in ("n", "B", "d", "g", "p"):
            solver.add(z3.Int(name) >= 2)
        assert solver.check() == z3.sat, claim.text

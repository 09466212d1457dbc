"""The table of parallel operators agrees with the type rules."""

from __future__ import annotations

import pytest

from pcg.ops import parallel
from pcg.types.infer import infer
from pcg.types.operator import Call
from pcg.types.parallel_operators import IN_SPACE, IN_TIME, PARALLEL, PLACING
from pcg.types.tensor import Degrees, ParallelTensor

BY_NAME = {operator.parallel: operator for operator in parallel.OPERATORS}
X = ParallelTensor((8, 8), Degrees((2, 2), (2, 2), 2, 2))
ENTRIES = ("dims", "slices", "copies", "partials")


def call_of(name: str) -> Call:
    dim = {"dim": 1} if PARALLEL[name].has_dim else {}
    return BY_NAME[name](degree=2, **dim)


@pytest.mark.parametrize("name", PARALLEL)
def test_an_operator_changes_its_own_entry_alone(name: str):
    own = PARALLEL[name]
    (made,) = infer(call_of(name), (X,))
    changed = {e for e in ENTRIES if getattr(made.degrees, e) != getattr(X.degrees, e)}
    assert changed == {own.entry}
    if own.has_dim:  # the gradient of a copy is a partial sum, of a block it is a block
        assert infer(call_of(own.adjoint), (made,)) == (X,)


@pytest.mark.parametrize("name", PARALLEL)
def test_the_adjoint_does_the_opposite(name: str):
    opposite = PARALLEL[PARALLEL[name].adjoint]
    assert opposite.adjoint == name
    assert opposite.power == -PARALLEL[name].power


def test_every_operator_has_one_row():
    """The declared operators are the table's, and join."""
    assert set(BY_NAME) == {*PARALLEL, "join"}
    assert set(PARALLEL) == IN_SPACE | IN_TIME
    assert IN_SPACE.isdisjoint(IN_TIME)
    assert sorted(PLACING) == ["partition", "pipeline", "replicate"]

"""Parallel types are theorems: they are proved for every operator, and wrong ones are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cases import check_each

from pcg.ops import OPERATORS
from pcg.types.local import Axis, LocalTyping
from pcg.types.operator import Operator
from substitutions.generate.algebra.enumerate import RankedCall, instances
from verifier.trusted.proof.local import TypingProof, prove_typing

COMPUTING = [o for o in OPERATORS.values() if o.parallel is None and o.arity]


def only(operator: str, ranks: tuple[int, ...]) -> RankedCall:
    return next(i for i in instances(OPERATORS[operator]) if i.ranks == ranks)


def wrong(instance: RankedCall, typing: LocalTyping) -> list[TypingProof]:
    return [p for p in prove_typing(instance.call, instance.ranks, typing) if p.proof is None]


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_every_derived_typing_is_proved(step: int):
    count = 0

    def check(operator: Operator) -> None:
        nonlocal count
        proofs = [p for i in instances(operator) for p in prove_typing(i.call, i.ranks)]
        assert proofs
        count += len(proofs)
        for theorem in proofs:
            assert theorem.proof is not None, theorem.reason
            assert theorem.proof.side_conditions > 0

    check_each(COMPUTING[::step], check, lambda operator: operator.name)
    assert count > 100 / step


@pytest.mark.parametrize(
    ("operator", "ranks", "axis"),
    [
        ("softmax", (2,), Axis("j", (1,), (1,))),
        ("layer_norm", (2, 1, 1), Axis("j", (1, 0, 0), (1,))),
        ("concat", (1, 1), Axis("j", (0, 0), (0,))),
        ("matmul", (2, 2), Axis("k", (0, 0), (None,))),  # a dimension without k
        ("matmul", (2, 2), Axis("n", (None, 0), (1,))),
        ("matmul", (2, 2), Axis("n", (None, 1), (0,))),
        ("matmul", (2, 2), Axis("n", (None, 1), (None,))),
        ("transpose", (2,), Axis("i", (0,), (0,))),
        ("flatten", (2,), Axis("n", (1,), (0,))),
        ("unflatten", (1,), Axis("n", (0,), (1,))),
        ("embedding", (1, 2), Axis("v", (0, 0), (None,))),
    ],
)
def test_a_wrong_axis_is_not_proved(operator, ranks, axis):
    instance = only(operator, ranks)
    right = instance.call.typing(instance.ranks)
    others = tuple(a for a in right.axes if a.name != axis.name)
    assert axis not in right.axes
    assert wrong(instance, LocalTyping((axis,), ()))
    assert wrong(instance, LocalTyping((*others, axis), right.carriers))


@pytest.mark.parametrize(
    ("operator", "ranks", "carriers"),
    [
        ("relu", (1,), {0}),
        ("gelu", (2,), {0}),
        ("softmax", (2,), {0}),
        ("matmul", (2, 2), {0, 1}),
        ("multiply", (1, 1), {0, 1}),
        ("add", (1, 1), {0}),
        ("layer_norm", (2, 1, 1), {2}),
        ("layer_norm", (2, 1, 1), {0}),
        ("embedding", (1, 2), {0}),
        ("concat", (1, 1), {1}),
    ],
)
def test_wrong_carriers_are_not_proved(operator, ranks, carriers):
    instance = only(operator, ranks)
    right = instance.call.typing(instance.ranks)
    chosen = frozenset[int](carriers)
    assert chosen not in right.carriers
    (refused,) = wrong(instance, replace(right, carriers=(chosen,)))
    assert refused.carriers == chosen


def test_a_square_is_not_cut_along_its_sums():
    """The square of a sum is not the sum of the squares of its parts."""
    square = Operator("square", "out[i] = (sum k: x[i, k]) * (sum k: x[i, k])")
    call = square()
    assert all(p.proof for p in prove_typing(call, (2,)))
    axes = (Axis("i", (0,), (0,)), Axis("k", (1,), (None,)))
    (none,) = prove_typing(call, (2,), LocalTyping(axes, ()))
    assert none.proof is None


def test_a_window_is_not_cut():
    """Cut along its shift, an operator would read its neighbour's block."""
    shift = Operator("shift", "x[i] -> out[i] = x[i + 1]")
    assert all(p.proof for p in prove_typing(shift(), (1,)))
    typing = LocalTyping((Axis("i", (0,), (0,)),), ())
    (proof,) = prove_typing(shift(), (1,), typing)
    assert proof.proof is None
    assert proof.reason

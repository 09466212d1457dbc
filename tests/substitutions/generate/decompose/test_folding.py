"""Operators that are found in the decompositions of other operators."""

from __future__ import annotations

import pytest

from pcg.graph.graph import Graph
from pcg.ops import OPERATORS
from pcg.types.operator import Operator
from substitutions.generate.decompose.decompose import decompose, decompositions
from substitutions.generate.decompose.folding import folds
from substitutions.rules.rule import side_text
from verifier.decide import Verdict, decide

SHARPNESS = Operator(
    "sharpness",
    "x[a..., j] -> out[a...] = factor * log(sum j: exp(x[a..., j])) + 1",
    reals=("factor",),
)
"""A user's own operator that contains the logarithm of summed exponentials."""


def texts(operator: Operator) -> list[str]:
    return [side_text(right) for _, right in decompositions(operator)]


def test_a_cross_entropy_is_made_of_a_logsumexp_and_a_likelihood():
    rows = "nll(logits, target, logsumexp(logits, axis=1))"
    folded = f"divide_by_size(sum_axis({rows}, axis=0), size=|logits.0|)"
    assert texts(OPERATORS["cross_entropy"])[1:] == [folded]


def test_a_log_softmax_is_made_of_a_logsumexp():
    folded = "subtract(x, expand_as(x, logsumexp(x, axis=1), axis=1))"
    assert texts(OPERATORS["log_softmax"])[1:] == [folded]


def test_a_users_own_operator_is_folded_and_proved():
    plain, folded = decompositions(SHARPNESS)
    assert decompose(SHARPNESS).pairs == (plain,)
    names = [node.name for node in Graph(folded[1]).operators]
    assert names == ["logsumexp", "scale", "shift"]
    for pair in (plain, folded):
        assert decide(*pair).verdict is Verdict.PROVED


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "attention", "mean_axis", "batch_norm"])
def test_decomposition_without_a_known_operator_is_not_folded(name: str):
    assert all(
        pair in decompose(OPERATORS[name]).pairs
        for pair in decompositions(OPERATORS[name])
        if not _is_by_blocks(pair)
    )


def _is_by_blocks(pair) -> bool:
    return any(node.name == "unflatten" for node in Graph(pair[1]).operators)


@pytest.mark.parametrize(
    ("name", "is_folded"),
    [("logsumexp", True), ("nll", True), ("softmax", False), ("mean_axis", False)],
)
def test_folding_decomposition_has_tensors_larger_than_its_output(name: str, is_folded: bool):
    (pair,) = decompose(OPERATORS[name]).pairs
    assert folds(pair) == is_folded

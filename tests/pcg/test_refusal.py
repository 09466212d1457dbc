"""Wrong use of an operator: one typed error that names operator, operand and dimension."""

from __future__ import annotations

from typing import Any

import pytest
from support.cases import each

from pcg.errors import OperatorError
from pcg.graph.graph import Graph
from pcg.ops import OPERATORS
from pcg.plan.text import parse_graph


def graph_of(call: str, *leaves: str) -> Graph:
    """A call on inputs ``a, b, c`` of the types given, such as ``[4/2, 6] copies=2``."""
    lines = [f"{name} = input{leaf}" for name, leaf in zip("abc", leaves, strict=False)]
    return parse_graph("\n".join([*lines, f"t = {call}", "return t"]))


def refusal(call: str, *leaves: str) -> OperatorError:
    graph = graph_of(call, *leaves)
    with pytest.raises(OperatorError) as caught:
        graph.check()
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{caught.value.operator}: operand {caught.value.operand}")
    return caught.value


Case = tuple[str, list[str], str, int | None, str]

SIZES: list[Case] = [
    # call, operand types, operand, dimension, problem
    ("matmul(a, b)", ["[4, 6]", "[5, 3]"], "w", 0, "size 5, expected 6 (index k)"),
    ("matmul(a, b)", ["[4, 6]", "[6, 3, 2]"], "w", None, "rank 3, expected 2"),
    ("matmul(a, b)", ["[]", "[6, 3]"], "x", None, "rank 0, expected at least 1"),
    ("batch_matmul(a, b)", ["[2, 4, 6]", "[3, 6, 5]"], "y", 0, "size 3, expected 2 (index b0)"),
    ("batch_matmul(a, b)", ["[2, 4, 6]", "[6, 5]"], "y", None, "rank 2, expected 3"),
    ("add(a, b)", ["[4]", "[5]"], "y", 0, "size 5, expected 4 (index i0)"),
    ("add(a, b)", ["[4]", "[4, 1]"], "y", None, "rank 2, expected 1"),
    ("multiply(a, b)", ["[4, 2]", "[4, 1]"], "y", 1, "size 1, expected 2 (index i1)"),
    ("concat(a, b, axis=1)", ["[4, 2]", "[3, 2]"], "y", 0, "size 3, expected 4 (index a0)"),
    ("layer_norm(a, b, c, eps=0.1)", ["[4, 6]", "[4]", "[6]"], "weight", 0, "size 4, expected 6"),
    ("layer_norm(a, b, c, eps=0.1)", ["[4, 6]", "[6]", "[6, 1]"], "bias", None, "rank 2"),
    ("embedding(a, b)", ["[4]", "[9]"], "table", None, "rank 1, expected 2"),
    ("join(a, b)", ["[4]", "[5]"], "y", 0, "size 5, expected 4 (index i0)"),
]  # fmt: skip

ATTRIBUTES: list[Case] = [
    ("softmax(a, axis=2)", ["[4, 6]"], "x", 2, "axis is 2, expected 0 to 1"),
    ("softmax(a, axis=-1)", ["[4, 6]"], "x", -1, "axis is -1, expected 0 to 1"),
    ("softmax(a, axis=0)", ["[]"], "x", None, "rank 0, expected at least 1"),
    ("softmax(a, axis=0.5)", ["[4]"], "*", None, "attribute axis is 0.5, expected an integer"),
    ("softmax(a, axis=k)", ["[4]"], "*", None, "attribute axis is k, expected an integer"),
    ("concat(a, b, axis=2)", ["[4, 2]", "[4, 2]"], "x", 2, "axis is 2, expected 0 to 1"),
    ("transpose(a, dim0=1, dim1=1)", ["[4, 6]"], "x", None, "rank 2, expected at least 3"),
    ("transpose(a, dim0=0, dim1=2)", ["[4, 6]"], "x", 2, "dim1 is 2, expected 1 to 1"),
    ("flatten(a, axis=1)", ["[4, 6]"], "x", None, "rank 2, expected at least 3"),
    ("split(a, axis=0, at=4)", ["[4]"], "right", 0, "size 0, expected at least 1"),
    ("split(a, axis=0, at=0)", ["[4]"], "left", 0, "size 0, expected at least 1"),
    ("split(a, axis=0, at=7)", ["[4]"], "right", 0, "size -3, expected at least 1"),
    ("unflatten(a, axis=0, outer=2, inner=4)", ["[6]"], "x", 0, "size 6, expected 8 (|m|*|n|)"),
    ("unflatten(a, axis=0, outer=-2, inner=-3)", ["[6]"], "*", None, "outer is -2"),
    ("partition(a, dim=2, degree=2)", ["[4, 6]"], "x", 2, "no such dimension, the rank is 2"),
    ("combine(a, dim=-1, degree=2)", ["[4, 6/2]"], "x", -1, "no such dimension, the rank is 2"),
    ("partition(a, dim=0, degree=0)", ["[4]"], "*", None, "degree 0, expected a positive integer"),
    ("replicate(a, degree=-2)", ["[4]"], "*", None, "degree -2, expected a positive integer"),
    ("replicate(a, degree=2.0)", ["[4]"], "*", None, "degree 2.0, expected a positive integer"),
    ("replicate(a, degree=k)", ["[4]"], "*", None, "degree k, expected a positive integer"),
]  # fmt: skip

DEGREES: list[Case] = [
    ("matmul(a, b)", ["[4, 6/2]", "[6, 3]"], "w", 0, "degree of index k: 1, expected 2"),
    ("matmul(a, b)", ["[4, 6/2]", "[6/3, 3]"], "w", 0, "degree of index k: 3, expected 2"),
    ("add(a, b)", ["[4/2]", "[4]"], "y", 0, "degree of index i0: 1, expected 2"),
    ("join(a, b)", ["[4/2]", "[4]"], "y", 0, "degree 1, expected 2"),
    ("join(a, b)", ["[4]", "[4|2]"], "y", 0, "slices 2, expected 1"),
    ("add(a, b)", ["[4|2]", "[4]"], "y", 0, "slices of index i0: 1, expected 2"),
    ("matmul(a, b)", ["[4, 6|2]", "[6|2, 3]"], "x", 1, "slices of a summed index 2, expected 1"),
    ("partition(a, dim=0, degree=3)", ["[4]"], "out", 0, "degree 3 does not divide size 4"),
    ("partition(a, dim=0, degree=4)", ["[4/2]"], "out", 0, "degree 8 does not divide size 4"),
    ("pipeline(a, dim=0, degree=4)", ["[4/2]"], "out", 0, "degree 8 does not divide size 4"),
    ("combine(a, dim=0, degree=2)", ["[4]"], "x", 0, "degree 1 cannot be divided by 2"),
    ("combine(a, dim=0, degree=2)", ["[6/3]"], "x", 0, "degree 3 cannot be divided by 2"),
    ("batch(a, dim=0, degree=2)", ["[4/2]"], "x", 0, "degree 1 cannot be divided by 2"),
    ("unflatten(a, axis=0, outer=2, inner=3)", ["[6/3]"], "x", 0,
     "degree 3 does not divide size 2 of index m"),
]  # fmt: skip

CUTS: list[Case] = [
    ("softmax(a, axis=0)", ["[4/2, 6]"], "x", 0, "refuses a cut: degree 2, expected 1"),
    ("softmax(a, axis=1)", ["[4, 6|2]"], "x", 1, "slices 2, expected 1"),
    ("layer_norm(a, b, c, eps=0.1)", ["[4, 6/2]", "[6/2]", "[6/2]"], "x", 1, "refuses a cut"),
    ("layer_norm(a, b, c, eps=0.1)", ["[4, 6]", "[6/2]", "[6/2]"], "weight", 0, "refuses a cut"),
    ("concat(a, b, axis=0)", ["[4/2, 6]", "[4/2, 6]"], "x", 0, "refuses a cut"),
    ("concat(a, b, axis=0)", ["[4, 6]", "[4/2, 6]"], "y", 0, "refuses a cut"),
    ("split(a, axis=1, at=2)", ["[4, 6/2]"], "x", 1, "refuses a cut"),
    ("flatten(a, axis=0)", ["[4, 6/2]"], "x", 1, "refuses a cut"),
]

PARTIALS: list[Case] = [
    ("relu(a)", ["[4] partials=2"], "x", None, "it is not linear in just these operands"),
    ("gelu(a)", ["[4] partials=2"], "x", None, "partial sums cannot pass"),
    ("softmax(a, axis=0)", ["[4] partials=2"], "x", None, "partial sums cannot pass"),
    ("add(a, b)", ["[4] partials=2", "[4]"], "x", None, "partial sums cannot pass"),
    ("add(a, b)", ["[4]", "[4] partials=2"], "y", None, "partial sums cannot pass"),
    ("concat(a, b, axis=0)", ["[4] partials=2", "[4]"], "x", None, "partial sums cannot pass"),
    ("multiply(a, b)", ["[4] partials=2", "[4] partials=2"], "x, y", None, "cannot pass"),
    ("matmul(a, b)", ["[4, 6] partials=2", "[6, 3] partials=2"], "x, w", None, "cannot pass"),
    ("embedding(a, b)", ["[4] partials=2", "[6, 3] copies=2"], "ids", None, "cannot pass"),
    ("layer_norm(a, b, c, eps=0.1)", ["[4, 6] copies=2", "[6] partials=2", "[6]"], "weight", None,
     "cannot pass"),
    ("add(a, b)", ["[4] partials=2", "[4] partials=3"], "y", None, "partials 3, expected 2"),
    ("join(a, b)", ["[4] partials=2", "[4]"], "y", None, "partials 1, expected 2"),
    ("reduce(a, degree=2)", ["[4]"], "x", None, "partials 1 cannot be divided by 2"),
    ("reduce(a, degree=2)", ["[4] partials=3"], "x", None, "partials 3 cannot be divided by 2"),
]  # fmt: skip

COPIES: list[Case] = [
    ("matmul(a, b)", ["[4/2, 6]", "[6, 3]"], "w", None, "copies 1 cannot be divided by 2"),
    ("matmul(a, b)", ["[4, 6]", "[6, 4/2]"], "x", None, "copies 1 cannot be divided by 2"),
    ("matmul(a, b)", ["[4/2, 6]", "[6, 3] copies=4"], "w", None, "copies 4, expected 2"),
    ("matmul(a, b)", ["[4, 6] partials=2", "[6, 3]"], "w", None, "copies 1 cannot be divided by 2"),
    ("multiply(a, b)", ["[4] partials=2", "[4] copies=3"], "y", None, "copies 3 cannot be divided"),
    ("add(a, b)", ["[4] copies=2", "[4]"], "y", None, "copies 1, expected 2"),
    ("join(a, b)", ["[4] copies=2", "[4]"], "y", None, "copies 1, expected 2"),
]


@each(
    ("call", "leaves", "operand", "dimension", "problem"),
    [*SIZES, *ATTRIBUTES, *DEGREES, *CUTS, *PARTIALS, *COPIES],
)
def test_wrong_use_names_operator_operand_and_dimension(
    call: str, leaves: list[str], operand: str, dimension: int | None, problem: str
):
    error = refusal(call, *leaves)
    assert error.operator == call.split("(")[0]
    assert error.operand == operand
    assert error.dimension == dimension
    assert problem in error.problem


@pytest.mark.parametrize(
    ("name", "attributes", "problem"),
    [
        ("relu", {"axis": 0}, "attributes axis, expected none"),
        ("softmax", {}, "attributes none, expected axis"),
        ("softmax", {"dim": 0}, "attributes dim, expected axis"),
        ("split", {"axis": 0}, "attributes axis, expected axis, at"),
        ("partition", {"degree": 2}, "attributes degree, expected dim, degree"),
        ("replicate", {"dim": 0, "degree": 2}, "attributes dim, degree, expected degree"),
    ],
)
def test_wrong_attributes(name: str, attributes: dict[str, Any], problem: str):
    with pytest.raises(OperatorError) as caught:
        OPERATORS[name](**attributes)
    error = caught.value
    assert (error.operator, error.operand, error.dimension) == (name, "*", None)
    assert error.problem == problem


@each(
    ("call", "leaves", "result"),
    [
        ("matmul(a, b)", ["[4/2, 6/3] copies=2", "[6/3, 8/2] copies=2"], "[4/2, 8/2] partials=3"),
        ("matmul(a, b)", ["[4, 6] partials=2", "[6, 3] copies=2"], "[4, 3] partials=2"),
        ("matmul(a, b)", ["[4/2, 6] partials=3", "[6, 3] copies=12"], None),
        ("matmul(a, b)", ["[4/2, 6] partials=3", "[6, 3] copies=6"], "[4/2, 3] partials=3"),
        ("matmul(a, b)", ["[4, 6] copies=3", "[6, 3] copies=3"], "[4, 3] copies=3"),
        ("add(a, b)", ["[4] partials=2", "[4] partials=2"], "[4] partials=2"),
        ("add(a, b)", ["[4|2]", "[4|2]"], "[4|2]"),
        ("matmul(a, b)", ["[4|2, 6]", "[6, 3]"], "[4|2, 3]"),
        ("join(a, b)", ["[4/2] partials=3", "[4/2] partials=3"], "[4/2] partials=6"),
        ("reduce(a, degree=2)", ["[4] partials=6"], "[4] partials=3"),
        ("combine(a, dim=0, degree=2)", ["[8/4]"], "[8/2]"),
        ("partition(a, dim=1, degree=2)", ["[8, 8/2]"], "[8, 8/4]"),
        ("replicate(a, degree=3)", ["[8] copies=2"], "[8] copies=6"),
        ("pipeline(a, dim=0, degree=2)", ["[8/2]"], "[8/2|2]"),
        ("batch(a, dim=0, degree=2)", ["[8|4]"], "[8|2]"),
        ("flatten(a, axis=0)", ["[4/2, 6]"], "[24/2]"),
        ("unflatten(a, axis=0, outer=4, inner=6)", ["[24/2]"], "[4/2, 6]"),
        ("transpose(a, dim0=0, dim1=1)", ["[4/2, 6]"], "[6, 4/2]"),
        ("mean_loss(a)", ["[4/2, 6/3] copies=2"], "[] copies=2 partials=6"),
        ("embedding(a, b)", ["[4] copies=2", "[6/2, 3]"], "[4, 3] partials=2"),
        ("softmax(a, axis=1)", ["[4/2, 6] copies=3"], "[4/2, 6] copies=3"),
    ],
)
def test_correct_use_has_its_type(call: str, leaves: list[str], result: str | None):
    if result is None:
        refusal(call, *leaves)
        return
    graph = graph_of(call, *leaves)
    assert str(graph.outputs[0].type) == result


def test_degree_that_is_a_real_number_is_refused():
    assert graph_of("replicate(a, degree=2)", "[4]").outputs[0].type.degrees.copies == 2
    assert refusal("replicate(a, degree=2.0)", "[4]").problem.startswith("degree 2.0")

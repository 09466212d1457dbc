"""Text of graphs: it prints and parses back, and an error of parsing is one line."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import a_third, each
from support.graphs.strategies import graphs

from pcg.errors import InputError
from pcg.graph.graph import Graph, Value, apply, drawn_mask, leaf, tensor
from pcg.language.poly import Poly
from pcg.models import MODELS, build_model
from pcg.ops.algebra import matmul, scale
from pcg.ops.parallel import partition, reduce, replicate
from pcg.ops.reindexing import split
from pcg.plan.text import node_names, parse_graph, parse_values, print_graph, print_value

GOLDEN = """\
x = input[64, 784]
t0 = partition(x, dim=1, degree=2)
w = weight[784/2, 512]
t1 = matmul(t0, w)
t2 = reduce(t1, degree=2)
t3, t4 = split(t2, axis=1, at=256)
t5 = scale(t4, factor=-0.5)
return t3, t5
"""


def golden() -> Graph:
    x = leaf("input", "x", (64, 784))
    w = leaf("weight", "w", (784, 512))
    w = parse_graph(f"{w.node.name} = weight[784/2, 512]\nreturn w").outputs[0]
    product = apply(matmul(), apply(partition(dim=1, degree=2), x), w)
    parts = apply(split(axis=1, at=256), apply(reduce(degree=2), product))
    return Graph((parts, apply(scale(factor=-0.5), Value(parts.node, 1))))


def test_text_of_a_graph_is_fixed():
    assert print_graph(golden()) == GOLDEN
    assert parse_graph(GOLDEN) == golden()


@given(graphs())
def test_round_trip(graph: Graph):
    text = print_graph(graph)
    parsed = parse_graph(text)
    assert parsed == graph
    assert parsed.digest == graph.digest
    assert print_graph(parsed) == text
    assert [v.type for v in parsed.outputs] == [v.type for v in graph.outputs]


@pytest.mark.parametrize("name", a_third([name for name in MODELS if name.endswith("-tiny")]))
def test_models_round_trip(name: str):
    graph = build_model(name, 4, 1)
    assert parse_graph(print_graph(graph)) == graph


@given(graphs())
def test_nested_values_round_trip(graph: Graph):
    leaves = "\n".join(print_graph(Graph((n.value(),))).splitlines()[0] for n in graph.leaves)
    for value in graph.outputs:
        assert parse_graph(f"{leaves}\nreturn {print_value(value)}").outputs == (value,)


monomials = st.lists(st.sampled_from(("k", "|x.0|", "n")), max_size=2).map(
    lambda m: tuple(sorted(m))
)
attributes = st.one_of(
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.tuples(monomials, st.integers(-3, 3)), max_size=3).map(Poly.collect),
)


@given(attributes)
def test_attributes_round_trip(value: int | float | Poly):
    given = apply(scale(factor=value), tensor("x", 1))
    (parsed,) = parse_values(print_value(given), {"x": 1})
    back = parsed.node.operator_call.values["factor"]
    assert back == value or Poly.of(back if not isinstance(back, float) else 0) == value


def test_rules_are_known_by_rank():
    (value,) = parse_values("reduce(matmul(x, w), degree=k)", {"x": 2, "w": 2})
    assert value == apply(
        reduce(degree=Poly.of("k")), apply(matmul(), tensor("x", 2), tensor("w", 2))
    )
    text = "x = tensor[_, _]\nt0 = replicate(x, degree=2*k)\nreturn t0\n"
    assert print_graph(parse_graph(text)) == text


def test_comments_blank_lines_and_nesting():
    text = """
    # a comment
    x = input[4, 6]  # the data

    left = split(replicate(x, degree=2), axis=1, at=2).1
    return left
    """
    x = leaf("input", "x", (4, 6))
    copied = apply(replicate(degree=2), x)
    assert parse_graph(text).outputs == (Value(apply(split(axis=1, at=2), copied).node, 1),)


def test_names_avoid_those_of_leaves():
    graph = Graph((apply(scale(factor=2.0), leaf("input", "t0", (3,))),))
    names = node_names(graph)
    assert names[graph.outputs[0].node] == ("t1",)
    assert parse_graph(print_graph(graph)) == graph


@each(
    ("text", "line", "problem"),
    [
        ("", None, "expected a last line 'return VALUE, ...'"),
        ("x = input[4]", None, "expected a last line 'return VALUE, ...'"),
        ("x = input[4]\nreturn", 2, "expected a value"),
        ("x = input[4]\nreturn y", 2, "unknown value 'y'"),
        ("x = input[4]\nreturn x,", 2, "expected a value"),
        ("x = input[4]\nreturn x x", 2, "unexpected 'x'"),
        ("x = input[4]\nx = input[4]\nreturn x", 2, "x is defined twice"),
        ("x = input[4]\n\n# c\ny = foo(x)\nreturn y", 4, "unknown operator 'foo'"),
        ("x = input[4]\ny = relu(x", 2, "expected ',', got 'the end'"),
        ("x = input[4]\ny = relu(z)", 2, "unknown value 'z'"),
        ("x = input[4]\ny = relu(x, x)", 2, "relu: operand *: 2 operands, expected 1"),
        ("x = input[4]\ny = relu(x, axis=1)", 2, "attributes axis, expected none"),
        ("x = input[4]\ny = softmax(x, axis=0, axis=0)", 2, "attribute axis is given twice"),
        ("x = input[4]\ny = scale(x, factor=)", 2, "expected a number or a symbol, got ')'"),
        ("x = input[4]\ny = scale(x, factor=1e999)", 2, "expected a number or a symbol"),
        ("x = input[4]\ny = scale(x, factor=k + 0.5)", 2, "integer coefficients"),
        ("x = input[4]\ny = scale(x, factor=2" + "0" * 5000 + ")", 2, "expected a number"),
        ("x = input[4]\ny = scale(x, factor=" + "-" * 5000 + "k)\nreturn z", 3, "unknown value"),
        ("x = input[4]\na, b = relu(x)", 2, "2 names for 1 outputs"),
        ("x = input[4]\na, b, c = split(x, axis=0, at=1)", 2, "3 names for 2 outputs"),
        ("x = input[4]\nreturn x.1", 2, "x has no output 1"),
        ("x = input[4]\nreturn " + "relu(" * 300 + "x" + ")" * 300, 2, "nested more than 200 deep"),
        ("x input", 1, "expected 'NAME = OPERATOR(...)'"),
        ("x = input[4/3]", 1, "degree 3 does not divide size 4"),
        ("x = input[4/2|2, 2/2|2]", 1, "degree 4 does not divide size 2"),
        ("x = input[0]", 1, "expected sizes and degrees of 1 or more, got '0'"),
        ("x = input[4/0]", 1, "expected sizes and degrees of 1 or more, got '4/0'"),
        ("x = input[a]", 1, "expected SIZE or SIZE/DEGREE, got 'a'"),
        ("x = input[" + "9" * 5000 + "]", 1, "expected SIZE or SIZE/DEGREE"),
        ("x = input[4] copies=0", 1, "expected 1 or more, got 'copies=0'"),
        ("x = input[4] below 0", 1, "expected 1 or more, got 'below 0'"),
        ("x = input[4] on=2", 1, "expected copies=, partials=, from, below or share, got 'on=2'"),
        ("x = input[4] share 1.2.3", 1, "share 1.2.3, expected a number"),
        ("x = input[4] share -1", 1, "expected copies=, partials=, from, below or share"),
    ],
)  # fmt: skip
def test_parse_errors(text: str, line: int | None, problem: str):
    with pytest.raises(InputError) as caught:
        parse_graph(text, "plan.json: graph")
    error = caught.value
    assert error.where == "plan.json: graph" + (f": line {line}" if line else "")
    assert problem in error.problem
    assert len(str(error).splitlines()) == 1


@given(st.text(alphabet="xyt0=[](),.|/# \n-+*returninputeluscalfo1", max_size=60))
def test_any_text_parses_or_is_one_error(text: str):
    with contextlib.suppress(InputError):
        graph = parse_graph("x = input[4]\n" + text)
        assert parse_graph(print_graph(graph)) == graph


@pytest.mark.parametrize("share", [0.9, 1.0 / 3.0, 1e-05, 0.1 + 0.2])
def test_shares_round_trip(share: float):
    graph = Graph((drawn_mask("a", (4, 6), share),))
    assert parse_graph(print_graph(graph)) == graph

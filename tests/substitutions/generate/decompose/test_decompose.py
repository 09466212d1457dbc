"""Operators as graphs of primitive ones: these are proved, and allow the cuts that operators
refuse."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.cases import check_each, each
from support.graphs.instances import random_instance

from pcg.graph.graph import Graph, Node, Value
from pcg.graph.pairs import GraphPair
from pcg.language.poly import Poly
from pcg.ops import OPERATORS
from pcg.plan.text import parse_graph
from pcg.readings.evaluate import evaluate_shards, meaning
from pcg.readings.ring import Reals
from pcg.types.operator import Call, Operator
from substitutions.generate.decompose.decompose import (
    by_blocks,
    decompose,
    decompositions,
)
from substitutions.rules.match import build, matches, rewrite
from substitutions.rules.rule import Rule, input_ranks, parse_rule, side_text
from verifier.counterexample import random_leaves
from verifier.decide import Verdict, decide
from verifier.instances import Instance
from verifier.trusted.sizes.runs import free_runs, widened

STABLE = (
    *("softmax", "log_softmax", "cross_entropy"),
    *("attention", "causal_attention", "masked_attention"),
)
NEEDED = (
    *STABLE,
    *("layer_norm", "rms_norm", "batch_norm", "ghost_batch_norm"),
    *("sum_loss", "mean_loss", "mean_axis", "embedding_bag"),
)

LOG_SUM_EXP = Operator(
    "log_sum_exp", "x[a..., j@axis, b...] -> out[a..., b...] = log(sum j: exp(x[a..., j, b...]))"
)
BILINEAR = Operator("bilinear", "out[b, o] = sum i, j: x[b, i] * w[o, i, j] * y[b, j]")
VARIANCE = Operator(
    "variance",
    "x[i..., j] -> let mean[i...] = (sum k < |j|: x[i..., k]) / |j|;"
    " out[i...] = (sum j: power(x[i..., j] - mean[i...], 2)) / |j|",
)
SOFT_LOOKUP = Operator(
    "soft_lookup",
    "out[n] = factor * (sum v: exp(x[n, v]) * (ids[n] == v)) / (sum v: exp(x[n, v])) - 1",
    reals=("factor",),
)
OWN = (LOG_SUM_EXP, BILINEAR, VARIANCE, SOFT_LOOKUP)


@each("name", NEEDED)
def test_an_operator_with_an_inner_reduction_is_decomposed(name: str):
    decomposition = decompose(OPERATORS[name])
    assert decomposition.pairs, decomposition.reason
    for pair in decomposition.pairs:
        assert len(Graph(pair[0]).nodes) == 1 + OPERATORS[name].arity
        assert name not in {node.name for node in Graph(pair[1]).nodes}


@cache
def pairs() -> dict[str, GraphPair]:
    """Each operator and its decomposition, by the name of the operator and a number."""
    return {
        f"{name}-{number}": pair
        for name, operator in OPERATORS.items()
        for number, pair in enumerate(decompositions(operator))
    }


@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.soak)], ids=["some", "all"])
def test_decompositions_are_proved(step: int):
    def check(name: str) -> None:
        decision = decide(*pairs()[name])
        assert decision.verdict is Verdict.PROVED, decision.reason

    check_each([*pairs()][::step], check)


@pytest.mark.parametrize("operator", OWN, ids=lambda operator: operator.name)
def test_operators_of_a_user_are_decomposed_and_proved(operator: Operator):
    pairs = decompositions(operator)
    assert pairs, decompose(operator).reason
    for pair in pairs:
        decision = decide(*pair)
        assert decision.verdict is Verdict.PROVED, (side_text(pair[1]), decision.reason)


@settings(max_examples=1, deadline=None)
@given(seed=st.integers(0, 10**6))
def check_values(name: str, seed: int) -> None:
    instance = random_instance(*pairs()[name], Random(seed))
    assume(instance is not None)
    assert instance is not None
    assert_same(instance.left, instance.right, instance, seed)


@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.soak)], ids=["some", "all"])
def test_both_sides_of_a_decomposition_have_the_same_values(step: int):
    """On random types, shard by shard, in floating point."""
    check_each([*pairs()][::step], check_values)


def with_reals(graph: Graph, eps: float) -> Graph:
    """The graph with a number for its only real attribute."""
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        call = node.call
        if isinstance(call, Call):
            given = ((n, eps if v == Poly.of("eps") else v) for n, v in call.attributes)
            call = Call(call.operator, tuple(given))
        new[node] = Node(call, tuple(Value(new[v.node], v.port) for v in node.inputs))
    return Graph(tuple(Value(new[v.node], v.port) for v in graph.outputs))


def assert_same(left: Graph, right: Graph, instance: Instance, seed: int) -> None:
    leaves = random_leaves(instance, Reals(), np.random.default_rng(seed))
    ours, theirs = (evaluate_shards(graph, leaves, Reals()) for graph in (left, right))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(
            meaning(a, Reals()), meaning(b, Reals()), rtol=1e-7, atol=1e-9, equal_nan=True
        )


@pytest.mark.parametrize("name", STABLE)
def test_exponentials_are_relative_to_the_greatest(name: str):
    """Each exponential is of a difference from a maximum, so that none overflows."""
    for pair in decompose(OPERATORS[name]).pairs:
        nodes = Graph(pair[1]).nodes
        exponents = [node.inputs[0].node for node in nodes if node.name == "exp"]
        assert exponents
        for node in exponents:
            assert node.name == "subtract"
            less = node.inputs[1].node
            assert less.name == "expand_as"
            assert less.inputs[1].node.name == "max_axis"


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm", "mean_axis", "attention"])
def test_pair_of_a_decomposition_has_free_axes(name: str):
    (pair,) = decompose(OPERATORS[name]).pairs
    assert free_runs(*pair)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("relu", "nothing is reduced"),
        ("matmul", "primitive"),
        ("conv2d", "not at indices alone"),
        ("avg_pool2d", "not at indices alone"),
        ("max_pool2d", "under a condition"),
    ],
)
def test_operator_without_a_decomposition_has_a_reason(name: str, reason: str):
    decomposition = decompose(OPERATORS[name])
    assert not decomposition.pairs
    assert reason in decomposition.reason


@pytest.mark.parametrize(
    ("equation", "reason"),
    [
        ("out[i] = sum j: x[j, j] * y[i]", "not at indices alone"),
        ("x[j], y[i] -> out[i] = sum k < |j|: eq(x[k], y[i])", "computes eq"),
        ("x[i, j] -> out[i] = sum k < |j|: x[i, k] if i < k else 0", "makes the condition"),
        ("x[i, j] -> out[i] = sum k < |j|: (x[i, k] if 0 < k else 0) / 3", "makes the condition"),
        ("x[i, j] -> out[i] = (sum k < |j|: x[i, k]) / 3", "no floating-point number"),
        ("x[i, j] -> out[i] = sum k < |j|: x[i, k] / (k + 1)", "divides by"),
    ],
)
def test_an_equation_beyond_the_primitives_has_a_reason(equation: str, reason: str):
    decomposition = decompose(Operator("own", equation))
    assert not decomposition.pairs
    assert reason in decomposition.reason


# The rest replays derivations. ``onwards`` moves the operator that joins a cut tensor towards the
# results, by rules around one operator each. Every rule is proved here.


@lru_cache(maxsize=256)
def proved(left: str, right: str, inputs: str) -> Rule:
    """A rule from text, ``inputs`` as in ``x2 y1``: names and ranks."""
    ranks = {text[:-1]: int(text[-1]) for text in inputs.split()}
    rule = parse_rule(left, ranks, left, right)
    decision = decide(rule.left, rule.right)
    assert decision.verdict is Verdict.PROVED, (rule.text, decision.reason)
    return rule


def onwards(rank: int, dim: int) -> list[Rule]:
    """Rules that move ``combine`` along one dimension past an operator."""

    def joined(value: str, dim: int = dim) -> str:
        return f"combine({value}, dim={dim}, degree=k)"

    x, y = joined("x"), joined("y")
    copied = "replicate(y, degree=k)"
    own = [(f"{f}({x})", joined(f"{f}(x)"), f"x{rank}") for f in ("exp", "log", "negate")]
    own += [
        (f"{f}({x}, {y})", joined(f"{f}(x, y)"), f"x{rank} y{rank}")
        for f in ("add", "subtract", "multiply", "divide")
    ]
    for axis in range(rank):
        if axis == dim:
            right = f"reduce(sum_axis(x, axis={axis}), degree=k)"
            spread = joined(f"expand_as(x, {copied}, axis={axis})")
            own.append((f"expand_as({x}, y, axis={axis})", spread, f"x{rank} y{rank - 1}"))
        else:
            right = joined(f"sum_axis(x, axis={axis})", dim - (axis < dim))
            spread = joined(f"expand_vector(x, {copied}, axis={axis})")
            own.append((f"expand_vector({x}, y, axis={axis})", spread, f"x{rank} y1"))
        own.append((f"sum_axis({x}, axis={axis})", right, f"x{rank}"))
    return [proved(*texts) for texts in own]


def blocks(rank: int, dim: int) -> list[Rule]:
    """Rules that take a maximum along a cut dimension within blocks first."""
    x = f"combine(x, dim={dim}, degree=k)"
    apart, inner = f"axis={dim}, outer=a, inner=b", f"axis={dim + 1}"
    return [
        proved(
            f"unflatten({x}, {apart})",
            f"combine(unflatten(x, {apart}), dim={dim}, degree=k)",
            f"x{rank}",
        ),
        proved(
            f"max_axis({x}, {inner})",
            f"combine(max_axis(x, {inner}), dim={dim}, degree=k)",
            f"x{rank + 1}",
        ),
    ]


LOOK_UP = (
    "gather(combine(x, dim=1, degree=k), y)",
    "reduce(gather(x, replicate(y, degree=k)), degree=k)",
    "x2 y2",
)


Place = tuple[str, int]


def as_rule(pair: GraphPair, *, drop: Iterable[Place] = (), double: Iterable[Place] = ()) -> Rule:
    """A decomposition as a rule. Its free axes stand for any number: here none for ``drop``, and
    two for ``double``."""
    left, right = pair
    for place, count in (*((p, 0) for p in drop), *((p, 2) for p in double)):
        group = next(group for group in free_runs(left, right) if place in group)
        left, right = widened(left, right, {group: count})
    decision = decide(left, right)
    assert decision.verdict is Verdict.PROVED
    return Rule(side_text(left), input_ranks((*left, *right)), left, right)


def applied(rule: Rule, graph: Graph, **free: int) -> Graph:
    """The graph after the first possible application of a rule."""
    for match in matches(rule, graph):
        outputs = build(rule, match, free)
        if outputs is not None:
            return rewrite(graph, match, outputs)
    raise AssertionError(f"{rule.text} does not apply")


def moved(rules: list[Rule], graph: Graph) -> Graph:
    """The graph after all possible applications of rules."""
    for _ in range(100):
        steps = (
            rewrite(graph, match, outputs)
            for rule in rules
            for match in matches(rule, graph)
            if (outputs := build(rule, match, {})) is not None
        )
        after = next(steps, None)
        if after is None:
            return graph
        graph = after
    raise AssertionError("rules go on for ever")


def communication(graph: Graph) -> dict[str, int]:
    """The largest tensor, in elements, that each kind of parallel operator moves."""
    counts: dict[str, int] = {}
    for node in graph.nodes:
        if node.is_parallel:
            counts[node.name] = max(counts.get(node.name, 0), node.inputs[0].type.elements)
    return counts


def assert_cut(graph: Graph, result: Value, size: int, degree: int) -> None:
    """Check that every tensor with a dimension of this size, except the result, is cut along it."""
    for node in graph.nodes:
        for value in map(node.value, range(len(node.types))):
            for length, cut in zip(value.type.shape, value.type.degrees.dims, strict=True):
                assert length != size or cut == degree or value == result


def assert_replayed(start: Graph, end: Graph) -> None:
    assert [v.type for v in start.outputs] == [v.type for v in end.outputs]
    assert_same(start, end, Instance(start, end, {}), seed=1)


def test_softmax_over_a_cut_axis():
    """Only maxima and sums are moved, one for each row and shard."""
    start = parse_graph(
        "x = input[6, 20/4]\nreturn partition(softmax(combine(x, dim=1, degree=4), axis=1),"
        " dim=1, degree=4)"
    )
    whole = as_rule(decompose(OPERATORS["softmax"]).pairs[0], drop=[("x", 2)])
    greatest = as_rule(by_blocks(OPERATORS["max_axis"])[0], drop=[("x", 2)])
    cancel = proved("partition(combine(x, dim=1, degree=k), dim=1, degree=k)", "x", "x2")
    graph = applied(greatest, applied(whole, start), k=4, n=5)
    end = moved([*onwards(2, 1), *blocks(2, 1), cancel], graph)
    assert_replayed(start, end)
    assert communication(end) == {"combine": 6 * 4, "reduce": 6, "replicate": 6}
    assert_cut(end, end.outputs[0], 20, 4)


def test_cross_entropy_over_a_cut_vocabulary():
    start = parse_graph(
        "logits = input[6, 20/4]\ntarget = input[6] below 20\n"
        "return cross_entropy(combine(logits, dim=1, degree=4), target)"
    )
    whole = as_rule(decompose(OPERATORS["cross_entropy"]).pairs[0])
    greatest = as_rule(by_blocks(OPERATORS["max_axis"])[0], drop=[("x", 2)])
    graph = applied(greatest, applied(whole, start), k=4, n=5)
    end = moved([*onwards(2, 1), *blocks(2, 1), proved(*LOOK_UP)], graph)
    assert_replayed(start, end)
    assert communication(end) == {"combine": 6 * 4, "reduce": 6, "replicate": 6}
    assert_cut(end, end.outputs[0], 20, 4)


def test_batch_norm_over_a_cut_batch():
    """Only sums of each channel are moved: the statistics of the whole batch."""
    start = parse_graph(
        "x = input[20/4, 3, 7]\nweight = weight[3]\nbias = weight[3]\n"
        "return partition(batch_norm(combine(x, dim=0, degree=4), weight, bias, eps=0.01),"
        " dim=0, degree=4)"
    )
    pair = next(p for p in decompose(OPERATORS["batch_norm"]).pairs if p[0][0].rank == 3)
    cancel = proved("partition(combine(x, dim=0, degree=k), dim=0, degree=k)", "x", "x3")
    rules = [*onwards(3, 0), *onwards(2, 0), cancel]
    end = moved(rules, applied(as_rule(pair), start))
    assert_replayed(start, end)
    assert communication(end) == {"reduce": 3, "replicate": 3}
    assert_cut(end, end.outputs[0], 20, 4)


def test_attention_over_cut_keys():
    """Each shard attends to its keys. The moved tensors have the size of queries and of results."""
    start = parse_graph(
        "q = input[2, 6, 5]\nk = input[2, 20/4, 5]\nv = input[2, 20/4, 3]\n"
        "return attention(q, combine(k, dim=1, degree=4), combine(v, dim=1, degree=4))"
    )
    greatest = as_rule(by_blocks(OPERATORS["max_axis"])[0], drop=[("x", 2)], double=[("x", 0)])
    more = [
        ("transpose(combine(x, dim=1, degree=k), dim0=1, dim1=2)",
         "combine(transpose(x, dim0=1, dim1=2), dim=2, degree=k)", "x3"),
        ("batch_matmul(x, combine(y, dim=2, degree=k))",
         "combine(batch_matmul(replicate(x, degree=k), y), dim=2, degree=k)", "x3 y3"),
        ("batch_matmul(combine(x, dim=2, degree=k), combine(y, dim=1, degree=k))",
         "reduce(batch_matmul(x, y), degree=k)", "x3 y3"),
        ("divide_by_root(combine(x, dim=2, degree=k), size=n)",
         "combine(divide_by_root(x, size=n), dim=2, degree=k)", "x3"),
    ]  # fmt: skip
    rules = [*onwards(3, 2), *(proved(*texts) for texts in more), *blocks(3, 2)]
    graph = moved(rules, applied(as_rule(decompose(OPERATORS["attention"]).pairs[0]), start))
    end = moved(rules, applied(greatest, graph, k=4, n=5))
    assert_replayed(start, end)
    assert communication(end) == {"combine": 48, "reduce": 36, "replicate": 60}
    assert_cut(end, end.outputs[0], 20, 4)

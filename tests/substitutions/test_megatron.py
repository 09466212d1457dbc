"""Figure 10 of the Unity paper: Megatron's plan for attention and for the feed-forward block, as a
sequence of small steps. Every step is an application of a rule of the committed library.

The steps are given here as graphs. The rule of a step is looked up, in both directions of every
rule.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

import numpy as np
import pytest
from support.graphs.strategies import parts_of_leaves

from pcg.graph.graph import Graph
from pcg.plan.text import parse_graph
from pcg.readings.evaluate import evaluate_shards, meaning
from pcg.readings.ring import Reals
from substitutions.rules.match import build, matches, rewrite
from substitutions.rules.rule import Rule
from substitutions.rules.store import Library, load_library

K = "degree=2"


def cut(value: str, dim: int) -> str:
    return f"partition({value}, dim={dim}, {K})"


def joined(value: str, dim: int) -> str:
    return f"combine({value}, dim={dim}, {K})"


def column(x: str, weight: str) -> str:
    """A layer cut by columns: each device has some columns of the weight."""
    return f"matmul(replicate({x}, {K}), {cut(weight, 1)})"


def row(x: str, weight: str) -> str:
    """A layer cut by rows: each device has some rows of the weight, and a part of every sum."""
    return f"reduce(matmul({x}, {cut(weight, 0)}), {K})"


def divided(value: str) -> str:
    return f"unflatten({value}, axis=2, outer=4, inner=4)"


def turned(value: str) -> str:
    return f"transpose({value}, dim0=1, dim1=2)"


def flat(value: str) -> str:
    return f"flatten({value}, axis=2)"


def gelu(value: str) -> str:
    return f"gelu({value})"


FEED_FORWARD = """
x = input[2, 4, 16]
a = weight[16, 32]
b = weight[32, 16]
return {}
"""
ATTENTION = """
x = input[2, 4, 16]
q = weight[16, 16]
k = weight[16, 16]
v = weight[16, 16]
o = weight[16, 16]
return {}
"""


def feed_forward() -> Iterator[str]:
    yield f"matmul({gelu('matmul(x, a)')}, b)"
    made = column("x", "a")
    yield f"matmul({gelu(joined(made, 2))}, b)"
    yield f"matmul({joined(gelu(cut(joined(made, 2), 2)), 2)}, b)"
    yield f"matmul({joined(gelu(made), 2)}, b)"
    yield row(cut(joined(gelu(made), 2), 2), "b")
    yield row(gelu(made), "b")


def projection(weight: str) -> Iterator[str]:
    """The heads of a projection, joined at last from those of each device."""
    yield turned(divided(f"matmul(x, {weight})"))
    made = column("x", weight)
    yield turned(divided(joined(made, 2)))
    yield turned(joined(divided(cut(joined(made, 2), 2)), 2))
    yield turned(joined(divided(made), 2))
    yield joined(turned(cut(joined(divided(made), 2), 2)), 1)
    yield joined(turned(divided(made)), 1)


def attention() -> Iterator[str]:
    def block(q: str, k: str, v: str) -> str:
        return f"matmul({flat(turned(f'attention({q}, {k}, {v})'))}, o)"

    now = [next(projection(weight)) for weight in "qkv"]
    yield block(*now)
    for place, weight in enumerate("qkv"):
        for step in list(projection(weight))[1:]:
            now[place] = step
            yield block(*now)
    parts = [cut(heads, 1) for heads in now]
    for place, weight in enumerate("qkv"):
        made = f"attention({', '.join(parts)})"
        yield f"matmul({flat(turned(joined(made, 1)))}, o)"
        parts[place] = turned(divided(column("x", weight)))
    made = f"attention({', '.join(parts)})"
    yield f"matmul({flat(turned(joined(made, 1)))}, o)"
    yield f"matmul({flat(joined(turned(cut(joined(made, 1), 1)), 2))}, o)"
    yield f"matmul({flat(joined(turned(made), 2))}, o)"
    yield f"matmul({joined(flat(cut(joined(turned(made), 2), 2)), 2)}, o)"
    yield f"matmul({joined(flat(turned(made)), 2)}, o)"
    yield row(cut(joined(flat(turned(made)), 2), 2), "o")
    yield row(flat(turned(made)), "o")


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def rule_between(
    library: Library, before: Graph, after: Graph, known: Collection[str] = ()
) -> Rule | None:
    """A rule that rewrites the first graph to the second in one application. ``known``: names of
    rules to try first."""
    ways = [way for both in library.concrete(before) for way in (both, both.reversed)]
    for rule in sorted(ways, key=lambda way: way.name not in known):
        if not rule.is_applicable:
            continue
        free = dict.fromkeys(rule.free_symbols, 2)
        for match in matches(rule, before):
            outputs = build(rule, match, free)
            if outputs is not None and rewrite(before, match, outputs).digest == after.digest:
                return rule
    return None


@pytest.mark.parametrize(
    ("leaves", "steps"),
    [(FEED_FORWARD, feed_forward), pytest.param(ATTENTION, attention, marks=pytest.mark.soak)],
)
def test_every_step_is_an_application_of_a_library_rule(library, leaves, steps):
    graphs = [parse_graph(leaves.format(text)) for text in steps()]
    known: set[str] = set()
    for before, after in itertools.pairwise(graphs):
        rule = rule_between(library, before, after, known)
        assert rule is not None, f"{before.outputs[0]} to {after.outputs[0]}"
        known.add(rule.name)
    parts = parts_of_leaves(graphs[0], 1, Reals())
    first, last = (
        [meaning(value, Reals()) for value in evaluate_shards(graph, parts, Reals())]
        for graph in (graphs[0], graphs[-1])
    )
    np.testing.assert_allclose(last[0], first[0], rtol=1e-9)


def test_no_rule_makes_a_step_that_is_wrong(library):
    """Without the sum over devices, the function is another one."""
    before, *_, after = (parse_graph(FEED_FORWARD.format(text)) for text in feed_forward())
    wrong = parse_graph(FEED_FORWARD.format("matmul(gelu(matmul(x, a)), scale(b, factor=2.0))"))
    assert rule_between(library, before, wrong) is None
    assert rule_between(library, before, after) is None

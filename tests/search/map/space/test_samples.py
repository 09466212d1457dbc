"""Which inputs have samples: a constant is no sample, however long it is."""

from __future__ import annotations

import pytest
from fidelity.models import Gpt
from fidelity.price import graph_of

from pcg.graph.graph import Graph, apply, leaf
from pcg.ops import OPERATORS
from pcg.plan.text import parse_graph
from search.map.space.allow import batch_axes
from search.map.space.samples import sampled
from search.pipeline.streams import streams
from substitutions.rules.store import load_library


def names(graph: Graph) -> set[str]:
    return {value.node.leaf.name for value in sampled(graph)}


@pytest.mark.parametrize(
    ("batch", "sequence", "dropout"),
    [
        (4, 4, 0.1),
        *(
            pytest.param(*sizes, dropout, marks=pytest.mark.soak)
            for sizes in ((2, 4), (6, 6), (8, 2))
            for dropout in (0.0, 0.1)
        ),
    ],
)
def test_a_causal_mask_has_no_samples_whatever_the_batch(batch, sequence, dropout):
    """A mask has the shape of samples if there are as many samples as tokens. Its readers show that
    it is none."""
    model = Gpt(1, 16, 2, sequence, 10, dropout=dropout)
    graph, unlike = graph_of(model, batch), graph_of(model, 3 * sequence + 1)
    assert names(graph) == names(unlike)
    assert {"tokens", "labels"} <= names(graph)
    assert not any("mask" in name for name in names(graph))
    # The numbers of dropout are named after their place, so operators are compared in their order.
    axes, others = batch_axes(graph), batch_axes(unlike)
    assert [axes.get(n) for n in graph.operators] == [others.get(n) for n in unlike.operators]


def test_batch_is_found_if_it_is_as_large_as_the_sequence():
    graph = graph_of(Gpt(1, 16, 2, 8, 10, dropout=0.0), 8)
    assert streams(graph, load_library()).batch == 8


@pytest.mark.parametrize("has_weights", [False, True])
def test_two_towers_both_have_samples(has_weights):
    """A product compares all samples of one tower with all of the other. Features without trained
    weights are read as a constant table; those of a tower with weights are samples."""
    left, right = leaf("input", "images", (6, 4)), leaf("input", "texts", (6, 4))
    left = apply(OPERATORS["matmul"](), left, leaf("weight", "w0", (4, 4)))
    if has_weights:
        right = apply(OPERATORS["matmul"](), right, leaf("weight", "w1", (4, 4)))
    turned = apply(OPERATORS["transpose"](dim0=0, dim1=1), right)
    graph = Graph((apply(OPERATORS["mean_loss"](), apply(OPERATORS["matmul"](), left, turned)),))
    graph.check()
    assert names(graph) == ({"images", "texts"} if has_weights else {"images"})


ENCODED = """
ids = input[4] below 9
features = input[4, 4, 6]
positions = input[4, 8]
w = weight[6, 8]
table = weight[9, 8]
hidden = matmul(features, w)
encoded = mean_axis(relu(add(hidden, expand_as(hidden, positions, axis=0))), axis=1)
return mean_loss(multiply(embedding(ids, table), encoded))
"""


def test_a_constant_is_found_beside_samples_of_another_input():
    """The first input never meets the positions. It is read beside the features, and they are."""
    graph = parse_graph(ENCODED)
    assert names(graph) == {"ids", "features"}
    assert streams(graph, load_library()).batch == 4


def test_a_mask_is_repeated_slice_by_slice():
    """Operators that read no samples are computed for the whole batch at once, so they may read
    none."""
    graph = graph_of(Gpt(1, 16, 2, 8, 10, dropout=0.0), 7)
    source = streams(graph, load_library())
    once = [n for n in source.graph.operators if n not in source.axes and n not in source.tail]
    assert {node.name for node in once} == {"expand", "transpose"}
    assert not [v for node in once for v in node.outputs if 7 in v.type.shape]

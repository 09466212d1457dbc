"""Rules that are well known by name are in the committed library, as instances of general rules
that were found and not planted."""

from __future__ import annotations

import pytest
from support.cases import each

from pcg.ops import OPERATORS
from substitutions.generate.decompose.decompose import decompositions
from substitutions.rules.general import GeneralForm, is_instance
from substitutions.rules.rule import parse_rule
from substitutions.rules.store import Library, load_library

K = "degree=k"
WINDOW = (
    "height=height, width=width, stride_h=stride_h, stride_w=stride_w,"
    " dilation_h=dilation_h, dilation_w=dilation_w, top=top, left=left"
)
POOL = (
    "height=height, width=width, kernel_h=kernel_h, kernel_w=kernel_w,"
    " stride_h=stride_h, stride_w=stride_w, top=top, left=left"
)

NAMED: dict[str, tuple[dict[str, int], str, str]] = {
    "row-parallel matmul": (
        {"x": 2, "y": 2},
        "matmul(x, y)",
        f"combine(matmul(partition(x, dim=0, {K}), replicate(y, {K})), dim=0, {K})",
    ),
    "column-parallel matmul": (
        {"x": 2, "y": 2},
        "matmul(x, y)",
        f"combine(matmul(replicate(x, {K}), partition(y, dim=1, {K})), dim=1, {K})",
    ),
    "reduction-parallel matmul": (
        {"x": 2, "y": 2},
        "matmul(x, y)",
        f"reduce(matmul(partition(x, dim=1, {K}), partition(y, dim=0, {K})), {K})",
    ),
    "matmul of partial sums": (
        {"x": 2, "y": 2},
        f"matmul(reduce(x, {K}), y)",
        f"reduce(matmul(x, replicate(y, {K})), {K})",
    ),
    "attention heads": (
        {"x": 4, "y": 4, "z": 4},
        "attention(x, y, z)",
        (
            f"combine(attention(partition(x, dim=1, {K}), partition(y, dim=1, {K}),"
            f" partition(z, dim=1, {K})), dim=1, {K})"
        ),
    ),
    "sequence-parallel attention": (
        {"x": 4, "y": 4, "z": 4},
        "attention(x, y, z)",
        (
            f"combine(attention(partition(x, dim=2, {K}), replicate(y, {K}), replicate(z, {K})),"
            f" dim=2, {K})"
        ),
    ),
    "vocabulary-parallel embedding": (
        {"x": 2, "y": 2},
        "embedding(x, y)",
        f"reduce(embedding(replicate(x, {K}), partition(y, dim=0, {K})), {K})",
    ),
    "sample-parallel convolution": (
        {"x": 4, "y": 4},
        f"conv2d(x, y, {WINDOW})",
        f"combine(conv2d(partition(x, dim=0, {K}), replicate(y, {K}), {WINDOW}), dim=0, {K})",
    ),
    "channel-parallel convolution": (
        {"x": 4, "y": 4},
        f"conv2d(x, y, {WINDOW})",
        f"combine(conv2d(replicate(x, {K}), partition(y, dim=0, {K}), {WINDOW}), dim=1, {K})",
    ),
    "spatial cut of a convolution, with halo": (
        {"x": 4, "y": 4},
        "conv2d(x, y, " + WINDOW + ")",
        (
            f"combine(conv2d(partition(x, dim=2, {K}, before=before, after=after),"
            f" replicate(y, {K}), {WINDOW}), dim=2, {K})"
        ),
    ),
    "spatial cut of a pooling, with halo": (
        {"x": 4},
        f"max_pool2d(x, {POOL})",
        (
            f"combine(max_pool2d(partition(x, dim=3, {K}, before=before, after=after),"
            f" {POOL}), dim=3, {K})"
        ),
    ),
    "softmax along a free axis": (
        {"x": 3},
        "softmax(x, axis=2)",
        f"combine(softmax(partition(x, dim=1, {K}), axis=2), dim=1, {K})",
    ),
    "layer norm along a free axis": (
        {"x": 3, "y": 1, "z": 1},
        "layer_norm(x, y, z, eps=eps)",
        (
            f"combine(layer_norm(partition(x, dim=0, {K}), replicate(y, {K}), replicate(z, {K}),"
            f" eps=eps), dim=0, {K})"
        ),
    ),
    "pooling along samples": (
        {"x": 4},
        f"max_pool2d(x, {POOL})",
        f"combine(max_pool2d(partition(x, dim=0, {K}), {POOL}), dim=0, {K})",
    ),
    "loss over a cut batch": (
        {"x": 2, "y": 1},
        "cross_entropy(x, y)",
        f"reduce(cross_entropy(partition(x, dim=0, {K}), partition(y, dim=0, {K})), {K})",
    ),
    "element-wise operators anywhere": (
        {"x": 3},
        "gelu(x)",
        f"combine(gelu(partition(x, dim=1, {K})), dim=1, {K})",
    ),
    "add as join, then reduce": (
        {"x": 2, "y": 2},
        "reduce(join(x, y), degree=2)",
        "add(x, y)",
    ),
    "merging matmuls that share an input": (
        {"x": 2, "y": 2, "z": 2},
        "matmul(x, y), matmul(x, z)",
        (
            "split(matmul(x, concat(y, z, axis=1)), axis=1, at=|y.1|).0,"
            " split(matmul(x, concat(y, z, axis=1)), axis=1, at=|y.1|).1"
        ),
    ),
    "merging convolutions that share an input": (
        {"x": 4, "y": 4, "z": 4},
        f"conv2d(x, y, {WINDOW}), conv2d(x, z, {WINDOW})",
        (
            f"split(conv2d(x, concat(y, z, axis=0), {WINDOW}), axis=1, at=|y.0|).0,"
            f" split(conv2d(x, concat(y, z, axis=0), {WINDOW}), axis=1, at=|y.0|).1"
        ),
    ),
    "partition and combine cancel": (
        {"x": 3},
        f"combine(partition(x, dim=1, {K}), dim=1, {K})",
        "x",
    ),
    "combine and partition cancel": (
        {"x": 3},
        f"partition(combine(x, dim=1, {K}), dim=1, {K})",
        "x",
    ),
    "partitions commute": (
        {"x": 3},
        f"partition(partition(x, dim=0, {K}), dim=2, degree=k2)",
        f"partition(partition(x, dim=2, degree=k2), dim=0, {K})",
    ),
    "replicate and partition commute": (
        {"x": 2},
        f"replicate(partition(x, dim=0, degree=k2), {K})",
        f"partition(replicate(x, {K}), dim=0, degree=k2)",
    ),
    "replicates merge": (
        {"x": 2},
        f"replicate(replicate(x, {K}), degree=k2)",
        "replicate(x, degree=k*k2)",
    ),
    "reduces merge": (
        {"x": 2},
        f"reduce(reduce(x, {K}), degree=k2)",
        "reduce(x, degree=k*k2)",
    ),
    "replicate and reduce commute": (
        {"x": 2},
        f"replicate(reduce(x, degree=k2), {K})",
        f"reduce(replicate(x, {K}), degree=k2)",
    ),
    "matmul is associative": (
        {"x": 2, "y": 2, "z": 2},
        "matmul(matmul(x, y), z)",
        "matmul(x, matmul(y, z))",
    ),
}


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


@each("name", NAMED)
def test_named_rule_is_in_the_library(library: Library, name: str) -> None:
    inputs, left, right = NAMED[name]
    stated = parse_rule(name, inputs, left, right)
    wanted = GeneralForm(stated.left, stated.right)
    rules = (GeneralForm(rule.left, rule.right, rule.runs) for rule in library.rules)
    assert any(is_instance(wanted, rule) for rule in rules), stated.text


@pytest.mark.parametrize(
    "name", ["softmax", "cross_entropy", "batch_norm", "layer_norm", "attention", "max_axis"]
)
def test_decompositions_for_cuts_along_reduced_axes_are_in_the_library(
    library: Library, name: str
) -> None:
    """The cases are the vocabulary of a cross-entropy, the batch of a batch norm, the axis of a
    softmax, and the keys of attention. Each rule is the operator as its primitive steps, whose sums
    may be cut. ``test_decompose`` replays that these lead to such a cut."""
    actual = decompositions(OPERATORS[name])
    rules = [GeneralForm(rule.left, rule.right, rule.runs) for rule in library.rules]
    wanted = [GeneralForm(*pair) for pair in actual]
    assert any(is_instance(pair, rule) for pair in wanted for rule in rules)

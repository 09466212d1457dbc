"""Annotations as users write them: their meaning, and the errors of wrong ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcg.errors import InputError
from pcg.graph.graph import Value
from pcg.plan.text import parse_graph
from search.planners.gspmd.annotations import (
    TensorAnnotation,
    annotated,
    parse_annotation,
    parse_mesh,
    sharding_text,
)

PRIMES = (2, 2, 3)
MESH = parse_mesh("data=4,model=3", PRIMES)
GRAPH = parse_graph("""
x = input[12, 8]
layers_0_weight = weight[8, 6]
layers_1_weight = weight[6, 9]
h = relu(matmul(x, layers_0_weight))
return mean_loss(matmul(h, layers_1_weight))
""")


def test_axes_are_runs_of_the_machines_outermost_first():
    assert MESH.runs == ((0, 2), (2, 3))
    assert parse_mesh("a=2,one=1,b=6", PRIMES).runs == ((0, 1), (1, 1), (1, 3))
    assert parse_mesh("", ()).names == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data=3,model=4", "data=3, expected a product of neighbours in 2 x 2 x 3"),
        ("data=4", "4 devices, expected 12 as the machine has"),
        ("data=4,data=3", "data is given twice"),
        ("data=four,model=3", "data=four, expected NAME=DEVICES"),
        ("data=0,model=3", "expected 1 to"),
        (f"data={'9' * 5000}", "expected 1 to"),
        ("a b=12", "expected NAME=DEVICES"),
        ("=12", "expected NAME=DEVICES"),
    ],
)
def test_wrong_meshes_are_refused(text: str, says: str):
    with pytest.raises(InputError, match=says) as caught:
        parse_mesh(text, PRIMES)
    assert str(caught.value).startswith("--mesh: ")


@pytest.mark.parametrize(
    ("shard", "says"),
    [
        ("x=data", r"x: 1 dimensions for a tensor of \[12, 8\], expected 2"),
        ("x=data,data", "x: data is used twice"),
        ("x=rows,-", "no axis 'rows', expected data, model, - or \\?"),
        ("x=-,model", "model cuts dimension 1 in 3 parts, expected a divisor of its size 8"),
        ("x=model+data,-", "expected the outer axis first: data\\+model"),
        ("x", "x, expected NAME=AXIS"),
        ("layer_0_weight=-,-", "no such tensor in the model \\(near it are layers_0_weight"),
        ("qqqqqqqq=-,-", "no such tensor in the model \\(the graph has"),
        ("*weight=-,data", "layers_0_weight: data cuts dimension 1 in 4 parts"),
    ],
)
def test_wrong_annotations_are_refused(shard: str, says: str):
    with pytest.raises(InputError, match=says) as caught:
        annotated(GRAPH, [shard], MESH)
    assert str(caught.value).startswith("--shard")
    assert "\n" not in str(caught.value)


def test_tensor_that_is_annotated_twice_is_refused():
    with pytest.raises(InputError, match="layers_0_weight: is annotated twice"):
        annotated(GRAPH, ["layers.0.weight=-,-", "*_weight=-,-"], MESH)


def test_names_are_those_of_the_graph_or_of_the_module_or_patterns():
    annotations = annotated(GRAPH, ["layers.0.weight=data,model", "t0=?,-"], MESH)
    by_rank: dict[str, TensorAnnotation] = {
        value.node.leaf.name if value.node.is_leaf else value.node.name: own
        for value, own in annotations.items()
    }
    assert by_rank["layers_0_weight"].axes == {0: 0, 1: 1}
    assert by_rank["matmul"].open == {0}
    some: dict[Value, TensorAnnotation] = dict(annotated(GRAPH, ["layers_*=?,?"], MESH))
    assert len(some) == 2


@given(st.lists(st.sampled_from([0, 1, 2, None]), min_size=2, max_size=2), st.integers(1, 3))
def test_a_sharding_is_printed_as_it_is_written(dims: list[int | None], rank: int):
    axes = {axis: dim for axis, dim in enumerate(dims) if dim is not None and dim < rank}
    text = sharding_text(axes, rank, MESH).strip("[]")
    assert parse_annotation(text, [12] * rank, MESH, "x").axes == axes

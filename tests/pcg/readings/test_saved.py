"""Saved tensors: no more and no less than torch's gradients depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from support.cases import each

from pcg.graph.graph import Node, leaf
from pcg.graph.opaque import TensorType, opaque
from pcg.ops import OPERATORS
from pcg.readings.differentiated import differentiated
from pcg.readings.saved import Reads, back_reads, is_pointwise, view_of
from pcg.types.operator import Call
from pcg.types.task import KernelTask

MATRIX = (4, 6)
CALLS: list[tuple[str, dict[str, int | float], list[tuple[int, ...]]]] = [
    ("matmul", {}, [(4, 6), (6, 3)]),
    ("add", {}, [MATRIX, MATRIX]),
    ("subtract", {}, [MATRIX, MATRIX]),
    ("multiply", {}, [MATRIX, MATRIX]),
    ("divide", {}, [MATRIX, MATRIX]),
    ("scale", {"factor": 3.0}, [MATRIX]),
    ("shift", {"offset": 3.0}, [MATRIX]),
    ("gelu", {}, [MATRIX]),
    ("silu", {}, [MATRIX]),
    ("softmax", {"axis": 1}, [MATRIX]),
    ("layer_norm", {"eps": 1e-5}, [MATRIX, (6,), (6,)]),
    ("attention", {}, [(2, 3, 4), (2, 5, 4), (2, 5, 3)]),
    ("transpose", {"dim0": 0, "dim1": 1}, [MATRIX]),
    ("concat", {"axis": 0}, [MATRIX, MATRIX]),
    ("expand_vector", {"axis": 1}, [MATRIX, (6,)]),
    ("sum_axis", {"axis": 0}, [MATRIX]),
    ("max_axis", {"axis": 0}, [MATRIX]),
    ("dropout", {"scale": 2.0}, [MATRIX, MATRIX]),
]


PLAIN: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "scale": lambda x: 3.0 * x,
    "shift": lambda x: x + 3.0,
    "gelu": torch.nn.functional.gelu,
    "dropout": lambda x, mask: 2.0 * x * mask,
    "relu": torch.relu,
}
"""Torch's functions for operators without a kernel of their own."""


def node_of(
    name: str, attributes: Mapping[str, int | float], shapes: list[tuple[int, ...]]
) -> Node:
    leaves = tuple(leaf("weight", f"x{i}", shape) for i, shape in enumerate(shapes))
    return Node(OPERATORS[name](**attributes), leaves)


def gradients(call: Call, operands: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradients of a fixed sum of the outputs' elements, for each operand."""
    given = [operand.clone().requires_grad_() for operand in operands]
    if call.name in PLAIN:
        result = PLAIN[call.name](*given)
    else:
        assert call.operator.kernel is not None
        result = call.operator.kernel(KernelTask(call.values, {}, {}), *given)
    weights = torch.arange(1.0, result.numel() + 1, dtype=torch.float64).reshape(result.shape)
    return list(torch.autograd.grad((result * weights).sum(), given, allow_unused=True))


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    zero = torch.zeros((), dtype=torch.float64)
    return torch.allclose(zero if a is None else a, zero if b is None else b)


@each(("name", "attributes", "shapes"), CALLS, ids=[c[0] for c in CALLS])
def test_gradients_depend_on_exactly_the_saved_tensors(name, attributes, shapes):
    node = node_of(name, attributes, shapes)
    generator = torch.Generator().manual_seed(3)
    operands = [torch.rand(s, generator=generator, dtype=torch.float64) for s in shapes]
    others = [torch.rand(s, generator=generator, dtype=torch.float64) for s in shapes]
    before = gradients(node.operator_call, operands)
    for wanted in range(len(shapes)):
        read = back_reads(node, frozenset({wanted}))[0]
        assert not read.outputs
        for position in range(len(shapes)):
            changed = [*operands]
            changed[position] = others[position]
            after = gradients(node.operator_call, changed)
            unchanged = same(before[wanted], after[wanted])
            assert unchanged == (position not in read.operands), (wanted, position)


@pytest.mark.parametrize("name", ["relu", "exp", "reciprocal", "sqrt", "rsqrt", "sigmoid", "tanh"])
def test_an_output_may_stand_for_an_operand(name):
    node = node_of(name, {}, [MATRIX])
    ways = back_reads(node, frozenset({0}))
    assert ways == (Reads(frozenset({0})), Reads(outputs=frozenset({0})))
    # Two arguments with one value have one slope: gradients are a function of the output.
    if name == "relu":
        negative = [-torch.ones(MATRIX, dtype=torch.float64), -torch.full(MATRIX, 2.0).double()]
        call = node.operator_call
        assert same(gradients(call, negative[:1])[0], gradients(call, negative[1:])[0])


@pytest.mark.parametrize("name", ["gelu", "silu", "softmax"])
def test_an_output_that_does_not_tell_is_not_taken(name):
    attributes = {"axis": 1} if name == "softmax" else {}
    assert len(back_reads(node_of(name, attributes, [MATRIX]), frozenset({0}))) == 1


def test_a_sum_is_not_computed_again_for_the_slope_of_its_function():
    node = node_of("matmul_relu", {}, [(4, 6), (6, 3)])
    both, weight = (back_reads(node, frozenset(wanted)) for wanted in ({0, 1}, {1}))
    assert both == (Reads(frozenset({0, 1}), frozenset({0})),)
    assert weight == (Reads(frozenset({0}), frozenset({0})),)


def test_operand_read_for_its_shape_gets_no_gradient():
    assert differentiated(node_of("expand_vector", {"axis": 1}, [MATRIX, (6,)])) == {1}
    assert differentiated(node_of("multiply", {}, [MATRIX, MATRIX])) == {0, 1}
    assert differentiated(node_of("matmul_relu", {}, [(4, 6), (6, 3)])) == {0, 1}


def test_look_ups_and_losses_read_their_labels():
    ids, table = leaf("input", "ids", (4,), below=6), leaf("weight", "table", (6, 3))
    embedding = Node(OPERATORS["embedding"](), (ids, table))
    assert back_reads(embedding, frozenset({1})) == (Reads(frozenset({0})),)
    loss = Node(OPERATORS["cross_entropy"](), (leaf("weight", "x", (4, 6)), ids))
    assert back_reads(loss, frozenset({0})) == (Reads(frozenset({0, 1})),)


def test_no_gradient_means_no_saved_tensors():
    assert back_reads(node_of("matmul", {}, [(4, 6), (6, 3)]), frozenset()) == (Reads(),)


def test_an_opaque_operator_may_read_everything():
    kind = TensorType((4, 6), "float32")
    node = Node(
        opaque("aten.cumsum.default(x0, 1)", [kind], [kind])(), (leaf("weight", "x", MATRIX),)
    )
    assert back_reads(node, frozenset({0})) == (Reads(frozenset({0}), frozenset({0})),)
    assert view_of(node, 0) is None
    assert not is_pointwise(node)


@pytest.mark.parametrize(
    ("name", "attributes", "shapes", "expected"),
    [
        ("transpose", {"dim0": 0, "dim1": 1}, [MATRIX], 0),
        ("flatten", {"axis": 0}, [MATRIX], 0),
        ("slice", {"axis": 0, "start": 1, "size": 3}, [MATRIX], 0),
        ("slice", {"axis": 0, "start": 2, "size": 3}, [MATRIX], None),
        ("pad", {"axis": 0, "before": 1, "size": 6}, [MATRIX], None),
        ("expand", {"axis": 0, "size": 3}, [MATRIX], 0),
        ("expand_vector", {"axis": 1}, [MATRIX, (6,)], 1),
        ("concat", {"axis": 0}, [MATRIX, MATRIX], None),
        ("scale", {"factor": 2.0}, [MATRIX], None),
    ],
)
def test_view_operators_name_the_operand_they_view(name, attributes, shapes, expected):
    assert view_of(node_of(name, attributes, shapes), 0) == expected


def test_both_parts_of_a_split_are_views():
    node = node_of("split", {"axis": 0, "at": 1}, [MATRIX])
    assert [view_of(node, port) for port in range(2)] == [0, 0]


def test_operators_that_reduce_are_not_pointwise():
    for name, attributes, shapes in CALLS:
        reduces = name in ("matmul", "softmax", "layer_norm", "attention", "sum_axis", "max_axis")
        assert is_pointwise(node_of(name, attributes, shapes)) != reduces

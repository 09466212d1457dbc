"""Torch's pointwise functions as operators: a block of the result is the result of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.cases import a_third

from pcg.errors import InputError
from pcg.graph.graph import apply, leaf
from pcg.graph.opaque import Elementwise, elementwise
from pcg.ops.parallel import partition
from pcg.ops.stand_ins import stand_in
from pcg.plan.text import parse_graph, print_graph
from pcg.types.task import KernelTask

VALUES: dict[str, Any] = {"int": 1, "float": 0.5, "number": 0.5, "bool": True}
TASK = KernelTask({}, {}, {})


def declared() -> Iterator[Elementwise]:
    """Every function of tensors of one shape that torch marks as pointwise."""
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            function = getattr(packet, overload)
            if torch.Tag.pointwise not in function.tags:
                continue
            made = _operator(name, overload, function._schema.arguments)
            if made is not None:
                yield made


def _operator(name: str, overload: str, arguments: Any) -> Elementwise | None:
    given: list[str] = []
    operands = 0
    for argument in arguments:
        kind = str(argument.type)
        if argument.kwarg_only or argument.has_default_value():
            break
        if kind == "Tensor":
            given.append(f"x{operands}")
            operands += 1
        elif kind in VALUES:
            given.append(repr(VALUES[kind]))
        else:
            return None
    call = f"aten.{name}.{overload}({', '.join(given)})"
    for first, dtype in (("float64", "float64"), ("int64", "int64"), ("bool", "float64")):
        try:
            made = elementwise(call, [first, *[dtype] * (operands - 1)][:operands], dtype)
            made.kernel(TASK, *_operands(operands))  # pyright: ignore[reportOptionalCall]
        except Exception:
            continue
        return made
    return None


def _operands(count: int, *, with_gradient: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [
        (torch.rand(4, 6, generator=generator, dtype=torch.float64) * 3).requires_grad_(
            with_gradient
        )
        for _ in range(count)
    ]


FUNCTIONS = {operator.target: operator for operator in declared()}


def test_table_has_more_than_140_element_wise_functions() -> None:
    assert len(FUNCTIONS) > 140
    assert {"aten.relu6.default", "aten.log1p.default", "aten.where.self"} <= FUNCTIONS.keys()


@pytest.mark.parametrize(
    "name",
    a_third(FUNCTIONS),
)
def test_a_block_of_the_result_is_that_of_blocks(name: str) -> None:
    operator = FUNCTIONS[name]
    kernel: Any = operator.kernel
    operands = _operands(operator.arity, with_gradient=True)
    whole = kernel(TASK, *operands)
    blocks = [[x[rows] for x in operands] for rows in (slice(0, 1), slice(1, 4))]
    parts = torch.cat([kernel(TASK, *block) for block in blocks])
    torch.testing.assert_close(parts, whole, rtol=1e-14, atol=1e-14, equal_nan=True)
    slopes = [_slopes(y, operands) for y in (whole, parts)]
    torch.testing.assert_close(*slopes, rtol=1e-13, atol=1e-13, equal_nan=True)


def _slopes(result: torch.Tensor, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of the sum. Empty if torch has no derivative."""
    try:
        return list(torch.autograd.grad(result.sum(), operands, materialize_grads=True))
    except RuntimeError:
        return []


@pytest.mark.parametrize("arity", [1, 2, 3])
def test_stand_in_covers_functions_of_each_arity(arity: int) -> None:
    operator = next(o for o in FUNCTIONS.values() if o.arity == arity)
    covering = stand_in(operator)
    assert covering is not None
    assert covering.arity == arity


def test_text_declares_element_wise_functions_of_any_shape() -> None:
    operator = elementwise("aten.hardtanh.default(x0, 0.0, 6.0)", ["float32"], "float32")
    for shape in ((8,), (8, 3)):
        x = apply(partition(dim=0, degree=2), leaf("input", "x", shape))
        value = apply(operator(), x)
        assert value.type == x.type
        text = f"{operator.declaration}\nx = input{list(shape)}\nt0 = {operator.name}(x)\n"
        assert print_graph(parse_graph(f"{text}return t0\n")) == f"{text}return t0\n"
    call = "aten.hardtanh.default(x0, 0.0, 6.0)"
    assert operator.declaration == f"elementwise {operator.name} = {call} : float32 -> float32"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("aten.sort.default(x0) : float32 -> float32", "returns something else|element-wise"),
        ("aten.cumsum.default(x0, 0) : float32 -> float32", "is not element-wise"),
        ("aten.dropout.default(x0, 0.5, True) : float32 -> float32", "may change its operands"),
        ("aten.relu_.default(x0) : float32 -> float32", "changes its operands"),
        ("aten.relu6.default(x0) : text -> float32", "unknown number format"),
        ("aten.relu6.default(x0) : [4] float32 -> float32", "unknown number format"),
        ("aten.relu6.default(x0) : float32 -> float32, float32", "unknown number format"),
        ("aten.relu6.default(x0) : float32 -> float32", "does not name"),
    ],
)
def test_wrong_declarations(line: str, problem: str) -> None:
    with pytest.raises(InputError, match=f"graph: line 1: .*({problem})"):
        parse_graph(f"elementwise f = {line}\nx = input[4]\nreturn x")

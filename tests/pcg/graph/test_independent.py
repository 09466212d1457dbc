"""The table of functions that work slice by slice: blocks against the whole, for each entry."""

from __future__ import annotations

from typing import Any

import pytest
from support.cases import a_third
from support.graphs.torch_cases import CASES, TorchCase, conceivable_axes, works_in_blocks

from pcg.graph.independent import ENTRIES, independent
from pcg.graph.opaque import Opaque, whole_or_batched
from pcg.graph.slicewise import SharedIndex
from pcg.graph.torch_calls import parse_call
from pcg.types.task import KernelTask

TASK = KernelTask({}, {}, {})
WHOLE = {
    "aten.cumsum.default(x0, -1)",
    "aten.roll.default(x0, [1])",
    "aten.scatter.src(x0, 1, x1, x2)",
    "aten.max.default(x0)",
    "aten.argmin.default(x0)",
    "aten.linalg_vector_norm.default(x0)",
    "aten.any.dims(x0, [0, 1])",
    "aten.isin.Scalar_Tensor(2, x0)",
    "aten.im2col.default(x0, [2, 2], [1, 1], [0, 0], [2, 2])",
    "aten.conv1d.default(x0, x1)",
}
"""Calls in which nothing is cut for some operands."""
LEFT_OUT = {
    *("rot90", "linalg_cross", "linalg_solve_triangular", "linalg_solve", "conv1d"),
    *("cdist", "_cdist_forward"),
}
"""Functions with more axes than the table states."""


def axes_of(case: TorchCase) -> tuple[SharedIndex, ...]:
    return independent(parse_call(case.function), *case.types())


def test_each_entry_is_tried() -> None:
    assert {case.name for case in CASES} >= ENTRIES.keys()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", a_third(CASES), ids=str)
def test_blocks_along_each_axis_give_blocks_of_the_whole(case: TorchCase) -> None:
    reads, writes = case.types()
    operator = whole_or_batched(case.function, reads, writes)
    kernel: Any = operator.kernel
    axes = axes_of(case)
    assert isinstance(operator, Opaque) == (not axes)
    assert axes or case.function in WHOLE
    for axis in axes:
        assert works_in_blocks(case, axis, lambda operands: kernel(TASK, *operands)), str(axis)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if number % 4 == 0 else pytest.mark.soak, id=str(case))
        for number, case in enumerate(CASES)
        if case.name not in LEFT_OUT
    ],
)
def test_no_axis_is_missing(case: TorchCase) -> None:
    axes = set(axes_of(case))
    for axis in conceivable_axes(*case.types()):
        overlaps = any(_overlap(axis, other) for other in axes)
        assert axis in axes or overlaps or not works_in_blocks(case, axis, case.run), str(axis)


def _overlap(axis: SharedIndex, other: SharedIndex) -> bool:
    pairs = zip(axis.operands + axis.results, other.operands + other.results, strict=True)
    return any(a == b is not None for a, b in pairs)

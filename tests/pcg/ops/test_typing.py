"""The cuts of every operator, and the operands that may carry partials: these and no others."""

from __future__ import annotations

from support.cases import each
from support.graphs.strategies import COMPUTE

from pcg.ops import OPERATORS

UNARY = ((2,), "0>0 1>1")
BINARY = ((2, 2), "00>0 11>1")
CONVOLUTION = ((4, 4), [{0}, {1}])

AXES: dict[str, tuple[tuple[int, ...], tuple[int, ...], str, list[set[int]]]] = {
    # ranks, positions, cuts as "operand dims>output dims" (_: not there, +: summed into partials),
    # sets of operands that may carry partials together
    "matmul": ((2, 2), (), "0_>0 _1>1 10>+", [{0}, {1}]),
    "batch_matmul": ((3, 3), (), "00>0 1_>1 _2>2 21>+", [{0}, {1}]),
    # The sum is inside a function that is not linear.
    "matmul_relu": ((2, 2), (), "0_>0 _1>1", []),
    "add": (BINARY[0], (), BINARY[1], [{0, 1}]),
    "subtract": (BINARY[0], (), BINARY[1], [{0, 1}]),
    "multiply": (BINARY[0], (), BINARY[1], [{0}, {1}]),
    "divide": (BINARY[0], (), BINARY[1], [{0}]),
    "dropout": (BINARY[0], (), BINARY[1], [{0}, {1}]),
    "maximum": (BINARY[0], (), BINARY[1], []),
    "minimum": (BINARY[0], (), BINARY[1], []),
    "where": ((2, 2, 2), (), "000>0 111>1", [{1, 2}]),
    "scale": (UNARY[0], (), UNARY[1], [{0}]),
    "negate": (UNARY[0], (), UNARY[1], [{0}]),
    **{
        name: (UNARY[0], (), UNARY[1], [])
        for name in (
            *("relu", "gelu", "reciprocal", "clamp", "exp", "log", "sqrt", "rsqrt", "power"),
            *("sigmoid", "tanh", "silu", "to_float16", "to_bfloat16", "to_float32"),
        )
    },
    "concat": ((3, 3), (1,), "00>0 22>2", [{0, 1}]),
    "split": ((3,), (1,), "0>00 2>22", [{0}]),
    "transpose": ((3,), (0, 2), "2>0 1>1 0>2", [{0}]),
    "flatten": ((3,), (1,), "0>0 1>1", [{0}]),
    "unflatten": ((3,), (1,), "0>0 1>1 2>3", [{0}]),
    "slice": ((3,), (1,), "0>0 2>2", [{0}]),
    "pad": ((3,), (1,), "0>0 2>2", [{0}]),
    "stack": ((2, 2), (1,), "00>0 11>2", [{0, 1}]),
    "expand": ((2,), (1,), "0>0 1>2", [{0}]),
    "expand_as": ((3, 2), (1,), "00>0 1_>1 21>2", [{1}, {0, 1}]),
    "expand_vector": ((3, 1), (1,), "0_>0 10>1 2_>2", [{1}, {0, 1}]),
    "shift": (UNARY[0], (), UNARY[1], []),
    "divide_by_size": (UNARY[0], (), UNARY[1], [{0}]),
    "divide_by_root": (UNARY[0], (), UNARY[1], [{0}]),
    "times_scalar": ((2, 0), (), "0_>0 1_>1", [{0}, {1}]),
    "repeat_each": ((3,), (1,), "0>0 1>1 2>2", [{0}]),
    "sum_groups": ((3,), (1,), "0>0 1>1 2>2", [{0}]),
    "sliced_linear": ((3, 3), (), "01>2 10>1 22>0", [{0}, {1}]),
    "softmax": ((3,), (1,), "0>0 2>2", []),
    "log_softmax": ((3,), (1,), "0>0 2>2", []),
    "layer_norm": ((3, 1, 1), (), "0__>0 1__>1", [{1, 2}]),
    "rms_norm": ((3, 1), (), "0_>0 1_>1", [{1}]),
    "batch_norm": ((4, 1, 1), (), "100>1", [{1, 2}]),
    "sum_axis": ((3,), (1,), "0>0 1>+ 2>1", [{0}]),
    "mean_axis": ((3,), (1,), "0>0 1>+ 2>1", [{0}]),
    "max_axis": ((3,), (1,), "0>0 2>1", []),
    "logsumexp": ((3,), (1,), "0>0 2>1", []),
    "nll": ((2, 1, 1), (), "000>0 1__>+", [{0, 2}]),
    "sum_loss": ((2,), (), "0>+ 1>+", [{0}]),
    "mean_loss": ((2,), (), "0>+ 1>+", [{0}]),
    "cross_entropy": ((2, 1), (), "00>+", []),
    "attention": ((3, 3, 3), (), "000>0 1__>1 __2>2", [{2}]),
    "causal_attention": ((3, 3, 3), (), "000>0 1__>1 __2>2", [{2}]),
    "masked_attention": ((3, 3, 3, 3), (), "0000>0 1__1>1 __2_>2", [{2}]),
    "embedding": ((2, 2), (), "0_>0 1_>1 _1>2 _0>+", [{1}]),
    "embedding_bag": ((2, 2), (), "0_>0 1_>+ _1>1 _0>+", [{1}]),
    "gather": ((2, 2), (), "00>0 _1>1 1_>+", [{0}]),
    "index_add": ((1, 1, 3), (1,), "__0>0 0__>1 __2>2 _01>+", [{2}, {0, 2}]),
    "scatter_add": ((1, 3, 3), (1,), "_00>0 0__>1 _22>2 _11>+", [{2}, {0, 2}]),
    "one_hot": ((2,), (), "0>0 1>1", []),
    "cumulative_sum": ((3,), (), "0>0 1>1", [{0}]),
    "moe_dispatch": ((2, 3), (), "00>+ 1_>2 _1>0 _2>1", [{0}, {1}]),
    "moe_combine": ((3, 3), (), "_0>0 2_>1 01>+ 12>+", [{0}, {1}]),
    "conv2d": (CONVOLUTION[0], (), "0_>0 _0>1 11>+", CONVOLUTION[1]),
    "grouped_conv2d": (CONVOLUTION[0], (), "0_>0 10>1", CONVOLUTION[1]),
    "depthwise_conv2d": (CONVOLUTION[0], (), "0_>0 10>1", CONVOLUTION[1]),
    "max_pool2d": ((4,), (), "0>0 1>1", []),
    "avg_pool2d": ((4,), (), "0>0 1>1", [{0}]),
    "avg_pool2d_inside": ((4,), (), "0>0 1>1", [{0}]),
    "enlarge": ((4,), (), "0>0 1>1", [{0}]),
    **{operator.name: ((), (), "", []) for operator in COMPUTE if not operator.arity},
}

AT_LEAST: dict[str, str] = {"ghost_batch_norm": "100>1"}
"""Operators for which more cuts would be correct: the groups of a ghost batch norm are
independent."""


def cuts(name: str, ranks: tuple[int, ...], positions: tuple[int, ...]) -> set[str]:
    def text(places: tuple[int | None, ...], absent: str) -> str:
        return "".join(absent if p is None else str(p) for p in places)

    axes = OPERATORS[name].typing(ranks, positions).axes
    return {f"{text(a.operands, '_')}>{text(a.outputs, '+')}" for a in axes}


@each("name", AXES)
def test_derived_typing(name: str):
    ranks, positions, expected, carriers = AXES[name]
    assert cuts(name, ranks, positions) == set(expected.split())
    typing = OPERATORS[name].typing(ranks, positions)
    assert [set(c) for c in typing.carriers] == carriers


def test_a_ghost_batch_norm_is_cut_along_its_groups_or_channels_at_most():
    ways = cuts("ghost_batch_norm", (4, 1, 1), ())
    assert set(AT_LEAST["ghost_batch_norm"].split()) <= ways <= {"100>1", "0__>0"}


def test_every_operator_has_its_typing_stated():
    assert set(AXES) | set(AT_LEAST) == {operator.name for operator in COMPUTE}

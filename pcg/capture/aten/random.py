"""Turn the random numbers that a module draws into inputs of the graph.

Problem: copies of a tensor have to be equal, and plans have to be comparable. So the number drawn
for an element may not depend on how a plan cuts the tensor. Method: each call that draws gets an
input of normal numbers or, for dropout and choices of one probability, of ones and zeros. These
depend on the run's seed, the step and the element's global index, as all drawn data does. Operators
turn normal numbers into the distribution of the call: into uniform numbers by the distribution
function, and from these into others. Whole numbers are uniform ones, rounded down. A permutation is
the order of normal numbers. A choice by weights is where weights divided by exponential numbers are
greatest. Exact in distribution, up to rounding in the number format, and up to rounding a
probability to a multiple of 2^-32. The numbers are not those of torch's generator, which differ
between devices too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

from pcg.capture.aten.call import AtenCall, Unsupported
from pcg.capture.aten.pointwise import scaled
from pcg.capture.aten.shapes import narrowed, of_slices, of_torch, reshaped, shape_of, spread
from pcg.graph.graph import DRAWN, Value, apply, drawn_mask, leaf
from pcg.ops.algebra import add, multiply, relu
from pcg.ops.elementwise import clamp, divide, dropout, negate, shift

if TYPE_CHECKING:
    from torch import fx

FILLED = frozenset(
    {
        *("aten.rand_like.default", "aten.randn_like.default", "aten.normal_functional.default"),
        *("aten.bernoulli.p", "aten.uniform.default", "aten.exponential.default"),
        *("aten.geometric.default", "aten.cauchy.default", "aten.log_normal.default"),
        *("aten.full_like.default", "aten.fill.Scalar", "aten.zero.default"),
        *("aten.randint_like.default", "aten.randint_like.low_dtype"),
    }
)
"""Functions that draw or fill. They read nothing of their operand but its shape."""
NOISE = "aten.rrelu_with_noise_functional.default"
"""Fills its second operand."""

MOST_NUMBERS = 1 << 24
"""Whole numbers that a uniform number in float32 tells apart."""
BELOW_ONE = 1.0 - 2.0**-24
"""The largest float32 number that ``torch.rand`` returns."""


@dataclass(frozen=True)
class Normal:
    """Makes the random inputs of a call, of normal numbers by default. ``site`` is the call's name.
    The names of the inputs are appended to ``names``."""

    site: str
    names: list[str]

    def __call__(self, shape: Sequence[int]) -> Value:
        return self._noted(leaf("input", f"{DRAWN}{self.site}", tuple(shape)))

    def below(self, shape: Sequence[int], share: float) -> Value:
        """Return ones at random elements, a share of them on average, and zeros elsewhere.

        An element is one where a normal number is below a quantile. Raises Unsupported unless
        0 < share < 1.
        """
        if not 0.0 < share < 1.0:
            raise Unsupported("p")
        return self._noted(drawn_mask(self.site, tuple(shape), share))

    def _noted(self, made: Value) -> Value:
        self.names.append(made.node.leaf.name)
        return made


Drawing = Callable[[AtenCall, Normal], Value | tuple[Value, ...]]


def read_by(call: fx.Node) -> list[fx.Node]:
    """Return the operands of a call that its result depends on by more than their shape."""
    name, operands = str(call.target), call.all_input_nodes
    if name in FILLED:
        return []
    return operands[:1] if name == NOISE else operands


def dropped(x: Value, share: float, normal: Normal) -> tuple[Value, Value]:
    """Return a tensor after dropout that keeps ``share`` of its elements, and the mask."""
    mask = normal.below(shape_of(x), share)
    return apply(dropout(scale=1.0 / share), x, mask), mask


def _native_dropout(call: AtenCall, normal: Normal) -> tuple[Value, ...]:
    x, share = call.value("input"), 1.0 - call.number("p")
    if share == 1.0 or not call.arguments["train"]:
        return (x,)
    if share == 0.0:
        return (scaled(x, 0.0),)
    return dropped(x, share, normal)


def _uniform(shape: Sequence[int], normal: Normal) -> Value:
    """Return uniform numbers of [0, 1)."""
    z, real = normal(shape), "float32"
    tail = of_torch("aten.erfc.default(x0)", real, (scaled(z, -sqrt(0.5)), real))
    return apply(clamp(low=0.0, high=BELOW_ONE), scaled(tail, 0.5))


def _between(call: AtenCall, normal: Normal, low: float, high: float) -> Value:
    wide = scaled(_uniform(call.shape, normal), high - low)
    return apply(shift(offset=low), wide) if low else wide


def _normal(call: AtenCall, normal: Normal) -> Value:
    mean, wide = call.number("mean"), scaled(normal(call.shape), call.number("std"))
    return apply(shift(offset=mean), wide) if mean else wide


def _choices(call: AtenCall, normal: Normal) -> Value:
    return normal.below(call.shape, call.number("p"))


def _exponential(shape: Sequence[int], normal: Normal, rate: float = 1.0) -> Value:
    """Small ones are exact in every number format, which those from ``log`` are not."""
    u, real = scaled(_uniform(shape, normal), -1.0), "float32"
    return scaled(of_torch("aten.log1p.default(x0)", real, (u, real)), -1.0 / rate)


def _integers(call: AtenCall, normal: Normal) -> Value:
    low = call.integer("low") if "low" in call.arguments else 0
    count = call.integer("high") - low
    if not 0 < count <= MOST_NUMBERS:
        raise Unsupported("high")
    wide, real = scaled(_uniform(call.shape, normal), float(count)), "float32"
    whole = of_torch("aten.floor.default(x0)", real, (wide, real))
    return apply(shift(offset=float(low)), whole) if low else whole


def _permutation(call: AtenCall, normal: Normal) -> Value:
    return _sorted(normal(call.shape), "float32")


def _sorted(x: Value, real: str, *, descending: bool = False) -> Value:
    """Where the elements of the last dimension are when they are sorted."""
    function = f"aten.argsort.default(x0, -1, {descending})"
    return of_slices(function, (shape_of(x), "int64"), (x, real))


def _chosen(call: AtenCall, normal: Normal) -> Value:
    """By weights along the last dimension: each alone where one may be chosen again, else the
    greatest ones."""
    weights, count = call.value("self"), call.integer("num_samples")
    *rows, size = shape_of(weights)
    if call.arguments["replacement"] and count > 1:
        weights = spread(reshaped(weights, (*rows, 1, size)), (*rows, count, size))
    chances = apply(divide(), weights, _exponential(shape_of(weights), normal))
    real = call.formats["self"]
    if count > 1 and not call.arguments["replacement"]:
        order = _sorted(chances, real, descending=True)
        return narrowed(order, len(rows), 0, count)
    shape = shape_of(weights)[:-1]
    best = of_slices("aten.argmax.default(x0, -1)", (shape, "int64"), (chances, real))
    return reshaped(best, call.shape)


def _rectified(call: AtenCall, normal: Normal) -> tuple[Value, ...]:
    """Return a leaky ReLU with a random slope for each negative element."""
    call.expect(training=True)
    x = call.value("self")
    slopes = _between(call, normal, call.number("lower"), call.number("upper"))
    negative = apply(multiply(), slopes, apply(relu(), apply(negate(), x)))
    return (apply(add(), apply(relu(), x), scaled(negative, -1.0)),)


DRAWS: Mapping[str, Drawing] = {
    "aten.native_dropout.default": _native_dropout,
    "aten.rand.default": lambda call, normal: _uniform(call.shape, normal),
    "aten.rand_like.default": lambda call, normal: _uniform(call.shape, normal),
    "aten.randn.default": lambda call, normal: normal(call.shape),
    "aten.randn_like.default": lambda call, normal: normal(call.shape),
    "aten.normal.float_float": _normal,
    "aten.normal_functional.default": _normal,
    "aten.bernoulli.p": _choices,
    "aten.uniform.default": lambda call, normal: _between(
        call, normal, call.number("from"), call.number("to")
    ),
    "aten.exponential.default": lambda call, normal: _exponential(
        call.shape, normal, call.number("lambd")
    ),
    "aten.randint.default": _integers,
    "aten.randint.low": _integers,
    "aten.randint_like.default": _integers,
    "aten.randint_like.low_dtype": _integers,
    "aten.randperm.default": _permutation,
    "aten.multinomial.default": _chosen,
    NOISE: _rectified,
}
"""Torch functions that draw random numbers, with the graph values for them."""

"""Element-wise operators: arithmetic, functions of one number, choices, and casts.

``sigmoid``, ``tanh`` and ``silu`` are defined by ``exp``, so that its laws apply to them. Their
kernels are torch's own, which are faster and do not overflow.

A cast rounds each number: ``to_float16`` gives the nearest number of that format. Its kernel
returns a tensor of that dtype, in which later operators then compute, as in torch. Proofs know a
rounding only by its name, so no rule drops or moves one. Back-propagation takes 1 for the slope of
a rounding, and rounds the gradient to the same format.
"""

from __future__ import annotations

from pcg.lazy import torch
from pcg.types.operator import Operator

subtract = Operator("subtract", "out[i...] = x[i...] - y[i...]")

divide = Operator("divide", "out[i...] = x[i...] / y[i...]", kernel=lambda task, x, y: x / y)

negate = Operator("negate", "out[i...] = -x[i...]")

reciprocal = Operator("reciprocal", "out[i...] = 1 / x[i...]")

maximum = Operator("maximum", "out[i...] = max(x[i...], y[i...])", commutative=True)

minimum = Operator(
    "minimum",
    "out[i...] = -max(-x[i...], -y[i...])",
    kernel=lambda task, x, y: torch.minimum(x, y),
    commutative=True,
)

clamp = Operator(
    "clamp",
    "out[i...] = -max(-max(x[i...], low), -high)",
    reals=("low", "high"),
    kernel=lambda task, x: torch.clamp(x, task.attributes["low"], task.attributes["high"]),
)

shift = Operator("shift", "out[i...] = x[i...] + offset", reals=("offset",))

# The divisor is usually the size of an axis that was summed, as in a mean.
divide_by_size = Operator("divide_by_size", "out[i...] = x[i...] / size", sizes=("size",))

divide_by_root = Operator("divide_by_root", "out[i...] = x[i...] * rsqrt(size)", sizes=("size",))

exp = Operator("exp", "out[i...] = exp(x[i...])")

log = Operator("log", "out[i...] = log(x[i...])")

sqrt = Operator("sqrt", "out[i...] = sqrt(x[i...])")

rsqrt = Operator("rsqrt", "out[i...] = rsqrt(x[i...])")

power = Operator(
    "power",
    "out[i...] = power(x[i...], exponent)",
    reals=("exponent",),
    kernel=lambda task, x: torch.pow(x, task.attributes["exponent"]),
)

sigmoid = Operator(
    "sigmoid",
    "out[i...] = 1 / (1 + exp(-x[i...]))",
    kernel=lambda task, x: torch.sigmoid(x),
)

tanh = Operator(
    "tanh",
    "out[i...] = 2 / (1 + exp(-2 * x[i...])) - 1",
    kernel=lambda task, x: torch.tanh(x),
)

silu = Operator(
    "silu",
    "out[i...] = x[i...] / (1 + exp(-x[i...]))",
    kernel=lambda task, x: torch.nn.functional.silu(x),
)

# x where the condition is not 0, else y, even if the number that is not chosen is NaN or infinite.
where = Operator(
    "where",
    "condition[i...], x[i...], y[i...] -> let absent[i...] = condition[i...] == 0;"
    " out[i...] = (1 - absent[i...]) * x[i...] + absent[i...] * y[i...]",
    kernel=lambda task, condition, x, y: torch.where(condition != 0, x, y),
)

# The 0/1 mask is an operand, since equations are functions and cannot draw random numbers.
dropout = Operator("dropout", "out[i...] = scale * x[i...] * mask[i...]", reals=("scale",))

to_float16 = Operator(
    "to_float16",
    "out[i...] = round_float16(x[i...])",
    kernel=lambda task, x: x.to(torch.float16),
)

to_bfloat16 = Operator(
    "to_bfloat16",
    "out[i...] = round_bfloat16(x[i...])",
    kernel=lambda task, x: x.to(torch.bfloat16),
)

to_float32 = Operator(
    "to_float32",
    "out[i...] = round_float32(x[i...])",
    kernel=lambda task, x: x.to(torch.float32),
)

OPERATORS = (
    *(subtract, divide, negate, reciprocal, maximum, minimum, clamp),
    *(shift, divide_by_size, divide_by_root),
    *(exp, log, sqrt, rsqrt, power, sigmoid, tanh, silu, where, dropout),
    *(to_float16, to_bfloat16, to_float32),
)

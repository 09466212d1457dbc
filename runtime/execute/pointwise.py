"""Compile element-wise equations into torch functions of whole blocks.

An equation such as ``out[i...] = x[i...] + y[i...]`` reads every operand at the index that it
writes. So a task's blocks have the same indices as its output, and no index need be evaluated.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from pcg.language.equation import Output
from pcg.language.expr import Access, Add, Apply, Const, Expr, IndexValue, Mul, Real
from pcg.language.functions import FUNCTIONS
from pcg.types.operator import Call

Blocks = Sequence[Tensor]
PointwiseFunction = Callable[[Blocks], Tensor]
_Part = PointwiseFunction | float


def pointwise(call: Call, ranks: tuple[int, ...]) -> PointwiseFunction | None:
    """The function of an operator on operands of these ranks. None if the operator is not
    element-wise, has no operand, or has several outputs."""
    if not ranks:
        return None
    outputs = call.instance(ranks).outputs
    if len(outputs) != 1:
        return None
    try:
        result = _Reader(call.values, outputs[0]).read(outputs[0].body)
    except _OtherKind:
        return None
    return result if callable(result) else None


class _OtherKind(Exception):
    """The equation is not element-wise."""


class _Reader:
    """Compiles the expression of an output. A part without operands becomes a number, any other
    part a function."""

    def __init__(self, attributes: Mapping[str, Any], output: Output) -> None:
        self._attributes = attributes
        self._index = tuple(dim.index for dim in output.dims)

    def read(self, expr: Expr) -> _Part:
        match expr:
            case Const(value):
                return float(value)
            case Real(name):
                return self._number(self._attributes[name])
            case IndexValue(index):
                symbols = {symbol for monomial, _ in index.terms for symbol in monomial}
                if not symbols <= self._attributes.keys():
                    raise _OtherKind
                return self._number(index.evaluate(self._attributes))
            case Access(operand, index):
                if index != self._index:
                    raise _OtherKind
                return lambda blocks: blocks[operand]
            case Add(terms):
                return reduce(_plus, map(self.read, terms))
            case Mul(factors):
                return reduce(_times, map(self.read, factors))
            case Apply(function, args):
                return _applied(function, [self.read(arg) for arg in args])
            case _:
                raise _OtherKind

    def _number(self, value: Any) -> float:
        if not isinstance(value, (int, float)):
            raise _OtherKind
        return float(value)


def _plus(a: _Part, b: _Part) -> _Part:
    return _combined(operator.add, a, b)


def _times(a: _Part, b: _Part) -> _Part:
    if a == -1.0 and callable(b):
        return lambda blocks: -b(blocks)
    return _combined(operator.mul, a, b)


def _combined(combine: Callable[[Any, Any], Any], a: _Part, b: _Part) -> _Part:
    """A sum or product of two parts. The operation is commutative."""
    if not callable(a):
        if not callable(b):
            return combine(a, b)
        a, b = b, a
    if not callable(b):
        return lambda blocks: combine(a(blocks), b)
    return lambda blocks: combine(a(blocks), b(blocks))


def _applied(function: str, args: list[_Part]) -> _Part:
    kernel: Callable[..., Tensor] = FUNCTIONS[function].kernel
    functions = [arg for arg in args if callable(arg)]
    if not functions:
        numbers = [torch.tensor(arg, dtype=torch.float64) for arg in args]
        return float(kernel(*numbers).item())
    if len(args) == 1:
        (argument,) = functions

        def run_one(blocks: Blocks) -> Tensor:
            value = argument(blocks)
            return _like(kernel(value), value)

        return run_one

    def run(blocks: Blocks) -> Tensor:
        values = [arg(blocks) if callable(arg) else arg for arg in args]
        like = next(value for value in values if isinstance(value, Tensor))
        filled = [v if isinstance(v, Tensor) else torch.full_like(like, v) for v in values]
        return _like(kernel(*filled), like)

    return run


def _like(value: Tensor, operand: Tensor) -> Tensor:
    """A value in the number format of an operand. The result of a comparison has another one."""
    return value if value.dtype is operand.dtype else value.to(operand.dtype)

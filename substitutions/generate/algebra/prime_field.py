"""Evaluates an operator's equation on many operands at once, over a prime field.

``compile_call`` compiles the equation at concrete shapes to numpy functions. Everything that
depends on indices alone is computed once: which elements are read, and which reads fall outside.
Tensors are arrays of shape (batch, elements), with elements in row-major order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcg.errors import OperatorError
from pcg.language import expr
from pcg.language.expr import Expr
from pcg.language.language import Output
from pcg.language.poly import Poly
from pcg.readings.ring import PrimeField
from pcg.types.infer import bind_sizes
from pcg.types.operator import Call

FieldArray = NDArray[np.int64]
Shape = tuple[int, ...]
Evaluate = Callable[[Sequence[FieldArray]], FieldArray]
"""A function from operands of shape (batch, elements) to values of shape (batch or 1, *grid)."""

GridScope = tuple[tuple[str, int], ...]
"""The indices of the grid with their sizes."""


@dataclass(frozen=True)
class CompiledCall:
    """An operator at concrete shapes: the shape of each output, and the function that computes
    it."""

    shapes: tuple[Shape, ...]
    outputs: tuple[Evaluate, ...]


def compile_call(call: Call, shapes: Sequence[Shape], field: PrimeField) -> CompiledCall:
    """Compile a call at concrete shapes. Raises OperatorError if the shapes or attributes do not
    fit the operator."""
    equation = call.instance(tuple(len(shape) for shape in shapes))
    sizes = bind_sizes(call, equation, list(shapes))
    if wrong := [name for name, size in sizes.items() if name.startswith("|") and size < 1]:
        raise OperatorError(call.name, "*", None, f"size {wrong[0]} is below 1")
    compiler = _Compiler(sizes, tuple(shapes), dict(call.attributes), field)
    outputs = [compiler.output(output) for output in equation.outputs]
    return CompiledCall(tuple(shape for shape, _ in outputs), tuple(run for _, run in outputs))


@dataclass(frozen=True)
class _Compiler:
    sizes: Mapping[str, int]
    shapes: tuple[Shape, ...]
    attributes: Mapping[str, Any]
    field: PrimeField

    def output(self, output: Output) -> tuple[Shape, Evaluate]:
        scope = tuple((n, self.sizes[f"|{n}|"]) for dim in output.dims for n in dim.names)
        grid = tuple(size for _, size in scope)
        shape = tuple(prod(self.sizes[f"|{n}|"] for n in dim.names) for dim in output.dims)
        body = self._compile(output.body, scope)
        elements = prod(shape)

        def run(operands: Sequence[FieldArray]) -> FieldArray:
            values = body(operands)
            full = np.broadcast_to(values, (values.shape[0], *grid))
            return full.reshape(values.shape[0], elements)

        return shape, run

    def _compile(self, value: Expr, scope: GridScope) -> Evaluate:
        field = self.field
        match value:
            case expr.Const(number):
                return _constant(field.constant(number), scope)
            case expr.Real(name):
                return _constant(field.real(self.attributes[name]), scope)
            case expr.IndexValue(index):
                return _constant(field.numbers(self._index(index, scope)), scope)
            case expr.Guard(index):
                return _constant((self._index(index, scope) >= 0).astype(np.int64), scope)
            case expr.Access(operand, index):
                return self._access(operand, index, scope)
            case expr.Sum(var, size, body):
                inner = (*scope, (var, size.evaluate(self.sizes)))
                return _total(self._compile(body, inner), inner, field)
            case expr.Max():
                return self._max(value, scope)
            case expr.Add(parts):
                return _fold(field.plus, [self._compile(part, scope) for part in parts])
            case expr.Mul(parts):
                return _fold(field.times, [self._compile(part, scope) for part in parts])
            case expr.Apply(function, args):
                parts = [self._compile(arg, scope) for arg in args]
                return lambda operands: field.apply(function, [part(operands) for part in parts])

    def _max(self, value: expr.Max, scope: GridScope) -> Evaluate:
        inner = (*scope, (value.var, value.size.evaluate(self.sizes)))
        grid = tuple(size for _, size in inner)
        valid = np.ones((1,) * len(inner), np.bool_)
        for guard in value.guards:
            valid = valid & (self._index(guard, inner) >= 0)
        body, field = self._compile(value.body, inner), self.field

        def run(operands: Sequence[FieldArray]) -> FieldArray:
            values = body(operands)
            full = np.broadcast_to(values, (values.shape[0], *grid))
            return field.greatest(full, len(scope) + 1, np.broadcast_to(valid, full.shape))

        return run

    def _index(self, index: Poly, scope: GridScope) -> FieldArray:
        """An index on the grid, of a shape that broadcasts to it."""
        where = {name: (axis, size) for axis, (name, size) in enumerate(scope)}
        total = np.zeros((1,) * len(scope), np.int64)
        for monomial, coefficient in index.terms:
            term = np.full((1,) * len(scope), coefficient, np.int64)
            for symbol in monomial:
                if symbol not in where:
                    term = term * self.sizes[symbol]
                    continue
                axis, size = where[symbol]
                shape = [1] * len(scope)
                shape[axis] = size
                term = term * np.arange(size, dtype=np.int64).reshape(shape)
            total = total + term
        return total

    def _access(self, operand: int, index: tuple[Poly, ...], scope: GridScope) -> Evaluate:
        place = np.zeros((1,) * len(scope), np.int64)
        valid = np.ones((1,) * len(scope), np.bool_)
        for position, size in zip(index, self.shapes[operand], strict=True):
            at = self._index(position, scope)
            inside = (at >= 0) & (at < size)
            valid = valid & inside
            place = place * size + np.where(inside, at, 0)
        if valid.all():
            return lambda operands: operands[operand][:, place]
        place, valid = np.broadcast_arrays(place, valid)
        return lambda operands: np.where(valid, operands[operand][:, place], 0)


def _constant(values: Any, scope: GridScope) -> Evaluate:
    array = np.asarray(values, np.int64)
    batch = array.reshape((1, *(array.shape or (1,) * len(scope))))
    return lambda operands: batch


def _total(body: Evaluate, inner: GridScope, field: PrimeField) -> Evaluate:
    size = inner[-1][1]

    def run(operands: Sequence[FieldArray]) -> FieldArray:
        values = body(operands)
        if values.shape[-1] != size:  # The body does not depend on the index.
            return field.times(values.sum(-1), np.int64(size % field.prime))
        return field.total(values, len(inner))

    return run


def _fold(
    combine: Callable[[FieldArray, FieldArray], FieldArray], parts: Sequence[Evaluate]
) -> Evaluate:
    def run(operands: Sequence[FieldArray]) -> FieldArray:
        total = parts[0](operands)
        for part in parts[1:]:
            total = combine(total, part(operands))
        return total

    return run

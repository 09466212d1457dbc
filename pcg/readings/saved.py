"""Saved tensors: the operands and outputs that the backward pass of an operator reads.

They follow from the equation. The derivative of a product by one factor reads the other factors.
That of a sum, or of anything linear, reads nothing. That of a function reads the function's
operands. If the derivative of a function can be computed from its value
(``pcg.language.functions``), and the operator's output determines the value, the output may be read
instead. For example, a sigmoid, 1 / (1 + exp(-x)), needs its output alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pcg.graph.graph import Graph, Node, Value
from pcg.graph.opaque import Opaque, TorchFunction
from pcg.language.expr import (
    Access,
    Add,
    Apply,
    Expr,
    Guard,
    Max,
    Mul,
    Sum,
    accesses,
    walk,
)
from pcg.language.functions import FUNCTIONS
from pcg.language.poly import Poly
from pcg.readings.differentiated import differentiated, reduced
from pcg.readings.kind import is_epilogue, passes_gradients, reads
from pcg.readings.work import gradient_nodes
from pcg.types.infer import bind_sizes
from pcg.types.operator import Call


@dataclass(frozen=True)
class Reads:
    """Operands and outputs that are read, by position."""

    operands: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()


def back_reads(node: Node, needs: frozenset[int]) -> tuple[Reads, ...]:
    """Return what back-propagation of an operator may read for the gradients of ``needs``. If there
    are several ways, each of them suffices."""
    call = node.operator_call
    if isinstance(call.operator, TorchFunction):
        every = Reads(frozenset(range(len(node.inputs))), frozenset(range(len(node.types))))
        return (every,)
    if call.operator.parallel is not None:
        return (Reads(),)
    return _back_reads(call, tuple(value.rank for value in node.inputs), needs)


@lru_cache(maxsize=65536)
def _back_reads(call: Call, ranks: tuple[int, ...], needs: frozenset[int]) -> tuple[Reads, ...]:
    ways: list[Reads] = []
    for by_output in (False, True):
        operands: set[int] = set()
        outputs: set[int] = set()
        for port, output in enumerate(call.instance(ranks).outputs):
            # The value of a sum is not computed again.
            known = by_output or is_epilogue(output.body)
            derivative = _Derivative(needs)
            derivative.visit(reduced(output.body), known)
            operands |= derivative.operands
            outputs |= {port} if derivative.value else set()
        ways.append(Reads(frozenset(operands), frozenset(outputs)))
    return tuple(dict.fromkeys(ways))


@dataclass
class _Derivative:
    """Collects what the derivative of a value reads."""

    needs: frozenset[int]

    def __post_init__(self) -> None:
        self.operands: set[int] = set()
        self.value = False
        """Whether the derivative reads the whole value."""

    def visit(self, value: Expr, known: bool) -> None:
        """Visit a value. ``known`` says whether the output determines the value."""
        if not self._wanted(value):
            return
        match value:
            case Sum(body=body):
                self.visit(body, False)
            case Max(body=body):
                self._read(body)
                self.visit(body, False)
            case Add(parts):
                alone = sum(reads(part) for part in parts) == 1
                for part in parts:
                    self.visit(part, known and alone)
            case Mul(parts):
                self._product(parts, known)
            case Apply(function, arguments):
                self._function(function, arguments, known)
            case _:
                pass

    def _product(self, factors: tuple[Expr, ...], known: bool) -> None:
        alone = sum(reads(factor) for factor in factors) == 1
        chosen = any(isinstance(factor, Guard) for factor in factors)
        for i, factor in enumerate(factors):
            if self._wanted(factor):
                for other in factors[:i] + factors[i + 1 :]:
                    self._read(other)
                self.visit(factor, known and alone and not chosen)

    def _function(self, name: str, arguments: tuple[Expr, ...], known: bool) -> None:
        function = FUNCTIONS[name]
        if known and function.slope == "value":
            self.value = True
        elif function.slope != "constant":
            for argument in arguments:
                self._read(argument)
        for argument in arguments:
            self.visit(argument, known and function.invertible)

    def _read(self, value: Expr) -> None:
        self.operands |= {access.operand for access in accesses(value)}

    def _wanted(self, value: Expr) -> bool:
        return bool(passes_gradients(value, self.needs))


def read_elements(node: Node) -> frozenset[int]:
    """Return the operands whose elements affect a result. Of the others only sizes matter, such as
    the size to which a tensor is repeated."""
    call = node.operator_call
    if call.operator.parallel is not None or isinstance(call.operator, TorchFunction):
        return frozenset(range(len(node.inputs)))
    return _read_elements(call, tuple(value.rank for value in node.inputs))


@lru_cache(maxsize=4096)
def _read_elements(call: Call, ranks: tuple[int, ...]) -> frozenset[int]:
    outputs = call.instance(ranks).outputs
    return frozenset(a.operand for output in outputs for a in accesses(reduced(output.body)))


@lru_cache(maxsize=16)
def gradient_parts(graph: Graph) -> Counter[Value]:
    """Return the number of gradients of each value that its readers send back, to be added up."""
    trained = gradient_nodes(graph)
    return Counter(
        node.inputs[position]
        for node in graph.nodes
        if node in trained and not node.is_leaf
        for position in differentiated(node)
        if node.inputs[position].node in trained
    )


def view_of(node: Node, port: int) -> int | None:
    """Return the operand of which an output is a view, or None if elements are computed.

    All elements of a view are elements of the operand, as in a transpose, a slice or a repetition.
    """
    call = node.operator_call
    if call.operator.parallel is not None or isinstance(call.operator, TorchFunction):
        return None
    return _view_of(call, tuple(value.type.shape for value in node.inputs), port)


@lru_cache(maxsize=65536)
def _view_of(call: Call, shapes: tuple[tuple[int, ...], ...], port: int) -> int | None:
    equation = call.instance(tuple(map(len, shapes)))
    body = reduced(equation.outputs[port].body)
    if not isinstance(body, Access):
        return None
    sizes = bind_sizes(call, equation, list(shapes))
    names = [name for dim in equation.outputs[port].dims for name in dim.names]
    most = {**sizes, **{name: sizes[f"|{name}|"] - 1 for name in names}}
    inside = all(
        _within(index, most, frozenset(names), size)
        for index, size in zip(body.index, shapes[body.operand], strict=True)
    )
    return body.operand if inside else None


def _within(index: Poly, most: Mapping[str, int], names: frozenset[str], size: int) -> bool:
    """Whether an index stays within a dimension if the symbols ``names`` go from 0 to ``most``."""
    low = high = 0
    for monomial, coefficient in index.terms:
        value = coefficient
        for symbol in monomial:
            value *= most[symbol]
        varies = not names.isdisjoint(monomial)
        low += min(value, 0) if varies else value
        high += max(value, 0) if varies else value
    return low >= 0 and high < size


def is_pointwise(node: Node) -> bool:
    """Whether an operator's equation has no sum and no maximum over an index."""
    call = node.operator_call
    if isinstance(call.operator, Opaque) or call.operator.parallel is not None:
        return False
    outputs = call.instance(tuple(value.rank for value in node.inputs)).outputs
    return not any(isinstance(part, (Sum, Max)) for o in outputs for part in walk(o.body))

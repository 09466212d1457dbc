"""Count the floating-point operations and bytes of one task of an operator from its equation.

The expression is walked once. A sub-expression is computed once for each value of its free indices,
however often it is written. For example, a softmax computes each exponential once.

- A product of n factors takes n - 1 operations per grid point, an addition of n terms n - 1, a sum
  one per summand, and a scalar function as many as its table entry. So a contraction of m x k x n
  takes 2mkn.
- Guards and tests for equality select, they do not compute. Only one term under guards counts. A
  sum over v with the factor ``eq(.., v)`` is a look-up that reads one v. A sum over e with the
  factor ``eq(ids[e], n)`` adds each summand at one n only.
- Constants are free.

The backward pass is derived in the same walk. In a product, each factor with an operand whose
gradient is needed costs as many multiplications as the product has, and an addition if the gradient
is summed over indices that the factor lacks. So a contraction costs one contraction for each such
operand, and an element-wise operator about as much as forward.

A function of a sum, such as the activation after a product, needs no extra pass over memory in the
forward pass. In the backward pass it needs one, before the sum's operands get their gradients.

A torch function without an equation of its own is counted by its reads and writes, and by its
products (``pcg.readings.torch_work``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from math import prod

from pcg.graph.graph import Graph, Node
from pcg.language.expr import (
    Access,
    Add,
    Apply,
    Const,
    Expr,
    Guard,
    IndexValue,
    Max,
    Mul,
    Real,
    Sum,
    accesses,
    children,
)
from pcg.language.functions import FUNCTIONS
from pcg.language.poly import Poly
from pcg.readings.differentiated import trained_sources
from pcg.readings.kernel_use import SEPARATE, KernelUse
from pcg.readings.kind import (
    free_symbols,
    is_epilogue,
    look_up,
    passes_gradients,
    reads,
    scatter_target,
)
from pcg.readings.torch_work import products
from pcg.types.halo import typing_of
from pcg.types.infer import bind_sizes
from pcg.types.operator import Call
from pcg.types.tensor import ParallelTensor


@dataclass(frozen=True)
class Work:
    """The work of one task of an operator in one training step, over all its slices in time."""

    flops_forward: int = 0
    bytes_forward: int = 0
    """Bytes read from and written to the device's memory."""
    flops_backward: int = 0
    bytes_backward: int = 0
    kernels_forward: int = 0
    kernels_backward: int = 0
    """The number of kernel launches: one for each operand that needs a gradient."""
    flops_slope: int = 0
    bytes_slope: int = 0
    kernels_slope: int = 0
    """The pass that multiplies the gradient of a function of a sum by the function's slope, before
    the other backward kernels. It reads the gradient and the value, and writes."""


@lru_cache(maxsize=16)
def gradient_nodes(graph: Graph) -> frozenset[Node]:
    """Return the nodes of a graph whose outputs need gradients."""
    return needing_gradients((node, trained_sources(node)) for node in graph.nodes)


def needing_gradients(nodes: Iterable[tuple[Node, Iterable[Node]]]) -> frozenset[Node]:
    """Return the nodes whose outputs need gradients: weights, and all that depends on one.

    ``nodes`` are in order, each with the nodes that it reads. The ``tensor`` leaves of a part of a
    model stand for values of the rest, and count as weights here.
    """
    wanted: set[Node] = set()
    for node, sources in nodes:
        trained = node.leaf.kind != "input" if node.is_leaf else not wanted.isdisjoint(sources)
        if trained:
            wanted.add(node)
    return frozenset(wanted)


def work(
    node: Node,
    needs: frozenset[int],
    narrow: int = 4,
    wide: int = 4,
    use: KernelUse = SEPARATE,
) -> Work:
    """Return the work of one task of a compute operator; none for a join, which moves no data.

    ``needs`` are the operands, by position, whose gradients have to be computed. ``narrow`` is the
    bytes of an element of these and of the results, ``wide`` that of the other operands
    (``pcg.readings.formats``). All tasks have the same work. By default, the operator is a separate
    kernel.
    """
    if node.operator_call.operator.parallel is not None:
        return Work()
    types = tuple(value.type for value in node.inputs)
    return _work(node.operator_call, types, needs, narrow, wide, use)


@lru_cache(maxsize=65536)
def _work(
    call: Call,
    types: tuple[ParallelTensor, ...],
    needs: frozenset[int],
    narrow: int,
    wide: int,
    use: KernelUse,
) -> Work:
    equation = call.instance(tuple(t.rank for t in types))
    lengths, sizes = _lengths(call, types)
    blocks = [prod(t.held) for t in types]
    walk = _Walk(sizes, lengths, blocks, needs)
    written = 0
    for output in equation.outputs:
        scope = {name: lengths[name] for dim in output.dims for name in dim.names}
        written += narrow * prod(scope.values())
        walk.root(output.body, scope)
    itemsizes = [1 if i in use.drawn else narrow if i in needs else wide for i in range(len(types))]
    read = [walk.read(i) * size for i, size in enumerate(itemsizes)]
    back = needs - use.as_is
    moved_back = sum(
        written * (not use.backward_fused)
        + sum(read[other] for other in walk.values.get(operand, ()))
        + blocks[operand] * narrow * (operand not in use.fused_gradients)
        for operand in back
    )
    # In a product of two operands, each gradient takes as many products again.
    arithmetic = 2 * products(call.operator, lengths)
    return Work(
        flops_forward=walk.forward + arithmetic,
        bytes_forward=sum(size for i, size in enumerate(read) if i not in use.unread)
        + written * use.is_written,
        flops_backward=walk.backward + arithmetic * min(len(needs), 2),
        bytes_backward=moved_back,
        kernels_forward=int(use.launches),
        kernels_backward=0 if use.backward_fused else len(back),
        flops_slope=walk.slope,
        bytes_slope=narrow * 3 * walk.sloped,
        kernels_slope=1 if walk.sloped else 0,
    )


def _lengths(
    call: Call, types: tuple[ParallelTensor, ...]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the number of values of each index on one task, and the global sizes by symbol."""
    ranks = tuple(t.rank for t in types)
    sizes = bind_sizes(call, call.instance(ranks), [t.shape for t in types])
    lengths = {name[1:-1]: size for name, size in sizes.items() if name.startswith("|")}
    for axis in typing_of(call, types).axes:
        operand, position = axis.first_place
        lengths[axis.name] //= types[operand].degrees.dims[position]
    return lengths, sizes


Scope = Mapping[str, int]
"""The indices in scope of an expression, each with its length on one task."""


@dataclass
class _Walk:
    """Counts the operations of an equation, each distinct sub-expression once."""

    sizes: Mapping[str, int]
    lengths: Mapping[str, int]
    blocks: list[int]
    needs: frozenset[int]
    forward: int = 0
    backward: int = 0
    slope: int = 0
    sloped: int = 0
    """The number of elements of outputs that are functions of sums."""
    values: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """For each operand that needs a gradient, the operands from whose values it is computed."""
    seen: set[object] = field(default_factory=set[object])
    found_by: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """For the index of a look-up, the indices that determine it."""
    placed_by: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """For the index at which summands are put, the indices that determine it, within their sum."""
    read_as_whole: set[int] = field(default_factory=set[int])
    """Operands that are read as a whole, and not looked up."""
    looked_up: dict[int, int] = field(default_factory=dict[int, int])

    def read(self, operand: int) -> int:
        """Return the number of elements that a task reads of its block of an operand."""
        block = self.blocks[operand]
        if operand in self.read_as_whole:
            return block
        return min(block, self.looked_up.get(operand, 0))

    def root(self, body: Expr, scope: Scope) -> None:
        grid = prod(scope.values())
        if isinstance(body, Apply) and is_epilogue(body):
            flops = FUNCTIONS[body.function].flops
            self.forward += flops * grid
            if self._wanted(body):
                self.slope += (flops + 1) * grid
                self.sloped += grid
            for arg in body.args:
                self.root(arg, scope)
            return
        self._visit(body, scope)
        if self._wanted(body) and self._points(body, scope) < grid:
            self.backward += grid

    def _visit(self, value: Expr, scope: Scope) -> None:
        if not reads(value):
            return
        key = _key(value, scope)
        if key in self.seen:
            return
        self.seen.add(key)
        match value:
            case Access():
                self._access(value, scope)
            case Sum():
                self._sum(value, scope)
            case Max():
                self._greatest(value, scope)
            case Mul(factors):
                self._product(factors, scope)
            case Add(terms):
                self._addition(terms, scope)
            case Apply(function, args):
                self._function(function, args, scope)
            case _:
                pass

    def _access(self, access: Access, scope: Scope) -> None:
        points = self._points(access, scope)
        if not free_symbols(access).isdisjoint(self.found_by):
            known = self.looked_up.get(access.operand, 0)
            self.looked_up[access.operand] = known + points
            if access.operand in self.needs:
                self.backward += points
        else:
            self.read_as_whole.add(access.operand)

    def _sum(self, value: Sum, scope: Scope) -> None:
        length = self.lengths.get(value.var, value.size.evaluate(self.sizes))
        inner = {**scope, value.var: length}
        determining, target = look_up(value), scatter_target(value)
        if determining is not None:
            self.found_by[value.var] = determining & frozenset(scope)
        elif target is not None:
            self.placed_by[target[0]] = target[1] & frozenset(inner)
        self._visit(value.body, inner)
        if determining is None:
            self.forward += self._points(value.body, inner)
        if determining is None and target is not None:
            del self.placed_by[target[0]]

    def _greatest(self, value: Max, scope: Scope) -> None:
        """Count a maximum: one comparison per value. The gradient goes to one of the values."""
        length = self.lengths.get(value.var, value.size.evaluate(self.sizes))
        inner = {**scope, value.var: length}
        self._visit(value.body, inner)
        points = self._points(value.body, inner)
        self.forward += points
        if self._wanted(value.body):
            self.backward += points

    def _product(self, factors: tuple[Expr, ...], scope: Scope) -> None:
        points = self._points(Mul(factors), scope)
        numbers = [f for f in factors if not _chooses(f)]
        multiplications = max(len(numbers) - 1, 0)
        self.forward += multiplications * points
        for i, factor in enumerate(factors):
            self._visit(factor, scope)
            for operand in self._wanted(factor):
                used = self.values.setdefault(operand, set())
                others = factors[:i] + factors[i + 1 :]
                used |= {a.operand for other in others for a in accesses(other)}
            if self._wanted(factor):
                summed = multiplications and self._points(factor, scope) < points
                self.backward += (multiplications + bool(summed)) * points

    def _addition(self, terms: tuple[Expr, ...], scope: Scope) -> None:
        points = self._points(Add(terms), scope)
        guarded = [t for t in terms if isinstance(t, Mul) and _guards(t)]
        summands = len(terms) - len(guarded) + bool(guarded)
        self.forward += (summands - 1) * points
        for term in terms:
            self._visit(term, scope)
            if term not in guarded and self._wanted(term) and self._points(term, scope) < points:
                self.backward += points

    def _function(self, function: str, args: tuple[Expr, ...], scope: Scope) -> None:
        for arg in args:
            self._visit(arg, scope)
        if function == "eq":
            return
        points = self._points(Apply(function, args), scope)
        flops = FUNCTIONS[function].flops
        self.forward += flops * points
        inside = {access.operand for arg in args for access in accesses(arg)}
        for arg in args:
            for operand in self._wanted(arg):
                self.values.setdefault(operand, set()).update(inside)
            if self._wanted(arg):
                self.backward += (flops + 1) * points

    def _points(self, value: Expr, scope: Scope) -> int:
        """Return for how many values of its free indices an expression is computed."""
        free = free_symbols(value) & frozenset(scope)
        known = {**self.found_by, **self.placed_by}
        for name in free & known.keys():
            free = (free - {name}) | known[name]
        return prod(scope[name] for name in free)

    def _wanted(self, value: Expr) -> frozenset[int]:
        return passes_gradients(value, self.needs)


def _chooses(factor: Expr) -> bool:
    """Whether a factor takes no multiplication: a guard, an equality test, or a sign."""
    if isinstance(factor, Const):
        return abs(factor.value) == 1
    return isinstance(factor, Guard) or (isinstance(factor, Apply) and factor.function == "eq")


def _guards(term: Mul) -> bool:
    return any(isinstance(factor, Guard) for factor in term.factors)


def _key(value: Expr, scope: Scope) -> object:
    """Return a key that is equal for sub-expressions that differ only in names of indices."""
    numbers = count()
    names: dict[str, int] = {}
    lengths: list[int] = []

    def number(symbol: str, length: int) -> int:
        if symbol not in names:
            names[symbol] = next(numbers)
            lengths.append(length)
        return names[symbol]

    def index(poly: Poly) -> object:
        return tuple(
            (tuple(number(s, scope[s]) if s in scope else names.get(s, s) for s in monomial), c)
            for monomial, c in poly.terms
        )

    def shape(part: Expr) -> object:
        match part:
            case Const() | Real():
                return part
            case Access(operand, position):
                return ("access", operand, *(index(p) for p in position))
            case IndexValue(at) | Guard(at):
                return (type(part).__name__, index(at))
            case Sum(var, size, body):
                names.pop(var, None)
                names[var] = next(numbers)
                return ("sum", names[var], index(size), shape(body))
            case Max(var, size, guards, body):
                names.pop(var, None)
                names[var] = next(numbers)
                return ("max", names[var], index(size), *map(index, guards), shape(body))
            case Apply(function, args):
                return (function, *map(shape, args))
            case Add() | Mul():
                return (type(part).__name__, *map(shape, children(part)))

    return (shape(value), tuple(lengths))

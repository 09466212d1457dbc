"""The kernels of a graph's operators, and the memory that they read and write.

Problem: an equation gives what an operator computes from its operands. The memory traffic also
depends on the operators around it: a transpose moves nothing, and a bias is added by the product
before it.

Method: one pass over the operators. Each is classified by its kind and its readers.

- A *view* shows elements of its operand and is no kernel. Its backward pass is a kernel (a sum)
  only if it repeats elements.
- The gradient of a sum is equal to that of each summand.
- A *bias*, a vector that is repeated and added to a product with no other reader, is added by the
  product's kernel, as in ``runtime.execute.fuse``.
- Values that depend on drawn numbers alone are drawn where they are read, and kept for the backward
  pass in one byte per element.
- If *compiled* (``torch.compile``), an element-wise operator with a single reader that is
  element-wise or a reduction is a part of the reader's kernel, in both directions.

If a plan moves a tensor between two operators of one kernel, it is written to memory. This case is
ignored, since such operators are usually cut alike. Complexity: linear in the graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from pcg.graph.graph import DRAWN, Graph, Node, Value
from pcg.graph.opaque import Opaque
from pcg.language.expr import Access, Add, Expr, accesses
from pcg.language.poly import Poly
from pcg.readings.differentiated import differentiated
from pcg.readings.kernel_use import SEPARATE, KernelUse
from pcg.readings.kind import kind_of
from pcg.readings.saved import is_pointwise, read_elements, view_of
from pcg.types.operator import Call

Uses = Mapping[Node, KernelUse]


def unfused_use(node: Node) -> KernelUse:
    """Return the kernel use of a compute operator by itself."""
    call = node.operator_call
    if isinstance(call.operator, Opaque) or call.operator.parallel is not None:
        return SEPARATE
    shape_alone = frozenset(range(len(node.inputs))) - differentiated(node)
    shown = _shown(node)
    if shown is not None:
        same = {of for of in shown if _shows_all(node, of)}
        return replace(_no_kernel(node), as_is=shape_alone | same)
    as_is = _as_is(call, tuple(value.type.rank for value in node.inputs)) | shape_alone
    return replace(SEPARATE, as_is=as_is) if as_is else SEPARATE


@lru_cache(maxsize=16)
def kernel_uses(graph: Graph, *, compiled: bool = False) -> Uses:
    """Return the kernel uses of the compute operators of a graph, cut or not."""
    return uses_among(graph.computing, graph.outputs, compiled=compiled)


def uses_among(nodes: Sequence[Node], outputs: Iterable[Value], *, compiled: bool = False) -> Uses:
    """Return the kernel uses of operators in order. ``outputs`` are the values to return."""
    return _Kernels(nodes, [_source(value) for value in outputs], compiled).run()


def _shown(node: Node) -> frozenset[int] | None:
    """Return the operands of which all results of an operator are views, or None."""
    shown = [view_of(node, port) for port in range(len(node.types))]
    return None if None in shown else frozenset(of for of in shown if of is not None)


def _shows_all(node: Node, operand: int) -> bool:
    """Whether the only result of a view has as many elements as the operand that it shows."""
    return len(node.types) == 1 and node.types[0].elements == node.inputs[operand].type.elements


def _no_kernel(node: Node) -> KernelUse:
    """Return a use without a kernel in the forward pass."""
    return KernelUse(launches=False, unread=frozenset(range(len(node.inputs))), is_written=False)


@lru_cache(maxsize=4096)
def _as_is(call: Call, ranks: tuple[int, ...]) -> frozenset[int]:
    """Return the operands that are summands of the result, once and at the same indices."""
    equation = call.instance(ranks)
    if len(equation.outputs) != 1:
        return frozenset()
    output = equation.outputs[0]
    terms: Sequence[Expr] = output.body.terms if isinstance(output.body, Add) else (output.body,)
    places = tuple(Poly.of(name) for dim in output.dims for name in dim.names)
    read = [access.operand for access in accesses(output.body)]
    alone = (t for t in terms if isinstance(t, Access) and tuple(t.index) == places)
    return frozenset(term.operand for term in alone if read.count(term.operand) == 1)


def _source(value: Value) -> Value:
    """Return the value behind parallel operators."""
    while value.node.is_parallel:
        value = value.node.inputs[0]
    return value


class _Kernels:
    def __init__(self, nodes: Sequence[Node], outputs: Collection[Value], compiled: bool) -> None:
        self._nodes, self._compiled = nodes, compiled
        self._outputs = frozenset(outputs)
        self._inputs = {node: [_source(value) for value in node.inputs] for node in nodes}
        self._readers: dict[Value, list[Node]] = defaultdict(list)
        for node, inputs in self._inputs.items():
            for position in sorted(read_elements(node)):
                self._readers[inputs[position]].append(node)
        self._drawn: set[Value] = set()
        self._uses: dict[Node, KernelUse] = {}

    def run(self) -> Uses:
        for node in self._nodes:
            self._uses[node] = self._use(node)
        for node in self._nodes:
            self._bias(node)
        for node in self._nodes if self._compiled else ():
            self._fuse(node)
        return self._uses

    def _use(self, node: Node) -> KernelUse:
        inputs = self._inputs[node]
        drawn = frozenset(i for i, value in enumerate(inputs) if self._is_drawn(value))
        if not drawn:
            return unfused_use(node)
        if len(drawn) < len(inputs):
            return replace(unfused_use(node), drawn=drawn)
        self._drawn.update(node.outputs)
        return _no_kernel(node)

    def _is_drawn(self, value: Value) -> bool:
        if value.node.is_leaf:
            return value.node.leaf.kind == "input" and value.node.leaf.name.startswith(DRAWN)
        return value in self._drawn

    def _bias(self, total: Node) -> None:
        """Merge an addition into the product before it, if it adds a bias."""
        if total.name != "add":
            return
        inputs = self._inputs[total]
        for value, other in zip(inputs, reversed(inputs), strict=True):
            product, bias = value.node, other.node
            if product.is_leaf or bias.is_leaf or not self._is_bias(bias):
                continue
            readers = {*self._readers[value]} - {bias}
            if product.name == "matmul" and readers == {total} and value not in self._outputs:
                self._uses[total] = replace(_no_kernel(total), as_is=self._uses[total].as_is)
                return

    def _is_bias(self, node: Node) -> bool:
        """Whether an operator repeats a vector along all axes but the last."""
        last = node.types[0].rank - 1
        return node.name == "expand_vector" and node.operator_call.integer("axis") == last

    def _fuse(self, node: Node) -> None:
        """Merge an element-wise operator into the kernel of its only reader, behind full views."""
        use = self._uses[node]
        if not use.launches or not is_pointwise(node) or len(node.outputs) != 1:
            return
        value, reader = self._reader(node.value())
        if reader is None or not self._can_absorb(reader):
            return
        self._uses[node] = replace(use, launches=False, is_written=False, backward_fused=True)
        into, position = self._uses[reader], self._inputs[reader].index(value)
        more = {position}
        self._uses[reader] = replace(
            into, unread=into.unread | more, fused_gradients=into.fused_gradients | more
        )

    def _reader(self, value: Value) -> tuple[Value, Node | None]:
        """Return the only reader of a value, and the full view of the value that it reads."""
        while value not in self._outputs and len(self._readers[value]) == 1:
            reader = self._readers[value][0]
            if _shown(reader) is None or not _shows_all(reader, self._inputs[reader].index(value)):
                return value, reader
            value = reader.value()
        return value, None

    def _can_absorb(self, node: Node) -> bool:
        return self._uses[node].launches and (is_pointwise(node) or kind_of(node) == "reduction")

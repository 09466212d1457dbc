"""Hypothesis strategies: operators on operands that fit, graphs, machine views and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from support.graphs.attributes import LARGEST, attributes, fixed_sizes, index_operands

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Leaf, LeafKind, Node, Value, apply
from pcg.language.equation import Equation
from pcg.ops import OPERATORS
from pcg.ops.layers import mean_loss
from pcg.placement.layout import grid
from pcg.placement.region import Region
from pcg.placement.view import MachineView
from pcg.readings.ring import PrimeField, Reals
from pcg.types.local import LocalTyping
from pcg.types.operator import Attribute as AttributeValue
from pcg.types.operator import Call, Operator, _solve_operand, positions_at
from pcg.types.tensor import Degrees, ParallelTensor

COMPUTE = tuple(op for op in OPERATORS.values() if op.parallel is None)
SIMPLE = tuple(
    OPERATORS[name]
    for name in (
        *("matmul", "batch_matmul", "add", "subtract", "multiply", "scale", "maximum"),
        *("relu", "gelu", "sigmoid", "tanh", "softmax", "layer_norm", "embedding"),
        *("concat", "split", "transpose", "flatten", "unflatten", "sum_loss", "mean_loss"),
    )
)
"""The operators of random graphs: graphs of these grow fast, and the operators fit one another."""
NONLINEAR = (
    *("maximum", "relu", "gelu", "sigmoid", "tanh"),
    *("softmax", "layer_norm", "embedding"),
)
POSITIVE = ("log", "sqrt", "rsqrt", "power")
"""Operators whose operands have to be positive."""
PARALLEL = tuple(OPERATORS[n] for n in ("partition", "combine", "replicate", "reduce", "join"))
"""All parallel operators but pipeline and batch. Layouts have no slices in time yet."""
MAX_TASKS = 24
MAX_ELEMENTS = 256

seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Applied:
    """A call and types of operands that it accepts. ``below`` bounds the index operands."""

    call: Call
    types: tuple[ParallelTensor, ...]
    below: Mapping[int, int]

    @property
    def node(self) -> Node:
        """The call on leaves that are named like the operands."""
        names = self.call.operator.operand_names
        leaves = (
            Leaf("input", name, t.rank, t, self.below.get(i))
            for i, (name, t) in enumerate(zip(names, self.types, strict=True))
        )
        return Node(self.call, tuple(Value(Node(leaf)) for leaf in leaves))

    @property
    def graph(self) -> Graph:
        node = self.node
        return Graph(tuple(node.value(port) for port in range(len(self.call.operator.outputs))))


@st.composite
def applied(draw: DrawFn, operators: Sequence[Operator] = COMPUTE, *, cut: bool = True) -> Applied:
    """A compute operator at random ranks and sizes. With ``cut``, it has random degrees that its
    typing admits: of every index, of partials that pass through, and of copies."""
    operator = draw(st.sampled_from(operators))
    dims = [dim for operand in operator.template.operands for dim in operand.dims]
    runs = sorted({dim.names[0] for dim in dims if dim.run})
    lengths = {run: draw(st.integers(0, 2)) for run in runs}
    equation = operator._expand(tuple(lengths.items()))
    positions = positions_at(operator.template, lengths)
    ranks = tuple(len(operand.dims) for operand in equation.operands)
    typing = operator.typing(ranks, tuple(positions.values()))
    degrees, slices = _index_degrees(draw, typing, {}) if cut else ({}, {})
    most = LARGEST.get(operator.name, 3)
    sizes = _index_sizes(draw, equation, {}, degrees, slices, most)
    given = attributes(draw, operator, equation, sizes)
    call = operator(**positions, **given)
    carriers = draw(st.sampled_from((frozenset[int](), *typing.carriers))) if cut else ()
    passing = draw(st.sampled_from((2, 3))) if carriers else 1
    copies = draw(st.sampled_from((1, 1, 2))) if cut else 1
    types = tuple(
        operand_type(equation, typing, i, sizes, degrees, slices, copies, (i in carriers, passing))
        for i in range(len(ranks))
    )
    return Applied(call, types, index_operands(equation, sizes, given))


def operand_type(
    equation: Equation,
    typing: LocalTyping,
    operand: int,
    sizes: Mapping[str, int],
    degrees: Mapping[str, int],
    slices: Mapping[str, int],
    copies: int,
    passing: tuple[bool, int],
) -> ParallelTensor:
    """The type of an operand, from the degrees of the indices (design, section 3)."""
    dims = equation.operands[operand].dims
    axes = [typing.axis_at(operand, dim) for dim in range(len(dims))]
    carries, partials = passing
    missing = prod(degrees.get(a.name, 1) for a in typing.axes if a.operands[operand] is None)
    return ParallelTensor(
        tuple(prod(sizes[name] for name in dim.names) for dim in dims),
        Degrees(
            tuple(degrees.get(a.name, 1) if a else 1 for a in axes),
            tuple(slices.get(a.name, 1) if a else 1 for a in axes),
            copies * missing * (1 if carries else partials),
            partials if carries else 1,
        ),
    )


def _index_degrees(
    draw: DrawFn, typing: LocalTyping, known: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Degrees and slices of the indices that may be cut. ``known`` degrees are kept."""
    degrees, slices = dict(known), dict.fromkeys(known, 1)
    for axis in typing.axes:
        if axis.name in known:
            continue
        degree = draw(st.sampled_from((1, 2, 3)))
        if prod(degrees.values()) * degree > MAX_TASKS:
            degree = 1
        degrees[axis.name] = degree
        # Slices of a summed index are refused.
        in_time = None not in axis.outputs and not known
        slices[axis.name] = draw(st.sampled_from((1, 1, 1, 2))) if in_time else 1
    return degrees, slices


def _index_sizes(
    draw: DrawFn,
    equation: Equation,
    known: Mapping[str, int],
    degrees: Mapping[str, int],
    slices: Mapping[str, int],
    most: int = 3,
) -> dict[str, int]:
    """A size for every index of the operands, a multiple of its cuts."""
    sizes = {**fixed_sizes(equation), **known}
    for dim in (dim for operand in equation.operands for dim in operand.dims):
        for name in dim.names:
            if name not in sizes:
                base = draw(st.integers(2 if name == "n" else 1, most))
                sizes[name] = base * degrees.get(name, 1) * slices.get(name, 1)
    return sizes


@st.composite
def tensors(draw: DrawFn, *, cut: bool = True, min_rank: int = 0) -> ParallelTensor:
    """A parallel type of up to three dimensions."""
    rank = draw(st.integers(min_rank, 3))
    some = st.sampled_from((1, 1, 2, 3) if cut else (1,))
    degrees = tuple(draw(some) for _ in range(rank))
    if prod(degrees) > MAX_TASKS // 2:
        degrees = (1,) * rank
    sizes = tuple(draw(st.sampled_from((1, 2, 4))) * degree for degree in degrees)
    copies, partials = draw(st.sampled_from(((1, 1), (1, 1), (2, 1), (1, 2)) if cut else ((1, 1),)))
    return ParallelTensor(sizes, Degrees(degrees, (1,) * rank, copies, partials))


class _Growing:
    """A graph that grows operator by operator."""

    def __init__(self, draw: DrawFn, *, cut: bool) -> None:
        self._draw = draw
        self._cut = cut
        self._leaves = 0
        self.values: list[Value] = []
        self.leaf(draw(tensors(cut=cut, min_rank=1)))

    def leaf(self, tensor: ParallelTensor, kind: LeafKind | None = None) -> Value:
        kind = kind or self._draw(st.sampled_from(("input", "weight")))
        value = Value(Node(Leaf(kind, f"{kind[0]}{self._leaves}", tensor.rank, tensor)))
        self._leaves += 1
        self.values.append(value)
        return value

    def grow(self) -> None:
        """Apply an operator to a value, if it accepts one."""
        draw = self._draw
        x = draw(st.sampled_from(self.values))
        operators = (*SIMPLE, *PARALLEL, *PARALLEL) if self._cut else SIMPLE
        operator = draw(st.sampled_from([op for op in operators if _may_fit(op, x.type)]))
        before = len(self.values)
        try:
            node = self._parallel(operator, x) if operator.parallel else self._compute(operator, x)
            types = node.types
        except OperatorError:
            del self.values[before:]
            return
        small = all(t.elements <= MAX_ELEMENTS and t.pieces <= MAX_TASKS for t in types)
        if small and (not node.inputs or prod(_tasks(node)) <= MAX_TASKS):
            self.values += [node.value(port) for port in range(len(types))]
        else:
            del self.values[before:]

    def _parallel(self, operator: Operator, x: Value) -> Node:
        if operator.parallel == "join":
            same = [value for value in self.values if value.type == x.type]
            return Node(operator(), (x, self._draw(st.sampled_from(same))))
        attributes: dict[str, AttributeValue] = {"degree": self._draw(st.sampled_from((2, 2, 3)))}
        if "dim" in operator.attributes:
            cut = [dim for dim, degree in enumerate(x.type.degrees.dims) if degree > 1]
            dims = cut if operator.parallel == "combine" else range(x.type.rank)
            attributes["dim"] = self._draw(st.sampled_from(dims))
        return Node(operator(**attributes), (x,))

    def _compute(self, operator: Operator, x: Value) -> Node:
        draw, first = self._draw, operator.template.operands[0]
        dims = st.integers(0, max(0, x.type.rank - 1))
        at = dict(zip(operator.template.positions, sorted(draw(dims) for _ in first.dims)))  # noqa: B905
        lengths: dict[str, int] = {}
        _solve_operand(operator, first, x.type.rank, at, lengths)
        equation = operator._expand(tuple(sorted(lengths.items())))
        ranks = tuple(len(operand.dims) for operand in equation.operands)
        typing = operator.typing(ranks, tuple(at.values()))
        have = x.type.degrees
        known = {
            axis.name: have.dims[dim]
            for axis in typing.axes
            if (dim := axis.operands[0]) is not None
        }
        degrees, slices = _index_degrees(draw, typing, known) if self._cut else ({}, {})
        sizes = _index_sizes(draw, equation, _sizes_of(draw, equation, x.type), degrees, slices)
        given = attributes(draw, operator, equation, sizes)
        call = operator(**at, **given)
        carriers = next((c for c in typing.carriers if 0 in c and have.partials > 1), ())
        missing = prod(degrees.get(a.name, 1) for a in typing.axes if a.operands[0] is None)
        if have.copies % missing:
            raise OperatorError(operator.name, "x", None, f"copies {have.copies}")
        copies = have.copies // missing
        inputs = [x]
        for i in range(1, len(ranks)):
            passing = (i in carriers, have.partials)
            wanted = operand_type(equation, typing, i, sizes, degrees, slices, copies, passing)
            inputs.append(self._of_type(wanted))
        for i, below in index_operands(equation, sizes, given).items():
            of = inputs[i].type
            ids = Leaf("input", f"ids{self._leaves}", of.rank, of, below)
            inputs[i] = Value(Node(ids))
            self._leaves += 1
        return Node(call, tuple(inputs))

    def _of_type(self, wanted: ParallelTensor) -> Value:
        same = [value for value in self.values if value.type == wanted]
        if same and self._draw(st.booleans()):
            return self._draw(st.sampled_from(same))
        return self.leaf(wanted)


def _may_fit(operator: Operator, tensor: ParallelTensor) -> bool:
    """Whether an operator may fit a tensor and is worth trying. Some operators fit few tensors."""
    degrees = tensor.degrees
    match operator.parallel:
        case "reduce":
            return degrees.partials > 1
        case "combine":
            return max(degrees.dims, default=1) > 1
        case "partition":
            return tensor.rank > 0
        case "join" | "replicate":
            return tensor.pieces < MAX_TASKS
        case _:
            linear = operator.name not in NONLINEAR
            least = sum(not dim.run for dim in operator.template.operands[0].dims)
            return tensor.rank >= least and (linear or degrees.partials == 1)


def _sizes_of(draw: DrawFn, equation: Equation, tensor: ParallelTensor) -> dict[str, int]:
    """The sizes of the first operand's indices. A merged dimension is split at random."""
    sizes: dict[str, int] = {}
    for dim, size in zip(equation.operands[0].dims, tensor.shape, strict=True):
        if len(dim.names) == 1:
            sizes[dim.names[0]] = size
        else:
            outer = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
            sizes |= dict(zip(dim.names, (outer, size // outer), strict=True))
    return sizes


def _tasks(node: Node) -> tuple[int, ...]:
    return () if node.is_parallel else grid(node)


@st.composite
def graphs(draw: DrawFn, *, operators: int = 6, cut: bool = True) -> Graph:
    """A typed graph. With ``cut``, it has any parallel types, and parallel operators in it."""
    growing = _Growing(draw, cut=cut)
    for _ in range(draw(st.integers(1, operators))):
        growing.grow()
    read = {value for last in growing.values for value in last.node.inputs}
    ends = [value for value in growing.values if value not in read]
    return Graph(tuple(ends))


@st.composite
def training_graphs(draw: DrawFn, *, operators: int = 5, cut: bool = True) -> Graph:
    """A graph whose first output is a loss that depends on a weight."""
    growing = _Growing(draw, cut=cut)
    weight = growing.leaf(draw(tensors(cut=cut, min_rank=1)), "weight")
    for _ in range(draw(st.integers(1, operators))):
        growing.grow()
    value = draw(st.sampled_from([v for v in growing.values if _reaches(v, weight)]))
    return Graph((apply(mean_loss(), value), value))


def _reaches(value: Value, node: Value) -> bool:
    return node.node in Graph((value,)).leaves


@st.composite
def placed(
    draw: DrawFn, source: SearchStrategy[Graph]
) -> tuple[Graph, dict[Node, MachineView], int]:
    """A graph, a view for each of its operators, and the number of devices of the machine."""
    graph = draw(source)
    operators = [node for node in graph.nodes if not node.is_leaf and not node.is_parallel]
    most = max(
        [prod(grid(n)) for n in operators] + [t.pieces for n in graph.nodes for t in n.types]
    )
    devices = most + draw(st.integers(0, 2))
    views: dict[Node, MachineView] = {}
    for node in operators:
        *cuts, copies = grid(node)
        # With enough devices, two may compute the same.
        times = draw(st.integers(1, min(2, devices // (prod(cuts) * copies))))
        shape = (*cuts, copies * times)
        start = draw(st.integers(0, devices - prod(shape)))
        order = tuple(draw(st.permutations(range(len(shape)))))
        views[node] = MachineView.packed(start, shape, order)
    return graph, views, devices


def random_parts(
    rng: np.random.Generator, leaf: Leaf, ring: Reals | PrimeField
) -> np.ndarray[Any, Any]:
    """The random values V of a leaf, of shape (partials, *shape). Their sum is the meaning of the
    tensor."""
    assert leaf.type is not None
    shape = (leaf.type.degrees.partials, *leaf.type.shape)
    if leaf.below is not None:
        return rng.integers(0, leaf.below, shape).astype(ring.dtype)
    if isinstance(ring, Reals):
        return rng.standard_normal(shape)
    return rng.integers(0, ring.prime, shape)


def parts_of_leaves(
    graph: Graph, seed: int, ring: Reals | PrimeField
) -> dict[str, np.ndarray[Any, Any]]:
    """The random values V of every leaf, by name. They are positive if an operator that reads the
    leaf needs that."""
    rng = np.random.default_rng(seed)
    parts = {node.leaf.name: random_parts(rng, node.leaf, ring) for node in graph.leaves}
    if isinstance(ring, Reals):
        readers = (node for node in graph.nodes if node.name in POSITIVE and not node.is_leaf)
        for leaf in (v.node.leaf for node in readers for v in node.inputs if v.node.is_leaf):
            parts[leaf.name] = np.abs(parts[leaf.name]) + 0.1
    return parts


def drawn_region(given: st.DataObject) -> tuple[tuple[int, ...], Region]:
    """The shape of a small tensor, and a region of it, which may be empty."""
    shape = tuple(given.draw(st.lists(st.integers(1, 9), max_size=4), label="shape"))
    ends = (given.draw(st.tuples(st.integers(0, size), st.integers(0, size))) for size in shape)
    return shape, tuple((min(pair), max(pair)) for pair in ends)

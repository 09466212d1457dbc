"""Operators with an inner reduction as graphs of primitive ones, compiled from their equations.

A softmax refuses a cut along its axis, since each of its elements reads the whole axis. The graph

    divide(exp(x - m), expand(sum_axis(exp(x - m)), size))      with m = max_axis(x)

computes the same, and its operators allow the cut: ``sum_axis`` of a cut axis leaves partial sums,
and the other operators are element-wise. No operator is treated specially. An operator that cannot
be compiled is left out with a reason. A pair is a candidate until it is proved
(``verifier.decide``).

If the graph of one operator contains the graph of another operator, there is a second graph with
that operator in its place (``folding``).

Reductions and repetitions also have a form by blocks: ``max_axis`` of k blocks is the maximum of
the k maxima of the blocks. Tasks on a cut axis can compute these, although they leave no partial
sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Node, Value, apply, tensor
from pcg.graph.pairs import GraphPair
from pcg.language.equation import Equation, Output, run_names
from pcg.language.expr import Max, Sum, walk
from pcg.language.poly import Poly
from pcg.language.poly import product as product_of
from pcg.ops import BUILT_IN
from pcg.ops.reindexing import flatten, unflatten
from pcg.types.operator import Attribute, Call, Operator, positions_at
from substitutions.generate.algebra.enumerate import edge_ranks
from substitutions.generate.decompose.compiler import Compiler, binders
from substitutions.generate.decompose.folding import folded, folds
from substitutions.generate.decompose.named_axes import NamedTensor
from substitutions.generate.decompose.product_form import NotCompiled
from verifier.trusted.sizes.runs import free_runs
from verifier.trusted.sizes.sizes import input_size

MAX_LENGTH = 3
"""The most axes of a run if the graph depends on their number."""
MAX_RANK = 4
BLOCKS = ("k", "n")
"""The symbols of the number of blocks of an axis, and of the size of a block."""


@dataclass(frozen=True)
class Decomposition:
    """Pairs of an operator and an equal graph of other operators, one for each number of axes that
    needs its own graph; or the reason why there is none."""

    pairs: tuple[GraphPair, ...] = ()
    reason: str = ""


def decompositions(operator: Operator) -> tuple[GraphPair, ...]:
    """The candidates for an operator: graphs of primitive operators, the same graphs with other
    operators folded in them, and the forms by blocks."""
    pairs = decompose(operator).pairs
    again = (pair for pair in (folded(pair, _folding) for pair in pairs) if pair is not None)
    return (*pairs, *again, *by_blocks(operator))


@lru_cache(maxsize=1)
def _folding() -> tuple[GraphPair, ...]:
    """The operators that save tensors (``folds``), with their decompositions, at each number of
    axes."""
    pairs: list[GraphPair] = []
    for operator in sorted(BUILT_IN, key=lambda operator: operator.name):
        if decompose(operator).pairs:
            pairs += filter(folds, _variants(operator))
    return tuple(pairs)


def decompose(operator: Operator) -> Decomposition:
    """The operator as graphs of primitive operators, or the reason why there are none."""
    if operator.parallel is not None or not _reduces(operator):
        return Decomposition(reason="nothing is reduced in it")
    lengths = dict.fromkeys(operator.runs, 1)
    try:
        first = _compiled(operator, lengths)
    except NotCompiled as error:
        return Decomposition(reason=str(error))
    if any(node.name == operator.name for node in Graph(first[1]).nodes):
        return Decomposition(reason="it is a primitive operator")
    if _covers_every_run(operator, first):
        return Decomposition((first,))
    return Decomposition(tuple(_variants(operator)))


def _variants(operator: Operator) -> Iterator[GraphPair]:
    """Yield the decompositions at each possible number of axes of the runs."""
    for chosen in product(range(MAX_LENGTH + 1), repeat=len(operator.runs)):
        lengths = dict(zip(operator.runs, chosen, strict=True))
        try:
            pair = _compiled(operator, lengths)
        except (NotCompiled, OperatorError):
            continue  # Such as a mean of no elements.
        rank = max(node.ranks[0] for node in Graph(pair[0]).nodes)
        if rank <= MAX_RANK and not all(value.node.is_leaf for value in pair[1]):
            yield pair


def _reduces(operator: Operator) -> bool:
    equation = _instance(operator, dict.fromkeys(operator.runs, 1))[0]
    return any(isinstance(p, Sum | Max) for o in equation.outputs for p in walk(o.body))


def _covers_every_run(operator: Operator, pair: GraphPair) -> bool:
    """Whether each axis of a run may be any number of axes on both sides."""
    free = {place for group in free_runs(*pair) for place in group}
    return all(
        (declared.name, at) in free
        for declared in operator.template.operands
        for at, dim in enumerate(declared.dims)
        if dim.run
    )


def _instance(
    operator: Operator, lengths: Mapping[str, int]
) -> tuple[Equation, tuple[int, ...], dict[str, int]]:
    """The equation for runs of given lengths, the ranks of its operands, and its positions."""
    operands = edge_ranks(operator, lengths)[: operator.arity]
    positions = positions_at(operator.template, lengths)
    given = tuple(positions[name] for name in operator.template.positions)
    return operator.instance(operands, given), operands, positions


def _compiled(operator: Operator, lengths: Mapping[str, int]) -> GraphPair:
    """The decomposition for runs of given lengths. Raises NotCompiled."""
    equation, ranks, positions = _instance(operator, lengths)
    inputs = [tensor(o.name, r) for o, r in zip(equation.operands, ranks, strict=True)]
    symbols = {name: Poly.of(name) for name in (*operator.sizes, *operator.reals)}
    attributes: dict[str, Attribute] = {**positions, **symbols}
    node = Node(operator(**attributes), tuple(inputs))
    known = {**_sizes(equation), **symbols}
    runs = frozenset(name for run, length in lengths.items() for name in run_names(run, length))
    right = tuple(_output(equation, output, known, runs, inputs) for output in equation.outputs)
    return (tuple(node.value(port) for port in range(len(right))), right)


def _sizes(equation: Equation) -> dict[str, Poly]:
    """The sizes of an equation in terms of the sizes of its inputs. A size that is a merged
    dimension divided by its other factors gets a new symbol, which the rule's conditions
    determine."""
    known: dict[str, Poly] = {}
    for operand in equation.operands:
        for position, dim in enumerate(operand.dims):
            if len(dim.names) == 1:
                size = Poly.of(input_size(operand.name, position))
                known.setdefault(f"|{dim.names[0]}|", size)
    for quotient in equation.quotients:
        known[f"|{quotient.name}|"] = Poly.of(f"{quotient.name}_size")
    for name, bound in equation.bounds:
        known[f"|{name}|"] = bound.substitute(known)
    return known


def _output(
    equation: Equation,
    output: Output,
    known: Mapping[str, Poly],
    runs: frozenset[str],
    inputs: Sequence[Value],
) -> Value:
    """One output as a graph of the inputs. Raises NotCompiled."""
    bounds = _bounds(equation, output)
    leaves: list[NamedTensor] = []
    for operand, value in zip(equation.operands, inputs, strict=True):
        leaf = NamedTensor(value, ())
        for dim in operand.dims:
            leaf = _taken_apart(leaf, dim.names, bounds, known)
        leaves.append(leaf)
    order = tuple(name for dim in output.dims for name in dim.names)
    value = Compiler(leaves, bounds, known, order, runs).compile(output.body)
    for position, dim in enumerate(output.dims):
        for _ in dim.names[1:]:
            value = apply(flatten(axis=position), value)
    return value


def _taken_apart(
    leaf: NamedTensor, names: tuple[str, ...], bounds: Mapping[str, Poly], known: Mapping[str, Poly]
) -> NamedTensor:
    """The leaf with names for one more dimension; a merged dimension is split into several."""
    value, axes = leaf.value, leaf.axes
    for i, name in enumerate(names[:-1]):
        inner = product_of(bounds[other].substitute(known) for other in names[i + 1 :])
        outer = bounds[name].substitute(known)
        value = apply(unflatten(axis=len(axes), outer=outer, inner=inner), value)
        axes = (*axes, name)
    return NamedTensor(value, (*axes, names[-1]))


def _bounds(equation: Equation, output: Output) -> dict[str, Poly]:
    """The size of every index, as in the equation. Raises NotCompiled if indices of different sizes
    have the same name."""
    stated = dict(equation.bounds)
    sizes: dict[str, Poly] = {}
    dims = [dim for part in (*equation.operands, output) for dim in part.dims]
    named = [(name, Poly.of(f"|{name}|")) for dim in dims for name in dim.names]
    for name, size in (*named, *binders(output.body)):
        size = stated.get(name, size) if size == Poly.of(f"|{name}|") else size
        if sizes.setdefault(name, size) != size:
            raise NotCompiled(f"index {name} has the sizes {sizes[name]} and {size}")
    return sizes


@lru_cache(maxsize=1)
def _blocks() -> tuple[Poly, Poly]:
    count, size = (Poly.of(name) for name in BLOCKS)
    return count, size


def by_blocks(operator: Operator) -> tuple[GraphPair, ...]:
    """An operator that removes one axis, or creates one of a given size, as the same operator
    applied twice: within the blocks of the axis, and over the blocks. Empty for other operators."""
    dims = [part.dims for part in operator.template.placing]
    if operator.arity != 1 or len(dims) != 2 or operator.template.positions != ("axis",):
        return ()
    plain = [sum(not dim.run for dim in part) for part in dims]
    if operator.reals or plain not in ([1, 0], [0, 1]):
        return ()
    _, (rank,), positions = _instance(operator, dict.fromkeys(operator.runs, 1))
    (axis,) = positions.values()
    x = tensor(operator.operand_names[0], rank)
    count, size = _blocks()
    if plain == [1, 0] and not operator.sizes:
        inner = apply(unflatten(axis=axis, outer=count, inner=size), x)
        right = apply(operator(axis=axis), apply(operator(axis=axis + 1), inner))
        return (((apply(operator(axis=axis), x),), (right,)),)
    if plain == [0, 1] and len(operator.sizes) == 1:
        (name,) = operator.sizes
        right = apply(_sized(operator, axis, name, count), x)
        right = apply(_sized(operator, axis + 1, name, size), right)
        left = apply(_sized(operator, axis, name, count * size), x)
        return (((left,), (apply(flatten(axis=axis), right),)),)
    return ()


def _sized(operator: Operator, axis: int, name: str, size: Poly) -> Call:
    return operator(**{"axis": axis, name: size})

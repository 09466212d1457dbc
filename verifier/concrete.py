"""Builds typed graphs of a pair from numbers for its sizes, degrees and attributes.

The symbols of a pair are the sizes of its inputs, their degrees, copies and partials, and the
attributes of its operators. Not all values are valid: some sizes follow from others
(``Sizes.solved``), and degrees have to satisfy the equations of a typing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from math import prod

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Leaf, Node
from pcg.graph.pairs import GraphPair, Outputs, both, remade, symbolic_attributes
from pcg.language.expr import Expr, Max, Sum, children
from pcg.language.poly import Poly
from pcg.readings.evaluate import concrete
from pcg.types.infer import bind_sizes
from pcg.types.operator import Call
from pcg.types.tensor import Degrees, ParallelTensor
from verifier.sides import SideKey, side_typings
from verifier.trusted.errors import Undecided
from verifier.trusted.sizes.degrees import Powers
from verifier.trusted.sizes.sizes import Sizes, input_size
from verifier.trusted.sizes.types import differences
from verifier.witness import solve, value_of

MAX_ELEMENTS = 200_000
"""The most elements of a tensor of a concrete pair."""
MAX_NUMBERS = 1 << 27
"""The most numbers that an evaluation of one operator may hold at once. Sums within sums have many
terms."""
MAX_TASKS = 64
"""The most blocks, times copies, times partials, of an input where degrees are chosen freely."""


@dataclass(frozen=True)
class Valuation:
    """A pair of graphs with values for all of its symbols."""

    pair: GraphPair
    sizes: Sizes
    values: Mapping[str, int]
    """The values of the symbols of sizes that ``sizes`` leaves free."""
    degrees: Mapping[str, int]
    """The degrees of inputs (``x.d0``, ``x.t0``, ``x.c``, ``x.p``) and of operators (``k``)."""
    reals: Mapping[str, float]
    """The values of the symbols in real attributes."""

    @property
    def symbols(self) -> dict[str, float]:
        """The values of sizes and of all attributes."""
        return {**self.reals, **self.integers}

    @property
    def integers(self) -> dict[str, int]:
        """The values of sizes and of integer attributes."""
        full = dict(self.values)
        for symbol, size in self.sizes.solved.items():
            full[symbol] = self.sizes.resolve(size).evaluate(self.values)
        return full | {s: v for s, v in self.degrees.items() if "." not in s}

    def typed(self) -> tuple[Graph, Graph] | None:
        """Both sides at these values. None if a side has no type, or tensors are too large."""
        integers = self.integers
        if any(value < (s.startswith("|")) for s, value in integers.items()):
            return None
        if any(value.evaluate(integers) for value in self.sizes.zeros):
            return None
        try:
            left, right = self.graphs()
        except (OperatorError, KeyError):
            return None
        nodes = [*left.nodes, *right.nodes]
        if any(t.elements > MAX_ELEMENTS for node in nodes for t in node.types):
            return None
        return None if any(numbers(node) > MAX_NUMBERS for node in nodes) else (left, right)

    def graphs(self) -> tuple[Graph, Graph]:
        """Both sides at these values, however large. Raises OperatorError if a side has no type,
        and KeyError if a symbol has no value."""
        integers = self.integers

        def make(node: Node, inputs: Outputs) -> Node:
            if isinstance(node.call, Leaf):
                return Node(_typed_leaf(node.call, integers, self.degrees))
            return Node(_with_reals(concrete(node.call, integers), self.reals), inputs)

        left, right = (Graph(remade(Graph(outputs), make)) for outputs in self.pair)
        left.check()
        right.check()
        return left, right


def numbers(node: Node) -> int:
    """The numbers that an evaluation of a typed node holds at once if it is not cut: the elements
    of an output, each times the terms of the sums that are nested in it."""
    if node.is_leaf or node.operator_call.operator.parallel is not None:
        return max(t.elements for t in node.types)
    call, shapes = node.operator_call, [value.type.shape for value in node.inputs]
    equation = call.instance(tuple(map(len, shapes)))
    sizes = bind_sizes(call, equation, shapes)
    pairs = zip(equation.outputs, node.types, strict=True)
    return max(_numbers(output.body, sizes, t.elements) for output, t in pairs)


def _numbers(value: Expr, sizes: Mapping[str, int], count: int) -> int:
    if isinstance(value, Sum | Max):
        count *= max(1, value.size.evaluate(sizes))
    return max((count, *(_numbers(part, sizes, count) for part in children(value))))


def _typed_leaf(leaf: Leaf, sizes: Mapping[str, int], degrees: Mapping[str, int]) -> Leaf:
    shape = tuple(sizes[input_size(leaf.name, i)] for i in range(leaf.rank))
    type_degrees = Degrees(
        tuple(degrees.get(f"{leaf.name}.d{i}", 1) for i in range(leaf.rank)),
        tuple(degrees.get(f"{leaf.name}.t{i}", 1) for i in range(leaf.rank)),
        degrees.get(f"{leaf.name}.c", 1),
        degrees.get(f"{leaf.name}.p", 1),
    )
    cuts = zip(shape, type_degrees.dims, type_degrees.slices, strict=True)
    for dim, (size, degree, slices) in enumerate(cuts):
        if size % (degree * slices):
            raise OperatorError("input", leaf.name, dim, "not divisible")
    return Leaf("input", leaf.name, leaf.rank, ParallelTensor(shape, type_degrees))


def _with_reals(call: Call, reals: Mapping[str, float]) -> Call:
    """The call with numbers for its real attributes. A sum or product of symbols becomes that of
    their values."""
    open_ones = {n: v for n, v in call.attributes if n in call.operator.reals}
    values = {n: float(v.at(reals)) for n, v in open_ones.items() if isinstance(v, Poly)}
    return Call(call.operator, tuple((call.values | values).items())) if values else call


def real_symbols(pair: GraphPair) -> dict[str, float]:
    """Pairwise different positive values for the symbols in real attributes. They are multiples of
    1/1024, so that arithmetic with a few of them is exact."""
    attributes = symbolic_attributes(both(pair))
    symbols = {s for call, name, v in attributes if name in call.operator.reals for s in v.symbols}
    return {s: 0.5 + (331 + 619 * i) % 1009 / 1024 for i, s in enumerate(sorted(symbols))}


def fixed_sizes(sizes: Sizes, fixed: Mapping[str, int]) -> Sizes:
    """The sizes with values for some of their symbols. Raises Unsolvable if these contradict the
    equations."""
    if not fixed:
        return sizes
    known = replace(sizes, solved=dict(sizes.solved), positive=list(sizes.positive))
    for symbol, value in sorted(fixed.items()):
        known.equal(Poly.of(symbol), Poly.of(value))
    return known


@dataclass(frozen=True)
class DegreeSystem:
    """The conditions on degrees under one typing of each of two sides. They include equal types of
    both sides, if the degrees that the system was made from give equal types."""

    equations: tuple[Powers, ...]
    whole: tuple[Powers, ...]
    symbols: frozenset[str]

    @staticmethod
    def around(pair: GraphPair, degrees: Mapping[str, int]) -> DegreeSystem | None:
        """The system of the first pair of typings that the given degrees satisfy, if there is
        one."""
        try:
            sides = [side_typings(SideKey(side)) for side in pair]
        except (OperatorError, ValueError, Undecided):
            return None
        for a in sides[0]:
            for b in sides[1]:
                equations, whole = (*a.equations, *b.equations), (*a.whole, *b.whole)
                symbols = a.symbols | b.symbols
                values = {**dict.fromkeys(symbols, 1), **degrees}
                if not all(value_of(e, values) == 1 for e in equations):
                    continue
                if all(value_of(w, values) for w in whole):
                    alike = differences(a, b)
                    if all(value_of(e, values) == 1 for e in alike):
                        equations += alike
                    return DegreeSystem(equations, whole, symbols)
        return None

    def solve(self, pins: Mapping[str, int]) -> Mapping[str, int] | None:
        """A solution with the given values for some degrees; None if there is none."""
        pinned = [Powers.of(s).over(Powers.number(v)) for s, v in pins.items()]
        return solve([*self.equations, *pinned], self.whole, self.symbols)

    def pinned(self, wishes: Sequence[tuple[str, int]]) -> Mapping[str, int] | None:
        """A solution with as many of the wished values as fit together, earlier wishes first."""
        if (solved := self.solve(dict(wishes))) is not None:
            return solved
        pins: dict[str, int] = {}
        for symbol, value in wishes:
            if (solution := self.solve({**pins, symbol: value})) is not None:
                pins[symbol] = value
                solved = solution
        return solved


def degree_choices(
    left: Outputs, right: Outputs, degrees: Mapping[str, int]
) -> Iterator[Mapping[str, int]]:
    """Yield other degrees under the same typings as ``degrees``. Free degrees are 2 and 3 by turns,
    so that they are different where possible."""
    system = DegreeSystem.around((left, right), degrees)
    if system is None:
        return
    operators = sorted(s for s in system.symbols if "." not in s and not s.isdigit())
    input_symbols = sorted(s for s in system.symbols if "." in s)
    seen = [dict(degrees)]
    for numbers in ((3, 2), (2, 3)):
        wishes = list(zip(operators, cycle(numbers), strict=False))
        # At most two degrees of inputs: with every dimension cut there would be thousands of tasks.
        for chosen in ((), input_symbols[:2], input_symbols[-2:]):
            choice = system.pinned([*wishes, *zip(chosen, numbers, strict=False)])
            if choice is None or dict(choice) in seen or tasks(choice) > MAX_TASKS:
                continue
            seen.append(dict(choice))
            yield choice


def tasks(degrees: Mapping[str, int]) -> int:
    """The largest product of degrees, copies and partials of an input."""
    names = {s.split(".")[0] for s in degrees if "." in s}
    pieces = (prod(v for s, v in degrees.items() if s.startswith(f"{n}.")) for n in names)
    return max(pieces, default=1)

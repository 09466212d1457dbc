"""Mutants of a pair of graphs: all pairs that one small mistake would make of it.

If a mutant is proved, the verifier is wrong, or the mutation keeps the rule true. ``judging``
decides between these by evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain, combinations, permutations, zip_longest

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Leaf, Node, Value, apply, rebuild
from pcg.graph.pairs import Outputs
from pcg.language.language import EquationError
from pcg.language.poly import Poly
from pcg.ops import OPERATORS
from pcg.types.operator import Attribute, Call, Operator

SPREADING = ("partition", "replicate", "pipeline")
GATHERING = ("combine", "reduce", "batch")
"""The inverses of ``SPREADING``, in the same order."""
OTHER_OPERATORS = 3
"""The number of other operators that replace an operator: the next that fit, in the order of the
table."""
FIXED_DEGREES = (2, 3)


class Kind(StrEnum):
    """The kind of change. The tables of counts have a row for each kind."""

    OPERANDS = "operands swapped"
    POSITION = "axis or dimension changed"
    DEGREE = "degree changed"
    NUMBER = "size or factor changed"
    MOVE = "copies for partials, or another move"
    DROPPED = "operator dropped"
    DOUBLED = "operator or operand doubled"
    INSERTED = "operator inserted"
    OPERATOR = "another operator"
    INPUTS = "inputs exchanged or merged"
    OUTPUTS = "outputs exchanged"


Mutant = tuple[Kind, Outputs, Outputs]
Change = tuple[Kind, Mapping[Value, Value]]
"""The replacement of some values of a side."""


def mutants(
    left: Sequence[Value],
    right: Sequence[Value],
    operators: Mapping[str, Operator] = OPERATORS,
) -> list[Mutant]:
    """Every mutant of a pair, one change on one side each, always in the same order.

    Left out are mutants whose ranks do not fit or whose outputs have other ranks, the pair itself,
    pairs that came up before, and pairs whose sides became the same graph. A pair with few
    operators has few mutants. ``flatten`` of ``unflatten``, the smallest rule with two operators,
    has 11, and a test asserts that every rule has at least 10.
    """
    pair = (tuple(left), tuple(right))
    symbols = _degree_symbols((*left, *right))
    seen = {_key(*pair)}
    made: list[Mutant] = []
    for number, side in enumerate(pair):
        for kind, values in _changes(side, symbols, operators.values(), is_right=number == 1):
            changed = _rebuilt(side, values)
            if changed is None:
                continue
            mutant = (pair[0], changed) if number else (changed, pair[1])
            key = _key(*mutant)
            if key in seen or key[0] == key[1]:
                continue
            seen.add(key)
            made.append((kind, *mutant))
    return made


def spread(mutants: Sequence[Mutant], most: int | None) -> list[Mutant]:
    """At most ``most`` of the mutants, from all kinds in turn. None stands for all."""
    kinds = dict.fromkeys(kind for kind, _, _ in mutants)
    rows = zip_longest(*([m for m in mutants if m[0] is kind] for kind in kinds))
    return [mutant for mutant in chain.from_iterable(rows) if mutant is not None][:most]


def _key(left: Outputs, right: Outputs) -> tuple[str, str]:
    return Graph(left).digest, Graph(right).digest


def _rebuilt(side: Outputs, values: Mapping[Value, Value]) -> Outputs | None:
    """The side after a change. None if operators do not fit the ranks of their operands."""
    changed = rebuild(side, values)
    try:
        fits = all(rank_of(a) == rank_of(b) for a, b in zip(side, changed, strict=True))
    except (OperatorError, EquationError):
        return None
    return changed if fits else None


def rank_of(value: Value) -> int:
    """The rank of a value. Raises OperatorError if an operator does not fit its operands."""
    call = value.node.call
    if isinstance(call, Leaf):
        return call.rank
    equation = call.instance(tuple(rank_of(v) for v in value.node.inputs))
    return len(equation.outputs[value.port].dims)


def _degree_symbols(values: Outputs) -> list[str]:
    """The symbols in degrees, and one further symbol."""
    degrees = [
        Poly.of(given)
        for node in Graph(values).nodes
        if isinstance(node.call, Call)
        for name, given in node.call.attributes
        if name == "degree" and not isinstance(given, float)
    ]
    used = frozenset[str]().union(*(degree.symbols for degree in degrees))
    return [*sorted(used), next(s for s in ("m", "m2", "m3", "m4") if s not in used)]


def _changes(
    side: Outputs, symbols: Sequence[str], operators: Iterable[Operator], *, is_right: bool
) -> Iterator[Change]:
    """All changes of a side. Exchanges of inputs and of outputs are made on the right side only. On
    the left they would give the same pairs with other names."""
    for node in Graph(side).nodes:
        if node.is_leaf:
            continue
        values = [node.value(port) for port in range(len(node.operator_call.operator.outputs))]
        for kind, new in _of_node(node, symbols, operators):
            yield kind, dict(zip(values, new, strict=True))
        for a, b in combinations(values, 2):
            yield Kind.OUTPUTS, {a: b, b: a}
    for value in _values(side):
        for new in _inserted(value):
            yield Kind.INSERTED, {value: new}
    leaves = [leaf.value() for leaf in Graph(side).leaves]
    for x, y in permutations(leaves, 2):
        if rank_of(x) == rank_of(y):
            yield Kind.INPUTS, {x: y}
            if is_right:
                yield Kind.INPUTS, {x: y, y: x}
    if is_right:
        for a, b in combinations(dict.fromkeys(side), 2):
            yield Kind.OUTPUTS, {a: b, b: a}


def _values(side: Outputs) -> tuple[Value, ...]:
    """The values that a side reads, and its outputs."""
    read = (value for node in Graph(side).nodes for value in node.inputs)
    return tuple(dict.fromkeys((*read, *side)))


def _inserted(value: Value) -> Iterator[Value]:
    """A function of the elements, and every exchange of two dimensions."""
    yield apply(OPERATORS["relu"](), value)
    for i, j in combinations(range(rank_of(value)), 2):
        yield apply(OPERATORS["transpose"](dim0=i, dim1=j), value)


def _of_node(
    node: Node, symbols: Sequence[str], operators: Iterable[Operator]
) -> Iterator[tuple[Kind, Outputs]]:
    """The replacements of an operator: a value for each of its outputs."""
    call, inputs = node.operator_call, node.inputs
    ports = range(len(call.operator.outputs))

    def outputs(of: Call, operands: Sequence[Value]) -> Outputs:
        new = Node(of, tuple(operands))
        return tuple(new.value(port) for port in ports)

    for i, j in combinations(range(len(inputs)), 2):
        swapped = list(inputs)
        swapped[i], swapped[j] = inputs[j], inputs[i]
        yield Kind.OPERANDS, outputs(call, swapped)
    for kind, changed in _attributes(node, symbols):
        yield kind, outputs(changed, inputs)
    for moved in _moves(node):
        yield Kind.MOVE, outputs(moved, inputs)
    if call.name == "replicate" and "join" in (o.name for o in operators):
        # Outputs by side as partials, instead of as copies.
        yield Kind.MOVE, (Node(OPERATORS["join"](), inputs * 2).value(),)
    for operand in inputs:
        yield Kind.DROPPED, (operand,) * len(ports)
    for i, j in permutations(range(len(inputs)), 2):
        yield Kind.DOUBLED, outputs(call, [*inputs[:i], inputs[j], *inputs[i + 1 :]])
    for i in range(len(inputs)):
        for port in ports:
            yield Kind.DOUBLED, outputs(call, [*inputs[:i], node.value(port), *inputs[i + 1 :]])
    for other in _others(node, operators):
        yield Kind.OPERATOR, outputs(other, inputs)


def _attributes(node: Node, symbols: Sequence[str]) -> Iterator[tuple[Kind, Call]]:
    """The call with one attribute changed, or two sizes exchanged."""
    call, operator = node.operator_call, node.operator_call.operator
    ranks = [rank_of(value) for value in (*node.inputs, node.value())]
    for name, given in call.attributes:
        if name in (*operator.template.positions, "dim"):
            kind, others = Kind.POSITION, list[Attribute](range(max(ranks)))
        elif name == "degree":
            kind, others = Kind.DEGREE, _degrees(given, symbols)
        else:
            kind, others = Kind.NUMBER, [given + 1]
        for other in others:
            # A dimension of a parallel operator is not in its equation, which would refuse it.
            if str(other) != str(given) and not (name == "dim" and other == ranks[0]):
                yield kind, _with(call, {name: other})
    for a, b in combinations(operator.sizes, 2):
        if call.values[a] != call.values[b]:
            yield Kind.NUMBER, _with(call, {a: call.values[b], b: call.values[a]})


def _degrees(given: Attribute, symbols: Sequence[str]) -> list[Attribute]:
    assert not isinstance(given, float)
    doubled = Poly.of(given) * 2
    constant = doubled.constant
    return [*map(Poly.of, symbols), constant if constant is not None else doubled, *FIXED_DEGREES]


def _with(call: Call, given: Mapping[str, Attribute]) -> Call:
    return Call(call.operator, tuple((n, given.get(n, value)) for n, value in call.attributes))


def _moves(node: Node) -> Iterator[Call]:
    """The other parallel operators that may be mistaken for one: those of its group, and its
    inverse, at every dimension."""
    call = node.operator_call
    for group, inverses in ((SPREADING, GATHERING), (GATHERING, SPREADING)):
        if call.name not in group:
            continue
        names = [n for n in group if n != call.name] + [inverses[group.index(call.name)]]
        for operator in (OPERATORS[name] for name in names):
            degree = call.values["degree"]
            if "dim" not in operator.attributes:
                yield operator(degree=degree)
                continue
            for dim in range(rank_of(node.inputs[0])):
                yield operator(dim=dim, degree=degree)


def _others(node: Node, operators: Iterable[Operator]) -> Iterator[Call]:
    """The next few other operators with as many operands and outputs and equal ranks, which take no
    attribute that this one lacks."""
    call, own = node.operator_call, node.operator_call.operator
    table = list(operators)
    start = table.index(own) + 1 if own in table else 0
    count = 0
    for other in (*table[start:], *table[:start]):
        alike = other.arity == own.arity and len(other.outputs) == len(own.outputs)
        if other == own or not alike or not set(other.attributes) <= set(own.attributes):
            continue
        new = other(**{name: call.values[name] for name in other.attributes})
        if count < OTHER_OPERATORS and _output_ranks(new, node.inputs) == _output_ranks(
            call, node.inputs
        ):
            count += 1
            yield new


def _output_ranks(call: Call, inputs: Sequence[Value]) -> tuple[int, ...]:
    """The ranks of the outputs. None if the call does not fit its operands."""
    try:
        equation = call.instance(tuple(map(rank_of, inputs)))
    except (OperatorError, EquationError):
        return ()
    return tuple(len(output.dims) for output in equation.outputs)

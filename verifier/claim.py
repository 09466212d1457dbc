"""Reads the claim of a certificate: both sides, their sizes and types, and the assumptions.

A certificate may be hostile, and the names in it prove nothing. An operator with the name of one of
Unity's own has to have the same definition. Every other operator means its equation, computes, and
has only the properties that are proved. Refused are a graph that is not printed exactly as it was
read, an operator without an equation, an input of another kind than a rule has, and a symbol that
is neither a size of an input nor in an attribute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pcg.errors import InputError
from pcg.graph.graph import Graph, Node, Value, tensor
from pcg.graph.opaque import opaque_nodes
from pcg.graph.pairs import GraphPair, Outputs, both, symbolic_attributes
from pcg.language.poly import Poly
from pcg.language.template import EquationError
from pcg.ops import OPERATORS
from pcg.ops.stand_ins import STAND_INS
from pcg.plan.text import parse_graph, print_graph, print_value
from pcg.types.operator import Call, Operator
from verifier.certificate import CertificateFile, polynomial
from verifier.grammar import MAX_NUMBER, NAME, PART, SIZE
from verifier.trusted.sizes.degrees import Typing, ranks, typing_at
from verifier.trusted.sizes.runs import free_runs
from verifier.trusted.sizes.sizes import SizeEquation, Sizes, different_ranks, pair_sizes
from verifier.trusted.sizes.types import residual

MAX_DEGREE = 1 << 16
"""The largest degree of a parallel operator that is a number."""
MAX_PRINTED = 1_000
"""The most operators of a side that is printed as nested calls."""


class Rejected(Exception):
    """A certificate that does not prove its rule; the text says why."""


@dataclass(frozen=True)
class Claim:
    """Both sides of a rule with their sizes and types. ``types`` is None for a rule about whole
    tensors only."""

    file: CertificateFile
    pair: GraphPair
    sizes: Sizes
    types: tuple[Typing, Typing] | None

    @cached_property
    def computing(self) -> tuple[Node, ...]:
        """The compute operators; all others move data."""
        return tuple(node for node in _operators(self.pair) if _computes(node))

    @property
    def statement(self) -> str:
        """Both sides as one line of text."""
        return " == ".join(map(_side_text, self.pair))

    @property
    def assumed(self) -> tuple[str, ...]:
        """The equations between sizes under which the claim is made."""
        return tuple(f"{left} = {right}" for left, right in _equations(self.file))

    @property
    def degrees(self) -> tuple[int, ...]:
        """The degrees of parallel operators that are numbers. All other degrees are arbitrary."""
        degrees = (node.operator_call.values.get("degree") for node in _operators(self.pair))
        given = (Poly.of(d).constant for d in degrees if isinstance(d, int | Poly))
        return tuple(sorted({number for number in given if number is not None}))


def claim_of(file: CertificateFile) -> Claim:
    """Read the claim of a certificate. Raises Rejected if it is malformed or differs from what it
    states, and the exceptions of ``pair_sizes`` and ``typing_at``."""
    pair = _pair(file)
    sizes, asked = pair_sizes(*pair, _equations(file), carry=True)
    if file.whole:
        if not all(map(_computes, _operators(pair))):
            raise Rejected("is about whole tensors, but has parallel operators")
        _check_requires(file, asked)
        return Claim(file, pair, sizes, None)
    left, right = (_typing(*given) for given in zip(pair, file.typings, strict=True))
    _check_requires(file, (*asked, *residual(left, right).texts))
    return Claim(file, pair, sizes, (left, right))


def _check_requires(file: CertificateFile, conditions: tuple[str, ...]) -> None:
    if conditions != file.requires:
        needed = ", ".join(conditions) or "nothing"
        raise Rejected(f"requires {needed}, but states other conditions")


def _typing(side: Outputs, number: int) -> Typing:
    try:
        return typing_at(Graph(side).nodes, side, number)
    except IndexError:
        raise Rejected(f"has no typing number {number}") from None


def _equations(file: CertificateFile) -> tuple[SizeEquation, ...]:
    return tuple((polynomial(a), polynomial(b)) for a, b in file.equal)


def _operators(pair: GraphPair) -> list[Node]:
    return [node for node in both(pair).nodes if not node.is_leaf]


def _computes(node: Node) -> bool:
    return node.operator_call.operator.parallel is None


def _pair(file: CertificateFile) -> GraphPair:
    operators = _definitions(file)
    left, right = (_graph(text, file.rule, operators) for text in (file.left, file.right))
    pair = (left.outputs, right.outputs)
    used = {node.name for node in _operators(pair)}
    if used != operators.keys():
        raise Rejected("defines other operators than it uses")
    if len(pair[0]) != len(pair[1]) or different_ranks(*pair):
        raise Rejected("its sides have different outputs")
    _check_inputs(file, pair)
    _check_attributes(pair)
    if not set(file.runs) <= set(free_runs(*pair)):
        raise Rejected("has axes that may not be any number of axes")
    return pair


def _definitions(file: CertificateFile) -> dict[str, Operator]:
    """The operators that a certificate defines, by name."""
    operators: dict[str, Operator] = {}
    for definition in file.operators:
        name = definition.name
        if name in operators:
            raise Rejected(f"defines {name} twice")
        try:
            operator = definition.operator()
        except EquationError as error:
            raise Rejected(str(error)) from None
        known = OPERATORS.get(name) or STAND_INS.get(name)
        if known is None and operator.parallel is not None:
            raise Rejected(f"{name} moves data, and is none of Unity's own operators")
        if known is not None and known != operator:
            raise Rejected(f"defines {name} anew")
        operators[name] = operator
    return operators


def _graph(text: str, rule: str, operators: dict[str, Operator]) -> Graph:
    """A side from its text, which has to be exactly the text that ``print_graph`` returns."""
    try:
        graph = parse_graph(text, rule, operators)
    except InputError as error:
        raise Rejected(str(error)) from None
    if opaque_nodes(graph):
        raise Rejected("has an operator without an equation")
    if any(node.leaf.kind != "tensor" for node in graph.leaves):
        raise Rejected("has an input of another kind than a rule has")
    if print_graph(graph) != text:
        raise Rejected("its sides are not written as graphs are printed")
    return graph


def _check_inputs(file: CertificateFile, pair: GraphPair) -> None:
    """Check that each symbol is a size of an input, or occurs in an attribute. Raises Rejected."""
    leaves = {node.leaf for node in both(pair).leaves}
    ranks = {leaf.name: leaf.rank for leaf in leaves}
    if len(leaves) > len(ranks):
        raise Rejected("an input has two ranks")
    if wrong := [name for name in sorted(ranks) if not NAME.fullmatch(name)]:
        raise Rejected(f"{wrong[0]!r} is no name of an input")
    symbolic = symbolic_attributes(both(pair))
    attributes = {symbol for _, _, value in symbolic for symbol in value.symbols}
    sizes = {f"|{name}.{dim}|" for name, rank in ranks.items() for dim in range(rank)}
    stated = {s for sides in _equations(file) for side in sides for s in side.symbols}
    for symbol in sorted(attributes | stated):
        if symbol in sizes or (symbol in attributes and NAME.fullmatch(symbol)):
            continue
        # A size of which others are multiples, such as |N.by.D|, occurs in claims about whole
        # tensors only.
        if not (file.whole and PART.fullmatch(symbol) and not SIZE.fullmatch(symbol)):
            what = "the size of no input" if "|" in symbol else "in no attribute"
            raise Rejected(f"{symbol} is {what}")


def _check_attributes(pair: GraphPair) -> None:
    """Check that the numbers in attributes are not so large that a check would take long. Raises
    Rejected."""
    for call in (node.operator_call for node in _operators(pair)):
        for name, value in call.attributes:
            terms = () if isinstance(value, float) else Poly.of(value).terms
            most = MAX_DEGREE if name == "degree" else MAX_NUMBER
            if any(abs(coefficient) > most for _, coefficient in terms):
                raise Rejected(f"{call.name}: {name} is more than {most}")


def commutation_pairs(claim: Claim) -> list[GraphPair]:
    """The pairs of values whose equality has to be shown because operators claim to commute.

    Calls of a commutative operator that differ only in the order of operands count as one node. So
    for each such call, except of Unity's own operators, the pair is a call and the same call with
    its operands exchanged. Raises Rejected if the operands cannot be exchanged.
    """
    pairs: dict[Node, GraphPair] = {}
    for node in claim.computing:
        operator = node.operator_call.operator
        if not operator.commutative or OPERATORS.get(operator.name) == operator:
            continue
        operand_ranks = ranks(node)
        if len(operand_ranks) != 2 or operand_ranks[0] != operand_ranks[1]:
            raise Rejected(f"{operator.name} cannot commute at ranks {operand_ranks}")
        call = Call(replace(operator, commutative=False), node.operator_call.attributes)
        operands = tensor("x", operand_ranks[0]), tensor("y", operand_ranks[1])
        sides = [Node(call, operands), Node(call, operands[::-1])]
        outputs = [tuple(map(side.value, range(len(operator.outputs)))) for side in sides]
        pairs[sides[0]] = (outputs[0], outputs[1])
    return list(pairs.values())


def _side_text(side: Sequence[Value]) -> str:
    """A side as nested calls, or line by line if nested calls would be long since they repeat
    values that are used often."""
    lengths: dict[Node, int] = {}
    for node in Graph(tuple(side)).nodes:
        lengths[node] = 1 + sum(lengths[value.node] for value in node.inputs)
    if sum(lengths[value.node] for value in side) <= MAX_PRINTED:
        return ", ".join(map(print_value, side))
    lines = print_graph(Graph(tuple(side))).splitlines()
    return f"({'; '.join(lines)})"

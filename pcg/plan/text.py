"""Print graphs as text, and parse the text back to the same graph.

    x = input[64/2, 784]
    w = weight[784, 512] copies=2
    t0 = matmul(x, w)
    left, right = split(t0, axis=1, at=256)
    return left, right

Calls may be nested, and ``.1`` selects an output: ``split(t0, axis=1, at=256).1``. In a rule,
inputs are known by rank (``x = tensor[_, _]``), and attributes may be symbols (``degree=k``). A
halo follows its dimension, ``[8, 3, 64/2(1,1), 64]``. Lines that begin with ``opaque``,
``batched`` or ``elementwise`` declare torch functions without an equation (``pcg.graph.opaque``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import count
from math import isfinite

from pcg.errors import InputError, OperatorError
from pcg.graph.graph import Graph, Leaf, LeafKind, Node, Value, tensor
from pcg.graph.opaque import MAX_RANK, TorchFunction, parse_declaration, torch_functions
from pcg.language.poly import Poly
from pcg.ops import OPERATORS
from pcg.ops.stand_ins import STAND_INS
from pcg.types.operator import Attribute, Operator
from pcg.types.tensor import Degrees, Halo, ParallelTensor

FLOAT = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?|-?\d+e[+-]?\d+")
SIZE = re.compile(r"\|[\w.]+\|")
TOKEN = re.compile(rf"\s*(?:({FLOAT.pattern}|-?\d+)|({SIZE.pattern})|([A-Za-z_]\w*)|(\S))")
LEAF = re.compile(r"^(\w+)\s*=\s*(input|weight|tensor)\[(.*?)\]\s*(.*)$")
DIGITS = 18
LIMIT = 10**DIGITS
NUMBER = rf"\d{{1,{DIGITS}}}"
SPLIT = re.compile(r",(?![^(]*\))")
"""A comma between dimensions, not within a halo."""
DIMENSION = re.compile(
    rf"({NUMBER})(?:/({NUMBER}))?(?:\|({NUMBER}))?"
    rf"(?:\((?P<before>{NUMBER}), ?(?P<after>{NUMBER})\))?"
)
MAX_DEPTH = 200
MAX_LINE = 1 << 14
"""The most characters of a line that declares no torch function."""


def print_graph(graph: Graph) -> str:
    """Return the graph as text, one node a line, operands before users."""
    names = node_names(graph)
    lines = [function.declaration for function in torch_functions(graph)]
    lines += [_line(node, names) for node in graph.nodes]
    returned = ", ".join(_reference(value, names) for value in graph.outputs)
    return "\n".join([*lines, f"return {returned}"]) + "\n"


@lru_cache(maxsize=8)
def node_names(graph: Graph) -> Mapping[Node, tuple[str, ...]]:
    """Return the names under which a graph is printed, by node and output."""
    taken = {node.leaf.name for node in graph.leaves}
    fresh = (name for i in count() if (name := f"t{i}") not in taken)
    names: dict[Node, tuple[str, ...]] = {}
    for node in graph.nodes:
        if isinstance(node.call, Leaf):
            names[node] = (node.call.name,)
        else:
            names[node] = tuple([next(fresh) for _ in node.call.operator.outputs])
    return names


def _reference(value: Value, names: Mapping[Node, tuple[str, ...]]) -> str:
    return names[value.node][value.port]


def _line(node: Node, names: Mapping[Node, tuple[str, ...]]) -> str:
    defined = ", ".join(names[node])
    if isinstance(node.call, Leaf):
        return f"{defined} = {_leaf_text(node.call)}"
    parts = [_reference(value, names) for value in node.inputs]
    parts += [f"{name}={value}" for name, value in node.call.attributes]
    return f"{defined} = {node.name}({', '.join(parts)})"


def _leaf_text(leaf: Leaf) -> str:
    if leaf.type is None:
        return f"{leaf.kind}[{', '.join('_' * leaf.rank)}]"
    return f"{leaf.kind}{leaf.type}{leaf.bounds}"


def print_value(value: Value) -> str:
    """Return a value as one nested call over its leaves' names."""
    node = value.node
    if isinstance(node.call, Leaf):
        return node.call.name
    parts = [print_value(v) for v in node.inputs]
    parts += [f"{name}={attribute}" for name, attribute in node.call.attributes]
    port = f".{value.port}" if len(node.call.operator.outputs) > 1 else ""
    return f"{node.name}({', '.join(parts)}){port}"


def parse_graph(
    text: str, where: str = "graph", operators: Mapping[str, Operator] = OPERATORS
) -> Graph:
    """Return the graph that a text describes. Raises InputError naming the line at fault."""
    values: dict[str, Value] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#")[0].strip()
        here = f"{where}: line {number}"
        if not line:
            continue
        if (declared := _declared(line, here)) is not None:
            operators = {**operators, declared.name: declared}
            continue
        if len(line) > MAX_LINE:
            raise InputError(here, f"expected at most {MAX_LINE} characters, got {len(line)}")
        if line.startswith("return ") or line == "return":
            reader = _Reader(line.removeprefix("return"), here, values, operators)
            return Graph(tuple(reader.list()))
        _statement(line, here, values, operators)
    raise InputError(where, "expected a last line 'return VALUE, ...'")


def _declared(line: str, here: str) -> TorchFunction | None:
    try:
        return parse_declaration(line)
    except ValueError as error:
        raise InputError(here, str(error)) from error


def parse_values(
    text: str,
    inputs: Mapping[str, int],
    where: str = "graph",
    operators: Mapping[str, Operator] = OPERATORS,
) -> tuple[Value, ...]:
    """Parse nested calls over inputs of given ranks, separated by commas: a side of a rule."""
    values = {name: tensor(name, rank) for name, rank in inputs.items()}
    return tuple(_Reader(text, where, values, operators).list())


def _statement(
    line: str, here: str, values: dict[str, Value], operators: Mapping[str, Operator]
) -> None:
    if match := LEAF.match(line):
        name, kind, dims, rest = match.groups()
        _define(values, name, Value(Node(_parse_leaf(kind, name, dims, rest, here))), here)
        return
    left, equals, right = line.partition("=")
    names = [name.strip() for name in left.split(",")]
    if not equals or not all(name.isidentifier() for name in names):
        raise InputError(here, "expected 'NAME = OPERATOR(...)'")
    value = _Reader(right, here, values, operators).single()
    ports = 1 if value.node.is_leaf else len(value.node.operator_call.operator.outputs)
    if len(names) == 1:
        _define(values, names[0], value, here)
        return
    if len(names) != ports:
        raise InputError(here, f"{len(names)} names for {ports} outputs")
    for port, name in enumerate(names):
        _define(values, name, Value(value.node, port), here)


def _define(values: dict[str, Value], name: str, value: Value, here: str) -> None:
    if name in values:
        raise InputError(here, f"{name} is defined twice")
    values[name] = value


def _parse_leaf(kind: str, name: str, dims: str, rest: str, here: str) -> Leaf:
    if dims.count(",") >= 2 * MAX_RANK:  # a halo has a comma too
        raise InputError(here, f"expected at most {MAX_RANK} dimensions")
    entries = [entry.strip() for entry in SPLIT.split(dims)] if dims.strip() else []
    if len(entries) > MAX_RANK:
        raise InputError(here, f"{len(entries)} dimensions, expected at most {MAX_RANK}")
    leaf_kind: LeafKind = "input" if kind == "input" else "weight"
    if kind == "tensor":
        return Leaf("tensor", name, len(entries))
    tensor_type = _parse_dimensions(entries, here)
    options = re.fullmatch(
        rf"(?:copies=({NUMBER}))?\s*(?:partials=({NUMBER}))?"
        rf"\s*(?:from -({NUMBER}))?\s*(?:below ({NUMBER}))?\s*(?:share (\d[\d.e-]*))?",
        rest,
    )
    if not options:
        raise InputError(here, f"expected copies=, partials=, from, below or share, got {rest!r}")
    *counts, share_text = options.groups()
    copies, partials, under, below = (None if text is None else int(text) for text in counts)
    if 0 in (copies, partials, under, below):
        raise InputError(here, f"expected 1 or more, got {rest!r}")
    degrees = replace(tensor_type.degrees, copies=copies or 1, partials=partials or 1)
    tensor_type = replace(tensor_type, degrees=degrees)
    share = None if share_text is None else _share(share_text, here)
    return Leaf(leaf_kind, name, len(entries), tensor_type, below, -(under or 0), share)


def _share(text: str, here: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(here, f"share {text}, expected a number") from error


def _parse_dimensions(entries: list[str], here: str) -> ParallelTensor:
    """Return the type of a tensor with one copy, given its dimensions."""
    sizes: list[int] = []
    degrees: list[int] = []
    slices: list[int] = []
    halos: list[Halo] = []
    for dim, entry in enumerate(entries):
        match = DIMENSION.fullmatch(entry)
        if not match:
            raise InputError(here, f"expected SIZE or SIZE/DEGREE, got {entry!r}")
        size, degree, times = (int(group or 1) for group in match.groups()[:3])
        if min(size, degree, times) < 1:
            raise InputError(here, f"expected sizes and degrees of 1 or more, got {entry!r}")
        if size % (degree * times):
            raise InputError(here, f"degree {degree * times} does not divide size {size}")
        sizes.append(size)
        degrees.append(degree)
        slices.append(times)
        if match["before"]:
            before, after = (Poly.of(int(match[side])) for side in ("before", "after"))
            halos.append(Halo(dim, before, after))
    type_degrees = Degrees(tuple(degrees), tuple(slices), 1, 1, tuple(halos))
    return ParallelTensor(tuple(sizes), type_degrees)


class _Reader:
    """A recursive-descent parser of nested calls."""

    def __init__(
        self,
        text: str,
        where: str,
        values: Mapping[str, Value],
        operators: Mapping[str, Operator],
    ) -> None:
        self._where, self._values, self._operators = where, values, operators
        self._tokens = [m.group().strip() for m in TOKEN.finditer(text) if m.group().strip()]
        self._index = 0
        self._depth = 0

    def list(self) -> list[Value]:
        """Parse the whole text as values separated by commas."""
        values = [self._value()]
        while self._peek() == ",":
            self._index += 1
            values.append(self._value())
        self._end()
        return values

    def single(self) -> Value:
        """Parse the whole text as one value."""
        value = self._value()
        self._end()
        return value

    def _end(self) -> None:
        if self._index < len(self._tokens):
            raise self._error(f"unexpected {self._peek()!r}")

    def _error(self, problem: str) -> InputError:
        return InputError(self._where, problem)

    def _peek(self, ahead: int = 0) -> str:
        index = self._index + ahead
        return self._tokens[index] if index < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._index += 1
        return token

    def _expect(self, token: str) -> None:
        got = self._next()
        if got != token:
            raise self._error(f"expected {token!r}, got {got or 'the end'!r}")

    def _value(self) -> Value:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"calls nested more than {MAX_DEPTH} deep")
        name = self._next()
        value = self._call(name) if self._peek() == "(" else self._values.get(name)
        if value is None:
            raise self._error(f"unknown value {name!r}" if name else "expected a value")
        if self._peek() == "." and self._peek(1).isdigit():
            self._index += 1
            value = self._port(value, int(self._next()))
        self._depth -= 1
        return value

    def _port(self, value: Value, port: int) -> Value:
        call = value.node.call
        ports = 1 if isinstance(call, Leaf) else len(call.operator.outputs)
        if port >= ports:
            raise self._error(f"{value.node.name} has no output {port}")
        return Value(value.node, port)

    def _call(self, name: str) -> Value:
        operator = self._operators.get(name) or STAND_INS.get(name)
        if operator is None:
            raise self._error(f"unknown operator {name!r}")
        self._expect("(")
        inputs: list[Value] = []
        attributes: dict[str, Attribute] = {}
        while self._peek() != ")":
            if self._peek(1) == "=":
                key = self._next()
                self._index += 1
                if key in attributes:
                    raise self._error(f"attribute {key} is given twice")
                attributes[key] = self._attribute()
            else:
                inputs.append(self._value())
            if self._peek() != ")":
                self._expect(",")
        self._expect(")")
        try:
            return Value(Node(operator(**attributes), tuple(inputs)))
        except OperatorError as error:
            raise self._error(str(error)) from error

    def _attribute(self) -> Attribute:
        """Parse a number, or a sum of products of integers and symbols."""
        first = self._product()
        if not self._goes_on():
            return first
        terms = [*Poly.of(self._symbolic(first)).terms]
        while self._goes_on():
            # The minus of a negative number is part of its token.
            sign = self._next() if self._peek() in ("+", "-") else "+"
            right = Poly.of(self._symbolic(self._product()))
            terms += (right if sign == "+" else -right).terms
        return self._bounded(Poly.collect(terms))

    def _goes_on(self) -> bool:
        return self._peek() == "+" or self._peek().startswith("-")

    def _product(self) -> Attribute:
        total = self._factor()
        while self._peek() == "*":
            self._index += 1
            total = Poly.of(self._symbolic(total)) * self._symbolic(self._factor())
            total = self._bounded(total)
        return total

    def _bounded(self, value: Poly) -> Poly:
        """Return the value. Raises InputError if a coefficient has more than ``DIGITS`` digits."""
        if any(abs(coefficient) >= LIMIT for _, coefficient in value.terms):
            raise self._error(f"an attribute with a number of more than {DIGITS} digits")
        return value

    def _symbolic(self, value: Attribute) -> Poly | int:
        if isinstance(value, float):
            raise self._error("expected integer coefficients in a symbolic attribute")
        return value

    def _factor(self) -> Attribute:
        negative = False
        while (token := self._next()) == "-":
            negative = not negative
        number = self._number(token)
        return -Poly.of(self._symbolic(number)) if negative else number

    def _number(self, token: str) -> Attribute:
        if re.fullmatch(rf"-?{NUMBER}", token):
            return int(token)
        if token.isidentifier() or SIZE.fullmatch(token):
            return Poly.of(token)
        if FLOAT.fullmatch(token) and isfinite(number := float(token)):
            return number
        raise self._error(f"expected a number or a symbol, got {token[:20] or 'the end'!r}")

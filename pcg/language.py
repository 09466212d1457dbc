"""Reads equations: the text an operator's author writes, and nothing else.

    out[a..., n] = sum k: x[a..., k] * w[k, n]
    x[a..., s@axis, b...], y[a..., t, b...]
        -> out[a..., j < |s| + |t|, b...] = x[a..., j, b...] if j < |s| else y[a..., j - |s|, b...]

An index ranges over the size of the operand dimension that carries its name, ``|j|`` is that size,
``j < SIZE`` states it for an index that is no operand dimension, ``a...`` is a run of any number of
indices, ``(m n)`` one dimension made of two, ``j@axis`` lets the attribute ``axis`` say where ``j``
stands. Operand shapes stand before ``->``; they may be left out when every operand is read at plain
indices. ``let name[i...] = value;`` defines a value used in the outputs after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from pcg.expr import Access, Add, Apply, Const, Expr, Guard, IndexValue, Mul, Real, Sum, substitute
from pcg.functions import FUNCTIONS
from pcg.poly import ONE, Poly, product

TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)(\.\.\.)?|(->|==|<=|>=|[-+*/()\[\]<>=,:;|@]))")


class EquationError(ValueError):
    """An equation that cannot be read; the text says what was expected and where."""


@dataclass(frozen=True)
class DimPattern:
    """One entry in the brackets of an operand or output, before runs are expanded."""

    names: tuple[str, ...]
    run: bool = False
    position: str | None = None
    bound: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declared:
    """A name with its bracket; for an output or a ``let``, the tokens of its value."""

    name: str
    dims: tuple[DimPattern, ...]
    body: tuple[str, ...] = ()
    local: bool = False


@dataclass(frozen=True)
class Template:
    """An equation with its runs unexpanded."""

    operands: tuple[Declared, ...]
    definitions: tuple[Declared, ...]

    @property
    def positions(self) -> tuple[str, ...]:
        """The attributes that say where an index stands, in order of appearance."""
        dims = (dim for operand in self.operands for dim in operand.dims)
        return tuple(dim.position for dim in dims if dim.position)


@dataclass(frozen=True)
class Dimension:
    """One dimension of an operand or output: its index names (two or more when merged) and size."""

    names: tuple[str, ...]
    size: Poly

    @property
    def index(self) -> Poly:
        """The index into the dimension, in terms of its index names."""
        total = Poly()
        for name in self.names:
            total = total * size_of(name) + Poly.of(name)
        return total


@dataclass(frozen=True)
class Operand:
    name: str
    dims: tuple[Dimension, ...]


@dataclass(frozen=True)
class Output:
    name: str
    dims: tuple[Dimension, ...]
    body: Expr


@dataclass(frozen=True)
class Equation:
    """An equation at concrete ranks. ``bounds``: sizes stated with ``<``, by index name."""

    operands: tuple[Operand, ...]
    outputs: tuple[Output, ...]
    bounds: tuple[tuple[str, Poly], ...]


def size_of(name: str) -> Poly:
    """The size symbol of an index."""
    return Poly.of(f"|{name}|")


def run_names(run: str, length: int) -> tuple[str, ...]:
    return tuple(f"{run}{i}" for i in range(length))


def tokenize(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if not match:
            raise EquationError(f"unexpected {text[position:].strip()[:10]!r}")
        tokens.append(match.group().strip())
        position = match.end()
    return tokens


def parse_template(text: str) -> Template:
    """Split an equation into operands, ``let`` values and outputs; check their brackets."""
    tokens = tokenize(text)
    operands: tuple[Declared, ...] | None = None
    if "->" in tokens:
        arrow = tokens.index("->")
        operands = tuple(_declared(part) for part in _split(tokens[:arrow], ","))
        tokens = tokens[arrow + 1 :]
    definitions = tuple(_definition(part) for part in _split(tokens, ";"))
    if operands is None:
        operands = _operands_read(definitions)
    names = [d.name for d in operands + definitions]
    for name in names:
        if names.count(name) > 1:
            raise EquationError(f"{name!r} is defined twice")
    if all(d.local for d in definitions):
        raise EquationError("no output is defined")
    return Template(operands, definitions)


def _split(tokens: list[str], separator: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token in "([") - (token in ")]")
        if token == separator and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _declared(tokens: list[str], *, local: bool = False, body: tuple[str, ...] = ()) -> Declared:
    if len(tokens) < 3 or tokens[1] != "[" or tokens[-1] != "]":
        raise EquationError(f"expected NAME[...], got {' '.join(tokens)!r}")
    inner = tokens[2:-1]
    dims = tuple(_dim(part) for part in _split(inner, ",")) if inner else ()
    return Declared(tokens[0], dims, body, local)


def _definition(tokens: list[str]) -> Declared:
    local = tokens[:1] == ["let"]
    tokens = tokens[local:]
    if "=" not in tokens:
        raise EquationError(f"expected NAME[...] = VALUE, got {' '.join(tokens)!r}")
    equals = tokens.index("=")
    return _declared(tokens[:equals], local=local, body=tuple(tokens[equals + 1 :]))


def _dim(tokens: list[str]) -> DimPattern:
    if tokens and tokens[0].endswith("...") and len(tokens) == 1:
        return DimPattern((tokens[0][:-3],), run=True)
    bound: tuple[str, ...] = ()
    if "<" in tokens:
        cut = tokens.index("<")
        tokens, bound = tokens[:cut], tuple(tokens[cut + 1 :])
    position = None
    if len(tokens) > 2 and tokens[-2] == "@":
        tokens, position = tokens[:-2], tokens[-1]
    if tokens[:1] == ["("] and tokens[-1:] == [")"]:
        tokens = tokens[1:-1]
    elif len(tokens) != 1:
        raise EquationError(f"expected one index, got {' '.join(tokens)!r}")
    if not all(token.isidentifier() for token in tokens):
        raise EquationError(f"expected an index name, got {' '.join(tokens)!r}")
    return DimPattern(tuple(tokens), position=position, bound=bound)


def _operands_read(definitions: tuple[Declared, ...]) -> tuple[Declared, ...]:
    """Operand shapes from their first plain use in the equation."""
    known = {d.name for d in definitions}
    found: dict[str, Declared] = {}
    for body in (d.body for d in definitions):
        for i, (token, after) in enumerate(zip(body, body[1:], strict=False)):
            if after != "[" or token in known or token in found:
                continue
            close = body.index("]", i)
            try:
                found[token] = _declared(list(body[i : close + 1]))
            except EquationError as error:
                message = f"state the shape of {token} before '->': {error}"
                raise EquationError(message) from error
    return tuple(found.values())


@dataclass
class Reader:
    """A recursive-descent reader of values, for given run lengths."""

    operands: Mapping[str, int]
    lengths: Mapping[str, int]
    sizes: frozenset[str]
    reals: frozenset[str]
    index_names: frozenset[str]
    lets: dict[str, tuple[tuple[str, ...], Expr]] = field(default_factory=dict)
    tokens: tuple[str, ...] = ()
    at: int = 0
    scope: list[str] = field(default_factory=list)
    inlined: int = 0

    def value(self, tokens: tuple[str, ...], scope: tuple[str, ...]) -> Expr:
        """The whole of ``tokens`` as a value, with the names in ``scope`` bound."""
        self.tokens, self.at, self.scope = tokens, 0, list(scope)
        result = self._ternary()
        if self.at != len(self.tokens):
            raise EquationError(f"unexpected {self._peek()!r}")
        return _final(result)

    def index(self, tokens: tuple[str, ...], scope: tuple[str, ...] = ()) -> Poly:
        """The whole of ``tokens`` as an index."""
        self.tokens, self.at, self.scope = tokens, 0, list(scope)
        result = self._index()
        if self.at != len(self.tokens):
            raise EquationError(f"unexpected {self._peek()!r}")
        return result

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else "end of the equation"

    def _next(self) -> str:
        token = self._peek()
        self.at += 1
        return token

    def _accept(self, *options: str) -> str | None:
        return self._next() if self._peek() in options else None

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            raise EquationError(f"expected {token!r}, got {self._peek()!r}")
        self.at += 1

    def _ternary(self) -> Expr:
        value = self._comparison()
        if not self._accept("if"):
            return value
        condition = self._comparison()
        self._expect("else")
        other = self._ternary()
        if not isinstance(condition, Guard):
            raise EquationError("a condition compares two indices with <, <=, > or >=")
        return Add((Mul((condition, value)), Mul((condition.negated(), other))))

    def _comparison(self) -> Expr:
        left = self._additive()
        operator = self._accept("<", "<=", ">", ">=", "==")
        if operator is None:
            return left
        right = self._additive()
        if not (isinstance(left, IndexValue) and isinstance(right, IndexValue)):
            if operator != "==":
                raise EquationError(f"{operator} compares indices, not values")
            return Apply("eq", (_final(left), _final(right)))
        difference = left.index - right.index
        match operator:
            case "<":
                return Guard(-difference - 1)
            case "<=":
                return Guard(-difference)
            case ">":
                return Guard(difference - 1)
            case ">=":
                return Guard(difference)
            case _:
                return Mul((Guard(difference), Guard(-difference)))

    def _additive(self) -> Expr:
        value = self._product()
        while operator := self._accept("+", "-"):
            right = self._product()
            value = _plus(value, right if operator == "+" else _times(_number(-1), right))
        return value

    def _product(self) -> Expr:
        value = self._unary()
        while operator := self._accept("*", "/"):
            right = self._unary()
            value = _times(value, right if operator == "*" else _reciprocal(right))
        return value

    def _unary(self) -> Expr:
        if self._accept("-"):
            return _times(_number(-1), self._unary())
        if self._peek() == "sum":
            return self._sum()
        return self._atom()

    def _sum(self) -> Expr:
        self._expect("sum")
        binders: list[tuple[str, Poly]] = []
        while True:
            name = self._next()
            if name.endswith("..."):
                names = run_names(name[:-3], self._length(name[:-3]))
                binders += [(n, size_of(n)) for n in names]
            else:
                bound = self._index() if self._accept("<") else self._own_size(name)
                binders.append((name, bound))
            if not self._accept(","):
                break
        self._expect(":")
        mark = len(self.scope)
        self.scope += [name for name, _ in binders]
        body = _final(self._ternary())
        del self.scope[mark:]
        for name, size in reversed(binders):
            body = Sum(name, size, body)
        return body

    def _own_size(self, name: str) -> Poly:
        if name not in self.index_names:
            raise EquationError(f"the size of index {name!r} is not stated")
        return size_of(name)

    def _length(self, run: str) -> int:
        if run not in self.lengths:
            raise EquationError(f"run {run!r} stands in no operand")
        return self.lengths[run]

    def _index(self) -> Poly:
        value = self._additive()
        if not isinstance(value, IndexValue):
            raise EquationError("expected an index, got a value")
        return value.index

    def _atom(self) -> Expr:
        token = self._next()
        if token.isdigit():
            return _number(int(token))
        if token == "(":
            value = self._ternary()
            self._expect(")")
            return value
        if token == "|":
            return self._size()
        if self._peek() == "[":
            return self._access(token)
        if self._peek() == "(":
            return self._apply(token)
        return self._name(token)

    def _size(self) -> Expr:
        name = self._next()
        self._expect("|")
        if name.endswith("..."):
            names = run_names(name[:-3], self._length(name[:-3]))
            return IndexValue(product(size_of(n) for n in names))
        return IndexValue(self._own_size(name))

    def _name(self, name: str) -> Expr:
        if name in self.scope or name in self.sizes:
            return IndexValue(Poly.of(name))
        if name in self.reals:
            return Real(name)
        raise EquationError(f"index {name!r} is never bound")

    def _apply(self, name: str) -> Expr:
        if name not in FUNCTIONS:
            raise EquationError(f"unknown function {name!r}")
        self._expect("(")
        args = [_final(self._ternary())]
        while self._accept(","):
            args.append(_final(self._ternary()))
        self._expect(")")
        if len(args) != FUNCTIONS[name].arity:
            raise EquationError(f"{name} takes {FUNCTIONS[name].arity} values, got {len(args)}")
        return Apply(name, tuple(args))

    def _access(self, name: str) -> Expr:
        self._expect("[")
        index: list[Poly] = []
        while self._peek() != "]":
            index += self._position()
            if not self._accept(","):
                break
        self._expect("]")
        if name in self.lets:
            return self._inline(name, tuple(index))
        if name not in self.operands:
            raise EquationError(f"unknown operand {name!r}")
        return Access(self.operands[name], tuple(index))

    def _position(self) -> list[Poly]:
        if self._peek().endswith("...") and len(self._peek()) > 3:
            run = self._next()[:-3]
            names = run_names(run, self._length(run))
            for name in names:
                self._name(name)
            return [Poly.of(name) for name in names]
        following = self.tokens[self.at + 1 : self.at + 3]
        if self._peek() == "(" and all(token.isidentifier() for token in following):
            self.at += 1
            names: list[str] = []
            while not self._accept(")"):
                names.append(self._next())
                self._name(names[-1])
            return [Dimension(tuple(names), ONE).index]
        return [self._index()]

    def _inline(self, name: str, index: tuple[Poly, ...]) -> Expr:
        parameters, body = self.lets[name]
        if len(parameters) != len(index):
            raise EquationError(f"{name} has {len(parameters)} indices, got {len(index)}")
        self.inlined += 1
        return substitute(
            rename_binders(body, lambda var: f"{var}~{self.inlined}"),
            dict(zip(parameters, index, strict=True)),
        )


def rename_binders(expr: Expr, name: Callable[[str], str]) -> Expr:
    """The same value with every summed index renamed."""
    match expr:
        case Sum(var, size, body):
            fresh = name(var)
            renamed = substitute(rename_binders(body, name), {var: Poly.of(fresh)})
            return Sum(fresh, size, renamed)
        case Add(terms):
            return Add(tuple(rename_binders(t, name) for t in terms))
        case Mul(factors):
            return Mul(tuple(rename_binders(f, name) for f in factors))
        case Apply(function, args):
            return Apply(function, tuple(rename_binders(a, name) for a in args))
        case _:
            return expr


def _number(value: int) -> Expr:
    return IndexValue(Poly.of(value))


def _plus(left: Expr, right: Expr) -> Expr:
    if isinstance(left, IndexValue) and isinstance(right, IndexValue):
        return IndexValue(left.index + right.index)
    return Add((_final(left), _final(right)))


def _times(left: Expr, right: Expr) -> Expr:
    if isinstance(left, IndexValue) and isinstance(right, IndexValue):
        return IndexValue(left.index * right.index)
    return Mul((_final(left), _final(right)))


def _reciprocal(value: Expr) -> Expr:
    """1/value; of a product of sizes, the product of their reciprocals."""
    if not isinstance(value, IndexValue):
        return Apply("recip", (_final(value),))
    if (constant := value.index.constant) is not None:
        if constant == 0:
            raise EquationError("division by zero")
        return Const(Fraction(1, constant))
    if len(value.index.terms) == 1:
        (monomial, coefficient) = value.index.terms[0]
        parts = [Apply("recip", (IndexValue(Poly.of(symbol)),)) for symbol in monomial]
        return Mul((Const(Fraction(1, coefficient)), *parts))
    return Apply("recip", (value,))


def _final(value: Expr) -> Expr:
    if isinstance(value, IndexValue) and (constant := value.index.constant) is not None:
        return Const(Fraction(constant))
    return value


def expand(
    template: Template,
    lengths: Mapping[str, int],
    sizes: frozenset[str] = frozenset(),
    reals: frozenset[str] = frozenset(),
) -> Equation:
    """The equation at given run lengths. ``sizes`` and ``reals`` name its attributes."""
    operands = tuple(Operand(o.name, _dims(o.dims, lengths)) for o in template.operands)
    index_names = frozenset(
        n for d in template.operands + template.definitions for e in _dims(d.dims, lengths)
        for n in e.names
    )
    positions = {operand.name: i for i, operand in enumerate(operands)}
    reader = Reader(positions, lengths, sizes, reals, index_names)
    outputs: list[Output] = []
    bounds: dict[str, Poly] = {}
    for definition in template.definitions:
        for dim in definition.dims:
            if dim.bound:
                bounds[dim.names[0]] = reader.index(dim.bound)
        dims = _dims(definition.dims, lengths)
        names = tuple(name for dim in dims for name in dim.names)
        body = reader.value(definition.body, names)
        if definition.local:
            reader.lets[definition.name] = (names, body)
        else:
            outputs.append(Output(definition.name, dims, body))
    _check_output_sizes(operands, outputs, bounds)
    return Equation(operands, tuple(outputs), tuple(bounds.items()))


def _dims(patterns: tuple[DimPattern, ...], lengths: Mapping[str, int]) -> tuple[Dimension, ...]:
    dims: list[Dimension] = []
    for pattern in patterns:
        if pattern.run:
            if pattern.names[0] not in lengths:
                raise EquationError(f"run {pattern.names[0]!r} stands in no operand")
            names = run_names(pattern.names[0], lengths[pattern.names[0]])
            dims += [Dimension((name,), size_of(name)) for name in names]
        else:
            size = product(size_of(name) for name in pattern.names)
            dims.append(Dimension(pattern.names, size))
    return tuple(dims)


def _check_output_sizes(
    operands: tuple[Operand, ...], outputs: list[Output], bounds: Mapping[str, Poly]
) -> None:
    known = {name for o in operands for d in o.dims if len(d.names) == 1 for name in d.names}
    for output in outputs:
        for name in (name for dim in output.dims for name in dim.names):
            if name not in known and name not in bounds:
                raise EquationError(f"the size of output index {name!r} does not follow")

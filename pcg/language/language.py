"""Parse an operator's equation from text into expressions.

    out[a..., n] = sum k: x[a..., k] * w[k, n]
    x[a..., s@axis, b...], y[a..., t, b...]
        -> out[a..., j < |s| + |t|, b...] = x[a..., j, b...] if j < |s| else y[a..., j - |s|, b...]

An index ranges over the size of the operand dimension that carries its name. ``|j|`` is that size.
``j < SIZE`` states the size of an index that is no operand dimension. ``a...`` is a run of any
number of indices. ``(m n)`` is one dimension merged of two. With ``j@axis``, the attribute ``axis``
is the position of ``j``. Operand shapes stand before ``->``. They may be left out if every operand
is read at plain indices. ``let name[i...] = value;`` defines a value for the outputs after it.

Elements outside of an operand read as 0. A condition compares indices, such as
``0 <= j < |s| and k <= j``, in ``VALUE if CONDITION else VALUE`` and in ``max a < size where
CONDITION: VALUE``, the greatest value where it holds. ``max(VALUE, VALUE)`` is the greater of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pcg.language.arithmetic import (
    compared,
    final,
    guards_of,
    number,
    otherwise,
    plus,
    reciprocal,
    times,
)
from pcg.language.equation import (
    Dimension,
    Equation,
    Operand,
    Output,
    check_sizes,
    find_quotients,
    run_names,
    size_of,
)
from pcg.language.expr import (
    Access,
    Add,
    Apply,
    Expr,
    Guard,
    IndexValue,
    Max,
    Mul,
    Real,
    Sum,
    rename_binders,
    substitute,
)
from pcg.language.functions import FUNCTIONS
from pcg.language.poly import ONE, Poly, product
from pcg.language.template import (
    Declaration,
    DimPattern,
    EquationError,
    Template,
    is_index_name,
)


@dataclass
class Reader:
    """A recursive-descent parser of values, for given lengths of runs."""

    operands: tuple[Operand, ...]
    lengths: Mapping[str, int]
    sizes: frozenset[str]
    reals: frozenset[str]
    index_names: frozenset[str]
    lets: dict[str, tuple[tuple[str, ...], Expr]] = field(default_factory=dict)
    tokens: tuple[str, ...] = ()
    position: int = 0
    scope: list[str] = field(default_factory=list)
    inlined: int = 0

    def value(self, tokens: tuple[str, ...], scope: tuple[str, ...]) -> Expr:
        """Parse all of ``tokens`` as a value, with the names in ``scope`` bound."""
        self.tokens, self.position, self.scope = tokens, 0, list(scope)
        try:
            result = self._ternary()
        except RecursionError:
            raise EquationError("nested too deeply") from None
        if self.position != len(self.tokens):
            raise EquationError(f"unexpected {self._peek()!r}")
        return final(result)

    def index(self, tokens: tuple[str, ...], scope: tuple[str, ...] = ()) -> Poly:
        """Parse all of ``tokens`` as an index."""
        self.tokens, self.position, self.scope = tokens, 0, list(scope)
        result = self._index()
        if self.position != len(self.tokens):
            raise EquationError(f"unexpected {self._peek()!r}")
        return result

    def _peek(self) -> str:
        return (
            self.tokens[self.position]
            if self.position < len(self.tokens)
            else "end of the equation"
        )

    def _next(self) -> str:
        token = self._peek()
        self.position += 1
        return token

    def _accept(self, *options: str) -> str | None:
        return self._next() if self._peek() in options else None

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            raise EquationError(f"expected {token!r}, got {self._peek()!r}")
        self.position += 1

    def _ternary(self) -> Expr:
        value = self._comparison()
        if not self._accept("if"):
            return value
        guards = self._condition()
        self._expect("else")
        other = self._ternary()
        return Add((Mul((*guards, final(value))), *otherwise(guards, final(other))))

    def _condition(self) -> tuple[Guard, ...]:
        """Parse comparisons of indices, joined by ``and``."""
        guards = guards_of(self._comparison())
        while self._accept("and"):
            guards += guards_of(self._comparison())
        return guards

    def _comparison(self) -> Expr:
        """Parse a value, or a chain of comparisons."""
        left = self._additive()
        comparisons: list[Expr] = []
        while operator := self._accept("<", "<=", ">", ">=", "=="):
            right = self._additive()
            comparisons.append(compared(operator, left, right))
            left = right
        if not comparisons:
            return left
        if len(comparisons) == 1:
            return comparisons[0]
        return Mul(tuple(guard for part in comparisons for guard in guards_of(part)))

    def _additive(self) -> Expr:
        value = self._product()
        while operator := self._accept("+", "-"):
            right = self._product()
            value = plus(value, right if operator == "+" else times(number(-1), right))
        return value

    def _product(self) -> Expr:
        value = self._unary()
        while operator := self._accept("*", "/"):
            right = self._unary()
            value = times(value, right if operator == "*" else reciprocal(right))
        return value

    def _unary(self) -> Expr:
        if self._accept("-"):
            return times(number(-1), self._unary())
        following = self.tokens[self.position + 1 : self.position + 2]
        if self._peek() == "sum" or (self._peek() == "max" and following != ("(",)):
            return self._reduction(self._next())
        return self._atom()

    def _reduction(self, kind: str) -> Expr:
        mark = len(self.scope)
        binders = self._binders()
        while self._accept(","):
            binders += self._binders()
        guards: tuple[Poly, ...] = ()
        if kind == "max" and self._accept("where"):
            guards = tuple(guard.index for guard in self._condition())
        self._expect(":")
        body = final(self._ternary())
        del self.scope[mark:]
        for name, size in reversed(binders):
            body = Sum(name, size, body) if kind == "sum" else Max(name, size, guards, body)
            guards = ()
        return body

    def _binders(self) -> list[tuple[str, Poly]]:
        """Parse a summed index or a run of them, with sizes, and add the names to the scope."""
        token = self._next()
        if token.endswith("..."):
            binders = [(n, size_of(n)) for n in run_names(token[:-3], self._length(token[:-3]))]
        elif is_index_name(token):
            binders = [(token, self._index() if self._accept("<") else self._own_size(token))]
        else:
            raise EquationError(f"expected an index name, got {token!r}")
        for name, size in binders:
            if bound := sorted(size.symbols.intersection(self.scope)):
                raise EquationError(f"the size of index {name!r} depends on index {bound[0]!r}")
            if name in self.scope:
                raise EquationError(f"index {name!r} is bound twice")
            if name in self.sizes or name in self.reals:
                raise EquationError(f"index {name!r} is also an attribute")
            self.scope.append(name)
        return binders

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
            return number(int(token))
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
        if not is_index_name(name):
            raise EquationError(f"expected a value or an index, got {name!r}")
        raise EquationError(f"index {name!r} is never bound")

    def _apply(self, name: str) -> Expr:
        if name not in FUNCTIONS:
            raise EquationError(f"unknown function {name!r}")
        self._expect("(")
        args = [final(self._ternary())]
        while self._accept(","):
            args.append(final(self._ternary()))
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
        for position, operand in enumerate(self.operands):
            if operand.name == name:
                if len(index) != len(operand.dims):
                    problem = f"{name} has {len(operand.dims)} indices, got {len(index)}"
                    raise EquationError(problem)
                return Access(position, tuple(index))
        raise EquationError(f"unknown operand {name!r}")

    def _position(self) -> list[Poly]:
        if self._peek().endswith("...") and len(self._peek()) > 3:
            run = self._next()[:-3]
            names = run_names(run, self._length(run))
            for name in names:
                self._name(name)
            return [Poly.of(name) for name in names]
        following = self.tokens[self.position + 1 : self.position + 3]
        if self._peek() == "(" and all(token.isidentifier() for token in following):
            self.position += 1
            merged: list[str] = []
            while not self._accept(")"):
                merged.append(self._next())
                self._name(merged[-1])
            return [Dimension(tuple(merged), ONE).index]
        return [self._index()]

    def _inline(self, name: str, index: tuple[Poly, ...]) -> Expr:
        parameters, body = self.lets[name]
        if len(parameters) != len(index):
            raise EquationError(f"{name} has {len(parameters)} indices, got {len(index)}")
        # The dot keeps these names apart from those of a Normalizer, which have a tilde.
        self.inlined += 1
        return substitute(
            rename_binders(body, lambda var: f"{var}.{self.inlined}"),
            dict(zip(parameters, index, strict=True)),
        )


def expand(
    template: Template,
    lengths: Mapping[str, int],
    sizes: frozenset[str] = frozenset(),
    reals: frozenset[str] = frozenset(),
) -> Equation:
    """Return the equation at given run lengths. ``sizes`` and ``reals`` name its attributes."""
    operands = tuple(Operand(o.name, _dims(o, lengths)) for o in template.operands)
    declared = template.operands + template.definitions
    index_names = frozenset(n for d in declared for e in _dims(d, lengths) for n in e.names)
    for name in sorted(index_names & (sizes | reals)):
        raise EquationError(f"index {name!r} is also an attribute")
    reader = Reader(operands, lengths, sizes, reals, index_names)
    bounds = _bounds(reader, declared)
    outputs: list[Output] = []
    for definition in template.definitions:
        dims = _dims(definition, lengths)
        names = tuple(name for dim in dims for name in dim.names)
        for name in names:
            if names.count(name) > 1:
                raise EquationError(f"index {name!r} is bound twice")
        body = reader.value(definition.body, names)
        if definition.local:
            reader.lets[definition.name] = (names, body)
        else:
            outputs.append(Output(definition.name, dims, body))
    quotients = find_quotients(operands, bounds)
    equation = Equation(operands, tuple(outputs), tuple(bounds.items()), quotients)
    check_sizes(equation, sizes)
    return equation


def _dims(declared: Declaration, lengths: Mapping[str, int]) -> tuple[Dimension, ...]:
    return tuple(dim for pattern in declared.dims for dim in _expand_dim(pattern, lengths))


def _expand_dim(pattern: DimPattern, lengths: Mapping[str, int]) -> tuple[Dimension, ...]:
    if not pattern.run:
        return (Dimension(pattern.names, product(size_of(name) for name in pattern.names)),)
    (run,) = pattern.names
    if run not in lengths:
        raise EquationError(f"run {run!r} stands in no operand")
    return tuple(Dimension((name,), size_of(name)) for name in run_names(run, lengths[run]))


def _bounds(reader: Reader, declared: tuple[Declaration, ...]) -> dict[str, Poly]:
    """Return the sizes stated with ``<`` in brackets, by index name."""
    bounds: dict[str, Poly] = {}
    for dim in (dim for d in declared for dim in d.dims if dim.bound):
        (name,) = dim.names
        bound = reader.index(dim.bound)
        if bounds.setdefault(name, bound) != bound:
            raise EquationError(f"index {name!r} has the sizes {bounds[name]} and {bound}")
    return bounds

"""Compiles a value of the index language into a graph of primitive operators.

Method: an equation is translated part by part. Sums become ``sum_axis`` or matrix products,
functions become element-wise operators, and comparisons of an id with an index become look-ups. A
summed exponential becomes ``exp(x - m)`` with ``m = max x``, so that nothing overflows. Its factor
``exp(m)`` is kept apart from the tensor: it cancels in a quotient, and becomes a summand in a
logarithm.
Exact: each step is an equality of real numbers. A value without such operators is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

from pcg.graph.graph import Value, apply
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
    children,
    indices,
    walk,
)
from pcg.language.poly import Poly
from pcg.ops import BUILT_IN
from pcg.ops.algebra import scale
from pcg.ops.constants import lower_triangle, position_ids
from pcg.ops.elementwise import (
    divide_by_root,
    divide_by_size,
    exp,
    log,
    negate,
    power,
    reciprocal,
    shift,
)
from pcg.ops.stand_ins import stand_in
from pcg.types.operator import Operator
from substitutions.generate.decompose.named_axes import NamedTensor, Primitives
from substitutions.generate.decompose.product_form import (
    NotCompiled,
    Pick,
    Product,
    multiplied,
    offset_of,
    raised,
)


@dataclass
class Compiler:
    """Compiles values of one equation.

    ``leaves``: the operands as tensors. ``bounds``: the size of each index, as in the equation.
    ``known``: the values of the equation's sizes and attributes in the graph.
    """

    leaves: Sequence[NamedTensor]
    bounds: Mapping[str, Poly]
    known: Mapping[str, Poly]
    order: tuple[str, ...]
    """The axes of the result."""
    runs: frozenset[str]
    """The indices that are in runs."""
    _summed: dict[Value, int] = field(default_factory=dict[Value, int])
    """The tensors whose exponentials are summed, each with the dimension that is summed."""

    def __post_init__(self) -> None:
        sizes = {name: self._size(bound) for name, bound in self.bounds.items()}
        self._primitives = Primitives(sizes, self.order, self.runs)

    def compile(self, value: Expr) -> Value:
        """Return the tensor that a value is. Raises NotCompiled if no operators compute it."""
        self._note_sums(value)
        tensor = self._tensor(self._product(value))
        return self._primitives.spread(tensor, self.order).value

    def _note_sums(self, value: Expr) -> None:
        """Record the exponentials that are summed, innermost sums first."""
        for child in children(value):
            self._note_sums(child)
        if not isinstance(value, Sum):
            return
        for part in _linear_parts(value.body):
            if isinstance(part, Apply) and part.function == "exp":
                argument = self._tensor(self._product(part.args[0]))
                if value.var in argument.axes:
                    self._summed.setdefault(argument.value, argument.axes.index(value.var))

    def _size(self, size: Poly) -> Poly:
        return size.substitute(self.known)

    def _product(self, value: Expr) -> Product:
        match value:
            case Const(number):
                return Product(number)
            case Real(name):
                return Product(calls=(scale(factor=self.known[name]),))
            case IndexValue(index):
                return self._index(index)
            case Guard(index):
                return Product(over=(self._guard(index),))
            case Access():
                return Product(over=(self._element(value),))
            case Add(terms):
                return self._sum_of(terms)
            case Mul(factors):
                return self._product_of(factors)
            case Apply(function, args):
                return self._function(function, args)
            case Sum(var, _, body):
                return self._total(var, self._product(body))
            case Max(var, _, guards, body):
                return self._greatest(var, guards, body)

    def _index(self, index: Poly) -> Product:
        """An index or a size as a number."""
        if index.symbol in self.bounds:
            name = str(index.symbol)
            size = self._primitives.sizes[name]
            return Product(over=(NamedTensor(apply(position_ids(size=size)), (name,)),))
        size = self._size(index)
        if not index.symbols.isdisjoint(self.bounds) or len(size.terms) != 1:
            raise NotCompiled(f"no operator makes the number {index}")
        return Product(calls=(scale(factor=size),))

    def _guard(self, index: Poly) -> NamedTensor:
        """The tensor that is 1 where ``column <= row`` and 0 elsewhere. Raises NotCompiled for
        other conditions."""
        ends = {sign: [m for m, c in index.terms if c == sign and len(m) == 1] for sign in (1, -1)}
        rows, columns = ([m[0] for m in ends[sign]] for sign in (1, -1))
        both = len(rows) == len(columns) == 1 and len(index.terms) == 2
        if not both or not {*rows, *columns} <= self.bounds.keys():
            raise NotCompiled(f"no operator makes the condition {index} >= 0")
        sizes = self._primitives.sizes
        call = lower_triangle(rows=sizes[rows[0]], columns=sizes[columns[0]])
        return NamedTensor(apply(call), (rows[0], columns[0]))

    def _element(self, access: Access) -> NamedTensor:
        """An operand that is read at one index per dimension, each over the whole dimension. Raises
        NotCompiled for other reads."""
        leaf = self.leaves[access.operand]
        read = [self._size(index) for index in access.index]
        index = _digits(read, leaf, self._primitives.sizes)
        if index is None:
            shown = ", ".join(map(str, access.index))
            raise NotCompiled(f"an operand is read at [{shown}], not at indices alone")
        return NamedTensor(leaf.value, index)

    def _product_of(self, factors: Sequence[Expr]) -> Product:
        if any(isinstance(factor, Const) and factor.value == 0 for factor in factors):
            return Product(Fraction(0))
        total = Product()
        for factor in factors:
            total = total.times(self._product(factor))
            if not total.number:
                return Product(Fraction(0))
        return total

    def _sum_of(self, terms: Sequence[Expr]) -> Product:
        """A sum of values. Factors ``exp(m)`` that all terms share stay outside of it."""
        products = [p for p in map(self._product, terms) if p.number]
        tensors = [p for p in products if not p.is_constant]
        if not tensors:
            return self._constant(products)
        if len(products) == 1:
            return products[0]
        logs = tensors[0].logs if len({frozenset(p.logs) for p in products}) == 1 else ()
        inside = [replace(p, logs=()) if logs else p for p in tensors]
        more = [replace(p, number=abs(p.number)) for p in inside if p.number > 0]
        less = [replace(p, number=abs(p.number)) for p in inside if p.number < 0]
        total = self._difference([*map(self._tensor, more)], [*map(self._tensor, less)])
        for constant in (p for p in products if p.is_constant):
            total = total.mapped(shift(offset=offset_of(constant)))
        return Product(over=(total,), logs=logs)

    def _constant(self, products: Sequence[Product]) -> Product:
        if any(p.calls for p in products):
            raise NotCompiled("no operator adds two attributes")
        return Product(sum((p.number for p in products), Fraction(0)))

    def _difference(self, more: Sequence[NamedTensor], less: Sequence[NamedTensor]) -> NamedTensor:
        """The sum of the tensors ``more`` minus the sum of the tensors ``less``."""
        make = self._primitives
        if not less:
            return make.fold(make.plus, more)
        taken = make.fold(make.plus, less)
        return make.minus(make.fold(make.plus, more), taken) if more else taken.mapped(negate())

    def _function(self, function: str, args: Sequence[Expr]) -> Product:
        match function, args:
            case "recip", (IndexValue(index),):
                size = self._constant_size(index)
                return Product(calls=(divide_by_size(size=size),))
            case "rsqrt", (IndexValue(index),):
                size = self._constant_size(index)
                return Product(calls=(divide_by_root(size=size),))
            case "recip", (value,):
                return self._reciprocal(self._product(value))
            case "exp", (value,):
                return self._exponential(self._tensor(self._product(value)))
            case "log", (value,):
                return Product(over=(self._logarithm(self._product(value)),))
            case "eq", (ids, IndexValue(index)) if index.symbol in self.bounds:
                return Product(picks=(Pick(self._tensor(self._product(ids)), str(index.symbol)),))
            case "power", (value, exponent):
                call = power(exponent=offset_of(self._product(exponent)))
                return Product(over=(self._tensor(self._product(value)).mapped(call),))
            case _:
                return Product(over=(self._elementwise(function, args),))

    def _constant_size(self, index: Poly) -> Poly:
        if not index.symbols.isdisjoint(self.bounds):
            raise NotCompiled(f"no operator divides by {index}")
        return self._size(index)

    def _reciprocal(self, product: Product) -> Product:
        if product.is_constant:
            raise NotCompiled("no operator divides by an attribute")
        below = self._tensor(replace(product, logs=()))
        return Product(under=(below,), logs=tuple((t, -n) for t, n in product.logs))

    def _exponential(self, tensor: NamedTensor) -> Product:
        """``exp(x)``, or ``exp(x - m)`` with the factor ``exp(m)`` apart if it is summed."""
        axis = self._summed.get(tensor.value)
        if axis is None:
            return Product(over=(tensor.mapped(exp()),))
        most = self._primitives.greatest(tensor, tensor.axes[axis])
        less = self._primitives.minus(tensor, most)
        return Product(over=(less.mapped(exp()),), logs=((most, 1),))

    def _logarithm(self, product: Product) -> NamedTensor:
        inner = self._tensor(replace(product, logs=())).mapped(log())
        terms = [t if n == 1 else t.mapped(scale(factor=float(n))) for t, n in product.logs]
        return self._primitives.fold(self._primitives.plus, [*terms, inner])

    def _elementwise(self, function: str, args: Sequence[Expr]) -> NamedTensor:
        operator = functions().get(function)
        if operator is None:
            raise NotCompiled(f"no operator computes {function}")
        operands = [self._tensor(self._product(arg)) for arg in args]
        return self._primitives.elementwise(operator, *operands)

    def _greatest(self, var: str, guards: Sequence[Poly], body: Expr) -> Product:
        if guards:
            raise NotCompiled("no operator takes a maximum under a condition")
        tensor = self._tensor(self._product(body))
        if var not in tensor.axes:
            raise NotCompiled(f"a maximum over {var} of what does not depend on it")
        return Product(over=(self._primitives.greatest(tensor, var),))

    def _total(self, var: str, product: Product) -> Product:
        """The sum over an index. Factors that do not depend on it stay outside."""
        product = self._settled(var, product)
        rows = [pick for pick in product.picks if pick.row == var]
        inside = [t for t in product.over if var in t.axes]
        inside += [t.mapped(reciprocal()) for t in product.under if var in t.axes]
        outside = replace(
            product,
            over=tuple(t for t in product.over if var not in t.axes),
            under=tuple(t for t in product.under if var not in t.axes),
            picks=tuple(pick for pick in product.picks if pick.row != var),
        )
        make = self._primitives
        if len(rows) == 1 and inside:
            total = make.looked_up(make.fold(make.times, inside), rows[0].ids, var)
        elif rows or inside:
            inside += [make.picked(pick.ids, var) for pick in rows]
            total = make.total(inside, var)
        else:
            return outside.times(Product(calls=(scale(factor=make.sizes[var]),)))
        return outside.times(Product(over=(total,)))

    def _settled(self, var: str, product: Product) -> Product:
        """The product with all picks and logarithms that depend on the index as tensors."""
        make = self._primitives
        bound = [pick for pick in product.picks if var in pick.ids.axes]
        more = [make.picked(pick.ids, pick.row) for pick in bound]
        more += [raised(t, n) for t, n in product.logs if var in t.axes]
        return replace(
            product,
            over=(*product.over, *more),
            picks=tuple(pick for pick in product.picks if pick not in bound),
            logs=tuple((t, n) for t, n in product.logs if var not in t.axes),
        )

    def _tensor(self, product: Product) -> NamedTensor:
        """The product as one tensor. Raises NotCompiled if it is a constant."""
        make = self._primitives
        over = [*product.over, *(make.picked(pick.ids, pick.row) for pick in product.picks)]
        over += [raised(t, n) for t, n in product.logs]
        under = make.fold(make.times, product.under) if product.under else None
        if over:
            made = make.fold(make.times, over)
            made = make.over(made, under) if under else made
        elif under:
            made = under.mapped(reciprocal())
        else:
            raise NotCompiled("no operator makes a tensor of one constant")
        for call in (*product.calls, *multiplied(product.number)):
            made = made.mapped(call)
        return made


def _digits(
    read: Sequence[Poly], leaf: NamedTensor, sizes: Mapping[str, Poly]
) -> tuple[str, ...] | None:
    """The index at each dimension of a leaf, with merged dimensions split. None if a dimension is
    not read at an index that runs over all of it."""
    names: list[str] = []
    for value in read:
        names += _merged(value, sizes)
    if len(names) != len(leaf.axes) or len(set(names)) < len(names):
        return None
    runs_through = all(sizes.get(a) == sizes[b] for a, b in zip(names, leaf.axes, strict=True))
    return tuple(names) if runs_through else None


def _merged(value: Poly, sizes: Mapping[str, Poly]) -> Iterator[str]:
    """Yield the indices that make up a position in a merged dimension, outermost first."""
    if value.symbol is not None:
        yield value.symbol
        return
    inner = [m[0] for m, c in value.terms if len(m) == 1 and c == 1 and m[0] in sizes]
    if len(inner) == 1:
        outer = (value - Poly.of(inner[0])).over(sizes[inner[0]])
        if outer is not None and outer.terms:
            yield from _merged(outer, sizes)
            yield inner[0]


def _linear_parts(value: Expr) -> Iterator[Expr]:
    """Yield the expression and its factors and terms, without the arguments of functions."""
    yield value
    if isinstance(value, Add | Mul | Sum):
        for child in children(value):
            yield from _linear_parts(child)


@lru_cache(maxsize=1)
def functions() -> Mapping[str, Operator]:
    """The element-wise operator of each scalar function, by the function's name."""
    by_function: dict[str, Operator] = {}
    for operator in sorted(BUILT_IN, key=lambda operator: operator.name):
        if stand_in(operator) is None or operator.attributes:
            continue
        body = operator.instance((1,) * operator.arity, ()).outputs[0].body
        if isinstance(body, Apply) and all(
            isinstance(arg, Access) and arg.operand == i for i, arg in enumerate(body.args)
        ):
            by_function.setdefault(body.function, operator)
    return by_function


def binders(value: Expr) -> Iterator[tuple[str, Poly]]:
    """Yield the indices that a value sums or takes a maximum over, with their sizes."""
    for part in walk(value):
        if isinstance(part, Sum | Max):
            yield part.var, indices(part)[0]

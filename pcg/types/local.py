"""Derive from an operator's equation which indices may be cut, and where partials may pass.

A compute operator is local: each task computes its block of the output from its blocks of the
operands, at global indices. So an index may be cut if two things hold. In every dimension that it
reads, every access is the index itself. And it is an output index or the index of an outermost sum.
Partials may enter if every term reads exactly one element of the operands that carry them.

An output index may also slide a window: every access to a dimension is ``stride*h`` plus a rest
that contains no output index. Blocks of the index correspond to blocks of the dimension, but read
into the neighbouring blocks. So the index may be cut only if operands hold a halo (``Window``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations

from pcg.language.equation import Dimension, Equation, size_of
from pcg.language.expr import Max, Sum, accesses, walk
from pcg.language.normal import Element, Function, NormalForm, Normalizer, Term, elements, stem
from pcg.language.poly import Poly


@dataclass(frozen=True)
class Axis:
    """An index that may be cut, as a dimension of each operand and output, or None.

    None in an output means that the index is summed there: its degree becomes partials.
    """

    name: str
    operands: tuple[int | None, ...]
    outputs: tuple[int | None, ...]

    @property
    def first_place(self) -> tuple[int, int]:
        """The first operand that has the index, and its dimension there."""
        return next((i, dim) for i, dim in enumerate(self.operands) if dim is not None)


@dataclass(frozen=True)
class Reach:
    """How far windows read in a dimension of an operand, in sizes and attributes of the equation.

    Window h owns ``stride*h <= i < stride*(h + 1)``. It reads up to ``before`` elements before
    these and ``after`` after them, and so does a block of windows. A negative number means that
    some own elements stay unread.
    """

    operand: int
    dim: int
    stride: Poly
    before: Poly
    after: Poly


@dataclass(frozen=True)
class Window:
    """An output index that slides windows over dimensions of operands. It is an axis if these
    dimensions have halos as wide as all of ``reaches``, and are of size ``stride * count``."""

    axis: Axis
    count: Poly
    reaches: tuple[Reach, ...]

    @property
    def places(self) -> frozenset[tuple[int, int]]:
        """The operands and dimensions that the windows slide over."""
        return frozenset((reach.operand, reach.dim) for reach in self.reaches)


@dataclass(frozen=True)
class LocalTyping:
    """All properties of an equation from which parallel types follow."""

    axes: tuple[Axis, ...]
    carriers: tuple[frozenset[int], ...]
    """Sets of operands that may carry partials together."""
    windows: tuple[Window, ...] = ()
    """Indices that are axes only if operands have a halo."""

    @property
    def open_windows(self) -> tuple[Window, ...]:
        """The windows that are axes."""
        return tuple(window for window in self.windows if window.axis in self.axes)

    def opened(self, haloed: Collection[tuple[int, int]]) -> LocalTyping:
        """Return the typing with those windows as axes whose dimensions all have a halo.

        ``haloed`` are (operand, dimension) pairs.
        """
        opened = tuple(w.axis for w in self.windows if w.places.issubset(haloed))
        return replace(self, axes=(*self.axes, *opened)) if opened else self

    def axis_at(self, operand: int, dim: int) -> Axis | None:
        """Return the axis at a dimension of an operand, or None if it may not be cut."""
        return next((a for a in self.axes if a.operands[operand] == dim), None)


def derive(equation: Equation) -> LocalTyping:
    """Return the local typing of an equation."""
    forms = tuple(_form(equation, i) for i in range(len(equation.outputs)))
    candidates = (_axis(equation, forms, name) for name in _candidates(equation, forms))
    axes = tuple(axis for axis in candidates if axis)
    return LocalTyping(axes, _carriers(equation, forms), tuple(_windows(equation, axes)))


def _form(equation: Equation, output: int) -> NormalForm:
    def element(operand: int, index: tuple[Poly, ...]) -> NormalForm:
        return (Term(Fraction(1), factors=(Element(str(operand), index),)),)

    return Normalizer().normalize(equation.outputs[output].body, element)


def _candidates(equation: Equation, forms: tuple[NormalForm, ...]) -> list[str]:
    names = [dim.names[0] for output in equation.outputs for dim in output.dims]
    names += [var for form in forms for term in form for var, _ in term.binders]
    return list(dict.fromkeys(names))


def _axis(equation: Equation, forms: tuple[NormalForm, ...], name: str) -> Axis | None:
    outputs: list[int | None] = []
    for output, form in zip(equation.outputs, forms, strict=True):
        dims = [i for i, dim in enumerate(output.dims) if name in dim.names]
        if dims:
            if len(dims) > 1 or output.dims[dims[0]].names[0] != name:
                return None
            outputs.append(dims[0])
        elif all(_summed_outermost(term, name) for term in form):
            outputs.append(None)
        else:
            return None
    positions = tuple(_position(equation, name, i) for i in range(len(equation.operands)))
    if -1 in positions or all(p is None for p in positions):
        return None
    return Axis(name, positions, tuple(outputs))


def _summed_outermost(term: Term, name: str) -> bool:
    """Whether a term is one sum over the whole index, and no other sum in it uses the index.

    For a product of two sums over ``k``, the normal form renames one index (``%k~1``). A cut of
    ``k`` would cut both, and products of parts do not add up to the product.
    """
    sizes = [size for var, size in term.binders if stem(var) == name]
    return sizes == [size_of(name)] and not any(name == var for var in _inner_binders(term))


def _inner_binders(term: Term) -> Iterator[str]:
    """Yield the indices summed inside the functions of a term, by their names in the equation."""
    for factor in term.factors:
        if isinstance(factor, Function):
            yield from (stem(var) for arg in factor.args for var, _ in arg.binders)
            for inner in (inner for arg in factor.args for inner in arg.form):
                yield from (stem(var) for var, _ in inner.binders)
                yield from _inner_binders(inner)


def _position(equation: Equation, name: str, operand: int) -> int | None:
    """Return the index's dimension in the operand, None if it has none, -1 if it forbids a cut."""
    found: int | None = None
    for position, dim in enumerate(equation.operands[operand].dims):
        read = _read(equation, operand, position)
        if not any(name in index.symbols for index in read):
            continue
        lead = {_lead(equation, index, dim) for index in read}
        if found is not None or lead != {name}:
            return -1
        found = position
    return found


def _read(equation: Equation, operand: int, position: int) -> list[Poly]:
    """Return the distinct indices at which a dimension of an operand is read."""
    indices = (
        access.index[position]
        for output in equation.outputs
        for access in accesses(output.body)
        if access.operand == operand
    )
    return list(dict.fromkeys(indices))


def _windows(equation: Equation, axes: tuple[Axis, ...]) -> Iterator[Window]:
    """Yield the indices of all outputs that slide windows and can be cut in no other way."""
    names = dict.fromkeys(n for output in equation.outputs for d in output.dims for n in d.names)
    for name in (n for n in names if n not in {axis.name for axis in axes}):
        counts = [[d.names for d in output.dims].count((name,)) for output in equation.outputs]
        reaches = _reaches(equation, name)
        if not reaches or set(counts) != {1}:
            continue
        if any(_never_covers(equation, name, reach) for reach in reaches):
            continue
        places = {reach.operand: reach.dim for reach in reaches}
        operands = tuple(
            places.get(i, _position(equation, name, i)) for i in range(len(equation.operands))
        )
        outputs = tuple([d.names for d in o.dims].index((name,)) for o in equation.outputs)
        yield Window(Axis(name, operands, outputs), _size(equation, name), reaches)


def _reaches(equation: Equation, name: str) -> tuple[Reach, ...]:
    """Return how far windows of an index read, for each way in which operands are read. Empty if an
    operand is read in a way that is no window."""
    reaches: list[Reach] = []
    for operand, dims in enumerate(o.dims for o in equation.operands):
        if _position(equation, name, operand) != -1:
            continue
        reads = [_read(equation, operand, position) for position in range(len(dims))]
        positions = [i for i, read in enumerate(reads) if any(name in r.symbols for r in read)]
        if len(positions) != 1 or len(dims[positions[0]].names) > 1:
            return ()
        for index in reads[positions[0]]:
            reach = _Reading(equation).reach(index, name, operand, positions[0])
            if reach is None:
                return ()
            reaches.append(reach)
    # A block of the index has to be the same block of a dimension in all of its reads.
    strides = {(reach.operand, reach.stride) for reach in reaches}
    return tuple(reaches) if len(strides) == len({operand for operand, _ in strides}) else ()


def _never_covers(equation: Equation, name: str, reach: Reach) -> bool:
    """Whether the windows can never cover the dimension, such as a concat's two dimensions."""
    size = equation.operands[reach.operand].dims[reach.dim].size
    terms = (_size(equation, name) * reach.stride - size).terms
    sizes = all(symbol.startswith("|") for symbols, _ in terms for symbol in symbols)
    return sizes and len({coefficient > 0 for _, coefficient in terms}) == 1


@dataclass(frozen=True)
class _Reading:
    """Computes how far indices reach from a value of the index that is cut."""

    equation: Equation

    def reach(self, index: Poly, name: str, operand: int, dim: int) -> Reach | None:
        """Return the reach of ``stride*name + rest``, or None if ``rest`` has other parts than
        reduced indices, sizes and attributes."""
        stride = index.coefficient(name)
        first = last = index - stride * Poly.of(name)
        if not self._sign(stride):
            return None
        for var in sorted(first.symbols & self._reduced.keys()):
            sign = self._sign(first.coefficient(var))
            if sign is None or first.degree_in(var) > 1:
                return None
            ends = {var: Poly()}, {var: self._reduced[var] - 1}
            low, high = ends if sign else ends[::-1]
            first, last = first.substitute(low), last.substitute(high)
        if not self._indices.isdisjoint(first.symbols | last.symbols):
            return None
        return Reach(operand, dim, stride, -first, last - stride + 1)

    def _sign(self, factor: Poly) -> bool | None:
        """Return True if a factor of an index is never negative, False if it is never positive, and
        None if it may be either."""
        signs = {coefficient > 0 for _, coefficient in factor.terms}
        if len(signs) != 1 or not self._indices.isdisjoint(factor.symbols):
            return None
        return signs.pop()

    @cached_property
    def _indices(self) -> frozenset[str]:
        """All index names. Other symbols are sizes and attributes."""
        return self._outer.union(self._bound)

    @cached_property
    def _outer(self) -> frozenset[str]:
        dims = (dim for output in self.equation.outputs for dim in output.dims)
        return frozenset(name for dim in dims for name in dim.names)

    @cached_property
    def _bound(self) -> dict[str, set[Poly]]:
        bound: dict[str, set[Poly]] = {}
        for output in self.equation.outputs:
            for part in walk(output.body):
                if isinstance(part, Sum | Max):
                    bound.setdefault(part.var, set()).add(part.size)
        return bound

    @cached_property
    def _reduced(self) -> dict[str, Poly]:
        """The sizes of indices over which a sum or a maximum is taken."""
        return {
            name: next(iter(sizes))
            for name, sizes in self._bound.items()
            if len(sizes) == 1 and name not in self._outer
        }


def _lead(equation: Equation, index: Poly, dim: Dimension) -> str | None:
    """Return the index whose order ``index`` follows through ``dim``, or None if there is none.

    It is ``index`` itself or, in a merged dimension, the first index, if the second one runs
    through its whole size.
    """
    name = index.symbol
    if name is not None and _size(equation, name) == dim.size:
        return name
    if len(dim.names) > 1 and index == dim.index:
        return dim.names[0]
    if len(dim.names) != 2:
        return None
    first, second = dim.names
    inner = (index - Poly.of(first) * size_of(second)).symbol
    sizes = _summed(equation)
    return first if inner is not None and sizes.get(inner) == size_of(second) else None


def _summed(equation: Equation) -> dict[str, Poly]:
    """Return the sizes of summed indices, without those that are summed over different sizes."""
    summed: dict[str, set[Poly]] = {}
    for output in equation.outputs:
        for part in walk(output.body):
            if isinstance(part, Sum):
                summed.setdefault(part.var, set()).add(part.size)
    return {name: sizes.pop() for name, sizes in summed.items() if len(sizes) == 1}


def _size(equation: Equation, name: str) -> Poly:
    operand_names = {n for o in equation.operands for d in o.dims for n in d.names}
    if name in operand_names:
        return size_of(name)
    for bound, size in equation.bounds:
        if bound == name:
            return size
    return size_of(name)


def _carriers(equation: Equation, forms: tuple[NormalForm, ...]) -> tuple[frozenset[int], ...]:
    terms = [term for form in forms for term in form]
    operands = range(len(equation.operands))
    nonlinear = {
        int(e.tensor)
        for term in terms
        for f in term.factors
        if not isinstance(f, Element)
        for e in elements((Term(Fraction(1), factors=(f,)),))
    }
    linear = [o for o in operands if o not in nonlinear]
    reads = [[int(f.tensor) for f in term.factors if isinstance(f, Element)] for term in terms]
    return tuple(
        frozenset(chosen)
        for size in range(1, len(linear) + 1)
        for chosen in combinations(linear, size)
        if terms and all(sum(r in chosen for r in read) == 1 for read in reads)
    )

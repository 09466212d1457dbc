"""The theorem behind an operator's parallel type: tasks that see only their own blocks compute it.

All indices that a typing allows to be cut are cut together. The size of a cut index is degree *
block, and the index is (block, offset). An operand that carries partials is V(sigma; ...), sigma <
p, and means their sum. The theorem is the equality of two values:

    left    the equation, of the operands' meanings
    right   the sum, over the blocks of summed indices and over sigma, of the equation whose sums
            over cut indices run over the task's block only

Every access along a cut dimension has to stay in the task's block. Copies are equal by type, and
slices in time are blocks like others, so the theorem mentions neither.

Windows slide over a dimension whose size is stride * degree * block. Along it, a task reads at
global indices, and each of them has to lie in the task's block or in the block's halo.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count

from pcg.language.equation import Equation, Output, size_of
from pcg.language.normal import (
    Argument,
    Element,
    Factor,
    Function,
    NormalForm,
    Number,
    Symbol,
    Term,
    stem,
)
from pcg.language.poly import Poly, Variable, product
from pcg.types.local import Axis, LocalTyping, Reach, Window
from pcg.types.operator import Call
from verifier.trusted import smt
from verifier.trusted.errors import Unproved
from verifier.trusted.proof.prove import Proof, Prover
from verifier.trusted.steps import SearchSteps, Steps
from verifier.trusted.values.equations import local_form
from verifier.trusted.values.meaning import Digit, divide

PARTIALS = Poly.of(Variable("%partials"))
SIGMA = Variable("%sigma")
"""The index of the operands' partials that a task sees."""


@dataclass(frozen=True)
class TypingProof:
    """The result for one theorem: its proof, or the ``reason`` why there is none."""

    carriers: frozenset[int]
    proof: Proof | None
    reason: str = ""


def prove_typing(
    call: Call, ranks: tuple[int, ...], typing: LocalTyping | None = None
) -> tuple[TypingProof, ...]:
    """Prove the typing of an operator at given ranks; by default, the derived typing.

    There is one result for operands without partials, and one for each set of operands that may
    carry them.
    """
    # Other attributes than positions do not matter: without them, equal theorems share a cache key.
    placed = tuple(zip(call.operator.template.positions, call.positions, strict=True))
    return _prove_all(Call(call.operator, placed), ranks, typing or call.typing(ranks))


@lru_cache(maxsize=4096)
def _prove_all(call: Call, ranks: tuple[int, ...], typing: LocalTyping) -> tuple[TypingProof, ...]:
    options = (frozenset[int](), *typing.carriers)
    return tuple(_prove(call, ranks, typing, carriers) for carriers in options)


def _prove(
    call: Call, ranks: tuple[int, ...], typing: LocalTyping, carriers: frozenset[int]
) -> TypingProof:
    steps = SearchSteps()
    try:
        scripts = typing_obligations(call, ranks, typing, carriers, steps, smt.check)
    except Unproved as error:
        return TypingProof(carriers, None, str(error))
    return TypingProof(carriers, Proof(scripts, tuple(steps.taken)))


def typing_obligations(
    call: Call,
    ranks: tuple[int, ...],
    typing: LocalTyping,
    carriers: frozenset[int],
    steps: Steps,
    judge: smt.Judge,
) -> tuple[str, ...]:
    """Return the side conditions of a typing when the operands in ``carriers`` carry partials, as
    SMT-LIB 2 scripts that have to be unsatisfiable. Raises Unproved."""
    equation = call.instance(ranks)
    scripts: list[str] = []
    for port in range(len(equation.outputs)):
        form = local_form(call.operator, ranks, call.positions, port)
        cut = _CutEquation(equation, typing, carriers)
        left, right = cut.global_value(form, port), cut.task_sum(form, port)
        prover = cut.prover(scripts, steps, judge)
        for digit in cut.conditions:
            prover.require(digit)
        for options in cut.reads:
            _require_one([(digit, cut.prover(scripts, steps, judge, digit)) for digit in options])
        prover.equal(left, right, frozenset(cut.free(port)))
    return tuple(scripts)


def _require_one(options: Sequence[tuple[Digit, Prover]]) -> None:
    """Discharge at least one of the conditions. Raises Unproved if that fails for all."""
    (digit, prover), *others = options
    if not others:
        prover.require(digit)
        return
    last = Unproved(f"digit {digit.value}")
    for way in prover.steps.options(map(str, range(len(options)))):
        digit, prover = options[int(way)]
        try:
            prover.require(digit)
        except Unproved as error:
            last = error
        else:
            return
    raise last


def _degree(axis: str) -> Poly:
    return Poly.of(Variable(f"%{axis}.degree"))


def _block(axis: str) -> Poly:
    return Poly.of(Variable(f"%{axis}.block"))


def _task(axis: str) -> Variable:
    """The index of a task's block along an axis."""
    return Variable(f"%{axis}.at")


def _offset(axis: str) -> Variable:
    """The offset of a free index in a task's block along an axis."""
    return Variable(f"%{axis}.in")


def _free(index: str) -> Variable:
    """A free index that is not cut."""
    return Variable(f"%{index}")


@dataclass
class _CutEquation:
    """An equation with every axis of a typing cut. ``ranges``: the size of each index variable.
    ``conditions``: digits that have to lie in their ranges."""

    equation: Equation
    typing: LocalTyping
    carriers: frozenset[int]
    ranges: dict[str, Poly] = field(default_factory=dict[str, Poly])
    conditions: dict[Digit, None] = field(default_factory=dict[Digit, None])
    reads: dict[tuple[Digit, ...], None] = field(default_factory=dict[tuple[Digit, ...], None])
    """For each access of windows: that it lies in the task's block with one of the halos. At least
    one condition of each tuple has to hold."""

    def __post_init__(self) -> None:
        self._numbers = count(1)
        self._axes = {axis.name: axis for axis in self.typing.axes}
        for parts in zip(*((*a.operands, *a.outputs) for a in self._axes.values()), strict=True):
            places = [place for place in parts if place is not None]
            if len(places) > len(set(places)):
                raise Unproved("two indices are cut at one dimension")
        self._sizes: dict[str, Poly] = {}
        bounds = dict(self.equation.bounds)
        for name in self._axes:
            symbol = bounds.get(name, size_of(name)).symbol
            if symbol is None:
                raise Unproved(f"the size of index {name} is {bounds[name]}")
            self._sizes[symbol] = _degree(name) * _block(name)
        for window in self.typing.open_windows:
            for reach in window.reaches:
                self._cover(window, reach)
        for name, bound in bounds.items():
            self._sizes[f"|{name}|"] = bound.substitute(self._sizes)

    def _cover(self, window: Window, reach: Reach) -> None:
        """Set the size of a dimension that windows slide over: stride * degree * block."""
        symbol = self.equation.operands[reach.operand].dims[reach.dim].size.symbol
        size = reach.stride * _degree(window.axis.name) * _block(window.axis.name)
        if symbol is None or self._sizes.setdefault(symbol, size) != size:
            raise Unproved(f"the size of operand {reach.operand}, dimension {reach.dim}, is given")

    @property
    def positive(self) -> tuple[Poly, ...]:
        parts = (*self.equation.operands, *self.equation.outputs)
        sizes = [self._size(name) for part in parts for dim in part.dims for name in dim.names]
        cuts = [size for name in self._axes for size in (_degree(name), _block(name))]
        strides = [r.stride for r in self._reaches]
        return tuple(dict.fromkeys((*sizes, *cuts, *strides, PARTIALS)))

    def prover(
        self, scripts: list[str], steps: Steps, judge: smt.Judge, digit: Digit | None = None
    ) -> Prover:
        """A prover that assumes all sizes positive. For ``digit``, it assumes that only of the
        sizes whose symbols are in the digit: solvers fail on products among many assumptions."""
        positive, naturals = self.positive, self.naturals
        if digit is not None:
            used = digit.value.symbols | digit.size.symbols
            positive = tuple(p for p in positive if p.symbols <= used)
            naturals = tuple(n for n in naturals if n.symbols <= used)
        return Prover(positive, self.ranges, scripts, naturals, steps, judge)

    @property
    def naturals(self) -> tuple[Poly, ...]:
        """The attributes in the strides and reaches of windows; they are at least 0."""
        widths = (w for r in self._reaches for w in (r.stride, r.before, r.after))
        symbols = sorted({s for width in widths for s in width.symbols if not s.startswith("|")})
        return tuple(map(Poly.of, symbols))

    @property
    def _reaches(self) -> list[Reach]:
        return [reach for window in self.typing.open_windows for reach in window.reaches]

    def _size(self, name: str) -> Poly:
        return size_of(name).substitute(self._sizes)

    def free(self, port: int) -> dict[str, Poly]:
        """The free indices of an output with their sizes. A cut index has two: block, offset."""
        sizes: dict[str, Poly] = {}
        for name in _names(self.equation.outputs[port]):
            if name in self._axes:
                sizes |= {_task(name): _degree(name), _offset(name): _block(name)}
            else:
                sizes[_free(name)] = self._size(name)
        return sizes

    def global_value(self, form: NormalForm, port: int) -> NormalForm:
        """The left side: the equation, of the operands' meanings."""
        return tuple(self._term(term, self._values(port), None) for term in form)

    def task_sum(self, form: NormalForm, port: int) -> NormalForm:
        """The right side: the sum of the partials that tasks compute from their blocks."""
        output = self.equation.outputs[port]
        sums: list[tuple[str, Poly]] = []
        for axis in self._axes.values():
            dim = axis.outputs[port]
            if dim is None and axis.name not in _names(output):
                sums.append((_task(axis.name), _degree(axis.name)))
            elif dim is None or output.dims[dim].names[0] != axis.name:
                raise Unproved(f"index {axis.name} does not lead dimension {dim} of {output.name}")
        if self.carriers:
            sums.append((SIGMA, PARTIALS))
        self.ranges |= dict(sums)
        values = self._values(port)
        terms = (self._term(term, values, Poly.of(SIGMA)) for term in form)
        return tuple(Term(t.coefficient, (*sums, *t.binders), t.guards, t.factors) for t in terms)

    def _values(self, port: int) -> dict[str, Poly]:
        self.ranges |= self.free(port)
        indices = {
            name: _at(name, _offset(name)) if name in self._axes else Poly.of(_free(name))
            for name in _names(self.equation.outputs[port])
        }
        return {**self._sizes, **indices}

    def _term(self, term: Term, values: Mapping[str, Poly], sigma: Poly | None) -> Term:
        """A term with ``values`` for its sizes and free indices. With ``sigma``, the term that a
        task computes from its own blocks."""
        binders, images = self._bind(term.binders, values, sigma)
        factors: list[Factor] = []
        for factor in term.factors:
            factors.append(self._factor(factor, images, sigma, binders))
        guards = tuple(guard.substitute(images) for guard in term.guards)
        return Term(term.coefficient, tuple(binders), guards, tuple(factors))

    def _bind(
        self,
        bound: tuple[tuple[str, Poly], ...],
        values: Mapping[str, Poly],
        sigma: Poly | None,
    ) -> tuple[list[tuple[str, Poly]], dict[str, Poly]]:
        """Bound indices under new names, and ``values`` with the old names in terms of the new.

        A cut index becomes two, block and offset. With ``sigma`` it becomes the offset only: the
        block is the task's own.
        """
        images = dict(values)
        binders: list[tuple[str, Poly]] = []
        for var, size in bound:
            name, number = stem(var), next(self._numbers)
            if name not in self._axes:
                renamed = Variable(f"%{name}~{number}")
                binders.append((renamed, size.substitute(images)))
                images[var] = Poly.of(renamed)
                continue
            if size.substitute(images) != _degree(name) * _block(name):
                raise Unproved(f"a sum over {name} does not run through all of it")
            offset = Variable(f"%{name}~{number}.in")
            task = Variable(f"%{name}~{number}.at") if sigma is None else None
            binders += [(task, _degree(name))] if task is not None else []
            binders.append((offset, _block(name)))
            images[var] = _at(name, offset, task)
        self.ranges |= dict(binders)
        return binders, images

    def _argument(
        self, argument: Argument, values: Mapping[str, Poly], sigma: Poly | None
    ) -> Argument:
        binders, images = self._bind(argument.binders, values, sigma)
        guards = tuple(guard.substitute(images) for guard in argument.guards)
        form = tuple(self._term(term, images, sigma) for term in argument.form)
        return Argument(form, tuple(binders), guards)

    def _factor(
        self,
        factor: Factor,
        images: Mapping[str, Poly],
        sigma: Poly | None,
        binders: list[tuple[str, Poly]],
    ) -> Factor:
        match factor:
            case Function(name, args):
                return Function(name, tuple(self._argument(a, images, sigma) for a in args))
            case Number(index):
                return Number(index.substitute(images))
            case Symbol():
                return factor
            case Element(tensor, index):
                index = tuple(i.substitute(images) for i in index)
                digits = tuple(self._digits(int(tensor), index, local=sigma is not None))
        if int(tensor) not in self.carriers:
            return Element(tensor, digits)
        if sigma is None:  # The operand means the sum of its partials.
            partial = Variable(f"%sigma~{next(self._numbers)}")
            binders.append((partial, PARTIALS))
            sigma = Poly.of(partial)
        return Element(tensor, (sigma, *digits))

    def _digits(self, operand: int, index: tuple[Poly, ...], *, local: bool) -> Iterator[Poly]:
        """The index of an access, with (block, offset) for a cut dimension. ``local``: the access
        of a task, which has to read its own block."""
        dims = self.equation.operands[operand].dims
        for position, (value, dim) in enumerate(zip(index, dims, strict=True)):
            axis = self.typing.axis_at(operand, position)
            if reaches := [r for r in self._reaches if (r.operand, r.dim) == (operand, position)]:
                assert axis is not None
                if local:
                    self.reads[tuple(self._within(axis.name, value, r) for r in reaches)] = None
                yield value
                continue
            sizes = [self._size(name) for name in dim.names]
            if axis is not None:
                sizes = [*self._split(axis, sizes[0]), *sizes[1:]]
            digits: list[Poly] = []
            for size in reversed(sizes[1:]):
                value, rest = divide(value, size)
                self.conditions[Digit(rest, size)] = None
                digits.append(rest)
            if axis is not None and local and value != Poly.of(_task(axis.name)):
                raise Unproved(f"operand {operand} is read outside of the task's {axis.name}")
            yield from (value, *reversed(digits))

    def _within(self, axis: str, index: Poly, reach: Reach) -> Digit:
        """The condition that an index lies in the task's block or in the halo of ``reach``."""
        stride, before, after = (
            value.substitute(self._sizes) for value in (reach.stride, reach.before, reach.after)
        )
        block = stride * _block(axis)
        start = Poly.of(_task(axis)) * block
        return Digit(index - start + before, before + block + after)

    def _split(self, axis: Axis, size: Poly) -> tuple[Poly, Poly]:
        parts = (_degree(axis.name), _block(axis.name))
        if size != product(parts):
            raise Unproved(f"index {axis.name} does not run through a dimension of size {size}")
        return parts


def _at(axis: str, offset: Variable, block: Variable | None = None) -> Poly:
    """The global index of an offset in a block, by default the task's own."""
    return Poly.of(block or _task(axis)) * _block(axis) + Poly.of(offset)


def _names(output: Output) -> list[str]:
    return [name for dim in output.dims for name in dim.names]

"""Declare operators: a name and an index equation, from which all other properties are derived.

    matmul = Operator("matmul", "out[a..., n] = sum k: x[a..., k] * w[k, n]")

An operator is called with attributes: positions (``axis``), sizes (``at``), reals (``factor``),
and, for a parallel operator, a dimension and a degree. A ``Call`` is an operator with values for
its attributes. In a rule the values may be symbolic (``Poly``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any

from pcg.errors import OperatorError
from pcg.language.equation import Equation
from pcg.language.language import expand
from pcg.language.poly import Poly
from pcg.language.template import Declaration, EquationError, Template, parse_template
from pcg.types import local
from pcg.types.parallel_operators import PARALLEL
from pcg.types.task import KernelTask

Attribute = int | float | Poly
"""The value of an attribute: a polynomial if a rule leaves it symbolic."""

Attributes = tuple[tuple[str, Attribute], ...]

Kernel = (
    Callable[[KernelTask], Any]
    | Callable[[KernelTask, Any], Any]
    | Callable[[KernelTask, Any, Any], Any]
    | Callable[[KernelTask, Any, Any, Any], Any]
    | Callable[..., Any]
)
"""A torch function of a ``KernelTask`` and the local blocks of the operands."""


@dataclass(frozen=True)
class Operator:
    """An operator: a name, an index equation, and the names of its attributes.

    ``sizes`` are integer attributes and ``reals`` real attributes of the equation. Positions are
    read from the equation's ``@`` marks. ``kernel`` replaces the evaluation in torch that follows
    from the equation. Raises EquationError for an equation without a meaning.
    """

    name: str
    equation: str
    sizes: tuple[str, ...] = ()
    reals: tuple[str, ...] = ()
    kernel: Kernel | None = field(default=None, compare=False)
    commutative: bool = False
    parallel: str | None = None
    """The name of the type rule of an operator that moves data (``pcg.types.infer``)."""

    def __post_init__(self) -> None:
        try:
            self._check()
        except EquationError as error:
            raise EquationError(f"operator {self.name}: {error}") from error

    def _check(self) -> None:
        """Read the equation at two sets of ranks, and check that ranks determine run lengths."""
        if self.parallel not in (None, "join", *PARALLEL):
            raise EquationError(f"no type rule is called {self.parallel!r}")
        for name in self.attributes:
            if self.attributes.count(name) > 1:
                raise EquationError(f"attribute {name!r} is given twice")
        runs = self.runs
        for start, step in ((1, 0), (2, 1)):
            lengths = {run: start + step * i for i, run in enumerate(runs)}
            equation = self._expand(tuple(lengths.items()))
            ranks = tuple(len(operand.dims) for operand in equation.operands)
            positions = positions_at(self.template, lengths)
            if run_lengths(self, ranks, positions) != lengths:
                raise EquationError(f"ranks do not determine the lengths of {', '.join(runs)}")

    @cached_property
    def runs(self) -> tuple[str, ...]:
        """The runs of indices in its operands, sorted."""
        dims = [dim for operand in self.template.operands for dim in operand.dims]
        return tuple(sorted({dim.names[0] for dim in dims if dim.run}))

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<operator {self.name}>"

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Pickle one of Unity's operators by its name, and any other by its definition, without the
        kernel: that is a function which may have no name."""
        if _REGISTERED.get(self.name) == self:
            return _registered, (self.name,)
        definition = (getattr(self, f.name) if f.compare else f.default for f in fields(self))
        return _defined, (type(self), *definition)

    @cached_property
    def identity(self) -> str:
        """A name for graphs that is equal only for equal definitions. It is the operator's name for
        Unity's own operators, and the name with a hash of the definition for any other."""
        if _REGISTERED.get(self.name) == self:
            return self.name
        parts = (self.equation, self.sizes, self.reals, self.commutative, self.parallel)
        return f"{self.name}#{blake2b(repr(parts).encode(), digest_size=12).hexdigest()}"

    @cached_property
    def template(self) -> Template:
        return parse_template(self.equation)

    @cached_property
    def attributes(self) -> tuple[str, ...]:
        """The names of all attributes, in the order in which they are printed."""
        moved = PARALLEL.get(self.parallel or "")
        degrees = () if moved is None else moved.attributes
        return (*self.template.positions, *self.sizes, *self.reals, *degrees)

    @property
    def optional(self) -> tuple[str, ...]:
        """The names of the attributes that may be left out, all together."""
        moved = PARALLEL.get(self.parallel or "")
        return () if moved is None else moved.optional

    @property
    def arity(self) -> int:
        return len(self.template.operands)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.template.definitions if not d.local)

    @property
    def operand_names(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.template.operands)

    @lru_cache(maxsize=4096)  # noqa: B019 - operators live as long as the program
    def _expand(self, lengths: tuple[tuple[str, int], ...]) -> Equation:
        return expand(self.template, dict(lengths), frozenset(self.sizes), frozenset(self.reals))

    @lru_cache(maxsize=4096)  # noqa: B019
    def instance(self, ranks: tuple[int, ...], positions: tuple[int, ...]) -> Equation:
        """Return the equation for these ranks. Raises OperatorError if the ranks do not fit."""
        if len(ranks) != self.arity:
            problem = f"{len(ranks)} operands, expected {self.arity}"
            raise OperatorError(self.name, "*", None, problem)
        lengths = run_lengths(self, ranks, dict(zip(self.template.positions, positions)))  # noqa: B905
        return self._expand(tuple(sorted(lengths.items())))

    @lru_cache(maxsize=4096)  # noqa: B019
    def typing(self, ranks: tuple[int, ...], positions: tuple[int, ...]) -> local.LocalTyping:
        """Return the cuts that the operator allows at these ranks."""
        return local.derive(self.instance(ranks, positions))

    def __call__(self, **attributes: Attribute) -> Call:
        """Return a call with values for all attributes, and for all or none of the optional ones.
        Raises OperatorError for any others."""
        names = self.attributes
        if not set(attributes).isdisjoint(self.optional):
            names = (*names, *self.optional)
        if set(attributes) == set(names):
            return Call(self, tuple((name, attributes[name]) for name in names))
        expected = ", ".join(names)
        given = ", ".join(attributes) or "none"
        problem = f"attributes {given}, expected {expected or 'none'}"
        raise OperatorError(self.name, "*", None, problem)


_REGISTERED: dict[str, Operator] = {}
"""Unity's own operators by name."""


def register_operators(operators: Iterable[Operator]) -> None:
    """Register Unity's operators, whose names then stand for their definitions. Called once."""
    _REGISTERED.update({operator.name: operator for operator in operators})


def _registered(name: str) -> Operator:
    return _REGISTERED[name]


@lru_cache(maxsize=1024)
def _defined(kind: type[Operator], *definition: Any) -> Operator:
    """Return the operator of a definition, built once in a process."""
    return kind(*definition)


@dataclass(frozen=True)
class Call:
    """An operator with values for its attributes."""

    operator: Operator
    attributes: Attributes = ()

    def __reduce__(self) -> tuple[type[Call], tuple[Operator, Attributes]]:
        return Call, (self.operator, self.attributes)

    @property
    def name(self) -> str:
        return self.operator.name

    @cached_property
    def values(self) -> dict[str, Attribute]:
        return dict(self.attributes)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        return tuple(self.integer(name) for name in self.operator.template.positions)

    def integer(self, name: str) -> int:
        """Return an integer attribute. Raises OperatorError if its value is no integer."""
        value = self.values[name]
        if isinstance(value, Poly):
            value = value.constant
        if not isinstance(value, int) or isinstance(value, bool):
            problem = f"attribute {name} is {self.values[name]}, expected an integer"
            raise OperatorError(self.name, "*", None, problem)
        return value

    def instance(self, ranks: tuple[int, ...]) -> Equation:
        return self.operator.instance(ranks, self.positions)

    def typing(self, ranks: tuple[int, ...]) -> local.LocalTyping:
        return self.operator.typing(ranks, self.positions)

    def __str__(self) -> str:
        return self._text(self.name)

    @cached_property
    def identity(self) -> str:
        """A text that is equal only for equal calls of equal definitions: ``Operator.identity``."""
        return self._text(self.operator.identity)

    def _text(self, name: str) -> str:
        inner = ", ".join(f"{name}={value}" for name, value in self.attributes)
        return f"{name}({inner})"


def positions_at(template: Template, lengths: Mapping[str, int]) -> dict[str, int]:
    """Return the positions of indices marked ``@``, given the lengths of runs."""
    positions: dict[str, int] = {}
    for part in template.placing:
        index = 0
        for dim in part.dims:
            if dim.position is not None and positions.setdefault(dim.position, index) != index:
                raise EquationError(
                    f"'@{dim.position}' stands at {positions[dim.position]} and {index}"
                )
            index += lengths[dim.names[0]] if dim.run else 1
    return positions


def run_lengths(
    operator: Operator, ranks: tuple[int, ...], positions: Mapping[str, int]
) -> dict[str, int]:
    """Return the lengths of runs for operands of these ranks. Raises OperatorError if the ranks do
    not fit."""
    lengths = _placed_runs(operator, positions)
    for operand, rank in zip(operator.template.operands, ranks, strict=True):
        _solve_operand(operator, operand, rank, positions, lengths)
    return lengths


def _placed_runs(operator: Operator, positions: Mapping[str, int]) -> dict[str, int]:
    """Return the lengths of runs before an output's index whose position is an attribute."""
    lengths: dict[str, int] = {}
    for output in operator.template.placing[operator.arity :]:
        for index, dim in enumerate(output.dims):
            if dim.position is not None and dim.position in positions:
                given = positions[dim.position]
                pending = [d.names[0] for d in output.dims[:index] if d.run]
                length = given - (index - len(pending)) - sum(lengths.get(r, 0) for r in pending)
                unknown = [run for run in pending if run not in lengths]
                if not unknown and length == 0:
                    continue
                if length < 0 or len(unknown) != 1:
                    problem = f"{dim.position} is {given}, which is no possible position"
                    raise OperatorError(operator.name, output.name, given, problem)
                lengths[unknown[0]] = length
    return lengths


def _solve_operand(
    operator: Operator,
    operand: Declaration,
    rank: int,
    positions: Mapping[str, int],
    lengths: dict[str, int],
) -> None:
    """Find the lengths of the runs of an operand from its rank and the position attributes."""
    index = 0
    pending: str | None = None
    for dim in operand.dims:
        if dim.run:
            run = dim.names[0]
            if run in lengths:
                index += lengths[run]
            elif pending:
                problem = f"operand {operand.name}: ranks do not determine the length of {pending}"
                raise EquationError(problem)
            else:
                pending = run
            continue
        if dim.position is not None:
            given = positions[dim.position]
            high = rank - 1 if pending else index
            if index > high or index >= rank:
                problem = f"rank {rank}, expected at least {index + 1}"
                raise OperatorError(operator.name, operand.name, None, problem)
            if not index <= given <= high:
                problem = f"{dim.position} is {given}, expected {index} to {high}"
                raise OperatorError(operator.name, operand.name, given, problem)
            if pending:
                lengths[pending], pending, index = given - index, None, given
        index += 1
    if pending is not None and rank >= index:
        lengths[pending], index = rank - index, rank
    if index != rank:
        more = "at least " if pending is not None else ""
        raise OperatorError(
            operator.name, operand.name, None, f"rank {rank}, expected {more}{index}"
        )

"""Rules: pairs of graphs over the same inputs, equal wherever both are typed alike.

A rule's inputs are known by rank; degrees, copies and partials are whatever they are where the
rule is applied. Attributes may be symbols: a size or degree (``k``) or a real (``c``). Symbols
that only the right side has are free, and chosen when the rule is applied.

A general rule holds at other ranks too: each of its ``runs`` may be any number of axes. And a
stand-in (``pcg.ops.stand_ins``) is any element-wise operator, or any batched function of a form.
The concrete rules, which are those that are matched and applied, are made by ``Rule.at`` and
``Rule.with_operator``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

from pcg.errors import InputError, OperatorError
from pcg.graph.graph import Leaf, Node
from pcg.graph.pairs import (
    MOST_SIDES,
    GraphPair,
    Outputs,
    both,
    remade,
    side,
    symbolic_attributes,
)
from pcg.language.poly import Poly
from pcg.language.template import EquationError
from pcg.ops.stand_ins import STAND_INS, is_stand_in, stand_in
from pcg.plan.text import parse_values, print_value
from pcg.types.operator import Call, Operator
from substitutions.rules.requirements import (
    moved,
    parse_requirement,
    required_sizes,
    requirement_text,
)
from substitutions.rules.statement import statement
from verifier.trusted.sizes.runs import Group, widened
from verifier.trusted.sizes.sizes import SizeEquation, input_size

Family = Literal["algebra", "cut", "move", "decomposition"]
"""Which part of the generator finds a rule: identities of operators, cuts of one operator, chains
of parallel operators, operators as graphs of simpler ones."""


@dataclass(frozen=True)
class RuleForm:
    """Which form of a library's rule a rule is.

    ``rule``: the name in the library. ``axes``: how many axes stand in the place of each run; none
    where the rule is taken as written. ``operators``: the element-wise operators in the place of
    its stand-ins, in the order of these. ``reversed``: read from right to left.
    """

    rule: str
    axes: tuple[int, ...] = ()
    operators: tuple[str, ...] = ()
    reversed: bool = False


@dataclass(frozen=True)
class Rule:
    """``left`` may be replaced by ``right``. Outputs are paired in order."""

    name: str
    inputs: tuple[tuple[str, int], ...]
    left: Outputs
    right: Outputs
    conditions: tuple[str, ...] = ()
    """What typing asks of the right side beyond the left, for readers; matching re-infers it."""
    runs: tuple[Group, ...] = ()
    """The axes of inputs that may each stand for any number of axes, none included."""
    family: Family = "algebra"
    derived: int = 0
    """By how many rewriting steps it is known to follow from smaller rules; 0 if by none."""
    requires: tuple[str, ...] = ()
    """Equations of sizes for which alone it is proved, such as ``|x.0| = 1``."""
    made_from: RuleForm | None = None
    """Of what it is a form; None for a rule as a library has it."""

    def __post_init__(self) -> None:
        if self.made_from is None:  # forms are made of rules that were checked
            self._check()

    def _check(self) -> None:
        if not self.left or len(self.left) != len(self.right):
            problem = f"{len(self.left)} outputs on the left, {len(self.right)} on the right"
            raise InputError(f"rule {self.name}", problem)
        used = set(input_ranks((*self.left, *self.right)))
        if wrong := used - set(self.inputs):
            name, rank = min(wrong)
            raise InputError(f"rule {self.name}", f"input {name} of rank {rank} is not stated")
        if self.requires:
            self._check_requirements()
        sizes = {input_size(name, dim) for name, rank in self.inputs for dim in range(rank)}
        stated = symbolic_attributes(both(self._sides))
        given = {symbol for _, _, value in stated for symbol in value.symbols}
        if unknown := sorted(s for s in given - sizes if s.startswith("|")):
            raise InputError(f"rule {self.name}", f"{unknown[0]} is no size of an input")

    def _check_requirements(self) -> None:
        where = f"rule {self.name}"
        try:
            equations = self.requirements
        except InputError as error:
            raise InputError(where, error.problem) from error
        ranks, runs = dict(self.inputs), {place for group in self.runs for place in group}
        for name, dim in sorted(required_sizes(equations)):
            if dim >= ranks.get(name, 0):
                raise InputError(where, f"requires |{name}.{dim}|, which is no size of an input")
            if (name, dim) in runs:
                raise InputError(where, f"requires |{name}.{dim}|, which may be any number of axes")
        symbols = {s for sides in equations for side in sides for s in side.symbols}
        known = attribute_symbols((*self.left, *self.right))
        if unknown := sorted(s for s in symbols - known if not s.startswith("|")):
            raise InputError(where, f"requires {unknown[0]}, which no attribute has")

    @cached_property
    def requirements(self) -> tuple[SizeEquation, ...]:
        """``requires``, as equations."""
        return tuple(parse_requirement(text) for text in self.requires)

    @cached_property
    def naturals(self) -> tuple[Poly, ...]:
        """What the proof takes for whole numbers of at least 0: the attributes that are sizes or
        degrees, and each symbol in them."""
        return tuple(natural_attributes((*self.left, *self.right)))

    @cached_property
    def text(self) -> str:
        return f"{side_text(self.left)} == {side_text(self.right)}"

    @cached_property
    def statement(self) -> str:
        """The rule in one line for readers, in which axes have names."""
        return statement(self._sides, self.runs)

    @cached_property
    def reversed(self) -> Rule:
        """The same equality read from right to left."""
        form = replace(self.form, reversed=not self.form.reversed)
        name = f"{self.name}~"
        return replace(self, name=name, left=self.right, right=self.left, made_from=form)

    @property
    def form(self) -> RuleForm:
        """Which form of a library's rule it is."""
        return self.made_from or RuleForm(self.name)

    @cached_property
    def created(self) -> tuple[Node, ...]:
        """The operators of the right side, operands before users: what an application makes."""
        return tuple(node for node in side(self.right).nodes if not node.is_leaf)

    @cached_property
    def free_symbols(self) -> frozenset[str]:
        """The attribute symbols of the right side that matching the left does not determine."""
        return attribute_symbols(self.right) - determined_symbols(self.left)

    @cached_property
    def is_applicable(self) -> bool:
        """Whether matching the left side determines its symbols and all inputs of the right."""
        inputs = variables(self.right) <= variables(self.left)
        return inputs and attribute_symbols(self.left) <= determined_symbols(self.left)

    @cached_property
    def stand_ins(self) -> tuple[str, ...]:
        """The stand-ins that it is about, by name."""
        nodes = [node for node in both(self._sides).nodes if not node.is_leaf]
        names = {n.name for n in nodes if is_stand_in(n.operator_call.operator)}
        order = {name: number for number, name in enumerate(STAND_INS)}
        return tuple(sorted(names, key=lambda name: (order.get(name, len(order)), name)))

    def at(self, counts: Sequence[int]) -> Rule | None:
        """The rule with so many axes in the place of each run; None where operators have no such
        form. Its name tells the counts; what its conditions are is left to matching."""
        if len(counts) != len(self.runs):
            raise ValueError(f"{len(counts)} numbers of axes for {len(self.runs)} runs")
        changed = {g: count for g, count in zip(self.runs, counts, strict=True) if count != 1}
        try:
            pair = widened(self.left, self.right, changed) if changed else self._sides
            for node in both(pair).nodes:
                _ = node.ranks
        except (OperatorError, EquationError):
            return None
        name = f"{self.name}[{','.join(map(str, counts))}]" if counts else self.name
        ranks = dict(input_ranks((*pair[0], *pair[1])))
        inputs = tuple((name, ranks.get(name, rank)) for name, rank in self.inputs)
        texts = tuple(requirement_text(equation) for equation in self._required_at(counts))
        form = replace(self.form, axes=tuple(counts))
        return Rule(name, inputs, *pair, (), (), self.family, self.derived, texts, form)

    @property
    def _sides(self) -> GraphPair:
        return self.left, self.right

    def _required_at(self, counts: Sequence[int]) -> tuple[SizeEquation, ...]:
        """What is required of sizes, about the axes where they then are."""
        required, groups = self.requirements, self.runs
        for i, count in enumerate(counts):
            required = moved(required, groups[i], count)
            groups = tuple(_moved(group, groups[i], count) for group in groups)
        return required

    def with_operator(self, call: Call) -> Rule:
        """The rule about one operator in the place of the stand-in that covers it. Raises
        ValueError where the rule has no such stand-in."""
        covering = stand_in(call.operator)
        if covering is None or covering.name not in self.stand_ins:
            raise ValueError(f"rule {self.name} has no stand-in for {call.name}")
        left, right = (_with_call(half, covering, call) for half in (self.left, self.right))
        head, bracket, _ = self.name.rpartition("]")
        name = f"{head};{call.name}]" if bracket else f"{self.name}[{call.name}]"
        form = replace(self.form, operators=(*self.form.operators, call.name))
        return replace(self, name=name, left=left, right=right, made_from=form)


def open_call(operator: Operator, taken: Iterable[str]) -> Call:
    """A call with symbols for all attributes, none of which is among those taken."""
    used = set(taken)
    attributes: dict[str, Poly] = {}
    for name in operator.attributes:
        symbol, number = name, 1
        while symbol in used:
            number += 1
            symbol = f"{name}{number}"
        used.add(symbol)
        attributes[name] = Poly.of(symbol)
    return operator(**attributes)


def _moved(group: Group, widened_group: Group, count: int) -> Group:
    """Where the dimensions of a run are when another one has ``count`` axes for its one."""
    return tuple(
        (name, dim + (count - 1) * sum(n == name and d < dim for n, d in widened_group))
        for name, dim in group
    )


def _with_call(outputs: Outputs, replaced: Operator, call: Call) -> Outputs:
    def make(node: Node, inputs: Outputs) -> Node:
        is_replaced = isinstance(node.call, Call) and node.call.operator == replaced
        return Node(call if is_replaced else node.call, inputs)

    return remade(side(outputs), make)


@lru_cache(maxsize=MOST_SIDES)
def variables(values: Outputs) -> frozenset[str]:
    """The names of the inputs of a side."""
    return frozenset(node.leaf.name for node in side(values).leaves)


@lru_cache(maxsize=MOST_SIDES)
def attribute_symbols(values: Outputs) -> frozenset[str]:
    """The attribute symbols of a side; sizes of inputs are not among them."""
    symbols = (s for _, _, value in symbolic_attributes(side(values)) for s in value.symbols)
    return frozenset(symbol for symbol in symbols if not symbol.startswith("|"))


@lru_cache(maxsize=MOST_SIDES)
def determined_symbols(values: Outputs) -> frozenset[str]:
    """The attribute symbols of a side that follow from the values of its attributes and from the
    sizes of its inputs, each solved for on its own (``unknown_of``)."""
    pending = {value for _, _, value in symbolic_attributes(side(values))}
    known = dict.fromkeys((s for p in pending for s in p.symbols if s.startswith("|")), 1)
    while more := next((s for p in pending if (s := unknown_of(p, known)) is not None), None):
        known[more] = 1
    return frozenset(symbol for symbol in known if not symbol.startswith("|"))


def unknown_of(value: Poly, known: Mapping[str, object]) -> str | None:
    """The one symbol without a value, where that occurs once, to the first power."""
    missing = [symbol for symbol in value.symbols if symbol not in known]
    if len(missing) != 1:
        return None
    (symbol,) = missing
    terms = [monomial for monomial, _ in value.terms if symbol in monomial]
    return symbol if len(terms) == 1 and terms[0].count(symbol) == 1 else None


def natural_attributes(values: Outputs) -> dict[Poly, None]:
    """The symbolic attributes that are no reals, and the symbols in them."""
    naturals: dict[Poly, None] = {}
    for call, name, value in symbolic_attributes(side(values)):
        if name not in call.operator.reals:
            naturals |= dict.fromkeys((value, *map(Poly.of, sorted(value.symbols))))
    return naturals


def operators_in(values: Outputs) -> int:
    """The number of operators of a side."""
    return sum(not node.is_leaf for node in side(values).nodes)


def input_ranks(values: Outputs) -> tuple[tuple[str, int], ...]:
    """The inputs of some values with their ranks, in order of first use."""
    leaves = (node.call for node in side(values).leaves)
    return tuple((leaf.name, leaf.rank) for leaf in leaves if isinstance(leaf, Leaf))


def side_text(values: Outputs) -> str:
    return ", ".join(print_value(value) for value in values)


def parse_rule(name: str, inputs: dict[str, int], left: str, right: str) -> Rule:
    """A rule from text. Raises InputError naming the rule and the side."""
    where = f"rule {name}"
    return Rule(
        name,
        tuple(inputs.items()),
        parse_values(left, inputs, f"{where}, left"),
        parse_values(right, inputs, f"{where}, right"),
    )

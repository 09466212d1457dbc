"""Rules: pairs of graphs over the same inputs, equal wherever both have the same types.

A rule states the ranks of its inputs. Their degrees, copies and partials are those of the place
where the rule is applied. Attributes may be symbols: a size or degree (``k``), or a real (``c``). A
symbol that only the right side has is free, and is chosen when the rule is applied.

A general rule holds at other ranks too: each of its ``runs`` may be any number of axes. A stand-in
(``pcg.ops.stand_ins``) is any element-wise operator, or any batched function of a form. ``Rule.at``
and ``Rule.with_operator`` make the concrete rules that are matched and applied.
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
"""The part of the generator that finds a rule: algebra finds identities of operators, cut the cuts
of one operator, move chains of parallel operators, decomposition operators as graphs of simpler
ones."""


@dataclass(frozen=True)
class RuleForm:
    """A concrete form of a library's rule.

    ``rule``: the name in the library. ``axes``: the numbers of axes in the place of the runs; empty
    if the rule is used as written. ``operators``: the element-wise operators in the place of its
    stand-ins, in order. ``reversed``: whether the rule is read from right to left.
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
    """The conditions of the right side's types beyond the left side's, for readers only: matching
    infers them again."""
    runs: tuple[Group, ...] = ()
    """The axes of inputs that may each stand for any number of axes, even none."""
    family: Family = "algebra"
    derived: int = 0
    """The number of rewriting steps by which the rule is known to follow from smaller rules; 0 if
    it is not known to follow."""
    requires: tuple[str, ...] = ()
    """The equations between sizes under which the rule is proved, such as ``|x.0| = 1``."""
    made_from: RuleForm | None = None
    """The form of a library's rule that this rule is; None for a rule of the library itself."""

    def __post_init__(self) -> None:
        if self.made_from is None:  # Forms are made from rules that have been checked.
            self._check()

    def __hash__(self) -> int:
        # Tuples of thousands of rules are keys of caches. A rule's name says nearly all of it.
        return hash(self.name)

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
        """``requires`` as equations."""
        return tuple(parse_requirement(text) for text in self.requires)

    @cached_property
    def naturals(self) -> tuple[Poly, ...]:
        """The values that the proof assumes to be integers of at least 0: attributes that are sizes
        or degrees, and the symbols in them."""
        return tuple(natural_attributes((*self.left, *self.right)))

    @cached_property
    def text(self) -> str:
        return f"{side_text(self.left)} == {side_text(self.right)}"

    @cached_property
    def statement(self) -> str:
        """The rule as one line for readers, with names for axes."""
        return statement(self._sides, self.runs)

    @cached_property
    def reversed(self) -> Rule:
        """The same rule read from right to left."""
        form = replace(self.form, reversed=not self.form.reversed)
        name = f"{self.name}~"
        return replace(self, name=name, left=self.right, right=self.left, made_from=form)

    @property
    def form(self) -> RuleForm:
        """The form of a library's rule that this rule is."""
        return self.made_from or RuleForm(self.name)

    @cached_property
    def created(self) -> tuple[Node, ...]:
        """The operators of the right side, which a rewrite creates; operands before users."""
        return tuple(node for node in side(self.right).nodes if not node.is_leaf)

    @cached_property
    def free_symbols(self) -> frozenset[str]:
        """The attribute symbols of the right side that matching the left does not determine."""
        return attribute_symbols(self.right) - determined_symbols(self.left)

    @cached_property
    def is_applicable(self) -> bool:
        """Whether matching the left side determines all symbols of the left side and all inputs of
        the right side."""
        inputs = variables(self.right) <= variables(self.left)
        return inputs and attribute_symbols(self.left) <= determined_symbols(self.left)

    @cached_property
    def stand_ins(self) -> tuple[str, ...]:
        """The names of the stand-ins in the rule, in a fixed order."""
        nodes = [node for node in both(self._sides).nodes if not node.is_leaf]
        names = {n.name for n in nodes if is_stand_in(n.operator_call.operator)}
        order = {name: number for number, name in enumerate(STAND_INS)}
        return tuple(sorted(names, key=lambda name: (order.get(name, len(order)), name)))

    def at(self, counts: Sequence[int]) -> Rule | None:
        """The rule with ``counts`` axes in the place of its runs; None if an operator has no such
        form. The counts are part of its name. It has no ``conditions``: matching infers them."""
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
        rule = Rule(name, inputs, *pair, (), (), self.family, self.derived, texts, form)
        vars(rule).update({name: getattr(self, name) for name in _OF_ALL_COUNTS})
        return rule

    @property
    def _sides(self) -> GraphPair:
        return self.left, self.right

    def _required_at(self, counts: Sequence[int]) -> tuple[SizeEquation, ...]:
        """The requirements with ``counts`` axes in the place of the runs."""
        required, groups = self.requirements, self.runs
        for i, count in enumerate(counts):
            required = moved(required, groups[i], count)
            groups = tuple(_moved(group, groups[i], count) for group in groups)
        return required

    def with_operator(self, call: Call) -> Rule:
        """The rule with an operator's call in the place of the stand-in that covers the operator.
        Raises ValueError if the rule has no such stand-in."""
        covering = stand_in(call.operator)
        if covering is None or covering.name not in self.stand_ins:
            raise ValueError(f"rule {self.name} has no stand-in for {call.name}")
        left, right = (_with_call(half, covering, call) for half in (self.left, self.right))
        head, bracket, _ = self.name.rpartition("]")
        name = f"{head};{call.name}]" if bracket else f"{self.name}[{call.name}]"
        form = replace(self.form, operators=(*self.form.operators, call.name))
        return replace(self, name=name, left=left, right=right, made_from=form)


_OF_ALL_COUNTS = ("free_symbols", "is_applicable", "stand_ins")
"""The cached properties that are the same whatever numbers of axes take the place of runs."""


def open_call(operator: Operator, taken: Iterable[str]) -> Call:
    """A call of an operator with a new symbol for each attribute, different from those taken."""
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
    """The dimensions of a run after the axis of ``widened_group`` has been replaced by ``count``
    axes."""
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
    """The symbols in the attributes of a side, without sizes of inputs."""
    symbols = (s for _, _, value in symbolic_attributes(side(values)) for s in value.symbols)
    return frozenset(symbol for symbol in symbols if not symbol.startswith("|"))


@lru_cache(maxsize=MOST_SIDES)
def determined_symbols(values: Outputs) -> frozenset[str]:
    """The symbols that follow from the values of a side's attributes and from the sizes of its
    inputs. Each is solved for by itself (``unknown_of``)."""
    pending = {value for _, _, value in symbolic_attributes(side(values))}
    known = dict.fromkeys((s for p in pending for s in p.symbols if s.startswith("|")), 1)
    while more := next((s for p in pending if (s := unknown_of(p, known)) is not None), None):
        known[more] = 1
    return frozenset(symbol for symbol in known if not symbol.startswith("|"))


def unknown_of(value: Poly, known: Mapping[str, object]) -> str | None:
    """The only symbol without a known value, if there is exactly one and it occurs in one term, to
    the first power."""
    missing = [symbol for symbol in value.symbols if symbol not in known]
    if len(missing) != 1:
        return None
    (symbol,) = missing
    terms = [monomial for monomial, _ in value.terms if symbol in monomial]
    return symbol if len(terms) == 1 and terms[0].count(symbol) == 1 else None


def natural_attributes(values: Outputs) -> dict[Poly, None]:
    """The symbolic attributes that are not reals, and the symbols in them."""
    naturals: dict[Poly, None] = {}
    for call, name, value in symbolic_attributes(side(values)):
        if name not in call.operator.reals:
            naturals |= dict.fromkeys((value, *map(Poly.of, sorted(value.symbols))))
    return naturals


def operators_in(values: Outputs) -> int:
    """The number of operators of a side."""
    return sum(not node.is_leaf for node in side(values).nodes)


def input_ranks(values: Outputs) -> tuple[tuple[str, int], ...]:
    """The inputs of the values with their ranks, in order of first use."""
    leaves = (node.call for node in side(values).leaves)
    return tuple((leaf.name, leaf.rank) for leaf in leaves if isinstance(leaf, Leaf))


def side_text(values: Outputs) -> str:
    return ", ".join(print_value(value) for value in values)


def parse_rule(name: str, inputs: dict[str, int], left: str, right: str) -> Rule:
    """Parse a rule from text. Raises InputError that names the rule and the side."""
    where = f"rule {name}"
    return Rule(
        name,
        tuple(inputs.items()),
        parse_values(left, inputs, f"{where}, left"),
        parse_values(right, inputs, f"{where}, right"),
    )

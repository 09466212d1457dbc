"""Rules: pairs of graphs over the same inputs, equal wherever both are typed alike.

A rule's inputs are known by rank; degrees, copies and partials are whatever they are where the
rule is applied. Attributes may be symbols: a size or degree (``k``) or a real (``c``). Symbols
that only the right side has are free, and chosen when the rule is applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pcg.errors import InputError
from pcg.graph import Graph, Leaf, Value
from pcg.operator import Call
from pcg.poly import Poly
from pcg.text import parse_values, print_value


@dataclass(frozen=True)
class Rule:
    """``left`` may be replaced by ``right``. Outputs are paired in order."""

    name: str
    inputs: tuple[tuple[str, int], ...]
    left: tuple[Value, ...]
    right: tuple[Value, ...]
    conditions: tuple[str, ...] = ()
    """What typing asks of the right side beyond the left, for readers; matching re-infers it."""

    def __post_init__(self) -> None:
        if not self.left or len(self.left) != len(self.right):
            problem = f"{len(self.left)} outputs on the left, {len(self.right)} on the right"
            raise InputError(f"rule {self.name}", problem)
        used = set(input_ranks((*self.left, *self.right)))
        if wrong := used - set(self.inputs):
            name, rank = min(wrong)
            raise InputError(f"rule {self.name}", f"input {name} of rank {rank} is not stated")

    @cached_property
    def text(self) -> str:
        return f"{side_text(self.left)} == {side_text(self.right)}"

    @cached_property
    def reversed(self) -> Rule:
        """The same equality read from right to left."""
        return Rule(f"{self.name}~", self.inputs, self.right, self.left, self.conditions)

    @cached_property
    def free_symbols(self) -> frozenset[str]:
        """The attribute symbols that only the right side has."""
        return attribute_symbols(self.right) - attribute_symbols(self.left)

    @cached_property
    def is_applicable(self) -> bool:
        """Whether matching the left side determines all inputs of the right."""
        return variables(self.right) <= variables(self.left)

    @cached_property
    def only_moves(self) -> bool:
        """Whether both sides consist of parallel operators alone."""
        nodes = Graph(self.left + self.right).nodes
        return all(node.is_leaf or node.is_parallel for node in nodes)


def variables(values: tuple[Value, ...]) -> frozenset[str]:
    """The names of the inputs of a side."""
    return frozenset(node.leaf.name for node in Graph(values).leaves)


def attribute_symbols(values: tuple[Value, ...]) -> frozenset[str]:
    """The attribute symbols of a side; sizes of inputs are not among them."""
    return frozenset(
        symbol
        for node in Graph(values).nodes
        if isinstance(node.call, Call)
        for _, value in node.call.attributes
        if isinstance(value, Poly)
        for symbol in value.symbols
        if not symbol.startswith("|")
    )


def operators_in(values: tuple[Value, ...]) -> int:
    """The number of operators of a side."""
    return sum(not node.is_leaf for node in Graph(values).nodes)


def input_ranks(values: tuple[Value, ...]) -> tuple[tuple[str, int], ...]:
    """The inputs of some values with their ranks, in order of first use."""
    leaves = (node.call for node in Graph(values).leaves)
    return tuple((leaf.name, leaf.rank) for leaf in leaves if isinstance(leaf, Leaf))


def side_text(values: tuple[Value, ...]) -> str:
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

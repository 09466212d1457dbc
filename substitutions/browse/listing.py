"""The rule library as text for readers: one line for each rule, by family and operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

from pcg.graph.graph import Graph
from pcg.ops.stand_ins import STAND_INS
from substitutions.rules.rule import Family, Rule, operators_in
from substitutions.rules.store import LibraryFile, RuleFile, parse_entry

FAMILIES: tuple[Family, ...] = get_args(Family)

PARALLEL = "parallel operators"
"""The heading of rules about parallel operators only."""

ARROWS: Mapping[tuple[bool, bool], str] = {
    (True, True): "<->",
    (True, False): "-->",
    (False, True): "<--",
    (False, False): "---",
}
"""The arrow of a rule, by whether it can be applied from left to right, and from right to left."""

MAX_ALIGNED = 64
"""Longer left sides are ignored when the right sides are aligned."""


@dataclass(frozen=True)
class RuleEntry:
    """A rule of a library: its entry in the file, and the parsed rule."""

    file: RuleFile
    rule: Rule

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """The names of the operators of both sides, sorted."""
        nodes = Graph((*self.rule.left, *self.rule.right)).nodes
        return tuple(sorted({node.name for node in nodes if not node.is_leaf}))

    @cached_property
    def heading(self) -> str:
        """The operator that the rule is listed under: the last compute operator of the left side,
        or of the right side if the left has none."""
        for side in (self.rule.left, self.rule.right):
            for node in reversed(Graph(side).nodes):
                if not node.is_leaf and not node.is_parallel:
                    return node.name
        return PARALLEL

    @cached_property
    def arrow(self) -> str:
        """The directions in which the rule can be applied."""
        ways = {direction.way: direction.applicable for direction in self.file.directions}
        return ARROWS[ways.get("left to right", False), ways.get("right to left", False)]

    @cached_property
    def size(self) -> int:
        """The number of operators of both sides."""
        return operators_in((*self.rule.left, *self.rule.right))


def entries(content: LibraryFile) -> tuple[RuleEntry, ...]:
    """The rules of a library in the order for readers: by family and operator, small ones first.
    Raises InputError if an entry cannot be parsed."""
    listed = [RuleEntry(file, parse_entry(file)) for file in content.rules]
    return tuple(sorted(listed, key=_order))


def _order(entry: RuleEntry) -> tuple[object, ...]:
    rule = entry.rule
    place = FAMILIES.index(rule.family)
    return place, entry.heading, entry.size, len(rule.statement), rule.statement, rule.name


def grouped(entries: Iterable[RuleEntry]) -> dict[Family, dict[str, list[RuleEntry]]]:
    """The rules by family, and in each family by operator, in the given order."""
    groups: dict[Family, dict[str, list[RuleEntry]]] = {}
    for entry in entries:
        groups.setdefault(entry.rule.family, {}).setdefault(entry.heading, []).append(entry)
    return groups


def rules_text(entries: Iterable[RuleEntry], hash: str) -> str:
    """All rules, one line for each. ``hash``: the hash of the library."""
    lines = [f"# The rule library {hash}, a line a rule; README.md says how to read one."]
    for family, operators in grouped(entries).items():
        total = sum(len(members) for members in operators.values())
        lines += ["", "", f"# {family} ({total})"]
        for operator, members in operators.items():
            lines += ["", f"## {heading_text(operator)} ({len(members)})", "", *_lines(members)]
    return "\n".join(lines) + "\n"


def heading_text(heading: str) -> str:
    """The text of a heading, with words for stand-ins."""
    if heading not in STAND_INS:
        return heading
    operands = {1: "one operand", 2: "two operands", 3: "three operands"}
    return f"any element-wise operator of {operands[STAND_INS[heading].arity]}"


def _lines(members: Sequence[RuleEntry]) -> list[str]:
    lengths = (entry.rule.statement.index(" = ") for entry in members)
    fitting = (length for length in lengths if length <= MAX_ALIGNED)
    width = max(fitting, default=0)
    return [rule_line(entry, width) for entry in members]


def rule_line(entry: RuleEntry, width: int = 0) -> str:
    """A rule as one line, with the left side filled up to ``width`` letters."""
    left, right = entry.rule.statement.split(" = ", 1)
    line = f"{entry.rule.name}  {entry.arrow}  {left.ljust(width)} = {right}"
    if entry.rule.requires:
        line += f"   where {', '.join(entry.rule.requires)}"
    if entry.rule.conditions:
        line += f"   if {', '.join(entry.rule.conditions)}"
    if entry.rule.derived:
        line += f"   (follows from others in {entry.rule.derived})"
    return line

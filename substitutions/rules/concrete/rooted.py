"""Rules by the operator at which they are matched.

A *direction* of a rule is the rule read one way: its left side is matched, and its right side is
made. Its *root* is the first operator behind an output of the left side. A search looks at few of
the operators that rules are about. So it asks for directions by their root.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from pcg.graph.pairs import Outputs, both
from substitutions.rules.rule import Rule


class RootedRules(ABC):
    """Rules, and their directions by root."""

    @abstractmethod
    def __iter__(self) -> Iterator[Rule]:
        """Yield all rules, each once and as written, in a fixed order."""

    @abstractmethod
    def rooted(self, root: str | None, *, parallel: bool) -> tuple[Rule, ...]:
        """The directions with a root of this name, in the order of the rules; the direction as
        written comes before its reverse. ``root``: None for directions that match any value.
        ``parallel``: whether to return the rules with parallel operators, or those without."""


class ListedRules(RootedRules):
    """Rules that are given one by one."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._rules = tuple(rules)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)

    def rooted(self, root: str | None, *, parallel: bool) -> tuple[Rule, ...]:
        alike = (rule for rule in self._rules if is_parallel(rule) == parallel)
        return tuple(directions_at(root, alike))


def directions_at(root: str | None, rules: Iterable[Rule]) -> Iterator[Rule]:
    """Yield the directions of rules that have a root of this name."""
    for rule in rules:
        for direction in (rule, rule.reversed):
            if root_of(direction.left) == root:
                yield direction


def root_of(side: Outputs) -> str | None:
    """The name of the first operator behind an output of a side; None if there is none."""
    return next((value.node.name for value in side if not value.node.is_leaf), None)


def is_parallel(rule: Rule) -> bool:
    """Whether a rule has parallel operators."""
    return any(node.is_parallel for node in both((rule.left, rule.right)).operators)

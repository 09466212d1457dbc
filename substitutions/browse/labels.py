"""Reads the label of each node off a rule's statement: its name, its attributes, its axes.

The picture of a rule uses the same words as its statement (``substitutions.rules.statement``), so
they are parsed from the statement along the graphs that it prints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pcg.graph.graph import Node, Value
from pcg.graph.pairs import Outputs
from substitutions.rules.rule import Rule

_NAME = re.compile(r"\w+")
_PORT = re.compile(r"\.\d+")
_AXES = re.compile(r"\[[^\]]*\]")
_RUN = re.compile(r"\b(\w+)\.\.\.")


@dataclass(frozen=True)
class NodeLabel:
    """The name of an operator or input, the attributes of a call, and the axes of the result, such
    as ``[a..., i]``, if the statement lists them."""

    name: str
    attributes: tuple[str, ...] = ()
    axes: str = ""


def labels(rule: Rule) -> dict[Node, NodeLabel]:
    """The labels of all nodes of a rule, each from its first mention that lists axes, or else from
    its last."""
    reader = _Reader(rule.statement)
    reader.values(rule.left)
    reader.expect(" = ")
    reader.values(rule.right)
    reader.end()
    return reader.found


def any_number(rule: Rule) -> tuple[str, ...]:
    """The names of the axes that may each be any number of axes."""
    return tuple(dict.fromkeys(_RUN.findall(rule.statement)))


class _Reader:
    """Parses a statement along the graphs that it prints."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self.found: dict[Node, NodeLabel] = {}

    def values(self, values: Outputs) -> None:
        for number, value in enumerate(values):
            if number:
                self.expect(", ")
            self._value(value)

    def expect(self, text: str) -> None:
        if not self._text.startswith(text, self._at):
            raise ValueError(f"expected {text!r} at {self._at} of {self._text}")
        self._at += len(text)

    def end(self) -> None:
        if self._at != len(self._text):
            raise ValueError(f"expected an end at {self._at} of {self._text}")

    def _value(self, value: Value) -> None:
        node = value.node
        name = self._take(_NAME)
        attributes: tuple[str, ...] = ()
        if not node.is_leaf:
            self.expect("(")
            for number, operand in enumerate(node.inputs):
                if number:
                    self.expect(", ")
                self._value(operand)
            attributes = self._attributes()
            self._take(_PORT)
        self._state(node, NodeLabel(name, attributes, self._take(_AXES)))

    def _state(self, node: Node, label: NodeLabel) -> None:
        known = self.found.get(node)
        if known is None or not known.axes:
            self.found[node] = label

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        self._at += len(match[0]) if match else 0
        return match[0] if match else ""

    def _attributes(self) -> tuple[str, ...]:
        """The rest of a call, up to its closing bracket."""
        start, depth = self._at, 0
        while depth or self._text[self._at] != ")":
            depth += {"(": 1, ")": -1}.get(self._text[self._at], 0)
            self._at += 1
        parts = self._text[start : self._at].split(", ")
        self._at += 1
        return tuple(part for part in parts if part)

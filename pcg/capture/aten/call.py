"""Read the arguments of one ATen call, with graph values for its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pcg.graph.graph import Value

Shape = tuple[int, ...]


class Unsupported(Exception):
    """No equation fits a call with these arguments: it stays opaque."""


WIDER: Mapping[str, Sequence[str]] = {
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float32": ("float64",),
    "float64": ("float32",),
    "uint8": ("int16", "int32", "int64"),
    "int8": ("int16", "int32", "int64"),
    "int16": ("int32", "int64"),
    "int32": ("int64",),
}
"""Formats that hold all numbers of another of their kind. The two wide ones of real numbers stand
for one: a graph computes in that of its weights, and one in float64 is not rounded on its way."""


def holds(old: str, new: str) -> bool:
    """Whether a number format holds all numbers of another."""
    if old == new or old == "bool" or ("float" in new and "float" not in old):
        return True
    return new in WIDER.get(old, ())


@dataclass(frozen=True)
class AtenCall:
    """A call. ``arguments`` are by their names in the operator's schema, defaults included."""

    name: str
    """Such as ``aten.add.Tensor``."""
    arguments: Mapping[str, Any]
    shapes: tuple[Shape, ...]
    """Of the results."""
    choices: frozenset[str]
    """The arguments that are tensors of truth values, or lists with one. To an equation these are
    the numbers 0 and 1, which is not all that torch makes of them."""

    formats: Mapping[str, str]
    """By argument, the number format of one that is a tensor; that of the result by ``""``."""
    lies: Mapping[str, tuple[Shape, int]]
    """By argument, how one that is a tensor lies in memory: its strides and its first element."""

    def value(self, name: str) -> Value:
        """An argument that is a tensor. Raises Unsupported where it is none."""
        given = self.arguments[name]
        if not isinstance(given, Value):
            raise Unsupported(name)
        return given

    def maybe(self, name: str) -> Value | None:
        """An argument that is a tensor or left out."""
        return None if self.arguments[name] is None else self.value(name)

    def values(self, name: str) -> list[Value]:
        """An argument that is a list of tensors."""
        given: Sequence[object] = self.arguments[name]
        values = [value for value in given if isinstance(value, Value)]
        if len(values) < len(given):
            raise Unsupported(name)
        return values

    def number(self, name: str) -> float:
        """An argument that is a number."""
        given = self.arguments[name]
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            raise Unsupported(name)
        return float(given)

    def integer(self, name: str) -> int:
        """An argument that is a whole number."""
        given = self.arguments[name]
        if not isinstance(given, int):
            raise Unsupported(name)
        return given

    def integers(self, name: str) -> tuple[int, ...]:
        """An argument that is a list of whole numbers."""
        given = self.arguments[name]
        if not isinstance(given, (list, tuple)):
            raise Unsupported(name)
        return tuple(int(number) for number in given)

    def pair(self, name: str) -> tuple[int, int]:
        """One number for rows and columns, or one for each."""
        integers = self.integers(name)
        if len(integers) not in (1, 2):
            raise Unsupported(name)
        return integers[0], integers[-1]

    def axis(self, name: str, rank: int) -> int:
        """A dimension, which may be counted from the last."""
        return self.integer(name) % rank

    def expect(self, **given: object) -> None:
        """Raise Unsupported unless arguments have these values."""
        for name, wanted in given.items():
            if self.arguments[name] != wanted:
                raise Unsupported(name)

    def expect_room(self, name: str) -> None:
        """Raise Unsupported where the result's format does not hold the numbers of an operand."""
        if not holds(self.formats[name], self.formats[""]):
            raise Unsupported("dtype")

    @property
    def shape(self) -> Shape:
        """Of the first result."""
        return self.shapes[0]


Entry = Callable[[AtenCall], Value | tuple[Value, ...]]
"""How a call becomes values of the graph, one for each result that may be read. Raises
Unsupported."""

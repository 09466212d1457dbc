"""Read the arguments of one ATen call, with graph values for its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pcg.graph.graph import Value

Shape = tuple[int, ...]


class Unsupported(Exception):
    """No equation fits a call with these arguments. The call becomes an opaque operator."""


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
"""Number formats that hold all numbers of a narrower one. float32 and float64 count as equal: a
graph computes in the format of its weights, and a module in float64 is not rounded in between."""


def holds(old: str, new: str) -> bool:
    """Whether a number format holds all numbers of another."""
    if old == new or old == "bool" or ("float" in new and "float" not in old):
        return True
    return new in WIDER.get(old, ())


@dataclass(frozen=True)
class AtenCall:
    """An ATen call. ``arguments`` have their names in the operator's schema, with defaults."""

    name: str
    """The name of the operator, such as ``aten.add.Tensor``."""
    arguments: Mapping[str, Any]
    shapes: tuple[Shape, ...]
    """The shapes of the results."""
    choices: frozenset[str]
    """The names of arguments that are tensors of truth values, or lists with one. An equation sees
    them as numbers 0 and 1, but torch may treat them in another way."""

    formats: Mapping[str, str]
    """The number formats of tensor arguments by name, and of the result by ``""``."""
    lies: Mapping[str, tuple[Shape, int]]
    """The memory layouts of tensor arguments by name: strides and storage offset."""

    def value(self, name: str) -> Value:
        """Return an argument that is a tensor. Raises Unsupported if it is none."""
        given = self.arguments[name]
        if not isinstance(given, Value):
            raise Unsupported(name)
        return given

    def maybe(self, name: str) -> Value | None:
        """Return an argument that is a tensor or None."""
        return None if self.arguments[name] is None else self.value(name)

    def values(self, name: str) -> list[Value]:
        """Return an argument that is a list of tensors. Raises Unsupported if it is none."""
        given: Sequence[object] = self.arguments[name]
        values = [value for value in given if isinstance(value, Value)]
        if len(values) < len(given):
            raise Unsupported(name)
        return values

    def number(self, name: str) -> float:
        """Return an argument that is a number. Raises Unsupported if it is none."""
        given = self.arguments[name]
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            raise Unsupported(name)
        return float(given)

    def integer(self, name: str) -> int:
        """Return an argument that is an integer. Raises Unsupported if it is none."""
        given = self.arguments[name]
        if not isinstance(given, int):
            raise Unsupported(name)
        return given

    def integers(self, name: str) -> tuple[int, ...]:
        """Return an argument that is a list of integers. Raises Unsupported if it is none."""
        given = self.arguments[name]
        if not isinstance(given, (list, tuple)):
            raise Unsupported(name)
        return tuple(int(number) for number in given)

    def pair(self, name: str) -> tuple[int, int]:
        """Return an argument for rows and columns that is one integer or two."""
        integers = self.integers(name)
        if len(integers) not in (1, 2):
            raise Unsupported(name)
        return integers[0], integers[-1]

    def axis(self, name: str, rank: int) -> int:
        """Return an argument that is a dimension. Negative ones count from the last."""
        return self.integer(name) % rank

    def expect(self, **given: object) -> None:
        """Raise Unsupported unless the arguments have these values."""
        for name, wanted in given.items():
            if self.arguments[name] != wanted:
                raise Unsupported(name)

    def expect_room(self, name: str) -> None:
        """Raise Unsupported unless the result's format holds all numbers of an operand's format."""
        if not holds(self.formats[name], self.formats[""]):
            raise Unsupported("dtype")

    @property
    def shape(self) -> Shape:
        """The shape of the first result."""
        return self.shapes[0]


Entry = Callable[[AtenCall], Value | tuple[Value, ...]]
"""A function from a call to values of the graph, one for each result that may be read. Raises
Unsupported for arguments that it does not support."""

"""What a function says, remembered: one policy for memories that belong to an object.

A memory lives as long as its owner and forgets nothing. What may grow without end, or outlives an
object, is ``functools.lru_cache`` with a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

Asked = TypeVar("Asked", bound=Hashable)
Told = TypeVar("Told")


class Memo(dict[Asked, Told]):
    """The answers of a function by what it was asked; ``memo[asked]`` asks it once."""

    def __init__(self, answer: Callable[[Asked], Told]) -> None:
        super().__init__()
        self._answer = answer

    def __missing__(self, asked: Asked) -> Told:
        found = self[asked] = self._answer(asked)
        return found

"""Results that are remembered by what they were worked out from.

A memory lives as long as its owner. ``Memo`` forgets, for searches that ask without end;
``Answers`` does not, for questions of which there are finitely many. What outlives every owner is
a function of a module, with ``functools.lru_cache``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Concatenate, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
S = TypeVar("S")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MOST = 65536
"""Results that are remembered at once."""

_MISSING = object()


class Memo(Generic[K, V]):
    """Results by key, for as long as their owner lives.

    There is one policy: at most ``most`` results are remembered, and one more lets all of them go.
    A search asks for the same few again and again, so that these soon come back, and no result
    costs more than a look into a dictionary.
    """

    def __init__(self, most: int = MOST) -> None:
        self.hits = 0
        """How often a result was known."""
        self._most = most
        self._known: dict[K, V] = {}

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The result for a key, made if it is not known; what ``make`` raises is not remembered."""
        known = self._known.get(key, _MISSING)
        if known is not _MISSING:
            self.hits += 1
            return cast(V, known)
        made = make()
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[key] = made
        return made

    def clear(self) -> None:
        """Let all results go."""
        self._known.clear()

    def __len__(self) -> int:
        return len(self._known)


class Answers(dict[K, V]):
    """The answers of a function by what it was asked; ``answers[asked]`` asks it once."""

    def __init__(self, answer: Callable[[K], V]) -> None:
        super().__init__()
        self._answer = answer

    def __missing__(self, asked: K) -> V:
        made = self[asked] = self._answer(asked)
        return made


def remembered(method: Callable[Concatenate[S, P], V]) -> Callable[Concatenate[S, P], V]:
    """A method whose results are remembered in its object by its arguments, which are given by
    position."""
    name = f"_remembered_{method.__name__}"

    @wraps(method)
    def known(self: S, *args: P.args, **kwargs: P.kwargs) -> V:
        assert not kwargs, "arguments are given by position"
        memo: Memo[tuple[object, ...], V] | None = self.__dict__.get(name)
        if memo is None:
            memo = self.__dict__[name] = Memo()
        return memo.get(args, lambda: method(self, *args, **kwargs))

    return known

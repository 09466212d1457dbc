"""Caches of results by what they were computed from.

A cache lives as long as its owner. ``Memo`` discards results, for searches with an unlimited number
of questions. ``Answers`` does not, for finitely many questions. Results that should outlive all
owners are cached by a module's function with ``functools.lru_cache``.
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
"""The most results in a cache."""

_MISSING = object()


class Memo(Generic[K, V]):
    """A cache of results by key, which lives as long as its owner.

    It holds at most ``most`` results, and is emptied when one more is added. A search asks for the
    same few results again and again, so these soon come back, and a hit costs no more than a look
    into a dictionary.
    """

    def __init__(self, most: int = MOST) -> None:
        self.hits = 0
        """The number of results that were found in the cache."""
        self._most = most
        self._known: dict[K, V] = {}

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the result for a key, computed by ``make`` at first. Exceptions are not cached."""
        found = self._known.get(key, _MISSING)
        if found is not _MISSING:
            self.hits += 1
            return cast(V, found)
        result = make()
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[key] = result
        return result

    def clear(self) -> None:
        """Discard all results."""
        self._known.clear()

    def __len__(self) -> int:
        return len(self._known)


class Answers(dict[K, V]):
    """The results of a function by its argument. ``answers[argument]`` calls it at most once."""

    def __init__(self, answer: Callable[[K], V]) -> None:
        super().__init__()
        self._answer = answer

    def __missing__(self, question: K) -> V:
        answer = self[question] = self._answer(question)
        return answer


class Numbering(dict[K, int]):
    """Numbers of things, in the order in which they are first asked for. ``numbering[thing]``
    numbers it."""

    def __init__(self) -> None:
        super().__init__()
        self.every: list[K] = []
        """The things by number."""

    def __missing__(self, thing: K) -> int:
        number = self[thing] = len(self.every)
        self.every.append(thing)
        return number


def remembered(method: Callable[Concatenate[S, P], V]) -> Callable[Concatenate[S, P], V]:
    """Return a method that caches its results in its object, by its arguments. These have to be
    given by position."""
    name = f"_remembered_{method.__name__}"

    @wraps(method)
    def cached(self: S, *args: P.args, **kwargs: P.kwargs) -> V:
        assert not kwargs, "arguments are given by position"
        memo: Memo[tuple[object, ...], V] | None = self.__dict__.get(name)
        if memo is None:
            memo = self.__dict__[name] = Memo()
        return memo.get(args, lambda: method(self, *args, **kwargs))

    return cached

"""Random numbers of Python and numpy that a module draws in its ``forward``.

Problem: torch's program has the number that was drawn during the export, so a plan would train
another model. Method: the functions of ``random`` and ``numpy.random`` are watched. A uniform
number may be compared with a bound that it cannot cross, such as a probability of 0; the answer
is known. Any other use raises InputError with the user's line. Functions imported under another
name are found by the state of the generators, which has changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from inspect import currentframe
from typing import Any
from unittest.mock import patch

import numpy

from pcg.errors import InputError

DRAWN = "draws a random number by {}, which no graph can follow, expected one by torch"
UNIFORM = ("random", "rand", "uniform", "random_sample")
"""Functions that, without arguments, give a number of at least 0 and below 1."""
OTHERS = {
    random: (
        *("randint", "randrange", "choice", "choices", "shuffle", "sample", "gauss"),
        *("betavariate", "normalvariate", "expovariate", "triangular"),
    ),
    numpy.random: (
        *("randn", "randint", "normal", "choice", "permutation", "shuffle", "binomial", "beta"),
        *("poisson", "standard_normal", "exponential", "geometric"),
    ),
}
OWN = ("/torch/", "/sympy/", "/numpy/", "/random.py")
"""Whose code may draw: it does not decide what a module computes."""


class Uniform:
    """A number that was drawn of [0, 1). ``refuse``: raises what says where."""

    def __init__(self, refuse: Callable[[], None]) -> None:
        self._refuse = refuse

    def _is_below(self, other: object) -> bool:
        if isinstance(other, (int, float)) and not 0.0 < other < 1.0:
            return other >= 1.0
        self._refuse()
        return False

    def __lt__(self, other: object) -> bool:
        return self._is_below(other)

    def __ge__(self, other: object) -> bool:
        return not self._is_below(other)

    def _refused(self, *_: object) -> Any:
        self._refuse()

    __le__ = __gt__ = __float__ = __int__ = __index__ = __bool__ = __neg__ = __round__ = _refused
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refused
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _refused


@contextmanager
def watched_random(place: Callable[[], str]) -> Generator[None]:
    """Refuse what is drawn by others than torch; ``place`` is the user's line that is running."""
    before, moved = _state(), [False]
    with ExitStack() as stack:
        for owner, others in OTHERS.items():
            for name in (*UNIFORM, *others):
                own = getattr(owner, name, None)
                if own is not None:
                    drawing = _drawing(own, f"{owner.__name__}.{name}", place, moved)
                    stack.enter_context(patch.object(owner, name, drawing))
        yield
    if not moved[0] and _state() != before:
        raise InputError(place(), DRAWN.format("random or numpy"))


def _drawing(
    own: Callable[..., Any], name: str, place: Callable[[], str], moved: list[bool]
) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        frame = currentframe()
        caller = frame.f_back if frame is not None else None
        if caller is not None and any(part in caller.f_code.co_filename for part in OWN):
            moved[0] = True
            return own(*args, **kwargs)
        line = place()

        def refuse() -> None:
            raise InputError(line, DRAWN.format(name))

        if name.rpartition(".")[2] not in UNIFORM or args not in ((), (0, 1)) or kwargs:
            refuse()
        return Uniform(refuse)

    return draw


def _state() -> Any:
    own: Any = numpy.random.get_state(legacy=True)
    kind, keys, *rest = own
    return random.getstate(), kind, bytes(keys), tuple(rest)

"""Answer a module that asks, while it is exported, whether it is being compiled.

Problem: public models ask this, and under compilation leave out code that branches on the values of
a tensor. Some of them take a path that nobody uses otherwise: BART with eager attention gets a mask
of another length. Method: the module is first exported with torch's own answer. If that fails and
the module has asked, it is exported once more with the answer no, since the eager path is the one
that its authors mean. Some functions ask only to skip a check, such as a warning about padding. If
a function has asked and then branches on the values of a tensor, the next attempt answers yes to
this function alone. So there are at most as many attempts as functions that ask.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from inspect import currentframe
from traceback import walk_tb
from types import CodeType
from typing import Any
from unittest.mock import patch

from pcg.lazy import torch

FLAGS = ("is_compiling", "is_exporting")


@dataclass
class Questions:
    """The functions outside torch that asked.

    ``askers`` also holds their callers, since many models ask through a helper function.
    """

    askers: set[CodeType] = field(default_factory=set[CodeType])

    @property
    def were_asked(self) -> bool:
        return bool(self.askers)

    def led_to(self, error: Exception) -> CodeType | None:
        """Return the innermost function that asked and in which the error arose, or None."""
        codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
        return next((code for code in reversed(codes) if code in self.askers), None)


@contextmanager
def questions(runs_by_itself: bool, compiled: Collection[CodeType] = ()) -> Generator[Questions]:
    """Record who outside torch asks whether the module is being compiled.

    The answer is torch's own, or no if ``runs_by_itself``, except for the functions in
    ``compiled``.
    """
    seen = Questions()

    def answering(asked: Any) -> Any:
        def answer() -> bool:
            # A variable that held the frame would keep all local variables of its callers alive.
            askers = _callers(currentframe())
            if "/torch/" in askers[0].co_filename:
                return asked()
            seen.askers.update(askers)
            return asked() and (not runs_by_itself or any(code in compiled for code in askers))

        return answer

    with ExitStack() as stack:
        for flag in FLAGS:
            asked = getattr(torch.compiler, flag)
            stack.enter_context(patch.object(torch.compiler, flag, answering(asked)))
        yield seen


def _callers(frame: Any) -> list[CodeType]:
    """Return the code of the caller of a frame and of the caller's caller, innermost first."""
    first = frame.f_back
    return [caller.f_code for caller in (first, first.f_back) if caller is not None]

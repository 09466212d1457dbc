"""What a module is told that asks whether it is compiled, while it is exported.

Problem: public models ask, and then leave out what would choose by the values of a tensor; some of
them take a way that nobody takes else, with a mask of another length, as BART with its eager
attention. Method: a program is first made with torch's own answer. Where torch cannot make one, and
the module has asked, it is made once more as the module runs by itself, which is what it means.
Some ask only to leave out a check, such as whether to warn of padding: a function that has asked,
and then chooses by the values of a tensor, is told on the next attempt that it is compiled. So
there are at most as many attempts as functions that ask.
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
    """What a module has asked, from outside torch. ``askers``: the functions that did, and those
    that called them, as questions are often asked by a function of their own."""

    askers: set[CodeType] = field(default_factory=set[CodeType])

    @property
    def were_asked(self) -> bool:
        return bool(self.askers)

    def led_to(self, error: Exception) -> CodeType | None:
        """The innermost function that has asked and then raised an error."""
        codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
        return next((code for code in reversed(codes) if code in self.askers), None)


@contextmanager
def questions(runs_by_itself: bool, compiled: Collection[CodeType] = ()) -> Generator[Questions]:
    """Watch what is asked outside torch; the answer is no where ``runs_by_itself``, but for the
    functions in ``compiled``."""
    seen = Questions()

    def answering(asked: Any) -> Any:
        def answer() -> bool:
            # A frame in a variable of its own would keep all that its callers hold.
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
    """The functions that have called one, the last two."""
    first = frame.f_back
    return [caller.f_code for caller in (first, first.f_back) if caller is not None]

"""What a module is told that asks whether it is compiled, while it is exported.

Problem: public models ask, and then leave out what would choose by the values of a tensor; some of
them take a way that nobody takes else, with a mask of another length, as BART with its eager
attention. Method: a program is first made with torch's own answer. Where torch cannot make one, and
the module has asked, it is made once more as the module runs by itself, which is what it means.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import currentframe
from typing import Any
from unittest.mock import patch

from pcg.lazy import torch

FLAGS = ("is_compiling", "is_exporting")


@dataclass
class Questions:
    """What a module has asked. ``were_asked``: whether it did, from outside torch."""

    were_asked: bool = False


@contextmanager
def questions(runs_by_itself: bool) -> Generator[Questions]:
    """Watch what is asked outside torch; the answer is no where ``runs_by_itself``."""
    seen = Questions()

    def answering(asked: Any) -> Any:
        def answer() -> bool:
            # A frame in a variable of its own would keep all that its callers hold.
            if "/torch/" in _file_of_caller(currentframe()):
                return asked()
            seen.were_asked = True
            return asked() and not runs_by_itself

        return answer

    with ExitStack() as stack:
        for flag in FLAGS:
            asked = getattr(torch.compiler, flag)
            stack.enter_context(patch.object(torch.compiler, flag, answering(asked)))
        yield seen


def _file_of_caller(frame: Any) -> str:
    return frame.f_back.f_code.co_filename

"""Lines of helper functions in the operators of a program.

Torch records for each operator the lines of the ``forward`` functions that were running, and not
those of the functions that a ``forward`` calls. A message about an operator of a helper would name
the line of the call alone. Within the context of this module torch records both.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

FORWARD = "forward"
_ROOT = Path(__file__).parents[3]
_TORCHS = ("/torch/", "/contextlib", "/unittest/", "<")
_OURS = tuple(f"{_ROOT / folder}/" for folder in ("pcg/capture", "unity/api", "runtime"))
_NAME = "_filter_traceback_frames"
"""Torch's method that chooses the lines. Other versions of torch may have none."""


@contextmanager
def helper_lines() -> Generator[None]:
    """Record the lines of helper functions within this context."""
    tracer: Any = import_module("torch.fx.proxy").TracerBase
    if not hasattr(tracer, _NAME):
        yield
        return
    own = getattr(tracer, _NAME)

    def chosen(self: Any, summary: Any) -> Any:
        frames = own(self, summary)
        kept = {(frame.filename, frame.lineno) for frame in frames}
        first = next((at for at, frame in enumerate(summary) if _is_forward(frame)), len(summary))
        added = [
            frame
            for at, frame in enumerate(summary)
            if (frame.filename, frame.lineno) in kept or (at > first and is_of_user(frame.filename))
        ]
        return type(frames).from_list(added)

    with patch.object(tracer, _NAME, chosen):
        yield


def _is_forward(frame: Any) -> bool:
    return frame.name == FORWARD and not any(part in frame.filename for part in _TORCHS)


def is_of_user(file: str) -> bool:
    """Whether a file is neither torch's nor ours, nor generated."""
    return not any(part in file for part in _TORCHS) and not file.startswith(_OURS)

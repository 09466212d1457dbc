"""Compile a segment with torch.compile.

torch.compile keeps the graphs of a function at the function's code object, which all closures of
one ``def`` share. It keeps eight of them, and runs further functions uncompiled. At each call it
looks for the graph whose guards hold, which check all values that the function has read. So each
segment gets a code object of its own, and only its arguments are guarded: a segment never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from runtime.execute.segment import Action, Segment, run_segment

SegmentFunction = Callable[..., tuple[Tensor, ...]]
"""A segment as a function of the registers that it reads."""


def function_of(segment: Segment, actions: Sequence[Action]) -> SegmentFunction:
    """A segment as a function, with a code object of its own."""

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        local = dict(zip(segment.reads, values, strict=True))
        return run_segment(segment.results, actions, local)

    name = f"segment_{segment.position}"
    code = run.__code__.replace(co_name=name)
    return FunctionType(code, run.__globals__, name, run.__defaults__, run.__closure__)


def compiled(function: SegmentFunction) -> SegmentFunction:
    """The compiled function of a segment."""
    options: dict[str, Any] = {"guard_filter_fn": _guards_arguments}
    return torch.compile(function, dynamic=False, options=options)


def _guards_arguments(guards: Iterable[Any]) -> list[bool]:
    """For each guard: whether it checks an argument, or a setting of torch's, which has no name."""
    return [guard.guard_type == "TENSOR_MATCH" or not guard.name for guard in guards]

"""Rivals of a planner, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from pcg.graph.graph import Graph


@dataclass
class FixedRival:
    """A rival that takes ``seconds``, or raises an exception. It notes the known seconds of each
    request, and those when it began."""

    seconds: float | BaseException
    known: list[float] = field(default_factory=list[float])
    brief: list[bool] = field(default_factory=list[bool])
    begun: list[float] = field(default_factory=list[float])

    def begin(self, name: str, graph: Graph, known: float) -> None:
        self.begun.append(known)

    def step(self, name: str, graph: Graph, known: float, brief: bool) -> float:
        self.known.append(known)
        self.brief.append(brief)
        if isinstance(self.seconds, BaseException):
            raise self.seconds
        return self.seconds

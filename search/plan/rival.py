"""The rival of a planner: the best plan of another kind, which may rule slower plans out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pcg.graph.graph import Graph
from search.cost.planned import InterruptedWithPlan
from search.plan.incumbent import SearchState


class RivalPlans(Protocol):
    """Plans of another kind."""

    def begin(self, name: str, graph: Graph, known: float) -> None:
        """Begin to look for a plan of a graph, if that can be done beside this process. ``known``:
        seconds of a step. Slower plans are of no use."""
        ...

    def step(self, name: str, graph: Graph, known: float, brief: bool) -> float:
        """Seconds of a step of the best plan of a graph. Above ``known`` seconds it may be any
        larger number. If the look has begun, its own limit counts. ``brief``: whether to look
        briefly."""
        ...


@dataclass
class RivalQuestion:
    """Asks a rival, if there is one, for a faster plan of a graph than those so far. ``brief``:
    whether these may gain more than they are behind later. Then the rival looks briefly, and rules
    nothing out. ``forget``: drops tables that take much memory."""

    rival: RivalPlans | None
    name: str
    graph: Graph
    search: SearchState
    brief: bool
    forget: Callable[[], None]

    def begin(self) -> None:
        """Let the rival begin. A brief look depends on all plans until it is asked for."""
        if self.rival is not None and not self.brief:
            self.rival.begin(self.name, self.graph, self.search.known)

    def ask(self) -> None:
        """Ask the rival for its plan."""
        if self.rival is None:
            return
        self.forget()
        try:
            seconds = self.rival.step(self.name, self.graph, self.search.known, self.brief)
        except InterruptedWithPlan as interrupted:
            self.search.rival = interrupted.seconds
            raise
        if not self.brief:
            self.search.rival = seconds

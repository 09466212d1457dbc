"""The survey of a search for algebraic rewrites: how many match, and how much they would gain.

It says why a plan has no rewrites, which the plan itself cannot say.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class NearestRewrite:
    """The rewrite of a graph that gains most. ``rules``: its rules as text, in order; ``places``:
    the number of places at which it is made at once; ``gain``: the fraction of a step's seconds
    that it saves with strategies chosen again, negative if it costs more."""

    rules: tuple[str, ...]
    places: int
    gain: float


@dataclass(frozen=True)
class RewriteSurvey:
    """A survey of one graph or several, each as it was cut.

    ``matched``: the groups of rewrites that could be made, where a group is a rewrite at all places
    that look alike; ``left``: the groups that were not explored, of these and of rewritten graphs;
    ``nearest``: None if no gain is known; ``plain`` and ``rewritten``: seconds of a step of the
    fastest plan that fits, without rewrites and with them; infinite if there is none.
    """

    matched: int = 0
    left: int = 0
    nearest: NearestRewrite | None = None
    plain: float = inf
    rewritten: float = inf

    def beside(self, other: RewriteSurvey) -> RewriteSurvey:
        """The survey of the graphs of both."""
        nearest = [rewrite for rewrite in (self.nearest, other.nearest) if rewrite is not None]
        return RewriteSurvey(
            self.matched + other.matched,
            self.left + other.left,
            max(nearest, key=lambda rewrite: rewrite.gain, default=None),
            min(self.plain, other.plain),
            min(self.rewritten, other.rewritten),
        )

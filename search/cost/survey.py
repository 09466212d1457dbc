"""What a search found out about rewrites of the algebra: how many match, and what they would gain.

It says why a plan has no rewrites, which the plan itself cannot say.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class NearestRewrite:
    """Of the rewrites of a graph, that which saves most. ``rules``: as text, one after the other;
    ``places``: where it is made at once; ``gain``: the part of a step's seconds that it saves with
    strategies chosen again, less than 0 where it costs more."""

    rules: tuple[str, ...]
    places: int
    gain: float


@dataclass(frozen=True)
class RewriteSurvey:
    """Of one graph or several, each as it was cut.

    ``matched``: groups of rewrites that may be made, a group being a rewrite at all places that
    look alike; ``left``: groups that stayed unexplored, of these and of graphs that rewrites made;
    ``nearest``: None where no gain is known; ``plain``, ``rewritten``: seconds of a step by the
    fastest plan that fits, without rewrites and with them, infinite where there is none.
    """

    matched: int = 0
    left: int = 0
    nearest: NearestRewrite | None = None
    plain: float = inf
    rewritten: float = inf

    def beside(self, other: RewriteSurvey) -> RewriteSurvey:
        """Of the graphs of both."""
        nearest = [one for one in (self.nearest, other.nearest) if one is not None]
        return RewriteSurvey(
            self.matched + other.matched,
            self.left + other.left,
            max(nearest, key=lambda one: one.gain, default=None),
            min(self.plain, other.plain),
            min(self.rewritten, other.rewritten),
        )

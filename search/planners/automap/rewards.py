"""The rewards of Auto-MAP's decisions: of each decision, of the step at the end, or of both.

Problem: reward decisions such that the decisions with the highest total make a fast plan. Method:
``decisions`` is the reward of the paper (Wang et al., 2020). A variable that is cut, by a decision
about it or by its linkage group, earns more than a variable that is copied. A decision that
contradicts earlier ones is punished. A plan's total is a mean over the variables, so it does not
depend on their number. ``step`` rewards the last decision alone, with the logarithm of the speedup
over data parallelism. ``both`` is the sum, with a small share of the first.

Exact: with ``both``, the plan with the highest total is at most 2% slower than the fastest of all
plans, because its decisions earn at most 0.02 more, unless a speedup is above 20 (CLIPPED). An
agent need not find that plan. Cuts may cause communication, so no such bound holds for
``decisions``. Heuristic: the numbers. The paper's own were not at hand. Each variable is decided
once, so only their differences matter. A copy earns nothing, so that data parallelism earns 0 by
either reward. A contradicting decision ends in a copy, so it must cost more than a copy. It costs
as much as a cut earns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Literal

CUT, COPY, CONTRADICTION = 1.0, 0.0, -1.0
"""The rewards for each variable that a decision cuts, copies, or cuts against an earlier decision,
divided by the number of variables."""
CLIPPED = 3.0
"""The bound on the absolute value of the reward of a step."""

RewardName = Literal["both", "decisions", "step"]


@dataclass(frozen=True)
class Reward:
    """A weighted sum of two rewards. ``decisions``: the weight of the paper's reward; ``step``: of
    the reward of the simulated step."""

    decisions: float
    step: float

    @property
    def punishes(self) -> bool:
        """Whether contradictions are punished. If not, they must not be offered."""
        return self.decisions > 0

    def total(self, decided: float, speedup: float) -> float:
        """The reward of a decision. ``decided``: the paper's reward; ``speedup``: of the step over
        data parallelism, 1 before the last decision."""
        gain = max(-CLIPPED, min(CLIPPED, log(speedup)))
        return self.decisions * decided + self.step * gain


REWARDS: Mapping[RewardName, Reward] = {
    "both": Reward(0.02, 1.0),
    "decisions": Reward(1.0, 0.0),
    "step": Reward(0.0, 1.0),
}

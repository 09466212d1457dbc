"""The plans that a search over strategies has priced so far, and the best of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from pcg.graph.graph import Node
from search.map.choose.choosing import Choice
from search.refine.overlap import Trial


@dataclass(frozen=True, eq=False)
class PricedPlan:
    """A plan that was priced. ``seconds`` of a step, ``memory`` bytes on the fullest device, of
    ``limit`` that it has. The plan itself is made again of the choice where it is wanted."""

    choice: Choice
    seconds: float
    memory: int
    limit: int
    strategies: int
    updating: float
    """Seconds for which a device updates weights at most."""
    after: float
    """Seconds of a step after the backward pass: for what is left to exchange, and updates."""
    recompute: frozenset[Node] = frozenset()
    """The operators whose results are recomputed in the backward pass."""
    spares: bool = False
    """Whether these are more than chains of pointwise operators, so that it fits."""

    @property
    def fits(self) -> bool:
        return self.memory <= self.limit

    @property
    def fits_plainly(self) -> bool:
        """Whether it fits without sparing memory by recomputation."""
        return self.fits and not self.spares


PricedPlans = tuple[PricedPlan, ...]
PricedTrial = Trial[PricedPlans]


@dataclass
class SearchState:
    """What was found so far. ``fastest``: seconds of the best plan of each graph."""

    priced: dict[PricedPlan, PricedTrial] = field(default_factory=dict[PricedPlan, PricedTrial])
    data_parallel: list[PricedPlan] = field(default_factory=list[PricedPlan])
    fastest: dict[PricedTrial, float] = field(default_factory=dict[PricedTrial, float])
    trials: list[PricedTrial] = field(default_factory=list[PricedTrial])
    """Those that were begun, whether or not their bounds ruled them out."""

    @property
    def known(self) -> float:
        """Seconds of the fastest plan that fits."""
        return min((c.seconds for c in self.priced if c.fits), default=inf)

    @property
    def fits_sparing(self) -> bool:
        """Whether a plan is known that spares memory by recomputation, and so fits."""
        return any(c.fits and c.spares for c in self.priced)

    @property
    def base(self) -> PricedTrial:
        """The graph of the fastest plan."""
        return min(self.fastest, key=lambda trial: self.fastest[trial])

    def saves_nothing(self) -> bool:
        """Whether data parallelism would be slower than a plan that fits even without updates."""
        return self.known <= min((c.seconds - c.updating for c in self.data_parallel), default=0.0)

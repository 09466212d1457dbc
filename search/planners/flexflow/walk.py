"""A random walk over the configurations of all operators, like FlexFlow's execution optimizer.

Problem: find a strategy and devices for each operator with the least simulated time of a step.

Method: Metropolis-Hastings (Jia et al., MLSys 2019, section 6.2). A proposal gives one random
operator another random configuration, and the same to those that share its weights. It is accepted
with probability min(1, exp(-alpha dt)), where dt is the increase in the time of a step. The
deciding random number is drawn first. So the limit is known beforehand at which a proposal is
refused, and a simulation ends there. The walk ends when its proposals or its seconds are spent, or
half of either without a new best step.

A proposal is simulated from the known parts of all operators that it does not change (section 5.3),
in time that grows with the operators and tasks of a step; or in full. Both give the same seconds to
the last bit, and so the same walk. The time of the best step is exact by the simulation. Whether
there is a faster one is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log
from random import Random

from pcg.graph.graph import Node
from search.cost.bounded import BoundedSimulation
from search.cost.planned import Stop
from search.cost.progress import Teller, now
from search.cost.simulate import price
from search.cost.tasks import TaskProgram, program, tasks
from search.map.building import Builder
from search.map.choose.choosing import Choice, Chooser
from search.planners.flexflow.configurations import Configurations
from search.refine.delta import DeltaSimulator

Programs = Callable[[Choice], TaskProgram]
"""A function from a choice to the program of a step of its plan."""


def in_full(chooser: Chooser) -> Programs:
    """Programs by cutting and scheduling the whole graph."""
    builder = Builder(chooser.spaces)

    def made(choice: Choice) -> TaskProgram:
        cut = builder.placed(choice)
        return program(cut.schedule(), chooser.pricing.cost)

    return made


def by_delta(chooser: Chooser, start: Choice) -> Programs:
    """Programs put together of operators that were configured the same way before; or in full, if
    an operator has no piece of its own (``search.refine.pieces``)."""
    full = in_full(chooser)
    delta = DeltaSimulator.of(start.graph, Builder(chooser.spaces), chooser.pricing.cost)

    def made(choice: Choice) -> TaskProgram:
        return delta.program(choice) or full(choice)

    return made


@dataclass(frozen=True)
class WalkResult:
    """The result of a walk. ``bests``: choices with the seconds of a step, each faster than the one
    before, beginning with the start; ``accepted``: how many of the ``proposals`` were."""

    bests: tuple[tuple[float, Choice], ...]
    proposals: int
    accepted: int
    stop: Stop


@dataclass
class Walk:
    """A random walk from a choice. ``slope``: the factor between the increase of a step in seconds
    and the negative logarithm of its probability."""

    chooser: Chooser
    configurations: Mapping[Node, Configurations]
    programs: Programs
    slope: float
    proposals: int
    seconds: float = inf
    seed: int = 0
    teller: Teller = field(default_factory=Teller)

    def walked(self, start: Choice) -> WalkResult:
        """Walk from the start until the walk ends."""
        random, nodes = Random(self.seed), list(self.configurations)
        devices = self.chooser.pricing.cost.machine.devices
        bounded = BoundedSimulation(devices)
        choice, current = start, price(self.programs(start), devices).step_seconds
        bests, last, accepted = [(current, start)], 0, 0
        began = improved_at = now()
        made, stop = 0, "exhausted"
        try:
            while nodes and made < self.proposals:
                if (ended := self._ended(made - last, began, improved_at)) is not None:
                    stop = ended
                    break
                made += 1
                proposal = self.proposal(choice, random, nodes)
                limit = current - log(1.0 - random.random()) / self.slope
                seconds = bounded.seconds(tasks(self.programs(proposal)), limit)
                if seconds is None:
                    continue
                choice, current, accepted = proposal, seconds, accepted + 1
                if current < bests[-1][0]:
                    bests.append((current, choice))
                    last, improved_at = made, now()
                    self.teller.found(current)
        except KeyboardInterrupt:
            stop = "interrupted"
        return WalkResult(tuple(bests), made, accepted, stop)

    def _ended(self, since: int, began: float, improved_at: float) -> Stop | None:
        """The reason to end the walk, or None. ``since``: proposals since the best; ``began`` and
        ``improved_at``: the times of the begin of the walk and of the best."""
        at = now()
        if at - began > self.seconds:
            return "time"
        if since > self.proposals / 2 or at - improved_at > self.seconds / 2:
            return "no gain"
        return None

    def proposal(self, choice: Choice, random: Random, nodes: Sequence[Node]) -> Choice:
        """The choice with another configuration for a random one of some operators, and for those
        that share its weights."""
        own = self.configurations[random.choice(nodes)]
        strategy, start = own.drawn(random, self.chooser.mesh)
        return replace(
            choice,
            strategies={**choice.strategies, **dict.fromkeys(own.sharing, strategy)},
            starts={**choice.starts, **dict.fromkeys(own.sharing, start)},
        )

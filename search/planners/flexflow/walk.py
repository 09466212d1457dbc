"""A random walk over the configurations of all operators, as FlexFlow's execution optimizer takes.

Problem: find a strategy and devices for each operator with which a simulated step takes least time.

Method: Metropolis-Hastings (Jia et al., MLSys 2019, section 6.2). A proposal gives one operator,
drawn evenly, another configuration, drawn evenly, and the same to those that share its weights. It
is accepted with probability min(1,
exp(-alpha dt)), dt being by what a step becomes longer. The number that decides is drawn first: so
it is known beforehand from how many seconds on a proposal is refused, and a simulation ends there.
The walk ends when its proposals or its seconds are spent, or half of either without a step that is
faster than the best.

A proposal is simulated from what is known of all operators that it does not touch (section 5.3),
in time that grows with the operators and tasks of a step, or in full; both have the same seconds to
the last bit, so that both walk the same way. The best step of the walk is exact by the simulation;
that there is no faster one is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log
from random import Random

from pcg.graph.graph import Node
from pcg.placement.schedule import schedule
from search.cost.bounded import BoundedSimulation
from search.cost.planned import Stop
from search.cost.progress import Teller, now
from search.cost.simulate import price
from search.cost.tasks import TaskProgram, program, tasks
from search.map.building import Builder
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.templates import CutTemplates
from search.planners.flexflow.configurations import Configurations
from search.refine.delta import DeltaSimulator

Programs = Callable[[Choice], TaskProgram]
"""The tasks of a step of the plan of a choice."""


def in_full(chooser: Chooser) -> Programs:
    """By cutting the whole graph and scheduling it."""
    builder, known = Builder(chooser.spaces), CutTemplates()

    def made(choice: Choice) -> TaskProgram:
        cut = builder.placed(choice, known)
        return program(schedule(cut.graph, cut.views), chooser.pricing.cost)

    return made


def by_delta(chooser: Chooser, start: Choice) -> Programs:
    """By what is known of operators that were configured so before; in full where a piece of an
    operator is not to be had by itself."""
    full = in_full(chooser)
    delta = DeltaSimulator.of(start.graph, Builder(chooser.spaces), chooser.pricing.cost)

    def made(choice: Choice) -> TaskProgram:
        return delta.program(choice) or full(choice)

    return made


@dataclass(frozen=True)
class Walked:
    """What a walk found. ``bests``: choices each faster than the one before, the start first, with
    the seconds of a step; ``accepted`` of ``proposals``."""

    bests: tuple[tuple[float, Choice], ...]
    proposals: int
    accepted: int
    stop: Stop


@dataclass
class Walk:
    """A walk from a choice. ``slope``: of a step that is longer by a second, the logarithm of how
    much less likely it is."""

    chooser: Chooser
    configurations: Mapping[Node, Configurations]
    programs: Programs
    slope: float
    proposals: int
    seconds: float = inf
    seed: int = 0
    teller: Teller = field(default_factory=Teller)

    def walked(self, start: Choice) -> Walked:
        """From the start until it ends."""
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
        return Walked(tuple(bests), made, accepted, stop)

    def _ended(self, since: int, began: float, improved_at: float) -> Stop | None:
        """Why the walk ends. ``since``: proposals since the best; ``began`` and ``found``: when
        the walk and the best did."""
        at = now()
        if at - began > self.seconds:
            return "time"
        if since > self.proposals / 2 or at - improved_at > self.seconds / 2:
            return "no gain"
        return None

    def proposal(self, choice: Choice, random: Random, nodes: Sequence[Node]) -> Choice:
        """A choice with another configuration of one of some operators, and of those that share its
        weights."""
        own = self.configurations[random.choice(nodes)]
        strategy, start = own.drawn(random, self.chooser.mesh)
        return replace(
            choice,
            strategies={**choice.strategies, **dict.fromkeys(own.sharing, strategy)},
            starts={**choice.starts, **dict.fromkeys(own.sharing, start)},
        )

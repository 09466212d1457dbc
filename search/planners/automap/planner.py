"""Auto-MAP: dimensions of trained variables, decided by a deep Q-network (Wang et al., 2020,
arXiv:2007.04069).

Problem: choose for each trained variable the dimension along which it is cut, so that a step takes
least time. Method: an agent (``agent``) makes decisions whose consequences are propagated
(``environment``). It learns from random graphs first, then from plans of the given graph. Then it
decides greedily. The fastest of all its plans that fits is returned, and it is reported how much
slower the greedy plan is. Complexity: the number of plans times the simulation of a step. No bound
is known for the result. It is never slower than data parallelism, if that fits.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random

from pcg.collection import seldom_collected
from pcg.errors import InputError
from pcg.graph.graph import Graph
from pcg.plan.text import parse_graph
from search.cost.planned import DataParallelStep, Planned, SearchReport, Stop
from search.cost.progress import OutOfTime, Phases, now
from search.map.choose.choosing import Choice
from search.map.space.allow import data_parallel
from search.planners.automap.agent import Agent
from search.planners.automap.environment import DecisionEnvironment
from search.planners.automap.rewards import REWARDS, RewardName
from search.planners.common import (
    MOST_PRICED,
    PlannerSetting,
    PricedChoice,
    limited,
    planned_choice,
    searching_until,
    until_fitting,
)

EPISODES = 400
PRETRAINED, PRETRAINING = 3, 40
"""The number of random graphs, and of plans of each."""
PRETRAINING_SHARE = 0.2
"""The fraction of a search's seconds for learning from random graphs."""
TRAINED_RANDOM = 0.7
"""The probability of random decisions at the beginning, after learning from random graphs."""
GREEDY = 0.5
"""Seconds beyond the end of learning in which the agent may decide greedily."""


def random_graph(random: Random, devices: int) -> Graph:
    """A perceptron of random widths, with or without a residual."""
    widths = [devices * (1 << random.randint(2, 6)) for _ in range(random.randint(2, 4))]
    samples = devices * (1 << random.randint(0, 5))
    lines, last = [f"x = input[{samples}, {widths[0]}]"], "x"
    for number, (read, made) in enumerate(zip(widths, [*widths[1:], widths[0]], strict=True)):
        lines += [f"w{number} = weight[{read}, {made}]", f"h{number} = matmul({last}, w{number})"]
        last = f"h{number}"
        if random.random() < 0.7:
            lines.append(f"a{number} = relu({last})")
            last = f"a{number}"
    if random.random() < 0.5:
        lines.append(f"r = add({last}, x)")
        last = "r"
    return parse_graph("\n".join([*lines, f"return mean_loss({last})"]))


@dataclass(frozen=True)
class AutoMapPlanner:
    """Plans by a learning agent. ``seconds`` and ``episodes``: the limits of time and of plans;
    ``reward``: the name of the agent's reward (``rewards``)."""

    setting: PlannerSetting
    seconds: float = 600.0
    episodes: int = EPISODES
    pretrained: int = PRETRAINED
    """The number of random graphs from which the agent learns first."""
    seed: int = 0
    reward: RewardName = "both"

    def __post_init__(self) -> None:
        if self.reward not in REWARDS:
            raise InputError("reward", f"{self.reward!r}, expected one of {', '.join(REWARDS)}")

    @seldom_collected()
    def plan(self, name: str, graph: Graph) -> Planned:
        """Return the plan. Raises NegativeAnswer if none of the agent's plans fits, or none is
        ready in time."""
        start = now()
        graph.check()
        self.setting.teller.works_on("deciding", "map")
        with limited(name, graph, start, self.seconds) as search:
            first, environment = self.environment(graph)
            agent = self.pretrained_agent(start)
            pretrained = now()
            until = searching_until(start, self.seconds, graph)
            stop, done = self._trained(agent, environment, until)
            greedy = self._greedy(agent, environment, until + GREEDY)
            phases = {"pre-training": pretrained - start, "deciding": now() - pretrained}
            priced = self._fitting(environment, first)
            stop = "time" if stop != "interrupted" and search.is_over else stop
        strategies = sum(len(environment.chooser.spaces.of(n)) for n in graph.operators)
        report = SearchReport(strategies, len(environment.found), stop, phases)
        planned = planned_choice(self.setting, name, graph, priced, report, start)
        fastest = min((environment.first, *(seconds for seconds, _ in environment.found)))
        note = f"learned from {done:,} plans"
        if greedy is not None:
            note += f"; the greedy one takes {greedy / fastest:.3f} times"
            note += " as long as the fastest that was met"
        first = DataParallelStep(environment.first)
        return Planned(planned.plan, planned.report, planned.seconds, first, (note,))

    def environment(self, graph: Graph) -> tuple[Choice, DecisionEnvironment]:
        """The data-parallel choice, and the decisions for a graph."""
        chooser = self.setting.chooser(graph)
        first = chooser.choose(graph, allowed=data_parallel(graph))
        return first, DecisionEnvironment(chooser, first, self.reward)

    def pretrained_agent(self, start: float) -> Agent:
        """An agent that has learned from random graphs, for a share of the seconds since
        ``start``."""
        agent, random = Agent(self.seed), Random(self.seed)
        until = start + PRETRAINING_SHARE * self.seconds
        for _ in range(self.pretrained):
            graph = random_graph(random, self.setting.machine.devices)
            if now() >= until:
                break
            agent.trained(
                self.environment(graph)[1], PRETRAINING, ends=lambda done, seconds: now() >= until
            )
        return agent

    def _trained(
        self, agent: Agent, environment: DecisionEnvironment, until: float
    ) -> tuple[Stop, int]:
        """Train the agent on the graph, up to a time. Returns why it ended, and the number of
        plans. ``no gain``: half of all plans in a row brought nothing faster."""
        best, improved, stop, done = environment.first, 0, "exhausted", 0

        def ends(number: int, seconds: float) -> bool:
            nonlocal best, improved, stop, done
            done = number
            if seconds < best:
                best, improved = seconds, number
                self.setting.teller.found(best)
            if now() > until:
                stop = "time"
            elif number - improved > self.episodes / 2:
                stop = "no gain"
            return stop != "exhausted"

        chance = TRAINED_RANDOM if self.pretrained else 1.0
        try:
            with _limited(until):
                agent.trained(environment, self.episodes, chance, ends)
        except OutOfTime:
            stop = "time"
        except KeyboardInterrupt:
            stop = "interrupted"
        return stop, done

    def _greedy(self, agent: Agent, environment: DecisionEnvironment, until: float) -> float | None:
        """Seconds of a step of the plan that the agent finds best; None if time is up before."""
        try:
            with _limited(until):
                return environment.seconds(agent.decoded(environment))
        except OutOfTime:
            return None

    def _fitting(self, environment: DecisionEnvironment, first: Choice) -> PricedChoice:
        """The fastest plan that fits among the agent's plans and data parallelism; or else the one
        that takes least memory."""
        found = environment.found
        faster = [choice for seconds, choice in found if seconds < environment.first]
        slower = [choice for _, choice in found[len(faster) :]]
        # If faster choices do not fit, data parallelism is tried before any slower one.
        choices = [*faster[:MOST_PRICED], first, *slower[:MOST_PRICED]]
        tried = until_fitting(self.setting, environment.chooser, choices)
        return min(tried, key=lambda one: max(one.over, 0))


def _limited(until: float) -> AbstractContextManager[None]:
    """A context in which the agent has to end at a time, by ``now``."""
    return Phases(deadline=until, has_plan=True).under_way()

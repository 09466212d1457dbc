"""FlexFlow: the fastest plan that a random walk over its SOAP space meets (Jia et al., MLSys 2019).

Problem: choose degrees and devices for each operator. Method: a random walk from data parallelism
(``walk``, section 6) over configurations (``configurations``, section 4), simulated by the parts
that change (section 5). As the walk does not consider memory, the fastest of its successive bests
that fits is returned. Complexity: the number of proposals times the operators of a step. No bound
is known for the result. It is never slower than data parallelism, if that fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pcg.collection import seldom_collected
from pcg.graph.graph import Graph, Node
from search.cost.planned import DataParallelStep, Planned, SearchReport
from search.cost.progress import now
from search.map.choose.choosing import Choice, Chooser
from search.map.space.allow import data_parallel
from search.planners.common import (
    MOST_PRICED,
    PlannerSetting,
    PricedChoice,
    limited,
    planned_choice,
    searching_until,
    until_fitting,
)
from search.planners.flexflow.configurations import Configurations, configurations
from search.planners.flexflow.walk import Programs, Walk, WalkResult, by_delta

ALPHA = 1000.0
"""A step that is longer by 0.1% of that of data parallelism is accepted with probability
exp(-0.001 * 1000) = 0.37."""
PROPOSALS = 20_000


@dataclass(frozen=True)
class FlexFlowPlanner:
    """Plans by a random walk. ``seconds`` and ``proposals``: the limits of time and of
    proposals."""

    setting: PlannerSetting
    seconds: float = 600.0
    proposals: int = PROPOSALS
    alpha: float = ALPHA
    """The factor of dt, which is counted in steps of data parallelism."""
    seed: int = 0

    @seldom_collected()
    def plan(self, name: str, graph: Graph) -> Planned:
        """Return the plan. Raises NegativeAnswer if none of the walk's bests fits, or none is ready
        in time."""
        start = now()
        graph.check()
        self.setting.teller.works_on("walking", "map")
        with limited(name, graph, start, self.seconds):
            chooser = self.setting.chooser(graph)
            first = chooser.choose(graph, allowed=data_parallel(graph))
            own, programs = configurations(graph, chooser), by_delta(chooser, first)
            left = searching_until(start, self.seconds, graph) - now()
            walked = self.walked(chooser, first, programs, own, left)
            priced = self._fitting(chooser, [choice for _, choice in reversed(walked.bests)])
        phases = {"walking": now() - start}
        strategies = sum(len(one.places) for one in own.values())
        report = SearchReport(strategies, walked.proposals, walked.stop, phases)
        planned = planned_choice(self.setting, name, graph, priced, report, start)
        note = f"accepted {walked.accepted:,} of {walked.proposals:,} proposals"
        began = DataParallelStep(walked.bests[0][0])
        return Planned(planned.plan, planned.report, planned.seconds, began, (note,))

    def walked(
        self,
        chooser: Chooser,
        start: Choice,
        programs: Programs,
        own: Mapping[Node, Configurations] | None = None,
        seconds: float | None = None,
    ) -> WalkResult:
        """The walk from a choice. ``programs``: a function to the program that is simulated;
        ``own``: the configurations of the operators; ``seconds``: the limit of the walk, by default
        that of the planner."""
        unit = start.seconds or 1.0
        return Walk(
            chooser,
            own or configurations(start.graph, chooser),
            programs,
            self.alpha / unit,
            self.proposals,
            self.seconds if seconds is None else seconds,
            self.seed,
            self.setting.teller,
        ).walked(start)

    def _fitting(self, chooser: Chooser, choices: Sequence[Choice]) -> PricedChoice:
        """The first choice that fits, with the start tried last; or else the start."""
        if len(choices) > MOST_PRICED:
            choices = [*choices[: MOST_PRICED - 1], choices[-1]]
        return until_fitting(self.setting, chooser, choices)[-1]

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from support.plans.by_hand import Views, make_plan
from support.runs.rank_group import Ranks, RankThreads, connected, light_ranks

from pcg.graph.graph import Graph
from pcg.placement.view import MachineView
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph
from runtime.job.job import RunReport, TrainingOptions
from runtime.job.recipe import Recipe

RANKS = 4


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    with connected(RANKS) as processes:
        yield processes


@dataclass(frozen=True)
class Agreement:
    """Runs plans on four ranks and checks that they agree with one process."""

    ranks: Ranks | RankThreads

    def __call__(
        self, model: str, graph: str, steps: int = 3, **views: MachineView | int
    ) -> RunReport:
        return self.of(make_plan(parse_graph(model), parse_graph(graph), RANKS, views), steps)

    def of(self, plan: Plan, steps: int = 3) -> RunReport:
        options = TrainingOptions(
            steps=steps, recipe=Recipe(rate=0.1), precision="fp64", check=True
        )
        report = self.ranks.run(plan, options)
        assert len(report.steps) == steps
        assert {c.kind for c in report.comparisons} >= {"loss", "output"}
        wrong = [c for c in report.comparisons if not c.passes]
        assert not wrong
        return report


@pytest.fixture(scope="session")
def agree() -> Iterator[Agreement]:
    with light_ranks(RANKS) as ranks:
        yield Agreement(ranks)


@pytest.fixture(scope="session")
def agree_on_processes(ranks) -> Agreement:
    return Agreement(ranks)


@pytest.fixture(scope="session")
def plan_of() -> Callable[[Graph, Graph, int, Views], Plan]:
    return make_plan

"""The fraction of a step that is spent on opaque functions, which are never cut.

The time of an opaque function is that of one of its tasks, forward and backward: each of its
devices does the same. The fraction is of the predicted step. A pipeline calls the function for each
micro-batch. Resharding to and from it is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from pcg.graph.opaque import Opaque
from pcg.plan.plan import Plan
from pcg.readings.work import gradient_nodes
from search.cost.cost import CostModel


@dataclass(frozen=True)
class KeptWhole:
    """A function that is kept whole, the number of its calls, and its share of the step."""

    function: str
    calls: int
    share: float

    def __str__(self) -> str:
        times = f"{self.calls} calls, " if self.calls > 1 else ""
        return f"{self.function} ({times}{self.share:.2%} of the step)"


def kept_whole(plan: Plan, cost: CostModel) -> tuple[KeptWhole, ...]:
    """The functions that are kept whole in a plan, in descending share of the step."""
    graph = plan.graph
    trained = gradient_nodes(graph)
    seconds: dict[str, list[float]] = {}
    for node in graph.operators:
        operator = node.operator_call.operator
        if isinstance(operator, Opaque):
            needs = frozenset(i for i, value in enumerate(node.inputs) if value.node in trained)
            each = sum(cost.compute_seconds(node, needs, plan.views.get(node)))
            seconds.setdefault(operator.target, []).append(each)
    step = plan.estimates.step_seconds
    operators = (
        KeptWhole(function, len(each), sum(each) / step if step else 0.0)
        for function, each in seconds.items()
    )
    return tuple(sorted(operators, key=lambda kept: (-kept.share, kept.function)))

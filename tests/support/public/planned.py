"""Plans of public models for a real machine, and a line about each for the docs."""

from __future__ import annotations

from collections import Counter

from support.public.every import Public

import unity
from pcg.capture import Captured
from pcg.graph.graph import Node
from pcg.graph.opaque import Batched, Opaque
from unity import PlannedModel

HEADINGS = (
    *("model", "attention", "with an equation", "batched", "whole"),
    *("capture, s", "search, s", "times data parallelism"),
)
MOST = 0.01
"""Of the step, that a function may take which is kept whole."""


def planned(public: Public, nodes: int, budget: float) -> PlannedModel:
    """The plan for some nodes of eight A100, in float32."""
    return unity.optimize(
        public.module,
        public.inputs,
        machine="dgx-a100",
        nodes=nodes,
        precision="fp32",
        compare=False,
        quiet=True,
        budget=budget,
    )


def holds(made: PlannedModel) -> bool:
    """Whether a plan is as fast as data parallelism, and little of the step is kept whole; a budget
    that ends before that is priced shows nothing."""
    if made.speedup is None:
        return False
    return made.speedup >= 1.0 and all(kept.share <= MOST for kept in made.answer.whole)


def row(name: str, attention: str, captured: Captured, seconds: float, made: PlannedModel) -> str:
    """A line of the table in the docs."""
    operators = captured.graph.operators
    batched = sum(isinstance(_function(node), Batched) for node in operators)
    whole = Counter(
        f.target.split(".")[1] for f in map(_function, operators) if isinstance(f, Opaque)
    )
    shares = {kept.function.split(".")[1]: kept.share for kept in made.answer.whole}
    named = ", ".join(f"{n} {f} ({shares.get(f, 0.0):.2%})" for f, n in whole.items())
    cells = (
        *(
            name,
            attention,
            len(operators) - batched - sum(whole.values()),
            batched,
            named or "none",
        ),
        *(
            f"{seconds:.1f}",
            f"{made.planned.seconds:.1f}",
            "not priced" if made.speedup is None else f"{made.speedup:.2f}",
        ),
    )
    return f"| {' | '.join(map(str, cells))} |"


def _function(node: Node) -> object:
    return node.operator_call.operator

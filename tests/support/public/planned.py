"""Plans of public models for a real machine, and their figures in the docs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from time import process_time
from typing import Any

from support.public.calls import PublicModel

import unity
from pcg.capture import Captured
from pcg.errors import NegativeAnswer
from pcg.graph.graph import Node
from pcg.graph.opaque import Batched, Opaque
from unity import PlannedModel

MOST = 0.01
"""The share of a step that functions kept whole may take."""


@dataclass(frozen=True)
class Gain:
    """The gain of a plan. ``seconds``: processor seconds of the capture of the whole batch, the
    rules and the search. ``gain``: the speed relative to data parallelism, if that was priced.
    ``shares`` of the step, by the name of a function that is kept whole. ``is_data_fit``: whether a
    data-parallel plan fits, if that was asked. ``problem``: why there is no plan. ``stop``: why the
    search ended."""

    seconds: float
    gain: float | None
    shares: Mapping[str, float]
    is_data_fit: bool | None = None
    problem: str = ""
    stop: str = "exhausted"

    @property
    def holds(self) -> bool:
        """Whether the plan is as fast as data parallelism, and functions kept whole take little of
        it. False if the budget ended before data parallelism was priced."""
        good = self.gain is not None and self.gain >= 1.0
        return good and all(share <= MOST for share in self.shares.values())

    @property
    def text(self) -> str:
        """The gain, rounded down, so that a slower plan never looks as fast."""
        if self.problem:
            return self.problem
        gain = "not priced" if self.gain is None else f"{int(self.gain * 1000) / 1000:.3f}"
        alone = ", alone fits" if self.is_data_fit is False else ""
        early = "" if self.stop == "exhausted" else f", stopped: {self.stop}"
        return f"{gain}{alone}{early}"


@dataclass(frozen=True)
class Row:
    """A line of the table in the docs. ``capture``: processor seconds. ``whole``: the number of
    calls of each function that is kept whole. ``gained``: by the number of nodes."""

    name: str
    attention: str
    equations: int
    batched: int
    whole: Mapping[str, int]
    capture: float
    gained: Mapping[str, Gain]

    @property
    def holds(self) -> bool:
        return all(gained.holds for gained in self.gained.values())

    @property
    def text(self) -> str:
        whole = ", ".join(f"{n} {f}{self._share(f)}" for f, n in self.whole.items())
        plans = ((f"{g.seconds:.1f}", g.text) for g in self.all)
        begin = (self.name, self.attention or "-", self.equations, self.batched, whole or "none")
        return line(*begin, f"{self.capture:.1f}", *(cell for plan in plans for cell in plan))

    def _share(self, function: str) -> str:
        """The largest share of a step, if there is a plan."""
        shares = [gain.shares.get(function, 0.0) for gain in self.all]
        return f" ({max(shares):.2%})" if shares else ""

    @property
    def all(self) -> list[Gain]:
        return list(self.gained.values())


def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def headings(nodes: tuple[int, ...]) -> str:
    """The head of the table."""
    counts = ["1 node" if count == 1 else f"{count} nodes" for count in nodes]
    plans = [cell for count in counts for cell in (f"{count}: plan, s", "gain")]
    kinds = ("with an equation", "batched", "whole", "capture, s")
    names = ("model", "attention", *kinds, *plans)
    return f"{line(*names)}\n|{'---|' * len(names)}"


def planned(
    public: PublicModel, nodes: int, budget: float, precision: str = "fp32", planner: str = "joint"
) -> PlannedModel:
    """The plan for some nodes of eight A100."""
    return unity.optimize(
        public.module,
        public.inputs,
        machine="dgx-a100",
        nodes=nodes,
        batch=public.batch,
        planner=planner,
        precision=precision,
        compare=False,
        quiet=True,
        budget=budget,
    )


def gained(public: PublicModel, nodes: int, budget: float, precision: str = "fp32") -> Gain:
    """The plan, and the seconds of its making. Raises NegativeAnswer if no plan fits."""
    begin = process_time()
    made = planned(public, nodes, budget, precision)
    shares = {_short(kept.function): kept.share for kept in made.answer.whole}
    stop = made.planned.report.stop
    return Gain(process_time() - begin, made.speedup, shares, stop=stop)


def gained_or_not(public: PublicModel, nodes: int, budget: float, precision: str) -> Gain:
    """The same for a model that may be too large for data parallelism, or for the machine."""
    begin = process_time()
    try:
        gain = gained(public, nodes, budget, precision)
    except NegativeAnswer as error:
        return Gain(process_time() - begin, None, {}, problem=str(error))
    try:
        planned(public, nodes, budget, precision, "data-parallel")
    except NegativeAnswer:
        return replace(gain, is_data_fit=False)
    return replace(gain, is_data_fit=True)


def row(
    name: str, attention: str, captured: Captured, seconds: float, plans: Mapping[str, Gain]
) -> Row:
    """The line of a model."""
    operators = captured.graph.operators
    batched = sum(isinstance(_function(node), Batched) for node in operators)
    functions = map(_function, operators)
    whole = dict(Counter(_short(f.target) for f in functions if isinstance(f, Opaque)))
    equations = len(operators) - batched - sum(whole.values())
    return Row(name, attention, equations, batched, whole, seconds, plans)


def as_data(row: Row) -> dict[str, Any]:
    """The line as data for a file of results."""
    return asdict(row)


def from_data(data: Mapping[str, Any]) -> Row:
    """The line from the data of such a file."""
    plans = {nodes: Gain(**made) for nodes, made in data["gained"].items()}
    given: dict[str, Any] = {**data, "gained": plans}
    return Row(**given)


def _short(target: str) -> str:
    return target.split(".")[1]


def _function(node: Node) -> object:
    return node.operator_call.operator

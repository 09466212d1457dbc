"""The difference of two plans of one model on one machine, and its worth by the cost model.

Problem: two graphs are rewritten and cut, each in its own way. Find the operators that are the
same, and those among them whose placements differ. Method: operators are compared by their call,
the leaves that they read and the sizes of their results. Both graphs are aligned in order, as texts
are (``difflib``, Ratcliff and Obershelp 1988). Operators without a counterpart have been rewritten.
Operators that differ in the same way are listed together. Complexity: quadratic in the number of
operators. The alignment is a heuristic where several operators do the same with different inputs.
Seconds and bytes are those of the simulations of both plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from pcg.errors import InputError
from pcg.graph.graph import Node
from pcg.placement.schedule import trace
from pcg.plan.plan import Plan
from pcg.plan.text import node_names
from search.cost.cost import communication_elements
from search.map.space.allow import batch_axes
from search.report.describe import cut_text, pipeline_text, rules_used, span, stored
from search.report.spending import OperatorSeconds, spent
from search.report.trace import SimulatedPlan


@dataclass(frozen=True)
class Side:
    """Operators of one of the plans: their names, their cut, their devices, and the seconds that
    all of them together cost their representative devices (``spending.representative``)."""

    names: tuple[str, ...]
    cut: str
    devices: str
    seconds: float


@dataclass(frozen=True)
class Change:
    """Operators that are the same in both plans but placed differently, such as 24 matmuls; or
    operators that only one plan has, because of a rewrite. The other side is then None."""

    operator: str
    count: int
    a: Side | None
    b: Side | None


@dataclass(frozen=True)
class Figures:
    """The estimates of a plan: the seconds of a step and how the busiest device spends them, the
    elements that cross between devices, and bytes on the fullest device."""

    step_seconds: float
    computing: float
    communication_hidden: float
    communication_exposed: float
    idle: float
    communication_elements: int
    memory_bytes: int

    @staticmethod
    def of(simulated: SimulatedPlan) -> Figures:
        """The figures of a simulated plan."""
        use = simulated.busiest
        return Figures(
            simulated.step_seconds,
            use.computing,
            use.hidden,
            use.exposed,
            max(simulated.step_seconds - use.busy, 0.0),
            communication_elements(simulated.steps),
            simulated.memory.total,
        )


@dataclass(frozen=True)
class Setting:
    """A decision about a whole plan that differs, with its value in both plans."""

    what: str
    a: str
    b: str


@dataclass(frozen=True)
class PlanDifference:
    """All differences of two plans. ``same``: the number of operators that are placed alike;
    ``rules``: those that are not applied equally often, each with its text and both numbers."""

    settings: tuple[Setting, ...]
    changes: tuple[Change, ...]
    same: int
    rules: tuple[tuple[str, str, int, int], ...]
    a: Figures
    b: Figures

    @property
    def is_none(self) -> bool:
        """Whether both plans have the same decisions."""
        return not (self.settings or self.changes or self.rules)


def check_comparable(a: Plan, b: Plan, where_a: str, where_b: str) -> None:
    """Raise InputError if two plans are of different models or machines."""
    if a.model.digest != b.model.digest:
        named = a.model_name == b.model_name
        other = "another graph, such as of another batch" if named else b.model_name
        problem = f"is of {a.model_name}, and {where_b} of {other}: expected plans of one model"
        raise InputError(where_a, problem)
    if a.machine.hash != b.machine.hash:
        mine, other = (f"{m.devices} x {m.name}" for m in (a.machine, b.machine))
        other = "another machine of this name" if mine == other else other
        problem = f"is for {mine}, and {where_b} for {other}: expected plans for one machine"
        raise InputError(where_a, problem)


def difference(a: SimulatedPlan, b: SimulatedPlan) -> PlanDifference:
    """Return the difference of two simulated plans of one model on one machine."""
    paired = _aligned(a.plan, b.plan)
    sides = _PlanOperators(a), _PlanOperators(b)
    counterparts: dict[object, list[tuple[Node | None, Node | None]]] = {}
    same = 0
    for pair in paired:
        texts = tuple(s.text(node) for s, node in zip(sides, pair, strict=True))
        if texts[0] == texts[1]:
            same += 1
            continue
        name = next(node.name for node in pair if node is not None)
        counterparts.setdefault((name, *texts), []).append(pair)
    changes = [_change(pairs, sides) for pairs in counterparts.values()]
    changes.sort(key=lambda change: -_moved(change))
    rules = tuple(_rules(a.plan, b.plan))
    settings = tuple(_settings(a.plan, b.plan))
    return PlanDifference(settings, tuple(changes), same, rules, Figures.of(a), Figures.of(b))


def _moved(change: Change) -> float:
    """The seconds of the operators of a change, in the plan where these take longer."""
    before, after = (0.0 if side is None else side.seconds for side in (change.a, change.b))
    return max(before, after)


class _PlanOperators:
    """The operators of a plan, as a difference describes them."""

    def __init__(self, simulated: SimulatedPlan) -> None:
        self._plan, self._steps = simulated.plan, simulated.steps
        self._names = node_names(simulated.plan.graph)
        self._batch = batch_axes(simulated.plan.graph)
        self._spent: Mapping[Node, OperatorSeconds] = spent(simulated)

    def text(self, node: Node | None) -> tuple[object, ...] | None:
        """The placement of an operator, equal for operators that are placed alike; None for no
        operator."""
        if node is None:
            return None
        view = self._plan.views[node]
        cut = cut_text(node, view, self._batch.get(node), outermost_first=True)
        kept = dict.fromkeys(stored(self._steps, value) for value in node.inputs)
        where = ", ".join(text for text in kept if text is not None)
        if where:
            cut += f" (weights stored: {where})"
        return cut, span(view), view, tuple(value.type for value in node.inputs)

    def side(self, nodes: Sequence[Node]) -> Side:
        cut, devices, *_ = self.text(nodes[0]) or ("", "")
        names = tuple(self._names[node][0] for node in nodes)
        return Side(names, str(cut), str(devices), sum(self._spent[n].total for n in nodes))


def _change(
    pairs: Sequence[tuple[Node | None, Node | None]], sides: Sequence[_PlanOperators]
) -> Change:
    ends = [[node for node in column if node is not None] for column in zip(*pairs, strict=True)]
    name = (ends[0] or ends[1])[0].name
    a, b = (s.side(nodes) if nodes else None for s, nodes in zip(sides, ends, strict=True))
    return Change(name, len(pairs), a, b)


def _aligned(a: Plan, b: Plan) -> Iterator[tuple[Node | None, Node | None]]:
    """The operators of both plans in pairs; None stands for an operator without a counterpart."""
    left, right = ([n for n in p.graph.nodes if n in p.views] for p in (a, b))
    keys = [_key(node) for node in left], [_key(node) for node in right]
    matcher = SequenceMatcher(None, *keys, autojunk=False)
    for _, i, i_end, j, j_end in matcher.get_opcodes():
        matched = keys[0][i:i_end] == keys[1][j:j_end]
        if matched:
            yield from zip(left[i:i_end], right[j:j_end], strict=True)
        else:
            yield from ((node, None) for node in left[i:i_end])
            yield from ((None, node) for node in right[j:j_end])


def _key(node: Node) -> object:
    """A key that is equal for operators that may be the same, however they are cut."""
    sources = [trace(value)[0] for value in node.inputs]
    leaves = tuple(s.node.leaf.name for s in sources if s.node.is_leaf)
    return node.operator_call.identity, leaves, tuple(t.shape for t in node.types)


def _rules(a: Plan, b: Plan) -> Iterator[tuple[str, str, int, int]]:
    """The rules that are not applied equally often in both plans, with both numbers."""
    counts = [
        {(rule, text): count for rule, text, count in rules_used(plan.derivation)}
        for plan in (a, b)
    ]
    for rule, text in dict.fromkeys((*counts[0], *counts[1])):
        here, there = (counted.get((rule, text), 0) for counted in counts)
        if here != there:
            yield rule, text, here, there


def _settings(a: Plan, b: Plan) -> Iterator[Setting]:
    """The decisions about whole plans that differ."""
    for what, here, there in (
        ("pipeline", pipeline_text(a) or "none", pipeline_text(b) or "none"),
        ("recomputation", _recomputed(a), _recomputed(b)),
        ("order of issue", *_orders(a, b)),
        ("optimizer", a.training.optimizer, b.training.optimizer),
        ("precision", a.training.precision, b.training.precision),
        ("rule library", a.library_hash, b.library_hash),
    ):
        if here != there:
            yield Setting(what, here, there)


def _orders(a: Plan, b: Plan) -> tuple[str, str]:
    """The orders of issue as texts, equal if neither plan has its own, or both have the same."""
    here, there = ("its own" if plan.order else "that of the graph" for plan in (a, b))
    return here, "another" if a.order and b.order and a.order != b.order else there


def _recomputed(plan: Plan) -> str:
    count = len(plan.recompute)
    return f"{count} operator{'s' * (count > 1)}" if count else "none"

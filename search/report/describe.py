"""A plan in words: how each operator is cut, in the terms of a practitioner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pcg.graph.graph import Node, Value
from pcg.placement.schedule import Schedule, trace
from pcg.placement.view import MachineView
from pcg.plan.derivation import Application
from pcg.plan.pipeline import ScheduleKind
from pcg.plan.plan import Plan
from pcg.plan.text import node_names
from pcg.types.halo import typing_of
from pcg.types.parallel_operators import PLACING
from pcg.types.tensor import ParallelTensor
from search.choices import IndexRole
from search.map.space.allow import batch_axes, dimension_of, is_weight

MOST_CUTS = 4
"""The most different cuts that a summary of a plan lists."""


@dataclass(frozen=True)
class OperatorRow:
    """An operator of a plan: its name in the plan's graph, its call, its cut, and its devices."""

    name: str
    call: str
    cut: str
    devices: str


def rows(plan: Plan, most: int | None = None) -> list[OperatorRow]:
    """The computing operators of a plan in the order of issue; only the first ``most`` of them, if
    given."""
    names, batch = node_names(plan.graph), batch_axes(plan.graph)
    issued = plan.issued[:most]
    return [operator_row(node, plan.views[node], names, batch.get(node)) for node in issued]


def operator_row(
    node: Node, view: MachineView, names: Mapping[Node, tuple[str, ...]], batch: str | None
) -> OperatorRow:
    """The row of an operator. ``names``: those of all nodes; ``batch``: see ``cut_text``."""
    cut = cut_text(node, view, batch)
    return OperatorRow(names[node][0], _call(node, names), cut, span(view))


def span(view: MachineView) -> str:
    """Devices as text, such as ``0-5``, or ``2 of 0-5`` if not all of these take part."""
    first, last, count = min(view.devices), max(view.devices), len(view.devices)
    span = str(first) if first == last else f"{first}-{last}"
    return span if count == last - first + 1 else f"{count} of {span}"


def _call(node: Node, names: Mapping[Node, tuple[str, ...]]) -> str:
    sources = (trace(value)[0] for value in node.inputs)
    return f"{node.name}({', '.join(names[v.node][v.port] for v in sources)})"


def cut_text(
    node: Node, view: MachineView, batch: str | None, *, outermost_first: bool = False
) -> str:
    """The cut of an operator as text, such as ``data 2 x model 2 x reduction 3``. Cuts with halos
    are ``spatial`` too. ``batch``: the operator's index over the samples. ``outermost_first``:
    whether cuts are listed in the order of the devices, those farthest apart first; otherwise in
    the order of the equation."""
    if node.is_join:
        return "join"
    typing = typing_of(node.operator_call, [value.type for value in node.inputs])
    slid = {window.axis for window in typing.open_windows}
    kinds = [
        IndexRole.SPATIAL if axis in slid else dimension_of(node, axis, batch)
        for axis in typing.axes
    ]
    words = list(zip(view.strides, (*kinds, "partials", "copies"), view.shape, strict=True))
    if outermost_first:
        words.sort(key=lambda word: -word[0])
    return " x ".join(f"{kind} {degree}" for _, kind, degree in words if degree > 1) or "whole"


def placement(tensor: ParallelTensor) -> str:
    """The placement of a tensor as text, such as ``Shard(0) over 2, Replicate over 4``."""
    degrees = tensor.degrees
    words = [f"Shard({dim}) over {n}" for dim, n in enumerate(degrees.dims) if n > 1]
    words += [f"Replicate over {degrees.copies}"] if degrees.copies > 1 else []
    words += [f"Partial over {degrees.partials}"] if degrees.partials > 1 else []
    return ", ".join(words) or "whole"


def stored(steps: Schedule, value: Value) -> str | None:
    """The placement in which a weight is stored, if an operator reads it in another one: fully
    sharded weights are gathered where they are used. Otherwise None."""
    source, chain = trace(value)
    home = steps.homes.get(source.node)
    if home is None or all(node.name in PLACING for node in chain):
        return None
    kept = placement(home.type)
    return None if kept == placement(value.type) else kept


def overall(plan: Plan) -> str:
    """The cuts of the operators that read weights, the most common first, such as ``data 24 x model
    8 in 96 of 97 operators with weights, whole in 1``. All operators count if none reads
    weights."""
    nodes = plan.graph.computing
    weighted = [node for node in nodes if any(is_weight(v) for v in node.inputs)]
    batch = batch_axes(plan.graph)
    counted = weighted or nodes
    alike: dict[object, str] = {}
    cuts = Counter[str]()
    for node in counted:
        view, sources = plan.views[node], tuple(is_weight(value) for value in node.inputs)
        key = node.signature, view, batch.get(node), sources
        if key not in alike:
            alike[key] = cut_text(node, view, batch.get(node))
        cuts[alike[key]] += 1
    what = "operators with weights" if weighted else "operators"
    (first, times), *rest = cuts.most_common(MOST_CUTS + 1)
    words = [f"{first} in {times} of {len(counted)} {what}"]
    words += [f"{cut} in {times}" for cut, times in rest[: MOST_CUTS - 1]]
    return ", ".join([*words, "..."] if len(rest) >= MOST_CUTS else words)


SCHEDULES: Mapping[ScheduleKind, str] = {
    "1f1b": "",
    "2bw": ", two versions of weights",
    "zb-h1": ", ZB-H1",
}
"""The words for the schedule of a pipeline."""


def pipeline_text(plan: Plan) -> str | None:
    """The pipeline as text, such as ``pipeline 4 stages x 8 micro-batches``; None if the plan has
    none."""
    pipeline = plan.pipeline
    if pipeline is None:
        return None
    counts = ((pipeline.stages, "stage"), (pipeline.micro_batches, "micro-batch"))
    words = (_counted(number, word) for number, word in counts)
    chunks = "" if pipeline.interleave == 1 else f", {pipeline.interleave} chunks a stage"
    return f"pipeline {' x '.join(words)}{chunks}{SCHEDULES[pipeline.schedule]}"


def recomputed_counts(plan: Plan) -> list[tuple[str, int]]:
    """The names of the operators that are recomputed in the backward pass, and how many of each, in
    descending number."""
    counts = Counter(node.name for node in plan.recompute)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def recomputed_text(plan: Plan) -> str:
    """The recomputed operators (``recomputed_counts``) as text."""
    return ", ".join(f"{count} {name}" for name, count in recomputed_counts(plan))


def _counted(number: int, word: str) -> str:
    plural = f"{word}es" if word.endswith("ch") else f"{word}s"
    return f"{number} {word if number == 1 else plural}"


def rules_used(derivation: tuple[Application, ...]) -> list[tuple[str, str, int]]:
    """The rules of a derivation, each with its text and the number of its applications, the most
    used first."""
    counts = Counter((step.rule.rstrip("~"), step.text) for step in derivation)
    return [(rule, text, count) for (rule, text), count in counts.most_common()]

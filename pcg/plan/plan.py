"""Plans: save and load a graph with its machine views, derivation and estimates.

The search writes a ``Plan`` and the runtime reads it. The file separates decisions (graph, views,
derivation) from estimates. It has hashes of the model's graph, the machine and the rule library
from which it was made. Everything is checked on load.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from pcg.errors import InputError
from pcg.files import read_json, write_text_atomic
from pcg.graph.graph import Graph, Node
from pcg.machine import Machine
from pcg.memo import Answers
from pcg.placement.order import order_problem
from pcg.placement.schedule import Schedule, schedule
from pcg.placement.view import MachineView
from pcg.plan.check import Placement, check_graph, check_placement
from pcg.plan.derivation import Application, AppliedRule
from pcg.plan.naming import NamingFile
from pcg.plan.pipeline import PipelineFile, misfit
from pcg.plan.schema import (
    DecisionsFile,
    EstimatesFile,
    MachineFile,
    ModelFile,
    PlanFile,
    StepFile,
    StepRule,
    ViewFile,
)
from pcg.plan.statistics import RunningFile, groups_of, problems
from pcg.plan.text import node_names, parse_graph, print_graph
from pcg.plan.training import Training


@dataclass(frozen=True)
class Plan:
    """A training plan. ``model`` is the user's graph, and ``graph`` the one to run."""

    model_name: str
    model: Graph
    graph: Graph
    views: Mapping[Node, MachineView]
    machine: MachineFile
    library_hash: str
    derivation: tuple[Application, ...]
    estimates: EstimatesFile
    training: Training = field(default_factory=Training)
    recompute: frozenset[Node] = frozenset()
    """The operators whose results are computed again for the backward pass, and the parallel
    operators whose results are communicated again (``pcg.placement.recomputation``)."""
    pipeline: PipelineFile | None = None
    naming: NamingFile = field(default_factory=NamingFile)
    statistics: tuple[RunningFile, ...] = ()
    """The running statistics of the module's batch norms."""
    norm_groups: int = 1
    """The number of groups of samples over which the model's batch norms take their statistics.
    Running statistics are those of the first group."""
    order: tuple[Node, ...] = ()
    """The computing operators in the order of issue (``pcg.placement.order``). Empty if that is the
    order of the graph."""

    @property
    def issued(self) -> tuple[Node, ...]:
        """The computing operators in the order of issue."""
        return self.order or self.graph.computing

    def schedule(self) -> Schedule:
        """The schedule of the graph to run."""
        return schedule(self.graph, self.views, self.order)


def machine_record(machine: Machine) -> MachineFile:
    """Return a plan's record of its machine."""
    return MachineFile(
        name=machine.name,
        kind=machine.device.kind,
        devices=machine.devices,
        hash=machine.hash(),
    )


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan file, whole or not at all."""
    names = node_names(plan.graph)
    written = Answers(_view_file)
    viewed = ((node, plan.views[node]) for node in plan.graph.nodes if node in plan.views)
    views = {names[node][0]: written[view] for node, view in viewed}
    rules = {step.rule: _rule_file(step.applied) for step in plan.derivation}
    steps = tuple(
        StepFile(rule=s.rule, at=s.at, inputs=s.inputs, symbols=dict(s.symbols))
        for s in plan.derivation
    )
    content = PlanFile(
        schema_version=4,
        model=ModelFile(name=plan.model_name, graph=_lines(plan.model), hash=plan.model.digest),
        machine=plan.machine,
        library_hash=plan.library_hash,
        decisions=DecisionsFile(
            graph=_lines(plan.graph),
            views=views,
            rules=rules,
            derivation=steps,
            optimizer=plan.training.optimizer,
            precision=plan.training.precision,
            compiled=plan.training.compiled,
            recompute=tuple(names[node][0] for node in plan.graph.nodes if node in plan.recompute),
            pipeline=plan.pipeline,
            order=tuple(names[node][0] for node in plan.order),
        ),
        estimates=plan.estimates,
        hashes={},
        naming=plan.naming,
        statistics=plan.statistics or None,
        norm_groups=plan.norm_groups if plan.norm_groups > 1 else None,
    )
    dumped = content.model_dump(mode="json")
    _write({**dumped, "hashes": _hashes(dumped)}, path)


def write_plan(content: PlanFile, path: str | Path) -> None:
    """Write the content of a plan file as it is, with a line for each line of a graph, view, rule
    and step."""
    _write(content.model_dump(mode="json"), path)


def _write(dumped: Mapping[str, Any], path: str | Path) -> None:
    write_text_atomic(path, _expanded(dumped, EXPANDED) + "\n")


EXPANDED = 3
"""The number of outer levels of a plan file that have a line for each entry."""


def _expanded(value: Any, levels: int, indent: str = "") -> str:
    """Return JSON with a line for each entry of the outermost levels."""
    if not levels or not value or not isinstance(value, (dict, list)):
        return json.dumps(value)
    inner = indent + " "
    if isinstance(value, list):
        parts = [_expanded(part, levels - 1, inner) for part in cast(list[Any], value)]
    else:
        entries = cast(dict[str, Any], value).items()
        parts = [f"{json.dumps(k)}: {_expanded(v, levels - 1, inner)}" for k, v in entries]
    first, last = "[]" if isinstance(value, list) else "{}"
    return f"{first}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{last}"


def part_hashes(content: PlanFile) -> dict[str, str]:
    """Return a hash of each part of a plan file except ``hashes``, by the part's path."""
    return _hashes(content.model_dump(mode="json", exclude={"hashes"}))


def _hashes(dumped: Mapping[str, Any]) -> dict[str, str]:
    apart = ("decisions", "hashes")
    parts = {k: part for k, part in dumped.items() if k not in apart and part is not None}
    parts |= {f"decisions.{name}": part for name, part in dumped["decisions"].items()}
    return {
        name: sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:16]
        for name, part in parts.items()
    }


def altered_parts(content: PlanFile) -> tuple[str, ...]:
    """Return the parts of a plan file that differ from their hashes. This detects slips and edits,
    but no forgery: whoever alters a part can also write its hash."""
    hashes = part_hashes(content)
    return tuple(
        part
        for part in sorted(hashes.keys() | content.hashes.keys())
        if hashes.get(part) != content.hashes.get(part)
    )


def _view_file(view: MachineView) -> ViewFile:
    return ViewFile(start=view.start, shape=view.shape, strides=view.strides)


def _rule_file(applied: AppliedRule) -> StepRule:
    return StepRule(
        rule=applied.rule,
        axes=applied.axes,
        operators=applied.operators,
        reversed=applied.reversed,
        text=applied.text,
    )


def load_plan(path: str | Path) -> Plan:
    """Read and check a plan. Raises InputError naming the file and the place in it."""
    return plan_of(read_json(path, PlanFile), str(path))


def plan_of(content: PlanFile, where: str) -> Plan:
    """Return the plan in a file's content, checked. Raises InputError naming file and place."""
    model = _graph(content.model.graph, f"{where}: model.graph")
    if model.digest != content.model.hash:
        raise InputError(where, "model.hash is not that of model.graph, the file was altered")
    graph = _graph(content.decisions.graph, f"{where}: decisions.graph")
    views = _views(graph, content, where)
    _same_leaves(graph, model, where)
    if [v.type.shape for v in graph.outputs] != [v.type.shape for v in model.outputs]:
        raise InputError(where, "decisions.graph returns other shapes than model.graph")
    pipeline = content.decisions.pipeline
    if pipeline and (problem := misfit(pipeline, graph, views, content.machine.devices)):
        raise InputError(f"{where}: decisions.pipeline", problem)
    groups = _norm_groups(content, model, where)
    naming = content.naming or NamingFile()
    for name, problem in naming.problems(model):
        entry = name if name.startswith("states[") else f"parameters.{name}"
        raise InputError(f"{where}: naming.{entry}", problem)
    if naming.states and pipeline:
        raise InputError(f"{where}: naming.states", "a pipeline cannot change buffers")
    statistics = content.statistics or ()
    for number, problem in problems(statistics, model, graph, groups):
        raise InputError(f"{where}: statistics[{number}]", problem)
    return Plan(
        content.model.name,
        model,
        graph,
        views,
        content.machine,
        content.library_hash,
        _derivation(content.decisions, f"{where}: decisions"),
        content.estimates,
        _training(content.decisions),
        _recomputed(graph, content, where),
        pipeline,
        naming,
        statistics,
        groups,
        _order(graph, content, where),
    )


def _training(decisions: DecisionsFile) -> Training:
    return Training(decisions.optimizer, decisions.precision, decisions.compiled)


def _norm_groups(content: PlanFile, model: Graph, where: str) -> int:
    """Return the number of groups in the file. Raises InputError if the model has another one."""
    groups = content.norm_groups or 1
    taken = groups_of(model)
    if groups > 1 and taken != {groups}:
        found = " and ".join(map(str, sorted(taken))) or "no groups"
        problem = f"{groups}, batch norms of model.graph take {found}"
        raise InputError(f"{where}: norm_groups", problem)
    return groups


def _derivation(decisions: DecisionsFile, where: str) -> tuple[Application, ...]:
    rules = {
        name: AppliedRule(name, r.rule, r.axes, r.operators, r.reversed, r.text)
        for name, r in decisions.rules.items()
    }
    steps: list[Application] = []
    for number, step in enumerate(decisions.derivation):
        if step.rule not in rules:
            problem = f"rule {step.rule} is none of decisions.rules"
            raise InputError(f"{where}.derivation[{number}]", problem)
        symbols = tuple(step.symbols.items())
        steps.append(Application(rules[step.rule], step.at, step.inputs, symbols))
    if unused := sorted(rules.keys() - {step.rule for step in steps}):
        raise InputError(f"{where}.rules.{unused[0]}", "no step applies it")
    return tuple(steps)


def _lines(graph: Graph) -> tuple[str, ...]:
    return tuple(print_graph(graph).splitlines())


def _graph(lines: tuple[str, ...], where: str) -> Graph:
    graph = parse_graph("\n".join(lines), where)
    for problem in check_graph(graph, training=True):
        raise InputError(where, str(problem))
    return graph


def _views(graph: Graph, content: PlanFile, where: str) -> dict[Node, MachineView]:
    nodes = {names[0]: node for node, names in node_names(graph).items()}
    views: dict[Node, MachineView] = {}
    for name, view in content.decisions.views.items():
        if name not in nodes:
            raise InputError(f"{where}: decisions.views.{name}", "no such operator in the graph")
        views[nodes[name]] = MachineView(view.start, view.shape, view.strides)
    for problem in check_placement(Placement(graph, views, content.machine.devices)):
        raise InputError(f"{where}: decisions.views.{problem.node}", problem.what)
    return views


def _recomputed(graph: Graph, content: PlanFile, where: str) -> frozenset[Node]:
    nodes = {names[0]: node for node, names in node_names(graph).items() if not node.is_leaf}
    for name in content.decisions.recompute:
        if name not in nodes or nodes[name].is_join:
            problem = f"{name}: no computing or parallel operator in the graph"
            raise InputError(f"{where}: decisions.recompute", problem)
    return frozenset(nodes[name] for name in content.decisions.recompute)


def _order(graph: Graph, content: PlanFile, where: str) -> tuple[Node, ...]:
    order, where = content.decisions.order, f"{where}: decisions.order"
    names = node_names(graph)
    nodes = {names[node][0]: node for node in graph.computing}
    for name in order:
        if name not in nodes:
            raise InputError(where, f"{name}: no computing operator in the graph")
    made = tuple(nodes[name] for name in order)
    if made and (problem := order_problem(graph, made)):
        node, what = problem
        raise InputError(where, f"{names[node][0]}: {what}")
    return made


def _same_leaves(graph: Graph, model: Graph, where: str) -> None:
    """Raise InputError unless the graph to run reads only leaves of the model, cut or not."""
    known = {node.leaf.uncut for node in model.leaves}
    for leaf in (node.leaf for node in graph.leaves):
        if leaf.uncut not in known:
            problem = f"{leaf.name}: {leaf.kind} of shape {leaf.shape}, not in model.graph"
            raise InputError(f"{where}: decisions.graph", problem)

"""`unity optimize`: find the fastest way to train a model on a machine.

python -m unity.optimize mlp-tiny --machine local -o plan.json
python -m unity.optimize mlp --machine summit --nodes 2 -o plan.json
python -m unity.optimize my_model.py:make_model --batch 64
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from pcg.errors import InputError
from pcg.files import check_writable
from pcg.graph.opaque import opaque_nodes
from pcg.machine import load_machine
from pcg.models import MODELS, capture_model, default_optimizer
from pcg.plan.naming import batch_of
from pcg.plan.plan import machine_record, save_plan
from pcg.plan.training import optimizer_of
from search.backtracking.optimizer import Optimizer, Settings
from search.backtracking.views import load_views
from search.cost.planned import Planned
from search.cost.progress import Progress, Status, Teller, silent
from search.mesh.plan.variants import Mode
from search.mesh.space.allow import Dimension
from search.pipeline.planner import PIPELINES
from search.report.describe import overall, pipeline_text, rows, rules_used
from search.report.trace import simulate_plan
from substitutions.audit.locate import of_module
from substitutions.rules.store import load_library
from unity.simulate import save_trace
from unity.support.batch_norm import HELP, LOCAL_PLANNERS, WHOLE, groups_text, norm_groups
from unity.support.cli import PlainConsole, new_app, run_app, say
from unity.support.declarations import load_user_operators
from unity.support.limits import check_batch, check_devices
from unity.support.planners import NAMES, check_name, planner_of
from unity.support.speed import PROFILE_HELP, measured

if TYPE_CHECKING:
    from runtime.train.eager import ModuleAgreement

MAX_ROWS = 40
"""Longer tables are cut short; the plan file has everything."""

MODEL_HELP = (
    "FILE.py:FUNCTION, a function that returns a torch module and example inputs; or one of "
    + "; ".join(f"{model.name}: {model.summary}" for model in MODELS.values())
)

app = new_app()


class Engine(StrEnum):
    """How to search."""

    STRATEGIES = "strategies"
    BACKTRACKING = "backtracking"


ENGINE_OPTIONS = {
    Engine.STRATEGIES: ("mode", "allow"),
    Engine.BACKTRACKING: ("views", "threshold"),
}
"""What one of the engines alone takes."""


@app.command()
def optimize(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    machine: Annotated[str, typer.Option(help="A preset, or a machine file.")] = "local",
    nodes: Annotated[
        int | None, typer.Option(help="Nodes of the machine; by default as its file says.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(help="Use only so many devices of the nodes.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Global batch; by default it grows with the devices.")
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Plan file to write.")] = Path(
        "plan.json"
    ),
    rules: Annotated[
        Path | None, typer.Option(help="Rule library; by default the generated one.")
    ] = None,
    profile: Annotated[Path | None, typer.Option(help=PROFILE_HELP)] = None,
    operators: Annotated[
        Path | None, typer.Option(help="A Python file that declares further operators.")
    ] = None,
    views: Annotated[
        Path | None, typer.Option(help="Backtracking: a Python file with further view generators.")
    ] = None,
    planner: Annotated[
        str,
        typer.Option(help=f"What plans may be made of: one of {', '.join(NAMES)}."),
    ] = "joint",
    mode: Annotated[
        Mode, typer.Option(help="Algebraic rewrites: judged with the cuts, before them, or none.")
    ] = Mode.JOINT,
    allow: Annotated[
        str | None,
        typer.Option(help=f"What may be cut, such as data,model; any of {', '.join(Dimension)}."),
    ] = None,
    engine: Annotated[
        Engine,
        typer.Option(help="How to search: all operators' strategies together, or as in the paper."),
    ] = Engine.STRATEGIES,
    budget: Annotated[float, typer.Option(min=0.0, help="Seconds to search at most.")] = 600.0,
    threshold: Annotated[
        float,
        typer.Option(min=1.0, help="Backtracking: how much worse than the best a step may be."),
    ] = 1.05,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Backtracking: draws the order of graphs of equal cost; by default as they are"
            " found. Strategies and pipelines draw nothing. The same options give the same file,"
            " unless --budget ends the search."
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="sgd, momentum or adam; by default the model's own in the zoo, else sgd."
        ),
    ] = None,
    batch_norm: Annotated[
        str | None,
        typer.Option(
            help=f"{HELP} By default local for {' and '.join(LOCAL_PLANNERS)}, else {WHOLE}."
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(help="A FILE.py:FUNCTION: compare its graph with the module, which is run."),
    ] = True,
    trace: Annotated[
        Path | None, typer.Option(help="Write the plan's timeline for Perfetto, too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find the fastest plan for MODEL and write it to a file."""
    given = {
        "mode": mode is not Mode.JOINT,
        "allow": allow is not None,
        "views": views is not None,
        "threshold": threshold != Settings.threshold,
    }
    _check(planner, engine, [option for option, is_given in given.items() if is_given])
    if operators is not None:
        load_user_operators(operators)
    if views is not None:
        load_views(views)
    for path in (out, trace):
        if path is not None:
            check_writable(path)
    kept_by = default_optimizer(model) if optimizer is None else optimizer_of(optimizer)
    known = load_machine(machine)
    if nodes is not None:
        known = known.with_nodes(nodes)
    if devices is not None:
        known = known.with_devices(devices)
    dimensions = _dimensions(allow)
    check_devices(known.name, known.devices)
    check_batch(batch, known.devices, dimensions)
    target, speed = measured(known, profile)
    groups = norm_groups(batch_norm, planner, target.devices)
    captured = capture_model(model, batch, target.devices, groups)
    graph, agreement = captured.graph, None
    if compare and ".py" in model:
        # Here because models of the zoo can do without the runtime.
        from runtime.train.eager import compare_with_module

        agreement = compare_with_module(model)
    library = load_library(rules)
    with _progress(shown=not as_json) as show:
        if engine is Engine.STRATEGIES:
            settings = target, library, budget, kept_by, speed
            chosen = planner_of(planner, *settings, mode, dimensions, show)
            found = chosen.plan(model, graph)
        else:
            limits = Settings(threshold=threshold, seconds=budget, optimizer=kept_by, seed=seed)
            search = Optimizer(target, library, limits, teller=Teller(show), speed=speed)
            found = search.planned(model, graph)
    # A profile is about the figures: it makes no other machine.
    made_for = replace(found.plan, machine=machine_record(known))
    named = of_module(made_for, captured, library.rules)
    save_plan(named, out)
    found = replace(found, plan=replace(found.plan, norm_groups=named.norm_groups))
    if trace is not None:
        save_trace(simulate_plan(found.plan, target, speed), trace)
    if as_json:
        _print_json(found, agreement)
    else:
        _print_report(found, out)
        if agreement is not None:
            say(str(agreement))


def _check(planner: str, engine: Engine, given: Collection[str]) -> None:
    """Refuse a planner that there is not, and options that what plans does not take: of all
    planners, only the joint one has modes."""
    check_name(planner)
    if engine is Engine.BACKTRACKING and planner != "joint":
        raise InputError("--planner", f"expected joint with --engine {engine}, got {planner}")
    refused = {"mode", "allow"} if planner in PIPELINES else {"mode"}
    for option in given:
        if option in refused and planner != "joint":
            raise InputError(f"--{option}", f"not for --planner {planner}")
        for own, options in ENGINE_OPTIONS.items():
            if option in options and engine is not own:
                raise InputError(f"--{option}", f"expected --engine {own} with it")


def _dimensions(allow: str | None) -> frozenset[Dimension] | None:
    """What ``--allow`` says; everything without it."""
    if allow is None:
        return None
    names = [name.strip() for name in allow.split(",")]
    for name in names:
        if name not in list(Dimension):
            raise InputError("--allow", f"{name}: expected some of {', '.join(Dimension)}")
    return frozenset(map(Dimension, names))


@contextmanager
def _progress(*, shown: bool) -> Generator[Progress]:
    """A line that shows how far the search is, for terminals."""
    console = PlainConsole(stderr=True)
    if not (shown and console.is_terminal):
        yield silent
        return
    with Live(console=console, transient=True) as live:

        def show(status: Status) -> None:
            live.update(Spinner("dots", progress_line(status)))

        yield show


def progress_line(status: Status) -> str:
    """What a search is at, in one line."""
    best = "" if status.best is None else f", best {status.best * 1e3:.3g} ms a step"
    return f"{status.work}: {status.candidates:,} plans priced{best}"


def _print_json(found: Planned, agreement: ModuleAgreement | None) -> None:
    estimates = found.plan.estimates
    content = {
        "model": found.plan.model_name,
        "machine": found.plan.machine.name,
        "devices": found.plan.machine.devices,
        "predicted_seconds": estimates.step_seconds,
        "one_device_seconds": estimates.one_device_seconds,
        "data_parallel_seconds": found.data_parallel_seconds,
        "speedup": _speedup(found),
        "optimizer": found.plan.optimizer,
        "recomputed_operators": len(found.plan.recompute),
        "peak_memory_bytes": estimates.peak_memory_bytes,
        "communication_elements": estimates.communication_elements,
        "search_seconds": found.seconds,
        "stop_reason": found.report.stop,
        "candidates": found.report.strategies,
        "simulated_plans": found.report.simulated,
        "cache_hits": found.report.known,
        "seconds_by_phase": dict(found.report.phases),
        "pipeline": pipeline_text(found.plan),
        "rules_applied": len(found.plan.derivation),
        "norm_groups": found.plan.norm_groups,
        "agreement": None if agreement is None else asdict(agreement),
        "opaque": [node.name for node in opaque_nodes(found.plan.model)],
    }
    say(json.dumps(content, indent=1))


def phases_text(phases: Mapping[str, float]) -> str:
    """Such as ``choosing 2.9, building 1.1``, the longest first."""
    ranked = sorted(phases.items(), key=lambda item: -item[1])
    return ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in ranked)


def _speedup(found: Planned) -> float | None:
    """Over data parallelism, where that was priced."""
    data = found.data_parallel_seconds
    return None if data is None else data / found.plan.estimates.step_seconds


def _print_report(found: Planned, out: Path) -> None:
    plan, report = found.plan, found.report
    console = PlainConsole()
    title = f"{plan.model_name} on {plan.machine.devices} x {plan.machine.name}"
    pipeline = pipeline_text(plan)
    table = Table(title=f"{title}, {pipeline}" if pipeline else title)
    for heading in ("tensor", "operator", "cut", "devices"):
        table.add_column(heading)
    described = rows(plan)
    for row in described[:MAX_ROWS]:
        table.add_row(row.name, row.call, row.cut, row.devices)
    if len(described) > MAX_ROWS:
        table.add_row("...", f"{len(described) - MAX_ROWS} more", "", "")
    console.print(table)
    console.print(overall(plan), soft_wrap=True)
    used = Table(title="Rules applied")
    for heading in ("rule", "times", "left == right"):
        used.add_column(heading, overflow="fold")
    for name, text, count in rules_used(plan.derivation):
        used.add_row(name, str(count), text)
    console.print(used)
    if plan.norm_groups > 1:
        console.print(
            groups_text(plan.norm_groups, batch_of(plan.model, plan.naming)), soft_wrap=True
        )
    if whole := [node.name for node in opaque_nodes(plan.model)]:
        console.print(f"without an equation, hence kept whole: {', '.join(whole)}", soft_wrap=True)
    estimates = plan.estimates
    console.print(
        f"predicted {estimates.step_seconds * 1e3:.3g} ms a step,"
        f" {estimates.one_device_seconds / estimates.step_seconds:.2f} times as fast as one device"
        f" ({estimates.one_device_seconds * 1e3:.3g} ms);"
        f" {estimates.communication_elements:,} elements communicated,"
        f" at most {estimates.peak_memory_bytes / 1e9:.2f} GB on a device with {plan.optimizer}"
        + (f", {len(plan.recompute)} operators recomputed" if plan.recompute else ""),
        soft_wrap=True,
    )
    if (speedup := _speedup(found)) is not None:
        console.print(f"{speedup:.2f} times as fast as data parallelism")
    console.print(
        f"chose among {report.strategies:,} strategies in {found.seconds:.1f} s,"
        f" simulated {report.simulated} plans, knew {report.known:,} prices from others"
        f" (stopped: {report.stop}); plan written to {out}",
        soft_wrap=True,
    )
    if report.phases:
        console.print(f"seconds: {phases_text(report.phases)}", soft_wrap=True)


if __name__ == "__main__":
    run_app(app, "optimize")

"""The fastest plan for a model: the search for it, its file, and its report."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rich.live import Live
from rich.spinner import Spinner

from pcg.capture import Captured
from pcg.collection import seldom_collected, uncollected
from pcg.errors import InputError
from pcg.files import check_writable, write_text_atomic
from pcg.graph.opaque import opaque_nodes
from pcg.machine import Machine
from pcg.plan.plan import machine_record, save_plan
from pcg.plan.training import Training
from search.choices import OTHER_SYSTEMS, REACH, THRESHOLD, IndexRole, Mode, RewriteSettings
from search.cost.cost import CostModel
from search.cost.efficiency import Speed
from search.cost.kept_whole import KeptWhole, kept_whole
from search.cost.planned import Planned
from search.cost.progress import Progress, Status, Teller, found_after, silent
from search.pipeline.planner import PIPELINES
from search.refine.compile import load_compiled
from search.report.describe import (
    pipeline_text,
    recomputed_counts,
)
from search.report.rewriting_text import rewriting_text
from search.report.trace import representatives, simulate_plan, write_trace
from substitutions.audit.locate import of_module
from substitutions.rules.store import Library, load_library
from unity.commands.looking import Look, machine_of
from unity.optimize import Options
from unity.support.cli import say, say_json
from unity.support.console import PlainConsole
from unity.support.declarations import load_user_operators
from unity.support.limits import check_batch, check_devices
from unity.support.plan_text import print_plan, speedup_of
from unity.support.planners import SearchOptions, asked_training, check_name, planner_of
from unity.support.speed import measured

if TYPE_CHECKING:
    from runtime.train.eager import ModuleAgreement

NEAR = 0.01
"""The most, as a fraction of its step, by which a plan near the fastest one is slower."""


@dataclass(frozen=True)
class SearchQuestion:
    """The task of a search. ``named``: the machine of the machine file. ``machine``: the same with
    the links of a profile. ``speed``: the speed of its devices by the profile, if there is one."""

    named: Machine
    machine: Machine
    speed: Speed | None
    training: Training
    dimensions: frozenset[IndexRole] | None


@dataclass(frozen=True)
class Answer:
    """The result of a search, with its question."""

    question: SearchQuestion
    planned: Planned
    agreement: ModuleAgreement | None
    notes: tuple[str, ...] = ()
    """Lines for the user about the graph."""

    @cached_property
    def whole(self) -> tuple[KeptWhole, ...]:
        """Operators that the plan never cuts because they have no equation."""
        asked, plan = self.question, self.planned.plan
        cost = CostModel(asked.machine, plan.training, asked.speed)
        return tuple(kept_whole(plan, cost))


def check_files(options: Options) -> None:
    """Raise InputError if a file can't be written."""
    for path in (options.out, options.trace, options.report):
        if path is not None:
            check_writable(path)


@uncollected()
def write(options: Options, answer: Answer) -> None:
    """Write the plan, its timeline and its page as the options ask, and print the report."""
    planned, question, agreement = answer.planned, answer.question, answer.agreement
    save_plan(planned.plan, options.out)
    if options.trace is not None:
        simulated = simulate_plan(planned.plan, question.machine, question.speed)
        write_trace(simulated, options.trace, representatives(simulated))
    if options.report is not None:
        write_page(answer, options.report, options.rules)
    if options.as_json:
        say_json({**_record(planned, agreement, answer.whole), "notes": answer.notes})
        return
    _print_report(planned, options.out, answer.whole)
    for line in (*answer.notes, *([] if agreement is None else [str(agreement)])):
        say(line)


def write_page(answer: Answer, path: Path, rules: Path | None) -> None:
    """Write the page about a plan, as a whole or not at all."""
    # Imported here because most searches write no page.
    from search.report.page.page import page

    question, planned = answer.question, answer.planned
    left = f"{planned.report.rewrites_left:,} groups of rewrites were left unexplored"
    rewriting = rewriting_text(planned)
    remarks = () if rewriting is None else (rewriting, left)
    text = page(planned.plan, question.machine, question.speed, rules=rules, remarks=remarks)
    write_text_atomic(path, text)


@seldom_collected()
def answered(options: Options, look: Callable[[], Look]) -> Answer:
    """Look at the model, and plan. The options have been checked. ``look``: captures the model.
    Raises InputError and NegativeAnswer."""
    question = _question(options)
    captured, agreement = look()
    library = load_library(options.rules)
    planned = _searched(options, question, library, captured)
    # A profile changes figures, not the machine that the plan is made for.
    made_for = replace(planned.plan, machine=machine_record(question.named))
    planned = replace(planned, plan=of_module(made_for, captured, library.rules))
    return Answer(question, planned, agreement, (*captured.notes, *planned.notes))


def get_ready(rules: Path | None) -> None:
    """Load what a search needs besides the model."""
    load_library(rules)
    load_compiled()


def check(options: Options) -> None:
    """Raise InputError for an unknown planner, and for options that the planner does not take. Only
    the joint planner rewrites."""
    planner = options.planner
    check_name(planner)
    is_given = {
        "mode": options.mode is not Mode.JOINT,
        "threshold": options.threshold != THRESHOLD,
        "reach": options.reach != REACH,
        # Pipelines and other systems choose their own cuts; all other planners obey --allow.
        "allow": options.allow is not None and planner in (*PIPELINES, *OTHER_SYSTEMS),
    }
    for option, given in is_given.items():
        if given and planner != "joint":
            raise InputError(f"--{option}", f"does not go with --planner {planner}")
    for option, given in (("mesh", options.mesh), ("shard", options.shard)):
        if given and planner != "gspmd":
            raise InputError(f"--{option}", f"with --planner {planner}, expected --planner gspmd")


def load(options: Options) -> None:
    """Load the user's operators."""
    load_user_operators(options.operators)


def _question(options: Options) -> SearchQuestion:
    """Return the task that the options ask for. Raises InputError."""
    machine = machine_of(options)
    dimensions = _dimensions(options.allow)
    check_devices(machine.name, machine.devices)
    advice = ", or leave `data` out of --allow"
    check_batch(options.batch, machine.devices, dimensions, advice=advice)
    asked = options.model, options.optimizer, options.precision
    training = asked_training(*asked, machine, compiled=options.compile)
    return SearchQuestion(machine, *measured(machine, options.profile), training, dimensions)


def _dimensions(allow: str | None) -> frozenset[IndexRole] | None:
    """Return the kinds of cuts of ``--allow``; None, which allows all, without it."""
    if allow is None:
        return None
    names = [name.strip() for name in allow.split(",")]
    for name in names:
        if name not in list(IndexRole):
            raise InputError("--allow", f"{name}: expected some of {', '.join(IndexRole)}")
    return frozenset(map(IndexRole, names))


def _searched(
    options: Options, question: SearchQuestion, library: Library, captured: Captured
) -> Planned:
    """Return the plan of the chosen planner."""
    with _progress(shown=not options.as_json) as show:
        teller = Teller(show)
        planner = planner_of(
            options.planner,
            question.machine,
            library,
            options.budget,
            question.training,
            question.speed,
            SearchOptions(
                options.mode,
                question.dimensions,
                options.recompute,
                options.degrees,
                RewriteSettings(options.threshold, options.reach),
                options.mesh,
                tuple(options.shard or ()),
                keeps_states=bool(captured.states),
            ),
            teller,
        )
        planned = planner.plan(options.model, captured.graph)
        return replace(planned, improvements=tuple(teller.improvements))


@contextmanager
def _progress(*, shown: bool) -> Generator[Progress]:
    """Yield a function that shows the progress of the search in a line, on a terminal."""
    console = PlainConsole(stderr=True)
    if not (shown and console.is_terminal):
        yield silent
        return
    with Live(console=console, transient=True) as live:

        def show(status: Status) -> None:
            live.update(Spinner("dots", progress_line(status)))

        yield show


def progress_line(status: Status) -> str:
    """The progress of a search in one line."""
    best = "" if status.best is None else f", best {status.best * 1e3:.3g} ms a step"
    bound = "" if status.bound is None else f", none here below {status.bound * 1e3:.3g} ms"
    gap = "" if status.gap is None else f" ({status.gap:.0%} less)"
    return f"{status.level}, {status.work}: {status.candidates:,} plans priced{best}{bound}{gap}"


def _record(
    planned: Planned, agreement: ModuleAgreement | None, whole: Sequence[KeptWhole]
) -> dict[str, object]:
    plan, estimates, report = planned.plan, planned.plan.estimates, planned.report
    return {
        "model": plan.model_name,
        "machine": plan.machine.name,
        "devices": plan.machine.devices,
        "predicted_seconds": estimates.step_seconds,
        "one_device_seconds": estimates.one_device_seconds,
        "data_parallel_seconds": planned.data_parallel_seconds,
        "data_parallel_fits": planned.data_parallel is None or planned.data_parallel.fits,
        "speedup": speedup_of(planned),
        "optimizer": plan.training.optimizer,
        "precision": plan.training.precision,
        "compiled": plan.training.compiled,
        "recomputed_operators": len(plan.recompute),
        "recomputed": dict(recomputed_counts(plan)),
        "has_own_order": bool(plan.order),
        "peak_memory_bytes": estimates.peak_memory_bytes,
        "communication_elements": estimates.communication_elements,
        "search_seconds": planned.seconds,
        "improvements": [
            {"after_seconds": plan.after, "step_seconds": plan.step}
            for plan in planned.improvements
        ],
        "stop_reason": report.stop,
        "candidates": report.strategies,
        "simulated_plans": report.simulated,
        "cache_hits": report.known,
        "rewrites_left": report.rewrites_left,
        "rewriting": rewriting_text(planned),
        "seconds_by_phase": dict(report.phases),
        "pipeline": pipeline_text(plan),
        "rules_applied": len(plan.derivation),
        "norm_groups": plan.norm_groups,
        "agreement": None if agreement is None else asdict(agreement),
        "opaque": [node.name for node in opaque_nodes(plan.model)],
        "kept_whole": [asdict(kept) for kept in whole],
    }


def phases_text(phases: Mapping[str, float]) -> str:
    """Text such as ``choosing 2.9, building 1.1``, the longest phase first."""
    ranked = sorted(phases.items(), key=lambda item: -item[1])
    return ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in ranked)


def _print_report(planned: Planned, out: Path, whole: Sequence[KeptWhole]) -> None:
    report = planned.report
    console = PlainConsole()
    print_plan(console, planned, whole)
    soon = found_after(planned.improvements, 1 + NEAR)
    near = "" if soon is None else f" (a plan within {NEAR:.0%} of this one after {soon:.1f} s)"
    console.print(
        f"chose among {report.strategies:,} strategies in {planned.seconds:.1f} s{near},"
        f" simulated {report.simulated} plans, reused {report.known:,} prices,"
        f" left {report.rewrites_left:,} rewrites unexplored (stopped: {report.stop});"
        f" plan written to {out}",
        soft_wrap=True,
    )
    if report.phases:
        console.print(f"seconds: {phases_text(report.phases)}", soft_wrap=True)

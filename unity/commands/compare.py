"""Compares planners: searches with each, and writes a table, plots and a JSON file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from pcg.collection import seldom_collected
from pcg.files import make_folder
from pcg.machine import load_machine
from substitutions.rules.store import load_library
from unity.compare import Options
from unity.support.cli import say
from unity.support.comparison import (
    ComparisonQuestion,
    Prediction,
    StepParts,
    file_stems,
    numbers,
    over_others,
    planners,
)
from unity.support.console import PlainConsole
from unity.support.declarations import load_user_operators
from unity.support.plot import can_plot, plot, plot_steps
from unity.support.speed import measured

FILE = "compare.json"
PARTS = "C E I: computing, exposed communication and idle time of the busiest GPU"
GROUPED = (
    "on the same number of GPUs all planners get the same model, whose batch norms take statistics"
    " over groups of samples (--batch-norm)"
)


@seldom_collected()
def run(options: Options) -> None:
    """Compare, and write the file after each search. Raises InputError."""
    load_user_operators(options.operators)
    question = _question(options)
    question.check()
    make_folder(options.out)
    entries: list[Prediction] = []
    console, status = PlainConsole(stderr=options.as_json), PlainConsole(stderr=True)
    try:
        with status.status("searching") as spinner:
            for entry in question.entries(options.out):
                entries.append(entry)
                question.save(entries, options.out / FILE)
                done = f"{entry.model} on {entry.devices} by {entry.planner}"
                spinner.update(f"{len(entries)} done, last {done}")
    finally:
        # Show the finished searches after Ctrl-C, or after a model that cannot be read, too.
        if entries:
            _show(entries, question.machine.name, options.out, console)
    if options.as_json:
        say((options.out / FILE).read_text().rstrip("\n"))


def _question(options: Options) -> ComparisonQuestion:
    """Return the comparison that the options ask for. Raises InputError."""
    machine, speed = measured(load_machine(options.machine), options.profile)
    return ComparisonQuestion(
        machine,
        load_library(),
        options.models,
        numbers(options.gpus),
        planners(options.planner),
        options.batch,
        options.budget,
        speed,
        options.batch_norm,
        options.precision,
        options.mesh,
        tuple(options.shard or ()),
    )


def _show(entries: Sequence[Prediction], machine: str, out: Path, console: PlainConsole) -> None:
    for model, stem in file_stems(dict.fromkeys(entry.model for entry in entries)).items():
        own = [entry for entry in entries if entry.model == model]
        console.print(_table(model, machine, own))
        console.print(PARTS, soft_wrap=True)
        if any(entry.norm_groups > 1 for entry in own):
            console.print(f"{model}: {GROUPED}", soft_wrap=True)
        if can_plot():
            for draw in (plot, plot_steps):
                drawn = draw(model, machine, own, out / stem)
                if drawn is not None:
                    console.print(f"drawn in {drawn[0]} and {drawn[1]}", soft_wrap=True)
    if not can_plot():
        console.print(
            "no plots: install matplotlib (the extra `plot`) to draw them", soft_wrap=True
        )
    console.print(f"written to {out / FILE}", soft_wrap=True)


def _table(model: str, machine: str, entries: Sequence[Prediction]) -> Table:
    table = Table(title=f"{model} on {machine}, predicted")
    for heading in ("GPUs", "planner"):
        table.add_column(heading, no_wrap=True)
    # In two lines each, so that the table fits a terminal of 80 columns.
    for heading in (
        "samples\na second",
        "x best\nother",
        "ms a\nstep",
        "GB a\nGPU",
        "of it\nC E I %",
        "s to\nplan",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    last = 0
    for entry in entries:
        if last and entry.devices != last:
            table.add_section()
        devices = "" if entry.devices == last else str(entry.devices)
        last = entry.devices
        table.add_row(devices, entry.planner, *_figures(entry, entries))
    return table


def _figures(entry: Prediction, entries: Sequence[Prediction]) -> tuple[str, ...]:
    search = f"{entry.search_seconds:.1f}"
    if entry.step_seconds is None or entry.samples_per_second is None:
        return "does not fit", *[""] * 4, search
    ratio = over_others(entry, entries)
    return (
        f"{entry.samples_per_second:,.0f}",
        "" if ratio is None else f"{ratio:.2f}",
        f"{entry.step_seconds * 1e3:.3g}",
        f"{(entry.memory_bytes or 0) / 1e9:.2f}",
        _parts(entry.parts, entry.step_seconds),
        search,
    )


def _parts(parts: StepParts | None, step_seconds: float) -> str:
    """The step of the busiest device in percent: computing, exposed communication, idle."""
    if parts is None:
        return ""
    seconds = parts.computing, parts.exposed, parts.idle
    return " ".join(f"{100 * one / step_seconds:.0f}" for one in seconds)

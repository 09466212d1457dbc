"""`unity compare`: predicted throughput of a model by planner and number of devices.

python -m unity.compare mlp --machine summit --gpus 6,12,24,48,96,192
python -m unity.compare dlrm xdl --machine dgx-a100 --gpus 8,64 --planners data-parallel,joint
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from pcg.files import make_folder
from pcg.machine import load_machine
from substitutions.rules.store import load_library
from unity.support.batch_norm import HELP, LOCAL
from unity.support.cli import PlainConsole, new_app, run_app, say
from unity.support.comparison import Entry, Question, numbers, over_others, planners
from unity.support.declarations import load_user_operators
from unity.support.planners import NAMES
from unity.support.plot import can_plot, plot
from unity.support.speed import PROFILE_HELP, measured

app = new_app()

GROUPED = (
    "all planners are given the same model on as many GPUs, whose batch norms take the statistics"
    " of groups of samples (--batch-norm)"
)


@app.command()
def compare(
    models: Annotated[list[str], typer.Argument(help="Models, as `unity optimize` takes them.")],
    machine: Annotated[str, typer.Option(help="A preset, or a machine file.")] = "summit",
    gpus: Annotated[str, typer.Option(help="Numbers of devices.")] = "6,12,24,48,96,192",
    planner: Annotated[
        str, typer.Option("--planners", help=f"Some of {', '.join(NAMES)}.")
    ] = "data-parallel,expert,megatron,joint",
    batch: Annotated[
        int | None, typer.Option(help="Global batch; by default it grows with the devices.")
    ] = None,
    batch_norm: Annotated[str, typer.Option(help=HELP)] = LOCAL,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Folder for compare.json and the plots.")
    ] = Path("compare"),
    profile: Annotated[Path | None, typer.Option(help=PROFILE_HELP)] = None,
    operators: Annotated[
        Path | None, typer.Option(help="A Python file that declares further operators.")
    ] = None,
    budget: Annotated[float, typer.Option(min=0.0, help="Seconds for each search at most.")] = 600,
    as_json: Annotated[bool, typer.Option("--json", help="Print compare.json as well.")] = False,
) -> None:
    """Compare planners on MODELS; write a table, plots and compare.json."""
    if operators is not None:
        load_user_operators(operators)
    target, speed = measured(load_machine(machine), profile)
    chosen = numbers(gpus), planners(planner)
    question = Question(target, load_library(), models, *chosen, batch, budget, speed, batch_norm)
    question.check()
    make_folder(out)
    found: list[Entry] = []
    console, status = PlainConsole(stderr=as_json), PlainConsole(stderr=True)
    try:
        with status.status("searching") as spinner:
            for entry in question.entries():
                found.append(entry)
                question.save(found, out / "compare.json")
                done = f"{entry.model} on {entry.devices} by {entry.planner}"
                spinner.update(f"{len(found)} done, last {done}")
    finally:
        # Whatever ends it, Ctrl-C or a model that cannot be read: what is done is shown.
        if found:
            _show(found, target.name, out, console)
    if as_json:
        say((out / "compare.json").read_text().rstrip("\n"))


def _show(entries: Sequence[Entry], machine: str, out: Path, console: PlainConsole) -> None:
    for model in dict.fromkeys(entry.model for entry in entries):
        own = [entry for entry in entries if entry.model == model]
        console.print(_table(model, machine, own))
        if any(entry.norm_groups > 1 for entry in own):
            console.print(f"{model}: {GROUPED}", soft_wrap=True)
        if can_plot():
            drawn = plot(model, machine, own, out)
            console.print(f"drawn in {drawn[0]} and {drawn[1]}", soft_wrap=True)
    if not can_plot():
        console.print("no plots: they take matplotlib, the extra `plot`", soft_wrap=True)
    console.print(f"written to {out / 'compare.json'}", soft_wrap=True)


def _table(model: str, machine: str, entries: Sequence[Entry]) -> Table:
    table = Table(title=f"{model} on {machine}, predicted")
    for heading in ("GPUs", "planner"):
        table.add_column(heading, no_wrap=True)
    # In two lines each, so that the table fits a terminal of 80 columns.
    for heading in (
        "samples\na second",
        "x best\nother",
        "ms a\nstep",
        "GB a\ndevice",
        "search\ns",
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


def _figures(entry: Entry, entries: Sequence[Entry]) -> tuple[str, ...]:
    search = f"{entry.search_seconds:.1f}"
    if entry.step_seconds is None or entry.samples_per_second is None:
        return "does not fit", "", "", "", search
    ratio = over_others(entry, entries)
    return (
        f"{entry.samples_per_second:,.0f}",
        "" if ratio is None else f"{ratio:.2f}",
        f"{entry.step_seconds * 1e3:.3g}",
        f"{(entry.memory_bytes or 0) / 1e9:.2f}",
        search,
    )


if __name__ == "__main__":
    run_app(app, "compare")

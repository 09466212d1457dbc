"""Options of `unity optimize`, which finds the fastest way to train a model on a machine.

python -m unity.optimize mlp-tiny --machine local -o plan.json
python -m unity.optimize mlp --machine summit --nodes 2 -o plan.json
python -m unity.optimize --example > my_model.py
python -m unity.optimize my_model.py:make_model --batch 64
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from pcg.zoo import MODELS
from search.choices import PLANNER_NAMES, THRESHOLD, IndexRole, Mode, Recompute
from unity.support.batch_norm import HELP, LOCAL_PLANNERS, WHOLE
from unity.support.cli import app_of, run_app, say
from unity.support.options import (
    AsJson,
    Batch,
    Machine,
    Operators,
    Precision,
    Profile,
    Rules,
    SearchSeconds,
    Timeline,
)

MODEL_HELP = (
    "FILE.py:FUNCTION, a function that returns a torch module and example inputs; or one of "
    + "; ".join(f"{model.name}: {model.summary}" for model in MODELS.values())
)


def _print_example(wanted: bool) -> None:
    """Print the file with the example, and end the command."""
    if wanted:
        say(files("unity.examples").joinpath("my_model.py").read_text("utf-8").rstrip("\n"))
        raise typer.Exit


@dataclass(frozen=True)
class Options:
    """Find the fastest plan for MODEL and write it to a file."""

    model: Annotated[str, typer.Argument(help=MODEL_HELP)]
    machine: Machine = "local"
    nodes: Annotated[
        int | None, typer.Option(help="Number of nodes; by default that of the machine file.")
    ] = None
    devices: Annotated[
        int | None, typer.Option(help="Number of devices; by default all of the nodes.")
    ] = None
    batch: Batch = None
    out: Annotated[Path, typer.Option("-o", "--out", help="Plan file to write.")] = Path(
        "plan.json"
    )
    rules: Rules = None
    profile: Profile = None
    operators: Operators = None
    planner: Annotated[
        str,
        typer.Option(help=f"Family of plans: one of {', '.join(PLANNER_NAMES)}."),
    ] = "joint"
    mode: Annotated[
        Mode,
        typer.Option(help="When algebraic rewrites are judged: with the cuts, before, or never."),
    ] = Mode.JOINT
    degrees: Annotated[
        str | None,
        typer.Option(
            help="The plan by hand of such degrees as tensor=8,sequence,pipeline=4,micro-batches=16"
            " in place of a search."
        ),
    ] = None
    mesh: Annotated[
        str | None,
        typer.Option(
            help="Named axes of the devices for --planner gspmd, such as data=4,model=8, the"
            " outermost first; by default data alone."
        ),
    ] = None
    shard: Annotated[
        list[str] | None,
        typer.Option(
            help="For --planner gspmd, how a tensor is sharded: NAME=data,-,model says along which"
            " axis each dimension is, - none, ? as it comes; may be repeated."
        ),
    ] = None
    allow: Annotated[
        str | None,
        typer.Option(
            help=f"Cuts that a plan may use, such as data,model; of {', '.join(IndexRole)}."
        ),
    ] = None
    recompute: Annotated[
        Recompute,
        typer.Option(
            help="What the backward pass makes again: what it takes to fit, nothing, what is large"
            " and cheap, or all but what passes between spans."
        ),
    ] = Recompute.AUTO
    budget: SearchSeconds = 600.0
    threshold: Annotated[
        float,
        typer.Option(
            min=1.0,
            help="A graph may be so many times as slow as the best and still be rewritten further.",
        ),
    ] = THRESHOLD
    optimizer: Annotated[
        str | None,
        typer.Option(help="sgd, momentum or adam; by default that of the zoo's model, else sgd."),
    ] = None
    precision: Precision = None
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Plan for operators compiled together, by torch.compile."),
    ] = False
    batch_norm: Annotated[
        str | None,
        typer.Option(
            help=f"{HELP} By default local for {' and '.join(LOCAL_PLANNERS)}, else {WHOLE}."
        ),
    ] = None
    compare: Annotated[
        bool,
        typer.Option(
            "--self-check/--no-self-check",
            "--compare/--no-compare",
            help="Run the module of a FILE.py:FUNCTION, and compare its graph with it.",
        ),
    ] = True
    trace: Timeline = None
    report: Annotated[
        Path | None, typer.Option(help="Write a page about the plan, for a browser.")
    ] = None
    as_json: AsJson = False
    example: Annotated[
        bool,
        typer.Option(
            "--example", is_eager=True, callback=_print_example, help="Print a model to begin with."
        ),
    ] = False


app = app_of(Options, "unity.commands.optimize")

if __name__ == "__main__":
    run_app(app, "optimize")

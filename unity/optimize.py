"""Options of `unity optimize`, which finds the fastest plan to train a model on a machine.

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
from search.choices import PLANNER_NAMES, REACH, THRESHOLD, IndexRole, Mode, Recompute
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
    "FILE.py:FUNCTION, where the function returns a torch module and example inputs; or one of "
    + "; ".join(f"{model.name}: {model.summary}" for model in MODELS.values())
)


def _print_example(wanted: bool) -> None:
    """Print the file with the example, and end the command."""
    if wanted:
        say(files("unity.examples").joinpath("my_model.py").read_text("utf-8").rstrip("\n"))
        raise typer.Exit


@dataclass(frozen=True)
class Options:
    """Find the fastest plan to train MODEL, and write it to a file."""

    model: Annotated[str, typer.Argument(help=MODEL_HELP)]
    machine: Machine = "local"
    nodes: Annotated[
        int | None, typer.Option(help="Number of nodes. Default: that of the machine file.")
    ] = None
    devices: Annotated[
        int | None, typer.Option(help="Number of devices. Default: all devices of the nodes.")
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
        typer.Option(help=f"Family of plans to search: one of {', '.join(PLANNER_NAMES)}."),
    ] = "joint"
    mode: Annotated[
        Mode,
        typer.Option(
            help="When to judge algebraic rewrites: with the cuts (joint), before them"
            " (sequential), never (parallel), or for data parallelism alone (algebra)."
        ),
    ] = Mode.JOINT
    degrees: Annotated[
        str | None,
        typer.Option(
            help="Make the plan of these degrees of parallelism, without a search, such as"
            " tensor=8,sequence,pipeline=4,micro-batches=16."
        ),
    ] = None
    mesh: Annotated[
        str | None,
        typer.Option(
            help="Named axes of the devices for --planner gspmd, the outermost first, such as"
            " data=4,model=8. Default: one axis, data."
        ),
    ] = None
    shard: Annotated[
        list[str] | None,
        typer.Option(
            help="Sharding of a tensor for --planner gspmd: NAME=data,-,model names an axis for"
            " each dimension, - for none, ? to leave it to propagation; may be repeated."
        ),
    ] = None
    allow: Annotated[
        str | None,
        typer.Option(
            help="Kinds of cuts that a plan may use, such as data,model: any of"
            f" {', '.join(IndexRole)}. Default: all."
        ),
    ] = None
    recompute: Annotated[
        Recompute,
        typer.Option(
            help="What the backward pass computes again to save memory: as much as is needed to fit"
            " (auto), nothing (none), cheap operators (selective), or all but the tensors between"
            " blocks (full)."
        ),
    ] = Recompute.AUTO
    budget: SearchSeconds = 600.0
    threshold: Annotated[
        float,
        typer.Option(
            min=1.0,
            help="How many times as slow as the best a graph may be to be rewritten further.",
        ),
    ] = THRESHOLD
    reach: Annotated[
        int,
        typer.Option(
            min=0,
            help="Distance from a rewrite, in operators, up to which strategies are chosen anew to"
            " estimate its gain.",
        ),
    ] = REACH
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="sgd, momentum or adam. Default: the paper's for models of the zoo, else sgd."
        ),
    ] = None
    precision: Precision = None
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Plan for operators that torch.compile joins."),
    ] = False
    batch_norm: Annotated[
        str | None,
        typer.Option(
            help=f"{HELP} Default: local for {' and '.join(LOCAL_PLANNERS)}, else {WHOLE}."
        ),
    ] = None
    compare: Annotated[
        bool,
        typer.Option(
            "--self-check/--no-self-check",
            "--compare/--no-compare",
            help="Whether to run the module of a FILE.py:FUNCTION and compare its graph with it.",
        ),
    ] = True
    trace: Timeline = None
    report: Annotated[
        Path | None, typer.Option(help="Write a page about the plan to this file, for a browser.")
    ] = None
    as_json: AsJson = False
    example: Annotated[
        bool,
        typer.Option(
            "--example",
            is_eager=True,
            callback=_print_example,
            help="Print an example of a FILE.py with a model, and exit.",
        ),
    ] = False


app = app_of(Options, "unity.commands.optimize")

if __name__ == "__main__":
    run_app(app, "optimize")

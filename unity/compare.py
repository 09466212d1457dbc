"""Options of `unity compare`, which compares planners on models and numbers of devices.

python -m unity.compare mlp --machine summit --gpus 6,12,24,48,96,192
python -m unity.compare dlrm xdl --machine dgx-a100 --gpus 8,64 --planners data-parallel,joint
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from search.choices import PLANNER_NAMES
from unity.support.batch_norm import HELP, LOCAL
from unity.support.cli import app_of, run_app
from unity.support.options import (
    AsJson,
    Batch,
    Machine,
    Operators,
    Precision,
    Profile,
    SearchSeconds,
)


@dataclass(frozen=True)
class Options:
    """Plan MODELS by several planners, and write a table, plots and compare.json."""

    models: Annotated[list[str], typer.Argument(help="Models, as for unity optimize.")]
    machine: Machine = "summit"
    gpus: Annotated[str, typer.Option(help="Numbers of devices, such as 6,12.")] = (
        "6,12,24,48,96,192"
    )
    planner: Annotated[
        str,
        typer.Option(
            "--planners", help=f"Planners, comma-separated: any of {', '.join(PLANNER_NAMES)}."
        ),
    ] = "data-parallel,expert,megatron,joint"
    mesh: Annotated[
        str | None,
        typer.Option(
            help="Named axes of the devices for gspmd, as for unity optimize.",
            metavar="NAME=SIZE,...",
        ),
    ] = None
    shard: Annotated[
        list[str] | None,
        typer.Option(
            help="Sharding of a tensor for gspmd, as for unity optimize; may be repeated.",
            metavar="NAME=AXIS,...",
        ),
    ] = None
    batch: Batch = None
    precision: Precision = None
    batch_norm: Annotated[str, typer.Option(help=HELP)] = LOCAL
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Folder for compare.json and the plots.")
    ] = Path("compare")
    profile: Profile = None
    operators: Operators = None
    budget: SearchSeconds = 600
    as_json: AsJson = False


app = app_of(Options, "unity.commands.compare")

if __name__ == "__main__":
    run_app(app, "compare")

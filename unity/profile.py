"""Options of `unity profile`, which measures operators and links for the cost model.

python -m unity.profile --machine local -o profile.json
torchrun --nnodes 2 --nproc-per-node 8 ... -m unity.profile --machine dgx-a100 --nodes 2
python -m unity.optimize mlp-tiny --machine local --profile profile.json -o plan.json
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from unity.support.cli import app_of, run_app
from unity.support.options import AsJson, Machine


@dataclass(frozen=True)
class Options:
    """Measure operators and links of this computer, with one process for each device."""

    machine: Machine = "local"
    nodes: Annotated[
        int,
        typer.Option(
            min=1, help="Number of nodes whose links to measure. Needs torchrun on each node."
        ),
    ] = 1
    devices: Annotated[
        int | None,
        typer.Option(
            help="Number of devices to use. Default: those of a node that this computer has."
        ),
    ] = None
    precision: Annotated[
        list[str] | None,
        typer.Option(
            help="fp32, fp64, tf32, bf16 or fp16; may be repeated. Default: fp32 and fp64 on"
            " CPUs, all of them on GPUs."
        ),
    ] = None
    out: Annotated[Path, typer.Option("-o", "--out", help="Profile file to write.")] = Path(
        "profile.json"
    )
    as_json: AsJson = False


app = app_of(Options, "unity.commands.profile")

if __name__ == "__main__":
    run_app(app, "profile")

"""Options of `unity simulate`, which predicts the time and memory of a step.

python -m unity.simulate plan.json
python -m unity.simulate plan.json --trace trace.json --devices 0-7
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from unity.support.cli import app_of, run_app
from unity.support.options import (
    AsJson,
    Nodes,
    Operators,
    PlanMachine,
    PlanPrecision,
    Profile,
    Timeline,
)


@dataclass(frozen=True)
class Options:
    """Predict the time and memory of a training step by PLAN."""

    plan: Annotated[Path, typer.Argument(help="A plan file, from unity optimize.")]
    machine: PlanMachine = None
    nodes: Nodes = None
    trace: Timeline = None
    devices: Annotated[
        str | None, typer.Option(help="Devices in the timeline, such as 0-7,12. Default: a few.")
    ] = None
    profile: Profile = None
    precision: PlanPrecision = None
    operators: Operators = None
    as_json: AsJson = False


app = app_of(Options, "unity.commands.simulate")

if __name__ == "__main__":
    run_app(app, "simulate")

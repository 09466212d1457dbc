"""Options of `unity diff`, which says how two plans of a model differ.

python -m unity.diff plan.json other.json
python -m unity.diff plan.json other.json --json
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from unity.support.cli import app_of, run_app
from unity.support.options import AsJson, Nodes, Operators, PlanMachine, Profile


@dataclass(frozen=True)
class Options:
    """Say how plan B differs from plan A of the same model on the same machine.

    The differences are placements, rules, pipeline, recomputation and optimizer, and the seconds
    and bytes of a step.
    """

    a: Annotated[Path, typer.Argument(help="A plan file, from unity optimize.")]
    b: Annotated[Path, typer.Argument(help="Another plan file of the same model.")]
    machine: PlanMachine = None
    nodes: Nodes = None
    profile: Profile = None
    operators: Operators = None
    as_json: AsJson = False


app = app_of(Options, "unity.commands.diff")

if __name__ == "__main__":
    run_app(app, "diff")

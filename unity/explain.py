"""Options of `unity explain`, which says why the operators of a plan are placed as they are.

python -m unity.explain plan.json
python -m unity.explain plan.json --operator t5
python -m unity.explain plan.json --operator layers.0.weight --json
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
    """Explain the placements of PLAN: what each costs, what the next best would cost, and what is
    impossible."""

    plan: Annotated[Path, typer.Argument(help="A plan that `unity optimize` wrote.")]
    operator: Annotated[
        str | None,
        typer.Option(
            help="One operator: the name of a tensor that it makes, of a parameter that it reads,"
            " or its own. By default all, those that are alike together."
        ),
    ] = None
    alternatives: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=512,
            help="So many other placements of an operator are simulated, the most promising ones;"
            " by default 8 of one that is named, and fewer where all are explained.",
        ),
    ] = None
    machine: PlanMachine = None
    nodes: Nodes = None
    profile: Profile = None
    operators: Operators = None
    as_json: AsJson = False


app = app_of(Options, "unity.commands.explain")

if __name__ == "__main__":
    run_app(app, "explain")

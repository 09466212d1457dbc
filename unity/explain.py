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
    """Explain the placements of the operators of PLAN.

    For each operator, print its cost, the cost of the next best placements, and the indices that
    cannot be cut.
    """

    plan: Annotated[Path, typer.Argument(help="A plan file, from unity optimize.")]
    operator: Annotated[
        str | None,
        typer.Option(
            help="The operator to explain: the name of its result, of a parameter that it reads, or"
            " of the operator, such as matmul. Default: all operators, like ones together."
        ),
    ] = None
    alternatives: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=512,
            help="Number of other placements to simulate for an operator, the most promising ones."
            " Default: 8 with --operator, fewer without.",
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

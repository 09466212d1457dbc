"""Options of `unity report`, which writes a page about a plan for a browser.

python -m unity.report plan.json -o report.html
python -m unity.report plan.json --against other.json -o report.html
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from unity.support.cli import app_of, run_app
from unity.support.options import Nodes, Operators, PlanMachine, Profile, Rules


@dataclass(frozen=True)
class Options:
    """Write a page about PLAN for a browser: one file that needs no network."""

    plan: Annotated[Path, typer.Argument(help="A plan file, from unity optimize.")]
    out: Annotated[Path, typer.Option("-o", "--out", help="HTML file to write.")] = Path(
        "report.html"
    )
    against: Annotated[
        list[Path] | None,
        typer.Option(help="Another plan of the same model to compare with; may be repeated."),
    ] = None
    machine: PlanMachine = None
    nodes: Nodes = None
    rules: Rules = None
    profile: Profile = None
    operators: Operators = None


app = app_of(Options, "unity.commands.report")

if __name__ == "__main__":
    run_app(app, "report")

"""Options of `unity generate`, which generates and proves the rule library.

python -m unity.generate --certificates
python -m unity.generate --only matmul --only relu --out /tmp
python -m unity.generate --explain rules.json:a_rule
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from substitutions.generate.limits import BUDGET, MAX_OPS
from unity.support.cli import app_of, run_app
from unity.support.options import AsJson, Jobs, Memory, Operators, Seconds


@dataclass(frozen=True)
class Options:
    """Enumerate graphs, find pairs that compute the same, prove them, write the library."""

    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for rules.json, from which --explain reads it; by default the installed"
            " library."
        ),
    ] = None
    only: Annotated[
        list[str] | None,
        typer.Option(help="Operator that rules have to be about; may be repeated."),
    ] = None
    operators: Operators = None
    max_ops: Annotated[
        int, typer.Option(min=1, max=4, help="Operators a side in the algebraic enumeration.")
    ] = MAX_OPS
    derived: Annotated[
        bool,
        typer.Option("--derived", help="Keep rules too that follow from smaller ones in one step."),
    ] = False
    certificates: Annotated[
        bool,
        typer.Option("--certificates", help="Write what each proof rests on, for unity recheck."),
    ] = False
    parallel: Annotated[
        bool,
        typer.Option("--parallel/--algebra", help="All rules, or algebraic rules alone."),
    ] = True
    jobs: Jobs = None
    seconds: Seconds = BUDGET.seconds
    memory: Memory = BUDGET.memory
    explain: Annotated[
        str | None,
        typer.Option(
            help="Show how a rule, FILE:NAME, or each rule of a FILE follows from the library."
        ),
    ] = None
    show_rejected: Annotated[
        bool, typer.Option("--rejected", help="List the candidates that are not proved.")
    ] = False
    as_json: AsJson = False


app = app_of(Options, "unity.commands.generate")

if __name__ == "__main__":
    run_app(app, "generate")

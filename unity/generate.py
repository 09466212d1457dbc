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
    """Generate the rule library: enumerate graphs, pair those of equal values, prove the pairs."""

    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write the library to. With --explain, the folder of the library to"
            " explain by. Default: the installed library."
        ),
    ] = None
    only: Annotated[
        list[str] | None,
        typer.Option(help="Keep only rules about this operator; may be repeated."),
    ] = None
    operators: Operators = None
    max_ops: Annotated[
        int, typer.Option(min=1, max=4, help="Operators a side in algebraic rules.")
    ] = MAX_OPS
    derived: Annotated[
        bool,
        typer.Option(
            "--derived", help="Also keep rules that follow from smaller ones in one step."
        ),
    ] = False
    certificates: Annotated[
        bool,
        typer.Option(
            "--certificates", help="Also write certificates of the proofs, for unity recheck."
        ),
    ] = False
    parallel: Annotated[
        bool,
        typer.Option(
            "--parallel/--algebra", help="Whether to generate all rules, or algebraic rules only."
        ),
    ] = True
    jobs: Jobs = None
    seconds: Seconds = BUDGET.seconds
    memory: Memory = BUDGET.memory
    explain: Annotated[
        str | None,
        typer.Option(
            help="Show how rules follow from the library: FILE:NAME, or FILE for all its rules."
        ),
    ] = None
    show_rejected: Annotated[
        bool, typer.Option("--rejected", help="List the candidates that were not proved.")
    ] = False
    as_json: AsJson = False


app = app_of(Options, "unity.commands.generate")

if __name__ == "__main__":
    run_app(app, "generate")

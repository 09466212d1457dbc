"""Options of `unity verify`, which proves or refutes rules.

python -m unity.verify
python -m unity.verify rules.json foreign.json --jobs 2 --json
python -m unity.verify my_rules.json --operators my_ops.py --snippets build/snippets
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pcg.budget import Budget
from unity.support.cli import app_of, run_app
from unity.support.options import AsJsonLines, Jobs, Memory, Operators, Seconds

BUDGET = Budget(seconds=3)
"""The budget of one rule. Rules of the library take well under a second."""


@dataclass(frozen=True)
class Options:
    """Prove or refute the rules in PATHS."""

    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Rule files of Unity, TASO or FlexFlow. Default: the library."),
    ] = None
    operators: Operators = None
    jobs: Jobs = None
    certificates: Annotated[
        Path | None, typer.Option(help="Folder to write certificates of the proofs to.")
    ] = None
    snippets: Annotated[
        Path | None, typer.Option(help="Folder to write programs to that show the counterexamples.")
    ] = None
    seconds: Seconds = BUDGET.seconds
    memory: Memory = BUDGET.memory
    as_json: AsJsonLines = False


app = app_of(Options, "unity.commands.verify")

if __name__ == "__main__":
    run_app(app, "verify")

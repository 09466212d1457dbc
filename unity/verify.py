"""Options of `unity verify`, which decides the rules of files, our own or of other systems.

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
"""For one rule: ours take well under a second, and most a few milliseconds."""


@dataclass(frozen=True)
class Options:
    """Prove or refute the rules of files."""

    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Rule files, ours or of TASO or FlexFlow; by default our library."),
    ] = None
    operators: Operators = None
    jobs: Jobs = None
    certificates: Annotated[
        Path | None, typer.Option(help="Folder for certificates of the proofs.")
    ] = None
    snippets: Annotated[
        Path | None, typer.Option(help="Folder for programs that show the counterexamples.")
    ] = None
    seconds: Seconds = BUDGET.seconds
    memory: Memory = BUDGET.memory
    as_json: AsJsonLines = False


app = app_of(Options, "unity.commands.verify")

if __name__ == "__main__":
    run_app(app, "verify")

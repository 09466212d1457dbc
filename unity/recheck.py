"""Options of `unity recheck`, which checks certificates with solvers of your choice, without the
prover's search.

python -m unity.verify --certificates build/certificates
python -m unity.recheck build/certificates
python -m unity.recheck generated_rules
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pcg.budget import Budget
from unity.support.cli import app_of, run_app
from unity.support.options import AsJsonLines, Memory, Seconds

BUDGET = Budget(seconds=4)
"""For one certificate: ours take well under a second."""


@dataclass(frozen=True)
class Options:
    """Derive every side condition of every certificate again, solve it, and say what is proved."""

    certificates: Annotated[
        Path,
        typer.Argument(help="A folder of verify --certificates or of a library, or a .jsonl.xz."),
    ]
    solver: Annotated[
        list[str] | None, typer.Option(help="z3 or cvc5; may be repeated. By default both.")
    ] = None
    library: Annotated[
        Path | None, typer.Option(help="Rules of which each has to have a certificate.")
    ] = None
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2
    seconds: Seconds = BUDGET.seconds
    memory: Memory = BUDGET.memory
    as_json: AsJsonLines = False


app = app_of(Options, "unity.commands.recheck")

if __name__ == "__main__":
    run_app(app, "recheck")

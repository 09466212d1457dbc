"""Options of `unity recheck`, which checks certificates without the search for proofs.

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
"""The budget of one certificate. Those of the library take well under a second."""


@dataclass(frozen=True)
class Options:
    """Check CERTIFICATES: derive each side condition again, solve it, and print what is proved."""

    certificates: Annotated[
        Path,
        typer.Argument(
            help="A folder from verify --certificates, a library's folder, or a .jsonl.xz."
        ),
    ]
    solver: Annotated[
        list[str] | None, typer.Option(help="z3 or cvc5; may be repeated. Default: both.")
    ] = None
    library: Annotated[
        Path | None, typer.Option(help="A library whose rules must all have a certificate.")
    ] = None
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 2
    seconds: Seconds = BUDGET.seconds
    memory: Memory = BUDGET.memory
    as_json: AsJsonLines = False


app = app_of(Options, "unity.commands.recheck")

if __name__ == "__main__":
    run_app(app, "recheck")

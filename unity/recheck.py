"""`unity recheck`: check certificates with solvers of your choice, without the prover's search.

python -m unity.verify --certificates build/certificates
python -m unity.recheck build/certificates
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from pcg.errors import NegativeAnswer
from substitutions.workers import parallel_map
from unity.cli import new_app, run_app
from verifier.recheck import Rechecked, Rechecker, certificates
from verifier.solvers import SOLVERS, require

app = new_app()
CHUNK = 64
"""Certificates that one task checks: they share scripts, and each of these is solved once."""


@app.command()
def recheck(
    directory: Annotated[Path, typer.Argument(help="What unity verify --certificates wrote.")],
    solver: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(SOLVERS)}; may be repeated. By default all."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a certificate, a line each.")
    ] = False,
) -> None:
    """Derive every side condition of every certificate again, and solve it."""
    chosen = require(solver or list(SOLVERS))
    paths = certificates(directory)
    chunks = [paths[i : i + CHUNK] for i in range(0, len(paths), CHUNK)]
    found = track(
        parallel_map(partial(_check, directory, chosen), chunks, jobs),
        "rechecking",
        total=len(chunks),
        console=Console(stderr=True),
        transient=True,
        disable=as_json,
    )
    rejected = 0
    conditions = 0
    for path, result in zip(paths, (r for chunk in found for r in chunk), strict=True):
        rejected += not result.accepted
        conditions += result.conditions
        if as_json:
            print(json.dumps(_record(path, result)))
        elif not result.accepted:
            print(f"rejected: {path}: {result.reason}")
    if not as_json:
        print(f"{directory}: {len(paths) - rejected} certificates accepted, {rejected} rejected")
        print(f"{conditions} side conditions, each without a solution by {' and '.join(chosen)}")
    if rejected:
        raise NegativeAnswer(f"{directory}: {rejected} of {len(paths)} certificates are rejected")


def _check(directory: Path, solvers: Sequence[str], paths: Sequence[Path]) -> list[Rechecked]:
    rechecker = Rechecker(directory, {name: SOLVERS[name] for name in solvers})
    return [rechecker.check(path) for path in paths]


def _record(path: Path, result: Rechecked) -> dict[str, object]:
    return {
        "file": str(path),
        "rule": result.rule,
        "accepted": result.accepted,
        "reason": result.reason,
        "conditions": result.conditions,
    }


if __name__ == "__main__":
    run_app(app, "recheck")

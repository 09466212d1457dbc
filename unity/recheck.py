"""`unity recheck`: check certificates with solvers of your choice, without the prover's search.

python -m unity.verify --certificates build/certificates
python -m unity.recheck build/certificates
python -m unity.recheck generated_rules
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from pcg.budget import Budget
from pcg.errors import NegativeAnswer
from pcg.files import read_json
from substitutions.certificates import uncertified
from substitutions.limited import Lost, limited_map
from substitutions.store import CERTIFICATES, RULES, LibraryFile
from unity.cli import PlainConsole, new_app, run_app, say
from verifier.bundle import read_bundle
from verifier.certificate import CertificateFile
from verifier.recheck import Rechecked, Rechecker, Solvers
from verifier.recheck import certificates as certificates_in
from verifier.solvers import SOLVERS, require

app = new_app()
BUDGET = Budget(seconds=4)
"""For one certificate: ours take well under a second."""
CHUNK = 64
"""Certificates in a row that one process is given: they share scripts."""
SHOWN = 5
"""Names in a message."""


@app.command()
def recheck(
    certificates: Annotated[
        Path,
        typer.Argument(help="A folder of verify --certificates or of a library, or a .jsonl.xz."),
    ],
    solver: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(SOLVERS)}; may be repeated. By default all."),
    ] = None,
    library: Annotated[
        Path | None, typer.Option(help="Rules of which each has to have a certificate.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    seconds: Annotated[
        int, typer.Option(min=1, help="Processor time for one certificate; then it is unknown.")
    ] = BUDGET.seconds,
    memory: Annotated[int, typer.Option(min=64, help="MiB for one certificate.")] = BUDGET.memory,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a certificate, a line each.")
    ] = False,
) -> None:
    """Derive every side condition of every certificate again, and solve it."""
    chosen = require(solver or list(SOLVERS))
    if (certificates / CERTIFICATES).is_file():
        library = library or certificates / RULES
        certificates /= CERTIFICATES
    rules = None if library is None else read_json(library, LibraryFile)
    given = _read(certificates)
    check = Checking({name: SOLVERS[name] for name in chosen}, given.scripts)
    found = track(
        limited_map(check, given.files, jobs, Budget(seconds, memory), chunk=CHUNK),
        "rechecking",
        total=len(given.files),
        console=PlainConsole(stderr=True),
        transient=True,
        disable=as_json,
    )
    results = [
        _lost(file, result) if isinstance(result, Lost) else result
        for (_, file), result in zip(given.files, found, strict=True)
    ]
    for (place, _), result in zip(given.files, results, strict=True):
        if as_json:
            say(json.dumps(_record(place, result)))
        elif not result.accepted:
            say(f"rejected: {place}: {result.reason}")
    accepted = [f for (_, f), r in zip(given.files, results, strict=True) if r.accepted]
    rejected = len(results) - len(accepted)
    if not as_json:
        say(f"{certificates}: {len(accepted)} certificates accepted, {rejected} rejected")
        conditions = sum(result.conditions for result in results)
        say(f"{conditions} side conditions, each without a solution by {' and '.join(chosen)}")
    if rejected:
        raise NegativeAnswer(f"{certificates}: {rejected} of {len(results)} certificates rejected")
    if rules is not None:
        _compare(rules, str(library), accepted, jobs, quiet=as_json)


@dataclass(frozen=True)
class Given:
    """Certificates, each with the place where it was read, and their scripts (``Rechecker``)."""

    files: tuple[tuple[str, CertificateFile], ...]
    scripts: Path | Mapping[str, str]


def _read(where: Path) -> Given:
    """The certificates of a folder, or of one compressed file."""
    if where.is_dir():
        files = ((str(path), read_json(path, CertificateFile)) for path in certificates_in(where))
        return Given(tuple(files), where)
    bundle = read_bundle(where)
    return Given(tuple((f"{where}: {f.rule}", f) for f in bundle.certificates), bundle.scripts)


@dataclass
class Checking:
    """Checks certificates one after the other. What is solved for one is kept for others."""

    solvers: Solvers
    scripts: Path | Mapping[str, str]

    @cached_property
    def _rechecker(self) -> Rechecker:
        return Rechecker(self.scripts, self.solvers)

    def __call__(self, given: tuple[str, CertificateFile]) -> Rechecked:
        return self._rechecker.check_file(given[1])


def _lost(file: CertificateFile, lost: Lost) -> Rechecked:
    """What can be said of a certificate that used up its budget."""
    return Rechecked(file.rule, accepted=False, reason=f"unknown: {lost.spent}", conditions=0)


def _compare(
    rules: LibraryFile, name: str, accepted: Sequence[CertificateFile], jobs: int, *, quiet: bool
) -> None:
    """Raise NegativeAnswer unless every rule of a library is one that was accepted."""
    missing = uncertified(rules, accepted, jobs)
    if missing:
        shown = ", ".join(missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
        raise NegativeAnswer(f"{name}: {len(missing)} rules have no certificate: {shown}")
    if not quiet:
        say(f"{name}: all {len(rules.rules)} rules have one that says what they say")


def _record(place: str, result: Rechecked) -> dict[str, object]:
    return {
        "file": place,
        "rule": result.rule,
        "accepted": result.accepted,
        "reason": result.reason,
        "conditions": result.conditions,
    }


if __name__ == "__main__":
    run_app(app, "recheck")

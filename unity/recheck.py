"""`unity recheck`: check certificates with solvers of your choice, without the prover's search.

python -m unity.verify --certificates build/certificates
python -m unity.recheck build/certificates
python -m unity.recheck generated_rules
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from pcg.budget import Budget
from pcg.errors import NegativeAnswer, one_line
from pcg.files import read_json
from substitutions.rules.certificates import label_problem, uncertified
from substitutions.rules.limited import Lost, limited_map
from substitutions.rules.store import CERTIFICATES, RULES, LibraryFile
from unity.support.cli import PlainConsole, new_app, run_app, say
from verifier.bundle import read_bundle
from verifier.certificate import CertificateFile
from verifier.recheck import Proved, Rechecked, Rechecker
from verifier.recheck import certificates as certificates_in
from verifier.solvers import SOLVERS, require

app = new_app()
BUDGET = Budget(seconds=4)
"""For one certificate: ours take well under a second."""
CHUNK = 64
"""Certificates that a process is given at once."""
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
    """Derive every side condition of every certificate again, solve it, and say what is proved."""
    chosen = require(solver or list(SOLVERS))
    if (certificates / CERTIFICATES).is_file():
        library = library or certificates / RULES
        certificates /= CERTIFICATES
    rules = None if library is None else read_json(library, LibraryFile)
    given = _read(certificates)
    workers = Workers(jobs, Budget(seconds, memory))
    if not given.files:
        raise NegativeAnswer(f"{certificates}: holds no certificates, nothing is proved")
    results = list(_results(given, chosen, workers, quiet=as_json, by_label=rules is None))
    for (place, _), result in zip(given.files, results, strict=True):
        say(json.dumps(_record(place, result)) if as_json else _line(place, result))
    accepted = [f for (_, f), r in zip(given.files, results, strict=True) if r.accepted]
    if not as_json:
        rejected = len(results) - len(accepted)
        say(f"{certificates}: {len(accepted)} certificates accepted, {rejected} rejected")
        conditions = sum(result.conditions for result in results)
        say(f"{conditions} side conditions, each without a solution by {' and '.join(chosen)}")
    _require_all(str(certificates), results)
    if rules is not None:
        _compare(rules, str(library), accepted, jobs, quiet=as_json)


def _results(
    given: Given, chosen: Sequence[str], workers: Workers, *, quiet: bool, by_label: bool
) -> Iterator[Rechecked]:
    """What comes of each certificate; ``by_label``: whether its label has to fit it, as where no
    library says what rule has the name."""
    # One for all: forked workers go on with it, each theorem and script once in each of them.
    rechecker = Rechecker(given.scripts, {name: SOLVERS[name] for name in chosen})
    files = [file for _, file in given.files]
    found = track(
        limited_map(rechecker.check_file, files, workers.jobs, workers.budget, chunk=CHUNK),
        "rechecking",
        total=len(files),
        console=PlainConsole(stderr=True),
        transient=True,
        disable=quiet,
    )
    labels: set[str] = set()
    for file, given_result in zip(files, found, strict=True):
        result = _lost(file, given_result) if isinstance(given_result, Lost) else given_result
        problem = ""
        if file.rule in labels:
            problem = "another certificate has its label"
        elif result.proved is not None and by_label:
            problem = label_problem(file, result.proved.statement)
        labels.add(file.rule)
        yield replace(result, accepted=False, reason=problem) if problem else result


def _require_all(where: str, results: Sequence[Rechecked]) -> None:
    """Raise NegativeAnswer unless all certificates are accepted, and none is about whole tensors
    only: a rule that was proved for those may be false for tensors that are cut."""
    rejected = sum(not result.accepted for result in results)
    if rejected:
        raise NegativeAnswer(f"{where}: {rejected} of {len(results)} certificates rejected")
    whole = sum(result.proved is not None and result.proved.whole for result in results)
    if whole:
        problem = "are about whole tensors only, nothing is proved of tensors that are cut"
        raise NegativeAnswer(f"{where}: {whole} of {len(results)} certificates {problem}")


def _lost(file: CertificateFile, lost: Lost) -> Rechecked:
    """What can be said of a certificate that used up its budget."""
    return Rechecked(file.rule, accepted=False, reason=f"unknown: {lost.spent}", conditions=0)


@dataclass(frozen=True)
class Workers:
    """How many processes check certificates, and what each certificate may use."""

    jobs: int
    budget: Budget


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


def _line(place: str, result: Rechecked) -> str:
    """What came of a certificate: what it proves, or why it is rejected. It comes from anywhere, so
    that whatever it holds stays on the line."""
    proved = result.proved
    if not result.accepted or proved is None:
        return one_line(f"rejected: {place}: {result.reason}")
    parts = [f"proved: {result.rule}: {proved.statement}"]
    parts += [f"where {', '.join(proved.assumed)}"] if proved.assumed else []
    parts += [f"if {', '.join(proved.requires)}"] if proved.requires else []
    return one_line(f"{' '.join(parts)} ({_degrees(proved)})")


def _degrees(proved: Proved) -> str:
    """For what degrees something is proved."""
    if proved.whole:
        return "whole tensors only"
    if not proved.degrees:
        return "all degrees"
    return f"degrees as written, {', '.join(map(str, proved.degrees))}; all of the inputs"


def _record(place: str, result: Rechecked) -> dict[str, object]:
    found: dict[str, object] = {
        "file": place,
        "rule": result.rule,
        "accepted": result.accepted,
        "reason": result.reason,
        "conditions": result.conditions,
    }
    if (proved := result.proved) is None or not result.accepted:
        return found
    return found | {
        "statement": proved.statement,
        "where": list(proved.assumed),
        "requires": list(proved.requires),
        "degrees": list(proved.degrees) or "all",
        "whole": proved.whole,
    }


if __name__ == "__main__":
    run_app(app, "recheck")

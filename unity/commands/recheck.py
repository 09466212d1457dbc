"""Checks certificates without the prover, and compares a library with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pcg.budget import Budget
from pcg.errors import NegativeAnswer, one_line
from pcg.files import read_json
from substitutions.rules.certificates import label_problem, uncertified
from substitutions.rules.limited import LostItem, limited_map
from substitutions.rules.store import CERTIFICATES, RULES, LibraryFile
from unity.recheck import Options
from unity.support.cli import say, say_json
from unity.support.processes import tracked
from verifier.bundle import read_bundle
from verifier.certificate import CertificateFile
from verifier.recheck import CertificateCheck, ProvedStatement, Rechecker
from verifier.recheck import certificates as certificates_in
from verifier.solvers import SOLVERS, require

CHUNK = 64
"""The number of certificates that a process gets at once."""
SHOWN = 5
"""The most names in a message."""


@dataclass(frozen=True)
class Certificates:
    """Certificates with the places where they were read, and their scripts (``Rechecker``).

    ``where``: the folder or file that they were read from. ``library``: the library whose rules
    must have certificates, if any.
    """

    where: Path
    files: tuple[tuple[str, CertificateFile], ...]
    scripts: Path | Mapping[str, str]
    library: Path | None


def run(options: Options) -> None:
    """Check all certificates. Raises NegativeAnswer unless all are accepted, and cover the library
    if there is one."""
    solvers = require(options.solver or list(SOLVERS))
    given = _read(options)
    rules = None if given.library is None else read_json(given.library, LibraryFile)
    if not given.files:
        raise NegativeAnswer(f"{given.where}: has no certificates, so nothing is proved")
    results = list(_results(given, solvers, options))
    for (place, _), result in zip(given.files, results, strict=True):
        if options.as_json:
            say_json(_record(place, result), indent=None)
        else:
            say(_line(place, result))
    if not options.as_json:
        _print_counts(given.where, results, solvers)
    _require_all(str(given.where), results)
    if rules is not None:
        files = [file for _, file in given.files]
        _compare(rules, str(given.library), files, options)


def _read(options: Options) -> Certificates:
    """Read the certificates of a folder or of a compressed file; for the folder of a library, also
    the library."""
    where, library = options.certificates, options.library
    if (where / CERTIFICATES).is_file():
        where, library = where / CERTIFICATES, library or where / RULES
    if where.is_dir():
        files = ((str(path), read_json(path, CertificateFile)) for path in certificates_in(where))
        return Certificates(where, tuple(files), where, library)
    bundle = read_bundle(where)
    places = tuple((f"{where}: {file.rule}", file) for file in bundle.certificates)
    return Certificates(where, places, bundle.scripts, library)


def _results(
    given: Certificates, solvers: Sequence[str], options: Options
) -> Iterator[CertificateCheck]:
    """Yield the result of each certificate. Without a library, the label of a certificate has to
    fit its statement."""
    # One for all: forked workers inherit it, and check each theorem and script once.
    rechecker = Rechecker(given.scripts, {name: SOLVERS[name] for name in solvers})
    files = [file for _, file in given.files]
    budget = Budget(options.seconds, options.memory)
    checked = limited_map(rechecker.check_file, files, options.jobs, budget, chunk=CHUNK)
    results = tracked(checked, len(files), "rechecking", quiet=options.as_json)
    labels: set[str] = set()
    for file, answer in zip(files, results, strict=True):
        result = _lost(file, answer) if isinstance(answer, LostItem) else answer
        problem = ""
        if file.rule in labels:
            problem = "another certificate has the same label"
        elif result.proved is not None and given.library is None:
            problem = label_problem(file, result.proved.statement)
        labels.add(file.rule)
        yield replace(result, accepted=False, reason=problem) if problem else result


def _print_counts(where: Path, results: Sequence[CertificateCheck], solvers: Sequence[str]) -> None:
    accepted = sum(result.accepted for result in results)
    say(f"{where}: {accepted} certificates accepted, {len(results) - accepted} rejected")
    conditions = sum(result.conditions for result in results)
    say(f"{conditions} side conditions, each without a solution by {' and '.join(solvers)}")


def _require_all(where: str, results: Sequence[CertificateCheck]) -> None:
    """Raise NegativeAnswer unless all certificates are accepted and none is about whole tensors
    only. A rule that was proved for whole tensors may be false for cut ones."""
    rejected = sum(not result.accepted for result in results)
    if rejected:
        raise NegativeAnswer(f"{where}: {rejected} of {len(results)} certificates rejected")
    whole = sum(result.proved is not None and result.proved.whole for result in results)
    if whole:
        problem = "are about whole tensors only and prove nothing about cut tensors"
        raise NegativeAnswer(f"{where}: {whole} of {len(results)} certificates {problem}")


def _lost(file: CertificateFile, lost: LostItem) -> CertificateCheck:
    """The result of a certificate that used up its budget."""
    return CertificateCheck(
        file.rule, accepted=False, reason=f"unknown: {lost.spent}", conditions=0
    )


def _compare(
    rules: LibraryFile, name: str, accepted: Sequence[CertificateFile], options: Options
) -> None:
    """Raise NegativeAnswer unless every rule of a library has an accepted certificate."""
    missing = uncertified(rules, accepted, options.jobs)
    if missing:
        shown = ", ".join(missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
        raise NegativeAnswer(f"{name}: {len(missing)} rules have no certificate: {shown}")
    if not options.as_json:
        say(f"{name}: all {len(rules.rules)} rules have a certificate with the same statement")


def _line(place: str, result: CertificateCheck) -> str:
    """The result of a certificate in one line: the statement that it proves, or why it is rejected.
    Control characters in it are escaped."""
    proved = result.proved
    if not result.accepted or proved is None:
        return one_line(f"rejected: {place}: {result.reason}")
    parts = [f"proved: {result.rule}: {proved.statement}"]
    parts += [f"where {', '.join(proved.assumed)}"] if proved.assumed else []
    parts += [f"if {', '.join(proved.requires)}"] if proved.requires else []
    return one_line(f"{' '.join(parts)} ({_degrees(proved)})")


def _degrees(proved: ProvedStatement) -> str:
    """The degrees for which a statement is proved."""
    if proved.whole:
        return "whole tensors only"
    if not proved.degrees:
        return "all degrees"
    return f"degrees as written, {', '.join(map(str, proved.degrees))}; all of the inputs"


def _record(place: str, result: CertificateCheck) -> dict[str, object]:
    record: dict[str, object] = {
        "file": place,
        "rule": result.rule,
        "accepted": result.accepted,
        "reason": result.reason,
        "conditions": result.conditions,
    }
    if (proved := result.proved) is None or not result.accepted:
        return record
    return record | {
        "statement": proved.statement,
        "where": list(proved.assumed),
        "requires": list(proved.requires),
        "degrees": list(proved.degrees) or "all",
        "whole": proved.whole,
    }

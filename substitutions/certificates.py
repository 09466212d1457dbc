"""The certificates of a whole library, and whether certificates are those of a library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pcg.errors import InputError, NegativeAnswer
from pcg.poly import Poly
from pcg.text import parse_graph
from substitutions.rule import Rule
from substitutions.store import LibraryFile, RuleFile, parse_entry
from substitutions.workers import parallel_map
from verifier.bundle import write_bundle
from verifier.certificate import Certificate, CertificateFile, certify, polynomial
from verifier.decide import Verdict, decide


def library_certificates(content: LibraryFile, jobs: int) -> Iterator[Certificate]:
    """A certificate of every rule, in the order of the library. The proofs are made anew, as a
    library records only what they came to. Raises NegativeAnswer where a rule is not proved."""
    yield from parallel_map(_certificate, content.rules, jobs)


def write_certificates(content: LibraryFile, path: Path, jobs: int) -> None:
    """Write the certificates of a library into one compressed file. Raises NegativeAnswer where a
    rule is not proved, InputError where the file cannot be written."""
    write_bundle(path, library_certificates(content, jobs))


def _certificate(entry: RuleFile) -> Certificate:
    rule = parse_entry(entry)
    decision = decide(rule.left, rule.right, rule.requirements)
    if decision.verdict is not Verdict.PROVED:
        raise NegativeAnswer(f"rule {rule.name}: {decision.verdict}: {decision.reason}")
    return certify(rule.name, rule.left, rule.right, decision, rule.runs)


def uncertified(
    content: LibraryFile, accepted: Iterable[CertificateFile], jobs: int = 1
) -> tuple[str, ...]:
    """The rules of a library, by name, of which none of the certificates says just what they say:
    the same sides, for the same equations of sizes and as many free axes."""
    given = {file.rule: file for file in accepted}
    certified = parallel_map(partial(_is_certified, given), content.rules, jobs)
    return tuple(e.name for e, found in zip(content.rules, certified, strict=True) if not found)


def _is_certified(given: dict[str, CertificateFile], entry: RuleFile) -> bool:
    file = given.get(entry.name)
    return file is not None and says(file, parse_entry(entry))


def says(file: CertificateFile, rule: Rule) -> bool:
    """Whether a certificate is about a rule, at its ranks and at all others that it is for."""
    if file.whole or not set(rule.runs) <= set(file.runs):
        return False
    if _equations((polynomial(a), polynomial(b)) for a, b in file.equal) != _equations(
        rule.requirements
    ):
        return False
    try:
        sides = [parse_graph(text, file.rule).outputs for text in (file.left, file.right)]
    except InputError:
        return False
    return sides == [rule.left, rule.right]


def _equations(given: Iterable[Sequence[Poly]]) -> frozenset[tuple[Poly, ...]]:
    return frozenset(tuple(sides) for sides in given)

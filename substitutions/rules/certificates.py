"""Writes the certificates of a library, and checks that certificates cover a library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pcg.errors import InputError, NegativeAnswer
from pcg.language.poly import Poly
from pcg.plan.text import parse_graph
from pcg.types.operator import Operator
from substitutions.rules.requirements import requirement_text
from substitutions.rules.rule import Rule, input_ranks
from substitutions.rules.store import RULE_NAME, LibraryFile, RuleFile, parse_entry, stated_name
from substitutions.rules.workers import parallel_map
from verifier.bundle import write_bundle
from verifier.certificate import Certificate, CertificateFile, certify, polynomial
from verifier.decide import Verdict, decide


def library_certificates(content: LibraryFile, jobs: int) -> Iterator[Certificate]:
    """The certificate of every rule, in the order of the library. The rules are proved again, since
    a library records only a summary of their proofs. Raises NegativeAnswer if a rule is not
    proved."""
    yield from parallel_map(_certificate, content.rules, jobs)


def write_certificates(content: LibraryFile, path: Path, jobs: int) -> None:
    """Write the certificates of a library into one compressed file. Raises NegativeAnswer if a rule
    is not proved, and InputError if the file cannot be written."""
    write_bundle(path, library_certificates(content, jobs))


def _certificate(entry: RuleFile) -> Certificate:
    rule = parse_entry(entry)
    decision = decide(rule.left, rule.right, rule.requirements)
    if decision.verdict is not Verdict.PROVED:
        raise NegativeAnswer(f"rule {rule.name}: {decision.verdict}: {decision.reason}")
    return certify(rule.name, rule.left, rule.right, decision, rule.runs)


def label_problem(file: CertificateFile, statement: str) -> str:
    """Why the label of a certificate contradicts its statement; empty if it does not.

    A label that contains an equality has to contain this statement. A label that is the name of a
    library's rule is a hash, and has to be the hash of this statement. Any other label is a name
    without meaning.
    """
    label = "".join(file.rule.split())
    if "==" in label and "".join(statement.split()) not in label:
        return f"its label is another statement than {statement}"
    if RULE_NAME.fullmatch(file.rule) and file.rule != _name(file, statement):
        return f"its label is the name of another rule than {statement}"
    return ""


def _name(file: CertificateFile, statement: str) -> str:
    """The name that a library gives to the rule with the statement of a certificate."""
    sides = (parse_graph(text, file.rule, _operators(file)) for text in (file.left, file.right))
    inputs = input_ranks(tuple(value for side in sides for value in side.outputs))
    requires = [requirement_text((polynomial(a), polynomial(b))) for a, b in file.equal]
    return stated_name(inputs, statement, requires)


def _operators(file: CertificateFile) -> dict[str, Operator]:
    return {definition.name: definition.operator() for definition in file.operators}


def uncertified(
    content: LibraryFile, accepted: Iterable[CertificateFile], jobs: int = 1
) -> tuple[str, ...]:
    """The names of the library's rules that no certificate proves. A certificate has to have the
    same sides, the same equations between sizes, and all the free axes of the rule."""
    given = {file.rule: file for file in accepted}
    certified = parallel_map(partial(_is_certified, given), content.rules, jobs)
    return tuple(
        e.name for e, is_certified in zip(content.rules, certified, strict=True) if not is_certified
    )


def _is_certified(given: dict[str, CertificateFile], entry: RuleFile) -> bool:
    file = given.get(entry.name)
    return file is not None and certifies(file, parse_entry(entry))


def certifies(file: CertificateFile, rule: Rule) -> bool:
    """Whether a certificate proves a rule, at its own ranks and for any number of axes in the place
    of its runs."""
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

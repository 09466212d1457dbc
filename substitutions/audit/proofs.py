"""Checks that the rules that a plan applies are proved, by the certificate of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from substitutions.audit.errors import Finding
from substitutions.rules.batched import certificate, is_about_a_form
from substitutions.rules.certificates import says
from substitutions.rules.rule import Rule
from verifier.bundle import Bundle
from verifier.recheck import Rechecker, Solvers


@dataclass(frozen=True)
class Proofs:
    """What came of checking certificates. ``conditions``: how many side conditions were solved."""

    findings: tuple[Finding, ...]
    conditions: int


def check_proofs(rules: Mapping[str, Rule], bundle: Bundle, solvers: Solvers) -> Proofs:
    """Check the certificate of each rule of a library, which has to be about just this rule.

    A form of a rule needs no certificate of its own: one is about any number of axes in the place
    of each run that it names, and a stand-in is a function of which nothing is known. Rules about
    batched functions, which are in no library, get their certificates here.
    """
    given = {file.rule: file for file in bundle.certificates}
    scripts = dict(bundle.scripts)
    rechecker = Rechecker(scripts, solvers)
    findings: list[Finding] = []
    conditions = 0
    for name, rule in sorted(rules.items()):
        where = f"rule {name}"
        if is_about_a_form(rule):
            made = certificate(rule)
            scripts.update(made.scripts)
            file = made.file
        else:
            file = given.get(name)
        if file is None:
            findings.append(Finding(where, "has no certificate"))
        elif not (is_about_a_form(rule) or says(file, rule)):
            findings.append(Finding(where, f"its certificate is not about {rule.text!r}"))
        elif not (checked := rechecker.check_file(file)).accepted:
            findings.append(Finding(where, f"its certificate is rejected: {checked.reason}"))
        else:
            conditions += checked.conditions
    return Proofs(tuple(findings), conditions)

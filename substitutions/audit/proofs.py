"""Checks the certificates of the rules that a plan applies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from substitutions.audit.errors import Finding
from substitutions.rules.certificates import certifies
from substitutions.rules.concrete.batched import certificate, is_about_a_form
from substitutions.rules.rule import Rule
from verifier.bundle import Bundle
from verifier.recheck import Rechecker, Solvers


@dataclass(frozen=True)
class Proofs:
    """The result of checking certificates. ``conditions``: the number of side conditions that were
    solved."""

    findings: tuple[Finding, ...]
    conditions: int


def check_proofs(rules: Mapping[str, Rule], bundle: Bundle, solvers: Solvers) -> Proofs:
    """Check the certificate of each rule. It has to be about exactly this rule.

    A form of a rule needs no certificate of its own: the certificate is valid for any number of
    axes in the place of the runs that it names, and assumes nothing of the function of a stand-in.
    Rules about batched functions are in no library, so their certificates are made here.
    """
    by_rule = {file.rule: file for file in bundle.certificates}
    scripts = dict(bundle.scripts)
    rechecker = Rechecker(scripts, solvers)
    findings: list[Finding] = []
    conditions = 0
    for name, rule in sorted(rules.items()):
        where = f"rule {name}"
        if is_about_a_form(rule):
            own_certificate = certificate(rule)
            scripts.update(own_certificate.scripts)
            file = own_certificate.file
        else:
            file = by_rule.get(name)
        if file is None:
            findings.append(Finding(where, "has no certificate"))
        elif not (is_about_a_form(rule) or certifies(file, rule)):
            findings.append(Finding(where, f"its certificate is not about {rule.text!r}"))
        elif not (checked := rechecker.check_file(file)).accepted:
            findings.append(Finding(where, f"its certificate is rejected: {checked.reason}"))
        else:
            conditions += checked.conditions
    return Proofs(tuple(findings), conditions)

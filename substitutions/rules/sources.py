"""Reads rule files to verify: our own and those of other systems, as statements to decide.

Our own files are read here with less asked of them than of a library
(``substitutions.rules.store``): a file written by hand may leave out what a proof adds, and one
that was made from other operator definitions is verified with those of today.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pcg.errors import InputError
from pcg.files import FileModel, read_json, read_text
from substitutions.importers.schema import ForeignRule, read_foreign
from substitutions.importers.verdict import ALL, decide_foreign
from substitutions.rules.rule import Family, Rule, parse_rule, variables
from substitutions.rules.store import (
    MAX_SIDE_CHARACTERS,
    DirectionFile,
    OptionsFile,
    ProofFile,
    UndecidedFile,
    parse_runs,
)
from verifier.counterexample import Counterexample
from verifier.decide import Decision, Verdict, decide
from verifier.grammar import MAX_RANK

MAX_FILE_BYTES = 16 * 1024 * 1024
"""Of any rule file. More could not be refused within a second, and no library comes near."""
MAX_NAME = 1_000

OWN = '"schema_version": 1 and "rules": [...]'
FOREIGN = '"rule": [...] in the schema of TASO and FlexFlow'

_FIRST_KEY = re.compile(r'"(schema_version|rules|rule)"\s*:')


@dataclass(frozen=True)
class StatementOutcome:
    """What was decided of a statement.

    ``degrees``: those of parallel operators that it is about, or None for all of them.
    ``proofs``: what a certificate is made of, where it is proved; one a case of sizes.
    """

    verdict: Verdict
    reason: str
    conditions: tuple[str, ...]
    degrees: tuple[int, ...] | None
    counterexample: Counterexample | None
    proofs: tuple[Decision, ...]


@dataclass(frozen=True)
class Statement:
    """A rule as a statement to be decided. ``text``: for readers, empty where there is none."""

    name: str
    text: str
    judge: Callable[[], StatementOutcome]

    def decide(self) -> StatementOutcome:
        """Decide it; what is too deep to be expanded is unknown."""
        try:
            return self.judge()
        except RecursionError:
            return StatementOutcome(
                Verdict.UNKNOWN, "operators nested too deeply", (), None, None, ()
            )


@dataclass(frozen=True)
class RuleSource:
    """A rule file with its statements, in its order."""

    file: str
    statements: tuple[Statement, ...]


class StatedRule(FileModel):
    """A rule that may be proved or not; what a file says about that is not believed."""

    name: str = Field(max_length=MAX_NAME)
    inputs: dict[
        Annotated[str, Field(max_length=MAX_NAME)], Annotated[int, Field(ge=0, le=MAX_RANK)]
    ]
    left: str = Field(max_length=MAX_SIDE_CHARACTERS)
    right: str = Field(max_length=MAX_SIDE_CHARACTERS)
    runs: tuple[tuple[str, ...], ...] = Field(default=(), strict=False)
    """Checked to be axes that may be any number of axes: what is proved then holds for all."""
    requires: tuple[Annotated[str, Field(max_length=MAX_SIDE_CHARACTERS)], ...] = Field(
        default=(), strict=False
    )
    """Equations of sizes; it is decided where they hold."""
    conditions: tuple[str, ...] = Field(default=(), strict=False)
    family: Family | None = None
    derived: int = 0
    directions: tuple[DirectionFile, ...] = Field(default=(), strict=False)
    verdict: str | None = None
    proof: ProofFile | None = None


class StatedFile(FileModel):
    """Version 1 is what is written by hand, version 2 what a library is."""

    schema_version: Literal[1, 2]
    unity: str | None = None
    options: OptionsFile | None = None
    versions: dict[str, str] = Field(default_factory=dict[str, str])
    operators: str | None = None
    undecided: tuple[UndecidedFile, ...] = Field(default=(), strict=False)
    rules: tuple[StatedRule, ...] = Field(strict=False)


def read_source(path: str | Path) -> RuleSource:
    """Read a rule file of ours or of another system; which it is shows in its first key.

    Raises InputError naming the file and the place where it is wrong.
    """
    where = str(path)
    key = _FIRST_KEY.search(read_text(path, "a rule file", MAX_FILE_BYTES))
    if key is None:
        return _unrecognized(path)
    if key[1] != "rule":
        return RuleSource(where, _own_statements(where, read_json(path, StatedFile)))
    rules = read_foreign(path).rules
    return RuleSource(where, tuple(Statement(r.name, "", partial(_foreign, r)) for r in rules))


def _unrecognized(path: str | Path) -> RuleSource:
    """Say what a file has instead of rules."""
    try:
        return RuleSource(str(path), _own_statements(str(path), read_json(path, StatedFile)))
    except InputError as error:
        problem = f"{error.problem} (expected a rule file: {OWN}, or {FOREIGN})"
        raise InputError(error.where, problem) from None


def _own_statements(where: str, content: StatedFile) -> tuple[Statement, ...]:
    statements: dict[str, Statement] = {}
    for number, entry in enumerate(content.rules):
        place = f"{where}: rules[{number}]"
        if entry.name in statements:
            raise InputError(place, f"the name {entry.name} is taken by another rule of the file")
        try:
            rule = parse_rule(entry.name, entry.inputs, entry.left, entry.right)
            runs = parse_runs(rule, entry.runs) if entry.runs else ()
            rule = replace(rule, runs=runs, requires=entry.requires)
        except InputError as error:
            raise InputError(place, str(error)) from error
        if unbound := sorted(variables(rule.right) - variables(rule.left)):
            problem = f"input {unbound[0]} stands on the right side only"
            raise InputError(place, f"rule {rule.name}: {problem}")
        statements[rule.name] = Statement(rule.name, rule.text, partial(_own, rule))
    return tuple(statements.values())


def _own(rule: Rule) -> StatementOutcome:
    """Inputs have any degrees, and so has what is proved of them."""
    decision = decide(rule.left, rule.right, rule.requirements)
    proofs = (decision,) if decision.verdict is Verdict.PROVED else ()
    refuting = decision.counterexample
    return StatementOutcome(
        decision.verdict, decision.reason, decision.conditions, None, refuting, proofs
    )


def _foreign(rule: ForeignRule) -> StatementOutcome:
    decided = decide_foreign(rule)
    stated = re.findall(r"\d+", decided.degrees)
    degrees = None if decided.degrees in (ALL, "") else tuple(map(int, stated))
    proofs = tuple(d for d in decided.decisions if d.verdict is Verdict.PROVED)
    return StatementOutcome(
        decided.verdict, decided.reason, decided.conditions, degrees, decided.counterexample, proofs
    )

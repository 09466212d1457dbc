"""Reads rule files of Unity and of other systems, as statements to decide.

Fewer fields are required here than of a library (``substitutions.rules.store``). A file that is
written by hand may leave out the results of proofs. A file that was made from other operator
definitions is verified with the present ones.
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
"""The largest size of a rule file. Larger files could not be refused within a second; libraries are
far smaller."""
MAX_NAME = 1_000

OWN = '"schema_version": 1 and "rules": [...]'
FOREIGN = '"rule": [...] in the schema of TASO and FlexFlow'

_FIRST_KEY = re.compile(r'"(schema_version|rules|rule)"\s*:')


@dataclass(frozen=True)
class StatementOutcome:
    """The verdict on a statement.

    ``degrees``: the degrees of parallel operators that it is about; None if it is about all.
    ``proofs``: the decisions from which certificates are made, one for each case of sizes; empty
    unless the statement is proved.
    """

    verdict: Verdict
    reason: str
    conditions: tuple[str, ...]
    degrees: tuple[int, ...] | None
    counterexample: Counterexample | None
    proofs: tuple[Decision, ...]


@dataclass(frozen=True)
class Statement:
    """A rule as a statement to decide. ``text``: the rule for readers; may be empty."""

    name: str
    text: str
    judge: Callable[[], StatementOutcome]

    def decide(self) -> StatementOutcome:
        """Decide the statement. The verdict is unknown if its operators are nested too deeply."""
        try:
            return self.judge()
        except RecursionError:
            return StatementOutcome(
                Verdict.UNKNOWN, "operators nested too deeply", (), None, None, ()
            )


@dataclass(frozen=True)
class RuleSource:
    """A rule file with its statements, in the order of the file."""

    file: str
    statements: tuple[Statement, ...]


class StatedRule(FileModel):
    """A rule that may be proved or not. What a file says about its proof is ignored."""

    name: str = Field(max_length=MAX_NAME)
    inputs: dict[
        Annotated[str, Field(max_length=MAX_NAME)], Annotated[int, Field(ge=0, le=MAX_RANK)]
    ]
    left: str = Field(max_length=MAX_SIDE_CHARACTERS)
    right: str = Field(max_length=MAX_SIDE_CHARACTERS)
    runs: tuple[tuple[str, ...], ...] = Field(default=(), strict=False)
    """Axes that may each be any number of axes, which is checked. A proof then holds for all
    numbers."""
    requires: tuple[Annotated[str, Field(max_length=MAX_SIDE_CHARACTERS)], ...] = Field(
        default=(), strict=False
    )
    """Equations between sizes that the decision assumes."""
    conditions: tuple[str, ...] = Field(default=(), strict=False)
    family: Family | None = None
    derived: int = 0
    directions: tuple[DirectionFile, ...] = Field(default=(), strict=False)
    verdict: str | None = None
    proof: ProofFile | None = None


class StatedFile(FileModel):
    """A rule file of Unity: version 1 is written by hand, version 2 is a library."""

    schema_version: Literal[1, 2]
    unity: str | None = None
    options: OptionsFile | None = None
    versions: dict[str, str] = Field(default_factory=dict[str, str])
    operators: str | None = None
    undecided: tuple[UndecidedFile, ...] = Field(default=(), strict=False)
    rules: tuple[StatedRule, ...] = Field(strict=False)


def read_source(path: str | Path) -> RuleSource:
    """Read a rule file of Unity or of another system, which its first key tells.

    Raises InputError that names the file and the place that is wrong.
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
    """Read a file without a known first key. Raises InputError that says what was expected."""
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
    """Decide a rule for inputs of all degrees."""
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

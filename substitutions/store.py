"""The rule library on disk: ``generated_rules/rules.json``.

Each rule is stored with its verdict and the record of its proof; a library holds proved rules
only. It records the operator definitions that it was made from and is refused where they differ.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import Field

from pcg.errors import InputError
from pcg.files import FileModel, read_json, write_text_atomic
from pcg.ops import OPERATORS
from substitutions.rule import Rule, parse_rule


class ProofFile(FileModel):
    """How a rule was proved: how many side conditions Z3 discharged, a hash of them in SMT-LIB 2,
    and one choice of degrees for which both sides have a type."""

    side_conditions: int
    digest: str
    degrees: dict[str, int]


class RuleFile(FileModel):
    name: str
    inputs: dict[str, int]
    left: str
    right: str
    conditions: tuple[str, ...] = Field(strict=False)
    verdict: Literal["proved"]
    proof: ProofFile


class LibraryFile(FileModel):
    schema_version: Literal[1]
    operators: str
    """Hash of the operator definitions."""
    rules: tuple[RuleFile, ...] = Field(strict=False)


@dataclass(frozen=True)
class Library:
    """Proved rules, and a hash of the file that they came from."""

    rules: tuple[Rule, ...]
    hash: str


def operators_hash() -> str:
    """A hash of all operator definitions: a library proved from others is another library."""
    content = [
        (o.name, o.equation, o.sizes, o.reals, o.parallel or "", o.commutative)
        for o in sorted(OPERATORS.values(), key=lambda o: o.name)
    ]
    return sha256(json.dumps(content).encode()).hexdigest()[:16]


def default_path() -> Path:
    """Where the library that comes with Unity lies."""
    return Path(str(files("generated_rules").joinpath("rules.json")))


def load_library(path: str | Path | None = None) -> Library:
    """Read a library. Raises InputError where it is missing, wrong, or of other operators."""
    where = Path(path) if path is not None else default_path()
    content = read_json(where, LibraryFile)
    if content.operators != operators_hash():
        problem = "made from other operator definitions, run 'python -m unity.generate'"
        raise InputError(str(where), problem)
    rules: list[Rule] = []
    for i, entry in enumerate(content.rules):
        try:
            rule = parse_rule(entry.name, entry.inputs, entry.left, entry.right)
        except InputError as error:
            raise InputError(f"{where}: rules[{i}]", str(error)) from error
        rules.append(Rule(rule.name, rule.inputs, rule.left, rule.right, entry.conditions))
    return Library(tuple(rules), library_hash(content))


def library_hash(content: LibraryFile) -> str:
    return sha256(library_text(content).encode()).hexdigest()[:16]


def library_text(content: LibraryFile) -> str:
    """The library as JSON, one rule a line."""
    head = json.dumps({"schema_version": content.schema_version, "operators": content.operators})
    lines = [json.dumps(rule.model_dump(mode="json")) for rule in content.rules]
    return head[:-1] + ', "rules": [\n' + ",\n".join(lines) + "\n]}\n"


def save_library(content: LibraryFile, path: str | Path) -> None:
    """Write a library, whole or not at all."""
    write_text_atomic(path, library_text(content))


def rule_name(text: str) -> str:
    """A short name that depends on the rule's text alone."""
    return f"r{sha256(text.encode()).hexdigest()[:10]}"

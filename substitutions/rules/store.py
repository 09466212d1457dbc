"""Reads and writes the rule library on disk: ``generated_rules/rules.json``.

A library holds proved rules only, each with a record of its proof. It also records the hash of the
operator definitions, the options of the generator, and the versions of the packages that took part.
A library that was made from other operator definitions is refused.

The fields about the use of a rule are for readers, and nothing relies on them. ``directions`` are
computed again where they are needed. ``runs`` are checked: a file is refused if they are no free
axes of the rule.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pcg.collection import uncollected
from pcg.errors import InputError, OperatorError
from pcg.files import FileModel, parse_json, read_text, write_text_atomic
from pcg.graph.graph import Graph
from pcg.language.template import EquationError
from pcg.ops import OPERATORS
from pcg.ops.stand_ins import STAND_INS
from pcg.plan.text import print_value
from substitutions.rules.concrete.expand import Expander
from substitutions.rules.concrete.rooted import RootedRules
from substitutions.rules.origins import OriginKind
from substitutions.rules.rule import Family, Rule, parse_rule, side_text
from substitutions.rules.uses import Direction, ReadingOrder, directions
from verifier.grammar import MAX_RANK
from verifier.trusted.sizes.runs import Group, free_runs

MAX_INPUTS = 64
MAX_SIDE_CHARACTERS = 10_000
PACKAGES = {"unity": "unity", "z3": "z3-solver", "numpy": "numpy"}
"""The packages whose versions a library records, by the names in the file."""


class ProofFile(FileModel):
    """The record of a proof: the number of side conditions that Z3 discharged, a hash of them, and
    a choice of degrees for which both sides have types."""

    side_conditions: int
    digest: str
    degrees: dict[str, int]


class CreatedFile(FileModel):
    """A value that a rule creates from some of its inputs, and how it depends on them
    (``OriginKind``)."""

    value: str
    kind: OriginKind


class DirectionFile(FileModel):
    """One way to apply a rule (``uses.Direction``)."""

    way: ReadingOrder
    applicable: bool
    unbound: tuple[str, ...] = Field(strict=False)
    free: tuple[str, ...] = Field(strict=False)
    conditions: tuple[str, ...] = Field(strict=False)
    creates: tuple[CreatedFile, ...] = Field(strict=False)


class RuleFile(FileModel):
    """A proved rule in a library file."""

    name: str = Field(min_length=1, max_length=200)
    family: Family
    inputs: dict[str, Annotated[int, Field(ge=0, le=MAX_RANK)]] = Field(max_length=MAX_INPUTS)
    left: str = Field(max_length=MAX_SIDE_CHARACTERS)
    right: str = Field(max_length=MAX_SIDE_CHARACTERS)
    runs: tuple[tuple[str, ...], ...] = Field(strict=False)
    """The axes that may each be any number of axes: ``["x.0", "y.1"]`` is one axis, of two
    inputs."""
    requires: tuple[str, ...] = Field(strict=False)
    """The equations between sizes under which the rule is proved."""
    conditions: tuple[str, ...] = Field(strict=False)
    derived: int = Field(ge=0)
    """The number of rewriting steps by which the rule is known to follow from smaller rules; 0 if
    it is not known to follow."""
    directions: tuple[DirectionFile, ...] = Field(strict=False)
    verdict: Literal["proved"]
    proof: ProofFile


class UndecidedFile(FileModel):
    """A candidate that is neither proved nor refuted, and why its proof failed."""

    inputs: dict[str, int]
    left: str
    right: str
    reason: str


class OptionsFile(FileModel):
    """The options of the generator. ``max_ops``: the most operators per side in the enumeration."""

    max_ops: int


class LibraryFile(FileModel):
    schema_version: Literal[2]
    unity: str
    """The version of Unity that made the library."""
    options: OptionsFile
    versions: dict[str, str]
    """The versions of Python and of the packages that took part."""
    operators: str
    """A hash of the operator definitions, including stand-ins."""
    undecided: tuple[UndecidedFile, ...] = Field(default=(), strict=False)
    rules: tuple[RuleFile, ...] = Field(strict=False)


@dataclass(frozen=True)
class Library:
    """Proved rules, and the hash of their file."""

    rules: tuple[Rule, ...]
    hash: str

    def concrete(self, graph: Graph) -> RootedRules:
        """The rules at the ranks and for the operators of a graph
        (``substitutions.rules.concrete.expand``). Graphs that need the same rules get the same
        object."""
        return self._expander.concrete(graph)

    @cached_property
    def _expander(self) -> Expander:
        return Expander(self.rules)


RULES = "rules.json"
CERTIFICATES = "certificates.jsonl.xz"
"""The file names of a library's rules and of their certificates, in the same folder."""


def operators_hash() -> str:
    """A hash of all operator definitions. It identifies the definitions that a library was proved
    from."""
    content = [
        (o.name, o.equation, o.sizes, o.reals, o.parallel or "", o.commutative)
        for o in sorted((*OPERATORS.values(), *STAND_INS.values()), key=lambda o: o.name)
    ]
    return sha256(json.dumps(content).encode()).hexdigest()[:16]


def default_path() -> Path:
    """The path of the library that comes with Unity."""
    return Path(str(files("generated_rules").joinpath(RULES)))


def load_library(path: str | Path | None = None) -> Library:
    """Read a library. The result is cached as long as the file stays the same. Raises InputError if
    the file is missing, malformed, or made from other operator definitions."""
    where = Path(path) if path is not None else default_path()
    return _library(where, read_text(where, "a rule library"), operators_hash())


def load_rules(names: Collection[str], path: str | Path | None = None) -> Library:
    """Read the rules with the given names from a library. Names that it lacks are skipped. The
    other rules are not checked, which saves most of the work. Raises InputError as
    ``load_library``."""
    where = Path(path) if path is not None else default_path()
    content = _content(where, read_text(where, "a rule library"), operators_hash())
    return Library(_rules(where, content, names), library_hash(content))


def rule_files(names: Collection[str], path: str | Path | None = None) -> dict[str, RuleFile]:
    """The entries of the rules with the given names, by name. Names that the library lacks are
    skipped. Raises InputError as ``load_library``."""
    where = Path(path) if path is not None else default_path()
    content = _content(where, read_text(where, "a rule library"), operators_hash())
    return {entry.name: entry for entry in content.rules if entry.name in names}


@lru_cache(maxsize=2)
@uncollected()  # The rules are kept, so the garbage collector would search them in vain.
def _library(where: Path, text: str, operators: str) -> Library:
    """The library of a file with this text. It is cached together with the concrete rules for the
    graphs of a process, which take longer than reading it."""
    content = _content(where, text, operators)
    names = {entry.name for entry in content.rules}
    return Library(_rules(where, content, names), library_hash(content))


@lru_cache(maxsize=2)
def _content(where: Path, text: str, operators: str) -> LibraryFile:
    """The content of a file with this text. Raises InputError if it was made from other operator
    definitions, or two rules have the same name."""
    content = parse_json(text, str(where), LibraryFile)
    if content.operators != operators:
        problem = "made from other operator definitions, run 'python -m unity.generate'"
        raise InputError(str(where), problem)
    taken: set[str] = set()
    for i, entry in enumerate(content.rules):
        if entry.name in taken:
            problem = f"the name {entry.name} is taken by another rule of the library"
            raise InputError(f"{where}: rules[{i}]", problem)
        taken.add(entry.name)
    return content


def _rules(where: Path, content: LibraryFile, names: Collection[str]) -> tuple[Rule, ...]:
    rules: list[Rule] = []
    for i, entry in enumerate(content.rules):
        if entry.name in names:
            try:
                rules.append(parse_entry(entry))
            except InputError as error:
                raise InputError(f"{where}: rules[{i}]", str(error)) from error
    return tuple(rules)


def is_library(wanted: str, path: str | Path | None = None) -> bool:
    """Whether a library has the given ``Library.hash``. Its rules are parsed only if the text of
    the file has another hash. Raises InputError as ``load_library``."""
    where = Path(path) if path is not None else default_path()
    text = read_text(where, "a rule library")
    return sha256(text.encode()).hexdigest()[:16] == wanted or load_library(where).hash == wanted


def parse_entry(entry: RuleFile) -> Rule:
    """The rule of a library's entry. Raises InputError if it cannot be parsed, or its ``runs`` are
    no free axes."""
    rule = parse_rule(entry.name, entry.inputs, entry.left, entry.right)
    return replace(
        rule,
        conditions=entry.conditions,
        runs=parse_runs(rule, entry.runs),
        family=entry.family,
        derived=entry.derived,
        requires=entry.requires,
    )


def parse_runs(rule: Rule, runs: Iterable[tuple[str, ...]]) -> tuple[Group, ...]:
    """The runs of a rule from text. Raises InputError if one is no free axis of the rule."""
    try:
        free = {run_text(group): group for group in free_runs(rule.left, rule.right)}
    except (OperatorError, EquationError) as error:
        raise InputError(f"rule {rule.name}", str(error)) from error
    groups: list[Group] = []
    for text in runs:
        group = free.pop(text, None)
        if group is None:
            problem = f"no axis {', '.join(text) or 'of nothing'} may be any number of axes"
            raise InputError(f"rule {rule.name}", problem)
        groups.append(group)
    return tuple(groups)


def run_text(group: Group) -> tuple[str, ...]:
    """A run as text in a file: ``("x.0", "y.1")``."""
    return tuple(f"{name}.{dim}" for name, dim in group)


def rule_file(rule: Rule, proof: ProofFile) -> RuleFile:
    """The entry of a proved rule, with the directions in which it can be used."""
    return RuleFile(
        name=rule.name,
        family=rule.family,
        inputs=dict(rule.inputs),
        left=side_text(rule.left),
        right=side_text(rule.right),
        runs=tuple(run_text(group) for group in rule.runs),
        requires=rule.requires,
        conditions=rule.conditions,
        derived=rule.derived,
        directions=tuple(_direction_file(direction) for direction in directions(rule)),
        verdict="proved",
        proof=proof,
    )


def _direction_file(direction: Direction) -> DirectionFile:
    return DirectionFile(
        way=direction.way,
        applicable=direction.applicable,
        unbound=direction.unbound,
        free=direction.free,
        conditions=direction.conditions,
        creates=tuple(
            CreatedFile(value=print_value(made.value), kind=made.kind) for made in direction.created
        ),
    )


def library_of(
    rules: Iterable[RuleFile], *, max_ops: int, undecided: Iterable[UndecidedFile] = ()
) -> LibraryFile:
    """A library of proved rules, with the operators and package versions of this process."""
    versions = {name: _version(package) for name, package in PACKAGES.items()}
    return LibraryFile(
        schema_version=2,
        unity=versions.pop("unity"),
        options=OptionsFile(max_ops=max_ops),
        versions={"python": platform.python_version(), **versions},
        operators=operators_hash(),
        undecided=tuple(undecided),
        rules=tuple(rules),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def library_hash(content: LibraryFile) -> str:
    return sha256(library_text(content).encode()).hexdigest()[:16]


def library_text(content: LibraryFile) -> str:
    """The library as JSON, with one line for each rule."""
    head = json.dumps(content.model_dump(mode="json", exclude={"rules"}, exclude_defaults=True))
    lines = [json.dumps(rule.model_dump(mode="json")) for rule in content.rules]
    return head[:-1] + ', "rules": [\n' + ",\n".join(lines) + "\n]}\n"


def save_library(content: LibraryFile, path: str | Path) -> None:
    """Write a library, whole or not at all."""
    write_text_atomic(path, library_text(content))


def rule_name(text: str) -> str:
    """A short name for a rule: a hash of its text."""
    return f"r{sha256(text.encode()).hexdigest()[:10]}"


RULE_NAME = re.compile(r"r[0-9a-f]{10}")


def stated_name(inputs: Iterable[tuple[str, int]], text: str, requires: Sequence[str]) -> str:
    """The name of the rule ``text`` about inputs of the given ranks, under the given equations
    between sizes."""
    where = f" where {', '.join(requires)}" if requires else ""
    return rule_name(f"{dict(inputs)} {text}{where}")

"""Writes the files for readers beside ``rules.json``: a text, a page, and a README with figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pcg.files import write_text_atomic
from pcg.ops.stand_ins import STAND_INS
from substitutions.browse.listing import FAMILIES, RuleEntry, entries, rule_line, rules_text
from substitutions.browse.page import environment, page
from substitutions.generate.undecided import UndecidedCandidate
from substitutions.rules.store import LibraryFile, library_hash

REPARAMETRISING = ("rearranged", "padded")
"""The kinds of values that re-parametrise weights."""


@dataclass(frozen=True)
class FamilyFigures:
    """Figures of a family: its rules and their operators; the rules without conditions; the rules
    that can be applied in both directions, in one, in neither; and the side conditions of their
    proofs."""

    name: str
    rules: int
    operators: int
    unconditional: int
    both: int
    one: int
    neither: int
    side_conditions: int

    @staticmethod
    def of(name: str, entries: Sequence[RuleEntry]) -> FamilyFigures:
        ways = [sum(direction.applicable for direction in e.file.directions) for e in entries]
        return FamilyFigures(
            name,
            len(entries),
            len({operator for entry in entries for operator in entry.operators}),
            sum(not entry.rule.conditions and not entry.rule.requires for entry in entries),
            ways.count(2),
            ways.count(1),
            ways.count(0),
            sum(entry.file.proof.side_conditions for entry in entries),
        )


def companions(content: LibraryFile) -> dict[str, str]:
    """The text of each file, by name. It depends on the library alone."""
    rules, digest = entries(content), library_hash(content)
    return {
        "rules.txt": rules_text(rules, digest),
        "index.html": page(rules, digest),
        "README.md": readme_text(content, rules),
    }


def write_companions(content: LibraryFile, folder: Path) -> None:
    """Write the files for readers beside a library in ``folder``, each whole or not at all."""
    for name, text in companions(content).items():
        write_text_atomic(folder / name, text)


def readme_text(content: LibraryFile, entries: Sequence[RuleEntry]) -> str:
    """The README: what each file of the folder is, and figures of the library."""
    rows = [(family, [e for e in entries if e.rule.family == family]) for family in FAMILIES]
    figures = [FamilyFigures.of(name, members) for name, members in rows if members]
    if len(figures) != 1:
        figures.append(FamilyFigures.of("all", entries))
    return (
        environment()
        .get_template("readme.md.jinja")
        .render(
            hash=library_hash(content),
            unity=content.unity,
            versions=sorted(content.versions.items()),
            operators=content.operators,
            max_ops=content.options.max_ops,
            example=rule_line(_example(entries)) if entries else "",
            families=figures,
            any_rank=sum(bool(entry.rule.runs) for entry in entries),
            any_function=sum(not STAND_INS.keys().isdisjoint(entry.operators) for entry in entries),
            reparametrised=sum(_reparametrises(entry) for entry in entries),
            derived=sum(entry.rule.derived > 0 for entry in entries),
            undecided=[UndecidedCandidate.of(file) for file in content.undecided],
        )
    )


def _example(entries: Sequence[RuleEntry]) -> RuleEntry:
    """A rule as an example: the first with more than two inputs and axes that may be any number of
    axes."""
    return next((e for e in entries if e.rule.runs and len(e.rule.inputs) > 2), entries[0])


def _reparametrises(entry: RuleEntry) -> bool:
    made = (made for direction in entry.file.directions for made in direction.creates)
    return any(value.kind in REPARAMETRISING for value in made)

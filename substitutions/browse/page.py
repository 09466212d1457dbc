"""Renders the page on which people browse the library, as one self-contained file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from pcg.graph.graph import Graph
from substitutions.browse.labels import any_number, labels
from substitutions.browse.listing import FAMILIES, RuleEntry
from substitutions.browse.picture import picture
from substitutions.rules.rule import Rule
from substitutions.rules.store import DirectionFile

PACKAGE = "substitutions.browse"


def page(entries: Sequence[RuleEntry], hash: str) -> str:
    """The page about the rules. ``hash``: the hash of the library."""
    data = page_data(entries)
    return (
        environment()
        .get_template("page.html.jinja")
        .render(
            rules=len(entries),
            operators=len(data["operators"]) - len(data["parallel"]),
            hash=hash,
            style=style(),
            script=drawing() + _resource("page.js"),
            data=embedded(data),
        )
    )


def environment(package: str = PACKAGE) -> Environment:
    """The templates of a package. They escape values in HTML, and refuse undefined names."""
    return Environment(
        loader=PackageLoader(package, "."),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def style() -> str:
    """The style sheet of pages with pictures; other packages use it too."""
    return _resource("page.css")


def drawing() -> str:
    """The script that draws pictures of graphs and rules; other packages use it too."""
    return _resource("draw.js")


def _resource(name: str) -> str:
    return files(PACKAGE).joinpath(name).read_text(encoding="utf-8")


def embedded(data: object) -> str:
    """JSON that can be embedded in a script element of HTML: nothing in it ends the element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c")


def page_data(entries: Sequence[RuleEntry]) -> dict[str, list[object]]:
    """The data of the page: families and operators by name, and a list for each rule (``_row``)."""
    operators = sorted({name for entry in entries for name in entry.operators})
    number = {name: i for i, name in enumerate(operators)}
    return {
        "families": list(FAMILIES),
        "operators": list(operators),
        "parallel": list(_parallel(entries)),
        "rules": [_row(entry, number) for entry in entries],
    }


def _parallel(entries: Sequence[RuleEntry]) -> list[str]:
    nodes = (n for e in entries for n in Graph((*e.rule.left, *e.rule.right)).nodes)
    return sorted({node.name for node in nodes if node.is_parallel})


def sides_of(rule: Rule) -> list[list[object]]:
    """The pictures of both sides of a rule."""
    words, inputs = labels(rule), [name for name, _ in rule.inputs]
    return [picture(side, words, inputs).record() for side in (rule.left, rule.right)]


def _row(entry: RuleEntry, operators: dict[str, int]) -> list[object]:
    """A rule as a list: name, family, statement, inputs, operators, free axes, required equations
    between sizes, conditions, steps from other rules, proof, directions, pictures of both sides."""
    rule, proof = entry.rule, entry.file.proof
    return [
        rule.name,
        FAMILIES.index(rule.family),
        rule.statement,
        [name for name, _ in rule.inputs],
        [operators[name] for name in entry.operators],
        [f"{name}..." for name in any_number(rule)],
        list(rule.requires),
        list(rule.conditions),
        rule.derived,
        [proof.side_conditions, proof.digest],
        [_direction(direction) for direction in entry.file.directions],
        sides_of(rule),
    ]


def _direction(direction: DirectionFile) -> list[object]:
    """A direction as ``[is applicable, unbound inputs, free symbols, created values]``."""
    return [
        int(direction.applicable),
        list(direction.unbound),
        list(direction.free),
        [[made.value, made.kind] for made in direction.creates],
    ]

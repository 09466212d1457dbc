"""The lines of ``tests/rules``, such as ``x:2 w:2 | LEFT == RIGHT``, in folders by verdict."""

from __future__ import annotations

from support.paths import ROOT

from pcg.graph.pairs import GraphPair
from pcg.plan.text import parse_values

RULES = ROOT / "tests" / "rules"


def lines(folder: str) -> list[str]:
    """The rules in a folder."""
    paths = sorted((RULES / folder).glob("*.txt"))
    text = [line.strip() for path in paths for line in path.read_text().splitlines()]
    return [line for line in text if line and not line.startswith("#")]


def parse(line: str) -> GraphPair:
    """Both sides of a line."""
    given, sides = line.split("|", 1)
    inputs = {name: int(rank) for name, rank in (i.split(":") for i in given.split())}
    left, right = sides.split(" == ")
    return parse_values(left, inputs, line), parse_values(right, inputs, line)

"""What an importer makes of a rule: pairs of graphs, and what the file says about sizes."""

from __future__ import annotations

from dataclasses import dataclass

from pcg.graph.pairs import Outputs
from substitutions.importers.operators import RuleSystem
from verifier.trusted.sizes.sizes import SizeEquation

MAX_CASES = 256


class IllTypedError(Exception):
    """A side of a rule has no meaning; the text says which one and why.

    ``demand``: in words, what it asks of sizes that cannot be; empty where it is no such thing.
    """

    def __init__(self, reason: str, side: str = "", demand: str = "") -> None:
        super().__init__(f"{side}: {reason}" if side else reason)
        self.reason = reason
        self.side = side
        self.demand = demand


class UnsupportedError(Exception):
    """Sizes of a rule are beyond what the importer can solve; the text says which."""


@dataclass(frozen=True)
class ImportedCase:
    """A pair of graphs over the same inputs with paired outputs."""

    left: Outputs
    right: Outputs
    equal: tuple[SizeEquation, ...]
    """What is known of the sizes of inputs from the start."""
    assumed: str = ""
    """Which case it is, such as ``|i1.2| = 2*|i1.2.half|``; empty where there is one only."""


@dataclass(frozen=True)
class Imported:
    """A rule in the index language. It holds if each of its cases does.

    ``degree``: the symbol that stands for the degree of every parallel operator, if it is left
    open. ``degrees``: those that the file states. ``conditions``: what typing asks of sizes that
    the file calls independent, and what the right side asks beyond the left. ``demanded``: those
    among them that typing does not ask.
    """

    name: str
    source: RuleSystem
    cases: tuple[ImportedCase, ...]
    degree: str | None = None
    degrees: tuple[int, ...] = ()
    conditions: tuple[str, ...] = ()
    demanded: tuple[SizeEquation, ...] = ()

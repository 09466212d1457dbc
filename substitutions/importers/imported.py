"""An imported rule: pairs of graphs, and conditions on sizes."""

from __future__ import annotations

from dataclasses import dataclass

from pcg.graph.pairs import Outputs
from substitutions.importers.operators import RuleSystem
from verifier.trusted.sizes.sizes import SizeEquation

MAX_CASES = 256


class IllTypedError(Exception):
    """A side of a rule has no meaning; the text says which side, and why.

    ``demand``: the demand on sizes that cannot hold, as text; empty if there is another reason.
    """

    def __init__(self, reason: str, side: str = "", demand: str = "") -> None:
        super().__init__(f"{side}: {reason}" if side else reason)
        self.reason = reason
        self.side = side
        self.demand = demand


class UnsupportedError(Exception):
    """The importer cannot solve the equations between sizes of a rule; the text says which."""


@dataclass(frozen=True)
class ImportedCase:
    """A pair of graphs over the same inputs with paired outputs."""

    left: Outputs
    right: Outputs
    equal: tuple[SizeEquation, ...]
    """The equations between sizes of inputs that the case assumes."""
    assumed: str = ""
    """The condition of this case, such as ``|i1.2| = 2*|i1.2.half|``; empty for a single case."""


@dataclass(frozen=True)
class ImportedRule:
    """A rule in the index language. It holds if each of its cases does.

    ``degree``: the symbol of the degree of every parallel operator, if it is left open.
    ``degrees``: the degrees that the file states. ``conditions``: the conditions of types on sizes
    that the file treats as independent, and the conditions of the right side beyond the left.
    ``demanded``: further equations between sizes, which types do not require.
    """

    name: str
    source: RuleSystem
    cases: tuple[ImportedCase, ...]
    degree: str | None = None
    degrees: tuple[int, ...] = ()
    conditions: tuple[str, ...] = ()
    demanded: tuple[SizeEquation, ...] = ()

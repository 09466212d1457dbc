"""Imports TASO's rules: matrices, images and kernels, whose sizes are independent.

    x1..x3 [N, K]   w1..w3 [K, M]   i1..i3 [N, C, H, W]   k1..k10 [O, I, kh, kw]   s []

These are the usual inputs. An input that is used otherwise has the rank of its use. The equations
between sizes follow from use too. If windows depend on whether a size is even, there are several
cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pcg.language.poly import Poly
from substitutions.importers.imported import (
    MAX_CASES,
    IllTypedError,
    ImportedCase,
    ImportedRule,
    UnsupportedError,
)
from substitutions.importers.ranks import ranks_of
from substitutions.importers.schema import ForeignRule
from substitutions.importers.sizes import KnownSizes, equations
from substitutions.importers.taso_operators import ConvolutionDemands, Importer
from substitutions.importers.tensors import match
from substitutions.importers.windows import CasesNeeded
from verifier.trusted.sizes.sizes import SizeEquation

CaseEquations = tuple[SizeEquation, ...]
"""The equations between sizes that a case assumes."""


def import_rule(
    rule: ForeignRule, *, ungrouped: tuple[str, ...] = (), same_outputs: bool = False
) -> ImportedRule:
    """The rule as graphs, one pair for each case.

    ``ungrouped``: the sides whose convolutions have no groups. ``same_outputs``: whether all
    kernels have the same number of output channels. Both become conditions of the imported rule.

    Raises IllTypedError if a side has no meaning in any case, and UnsupportedError if equations
    between sizes are not solved, or there are too many cases.
    """
    cases = _Cases(rule, ConvolutionDemands(ungrouped, same_outputs))
    while cases.pending:
        cases.import_next()
    if not cases.made:
        assert cases.refused is not None
        raise cases.refused
    return ImportedRule(
        rule.name,
        rule.source,
        tuple(cases.made),
        conditions=tuple(cases.conditions),
        demanded=tuple(cases.asked.values()),
    )


@dataclass
class _Cases:
    """The cases of a rule: those still to import, and the results of the others."""

    rule: ForeignRule
    demanded: ConvolutionDemands
    pending: list[CaseEquations] = field(default_factory=lambda: [()])
    made: list[ImportedCase] = field(default_factory=list[ImportedCase])
    conditions: dict[str, None] = field(default_factory=dict[str, None])
    asked: dict[str, SizeEquation] = field(default_factory=dict[str, SizeEquation])
    """The equations between sizes that ``demanded`` adds, by their text."""
    refused: IllTypedError | None = None

    def import_next(self) -> None:
        """Import the rule in one more case, or split this case into several."""
        assumed = self.pending.pop()
        try:
            case, words, asked = _import_case(self.rule, assumed, self.demanded)
        except CasesNeeded as needed:
            symbol = Poly.of(needed.symbol)
            self.conditions |= dict.fromkeys([needed.bound] if needed.bound else [])
            self.pending += [(*assumed, (symbol, option)) for option in reversed(needed.options)]
            if len(self.pending) + len(self.made) > MAX_CASES:
                raise UnsupportedError(f"more than {MAX_CASES} cases of sizes") from None
        except IllTypedError as error:
            self.refused = self.refused or error
            if error.side != "left":
                self.conditions[error.demand or f"not {_text(assumed)}"] = None
        else:
            self.made.append(case)
            self.conditions |= dict.fromkeys((*asked, *words))
            self.asked |= asked


def _import_case(
    rule: ForeignRule, assumed: CaseEquations, demanded: ConvolutionDemands
) -> tuple[ImportedCase, tuple[str, ...], dict[str, SizeEquation]]:
    """The pair of graphs under assumptions, the demands of the right side on sizes beyond those of
    the left, and the equations that ``demanded`` adds.

    The sizes of constants follow from their use, which may come later. So they are symbols in a
    first round, and have their values in the next.
    """
    settled: Mapping[str, Poly] = {}
    while True:
        importer = Importer(KnownSizes(), demanded, ranks_of(rule), settled)
        for symbol, value in assumed:
            importer.known.equal(symbol, value, "sizes")
        if demanded.same_outputs:
            importer.equate_outputs(rule.left.inputs | rule.right.inputs)
        left = importer.side("left", rule.left)
        before = frozenset(importer.known.asked)
        right = importer.side("right", rule.right)
        match(importer.known, left, right)
        if unbound := rule.right.inputs - rule.left.inputs:
            raise IllTypedError(f"input {max(unbound)} stands on the right side only")
        if importer.fresh <= settled.keys():
            break
        settled = importer.settle(rule.left.inputs)
    known = importer.known
    values = [tuple(t.value for t in side) for side in (left, right)]
    equal = equations(known, sorted(known.sizes.solved))
    case = ImportedCase(values[0], values[1], equal, _text(assumed))
    asked = tuple(
        text
        for text, symbols in known.asked.items()
        if text not in before and symbols.isdisjoint(importer.fresh)
    )
    return case, asked, importer.demands


def _text(assumed: CaseEquations) -> str:
    return ", ".join(f"{a} = {b}" for a, b in assumed)

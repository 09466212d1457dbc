"""Explains why a candidate is neither proved nor refuted, for the library's README."""

from __future__ import annotations

import re
from dataclasses import dataclass

from substitutions.rules.store import UndecidedFile

_SAME = re.compile(r"\b(\w+)=\1\b")
"""An attribute whose value is the symbol with the attribute's name."""

EXPLANATIONS = {
    "is not determined": """An index that is summed stands in a product with a symbol, such as a
stride, so that no linear equation tells it from what is read: how often each product is summed is a
question of divisibility, which the proof does not decide. No instance that was tried differs.""",
    "no small sizes fit": """Its sizes satisfy equations of products, and none were found that do:
without any, a proof would say nothing, and there is no instance to refute it by.""",
    "z3 says unknown": """The solver gives up on a condition that multiplies sizes. No instance that
was tried differs.""",
    "z3 says sat": """The terms as they stand have other coefficients: it would take a law that the
proof does not have. No instance that was tried differs.""",
}
"""Explanations by a part of the prover's reason."""
OTHER = "The proof does not get through. No instance that was tried differs."


@dataclass(frozen=True)
class UndecidedCandidate:
    """A candidate with the reason that the prover gave, and its explanation."""

    text: str
    reason: str
    explanation: str

    @staticmethod
    def of(file: UndecidedFile) -> UndecidedCandidate:
        explanations = (words for part, words in EXPLANATIONS.items() if part in file.reason)
        text = _SAME.sub(r"\1", f"{file.left} = {file.right}")
        return UndecidedCandidate(text, file.reason, next(explanations, OTHER))

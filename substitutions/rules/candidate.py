"""Candidates: pairs of graphs as text, which can be sent between processes."""

from __future__ import annotations

from dataclasses import dataclass

from pcg.graph.pairs import GraphPair
from pcg.plan.text import parse_values
from substitutions.rules.rule import Family, input_ranks, side_text


@dataclass(frozen=True)
class Candidate:
    """A pair of graphs as text.

    ``family``: the part of the generator that found it. ``steps``: the number of rewriting steps by
    which it is known to follow from smaller rules; 0 if it is not known to follow. ``ones``: the
    axes of inputs that had one element where both graphs were equal.
    """

    inputs: tuple[tuple[str, int], ...]
    left: str
    right: str
    family: Family
    steps: int = 0
    ones: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(pair: GraphPair, family: Family, steps: int = 0) -> Candidate:
        left, right = pair
        ranks = input_ranks((*left, *right))
        return Candidate(ranks, side_text(left), side_text(right), family, steps)

    def parse(self) -> GraphPair:
        inputs = dict(self.inputs)
        return parse_values(self.left, inputs), parse_values(self.right, inputs)

    def __str__(self) -> str:
        ranks = " ".join(f"{name}:{rank}" for name, rank in self.inputs)
        return f"{ranks} | {self.left} == {self.right}"


@dataclass(frozen=True)
class Enumeration:
    """The result of one part of the enumeration: how many graphs and different values it
    enumerated, and its candidates."""

    graphs: int
    values: int
    candidates: tuple[Candidate, ...]

"""Variants of a model: equal graphs by rewrites, of which a planner takes the fastest.

Whether algebra comes before parallelization or together with it is a planner's mode (Unity, section
6.4): *parallel* leaves the model as it is; *algebra* and *sequential* take the rewrites that are
best on one device, *algebra* for data parallelism alone; *joint* takes what is best as the graph is
cut, and all that the others try.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from pcg.graph.graph import Graph
from search.choices import Mode
from search.cost.derivation import Derivation, Scribe
from search.mesh.choose.choosing import Chooser
from search.mesh.plan.rewrites import Algebra, Limits, Rewriter
from search.mesh.rules.cuts import opened
from search.mesh.space.allow import closed
from substitutions.rules.store import Library

FEW_OPERATORS, GROWTH, FEW_GRAPHS = 6, 1, 64
"""A graph of so few operators is rewritten in all ways that make no more than ``GROWTH`` operators
more, up to so many graphs."""


@dataclass(frozen=True)
class Variant:
    """A graph, and the steps that lead to it from a model's."""

    graph: Graph
    derivation: Derivation


def variants(
    graph: Graph, library: Library, mode: Mode, alone: Chooser, limits: Limits
) -> Iterator[Variant]:
    """The variants of a model that need no look at how they are cut. ``alone``: the chooser of one
    device."""
    start = Variant(graph, Derivation.start(graph))
    if mode in (Mode.JOINT, Mode.PARALLEL):
        yield from _cuttable(start, library)
    if mode is not Mode.PARALLEL:
        better = rewritten(start, library, alone, limits)
        if better is not None:
            yield from _cuttable(better, library)
        elif mode is not Mode.JOINT:
            yield from _cuttable(start, library)
    if mode is Mode.JOINT:
        yield from _closure(start, library)


def _closure(start: Variant, library: Library) -> Iterator[Variant]:
    """Of a graph of few operators, all that rewrites in a row make of it, whether or not the first
    ones gain anything by themselves."""
    if len(start.graph.operators) > FEW_OPERATORS:
        return
    known = {start.graph}
    pending = deque([start])
    while pending:
        base = pending.popleft()
        algebra = Algebra.of(library.concrete(base.graph))
        for node in base.graph.operators:
            for applied in algebra.applications(node, base.graph):
                scribe = Scribe.after(base.derivation)
                graph = scribe.follow(base.graph, applied)
                if graph in known or len(graph.operators) > len(start.graph.operators) + GROWTH:
                    continue
                known.add(graph)
                if len(known) > FEW_GRAPHS:
                    return
                pending.append(made := Variant(graph, scribe.derivation))
                yield made


def rewritten(
    variant: Variant, library: Library, chooser: Chooser, limits: Limits
) -> Variant | None:
    """The variant with the rewrites that make it faster, with strategies chosen anew; None if there
    are none."""
    algebra = Algebra.of(library.concrete(variant.graph))
    rewriter = Rewriter(chooser, algebra, limits)
    better = rewriter.improved(variant.graph, variant.derivation)
    return None if better is None else Variant(*better)


def _cuttable(variant: Variant, library: Library) -> Iterator[Variant]:
    """The variant with the operators unfolded that stand in the way of a cut of the batch since
    they reduce along it, if there are any; and as it is."""
    if stand := closed(variant.graph):
        rules = library.concrete(variant.graph)
        made = Variant(*opened(variant.graph, variant.derivation, frozenset(stand), rules))
        if len(made.derivation.steps) > len(variant.derivation.steps):
            yield made
    yield variant

"""Variants of a model: equal graphs by rewrites. A planner takes the fastest.

A planner's mode says whether algebra comes before parallelization or together with it (Unity,
section 6.4). *Parallel* leaves the model as it is. *Algebra* and *sequential* take the rewrites
that are best on one device; *algebra* is for data parallelism alone. *Joint* takes the rewrites
that are best for the graph as it is cut, and tries all that the other modes try.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from pcg.graph.graph import Graph, Node
from search.choices import Mode
from search.cost.derivation import Derivation, Scribe
from search.cost.survey import RewriteSurvey
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.cuts import with_unfolded
from search.map.space.allow import Allowed, uncuttable
from search.split.blocks import blocks_of
from search.substitute.algebra import Algebra
from search.substitute.rewrites import (
    ONE_DEVICE_TRIES,
    Limits,
    Rewriter,
    RewrittenGroup,
    all_strategies,
)
from substitutions.rules.store import Library

FEW_OPERATORS, GROWTH, FEW_GRAPHS = 6, 1, 64
"""A graph of at most ``FEW_OPERATORS`` operators is rewritten in all ways that add no more than
``GROWTH`` operators, up to ``FEW_GRAPHS`` graphs."""


@dataclass(frozen=True)
class Variant:
    """A graph, and its derivation from a model's graph."""

    graph: Graph
    derivation: Derivation
    made: tuple[RewrittenGroup | None, ...] = ()
    """The rewrites in order; None stands for the unfolding of operators."""

    @property
    def is_rewritten(self) -> bool:
        """Whether the variant has steps other than unfolding."""
        return any(self.made) or (not self.made and bool(self.derivation.steps))


def whole_variant(short: Variant, whole: Graph, more: int, library: Library) -> Variant | None:
    """The variant of the whole graph by the same rewrites as a variant of the short graph, which
    has ``more`` blocks less. None if the rewrites lead to something else there."""
    variant = Variant(whole, Derivation.start(whole))
    for group in short.made:
        if group is None:
            unfolded = _unfolded(variant, library)
            if unfolded is None:
                return None
            variant = unfolded
            continue
        choice = whole_choice(group.choice, variant.graph, more)
        if choice is None:
            return None
        algebra = Algebra.of(library.concrete(variant.graph))
        rewritten_graph = Rewriter.everywhere(algebra, choice, variant.derivation, group.keys)
        variant = Variant(*rewritten_graph, (*variant.made, group))
    return variant if _stand_ins(short.graph, variant.graph, more) is not None else None


def whole_choice(choice: Choice, whole: Graph, more: int) -> Choice | None:
    """A choice for a graph with ``more`` additional blocks, which are all cut as the block that
    stands for them. None if the graph differs in more than these blocks."""
    stand_ins = _stand_ins(choice.graph, whole, more)
    if stand_ins is None:
        return None
    strategies = {node: choice.strategies[stand_in] for node, stand_in in stand_ins.items()}
    starts = {
        node: choice.starts[stand_in]
        for node, stand_in in stand_ins.items()
        if stand_in in choice.starts
    }
    return Choice(whole, strategies, choice.seconds, choice.fully_sharded, starts)


def _stand_ins(short: Graph, whole: Graph, more: int) -> Mapping[Node, Node] | None:
    blocks = blocks_of(short)
    return None if blocks is None else blocks.stand_ins(whole, more)


def variants(
    graph: Graph, library: Library, mode: Mode, alone: Chooser, limits: Limits
) -> Iterator[Variant]:
    """The variants of a model that do not depend on how it is cut. ``alone``: the chooser of one
    device."""
    start = Variant(graph, Derivation.start(graph))
    if mode in (Mode.JOINT, Mode.PARALLEL):
        yield from _cuttable(start, library)
    if mode is not Mode.PARALLEL:
        # Each variant is planned by itself, which many small gains are not worth.
        few = replace(limits, tries=min(ONE_DEVICE_TRIES, limits.tries), together=False)
        if mode is Mode.JOINT:
            few = replace(few, tell=partial(_tell_left, limits))
        better = rewritten(start, library, alone, few)
        if better is not None:
            yield from _cuttable(better, library)
        elif mode is not Mode.JOINT:
            yield from _cuttable(start, library)
    if mode is Mode.JOINT:
        yield from _closure(start, library)


def _tell_left(limits: Limits, survey: RewriteSurvey) -> None:
    """Report the number of rewrites that are left. The gain on one device says little of many, and
    is not reported."""
    limits.tell(RewriteSurvey(left=survey.left))


def _closure(start: Variant, library: Library) -> Iterator[Variant]:
    """All graphs that sequences of rewrites make of a graph of few operators, whether or not the
    first rewrites gain anything by themselves."""
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
    variant: Variant,
    library: Library,
    chooser: Chooser,
    limits: Limits,
    allowed: Callable[[Graph], Allowed] = all_strategies,
    choice: Choice | None = None,
) -> Variant | None:
    """The variant with the rewrites that make it faster, judged with strategies chosen anew; None
    if there are none. ``allowed``: a function from a graph to the strategies that may be used;
    ``choice``: the best of these for the variant's graph, if it is known."""
    algebra = Algebra.of(library.concrete(variant.graph))
    rewriter = Rewriter(chooser, algebra, limits, allowed)
    better = rewriter.improved(variant.graph, variant.derivation, choice)
    return None if better is None else Variant(*better, (*variant.made, *rewriter.made))


def _cuttable(variant: Variant, library: Library) -> Iterator[Variant]:
    """The variant with all operators unfolded that can't be cut along the batch because they reduce
    along it, if there are any; and the variant itself."""
    unfolded = _unfolded(variant, library)
    if unfolded is not None:
        yield unfolded
    yield variant


def _unfolded(variant: Variant, library: Library) -> Variant | None:
    """The variant with the operators unfolded that can't be cut along the batch. None if there is
    no such operator, or no rule unfolds one."""
    reducing = uncuttable(variant.graph)
    if not reducing:
        return None
    rules = library.concrete(variant.graph)
    graph, after = with_unfolded(variant.graph, variant.derivation, frozenset(reducing), rules)
    is_new = len(after.steps) > len(variant.derivation.steps)
    return Variant(graph, after, (*variant.made, None)) if is_new else None

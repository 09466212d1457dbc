"""Operators that reduce an axis, as graphs in which that axis may be cut.

Problem: a cross entropy, a maximum or a logarithm of summed exponentials reads its whole axis for
each result, and has no partial sums. So a tensor that is cut along this axis, such as logits along
the vocabulary, would have to be gathered.

Method: by the library's rules, such a reduction equals a reduction within the blocks of its axis,
followed by one over the few results of the blocks. The first may be cut between blocks. Only its
results are gathered, one for each row and block (Megatron-LM, arXiv:1909.08053, section 3). An
operator with a reduction inside is unfolded first, by a rule that leads to few operators. Exact, as
the rules are proved for all sizes.

The number of blocks does not depend on the machine, so the result for one graph holds on any
machine. It is the largest number that divides both the axis and ``BLOCKS`` and leaves more than one
element a block. It is a multiple of the degrees by which the axis is cut within a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from pcg.graph.graph import Graph, Node, rebuild, topological
from pcg.graph.pairs import side
from pcg.language.poly import Poly
from pcg.memo import remembered
from pcg.ops.reindexing import unflatten
from search.cost.derivation import Applied
from substitutions.rules.concrete.rooted import RootedRules
from substitutions.rules.match import Match, build, matches_at
from substitutions.rules.rule import Rule

BLOCKS = 48
"""A number that the degrees 2, 3, 4, 6, 8, 12, 16 and 24 divide."""
FEW = 4
"""The most operators into which one is unfolded. More would write as many tensors of the size of
the operand, which a single kernel does not."""

Steps = tuple[Applied, ...]


@dataclass(frozen=True, eq=False)
class ReducedAxes:
    """The rules of a library about reductions of an axis, by operator."""

    rules: RootedRules

    @staticmethod
    @lru_cache(maxsize=8)
    def of(rules: RootedRules) -> ReducedAxes:
        """The rules about reductions of an axis among some rules. Results are cached, as a library
        returns the same rules for graphs of one kind."""
        return ReducedAxes(rules)

    @remembered
    def _by_blocks(self, name: str) -> tuple[tuple[Rule, str, str], ...]:
        """The rules that split the reduction of this name in blocks. Each comes with two symbols,
        for the number of blocks and for the size of a block."""
        return tuple(
            (rule, *symbols)
            for rule in self._decompositions(name)
            if (symbols := _blocks_of(rule)) is not None
        )

    @remembered
    def _unfolding(self, name: str) -> tuple[Rule, ...]:
        """The rules that write an operator of this name as a graph of simpler operators. Graphs of
        few operators come first."""
        alone = (rule for rule in self._decompositions(name) if _is_alone(rule))
        return tuple(sorted(alone, key=lambda rule: len(rule.created)))

    def _decompositions(self, name: str) -> Iterator[Rule]:
        rules = self.rules.rooted(name, parallel=False)
        return (r for r in rules if r.family == "decomposition" and r.is_applicable)

    def _unfolded(self, node: Node) -> Iterator[Applied]:
        """The equal graphs of simpler operators."""
        for rule in self._unfolding(node.name):
            made = None if rule.free_symbols else applied_alone(rule, node, {})
            if made is not None:
                yield made

    def opened(self, node: Node) -> Iterator[Steps]:
        """Sequences of steps from an operator, which refuses to be cut along an axis, to graphs
        that may be cut along it."""
        within = self.in_blocks(node)
        if within is not None:
            yield (within,)
            return
        for simple in self._unfolded(node):
            if len(simple.rule.created) <= FEW:
                steps = self._after(simple)
                if steps:
                    yield (simple, *steps)

    def unfolded(self, node: Node) -> Steps:
        """The steps from an operator to a graph of simpler operators, with the reductions among
        these in blocks. Empty if no rule unfolds the operator."""
        steps = next(self.opened(node), None)
        if steps is not None:
            return steps
        simple = next(self._unfolded(node), None)
        return () if simple is None else (simple, *self._after(simple))

    def _after(self, simple: Applied) -> Steps:
        """The steps that bring the reductions in the result of a rule to blocks, one by one."""
        made = topological((v.node for v in simple.made), set(simple.match.values.values()))
        left = tuple(n.value() for n in made if self._by_blocks(n.name))
        steps: list[Applied] = []
        while left:
            step = self.in_blocks(left[0].node)
            left = left[1:] if step is None else rebuild(left[1:], step.replaced)
            steps += () if step is None else (step,)
        return tuple(steps)

    def in_blocks(self, node: Node) -> Applied | None:
        """The reduction in blocks. None if the operator can be cut along its axis anyway, or if the
        axis has no blocks."""
        for rule, count, size in self._by_blocks(node.name):
            axis = node.operator_call.integer("axis")
            length = node.inputs[0].type.shape[axis]
            blocks = _count(length)
            ranks = tuple(value.rank for value in node.inputs)
            if blocks == 1 or node.operator_call.typing(ranks).axis_at(0, axis):
                continue
            made = applied_alone(rule, node, {count: blocks, size: length // blocks})
            if made is not None:
                return made
        return None


def _count(length: int) -> int:
    """The number of blocks of an axis, each of more than one element."""
    common = gcd(length, BLOCKS)
    return max((n for n in range(1, BLOCKS + 1) if common % n == 0 and n < length), default=1)


def applied_alone(rule: Rule, node: Node, free: Mapping[str, int]) -> Applied | None:
    """A rule applied to all outputs of an operator; None if it does not fit."""
    match = match_alone(rule, node)
    made = None if match is None else build(rule, match, free)
    return None if match is None or made is None else Applied(rule, match, free, made)


def match_alone(rule: Rule, node: Node) -> Match | None:
    """The match of a rule with all outputs of an operator; None if it does not fit."""
    graph = Graph(node.outputs)
    match = next(matches_at(rule, node, graph), None)
    return None if match is None or match.outputs != graph.outputs else match


def _is_alone(rule: Rule) -> bool:
    """Whether the left side is the only output of an operator on inputs."""
    return len(rule.left) == 1 and all(v.node.is_leaf for v in rule.left[0].node.inputs)


def _blocks_of(rule: Rule) -> tuple[str, str] | None:
    """For a rule that splits a reduction into one within blocks and one over their results: the
    symbols of the number of blocks and of their size. None for other rules."""
    left, right = side(rule.left).operators, side(rule.right).operators
    if len(left) != 1:
        return None
    if [n.name for n in right] != [unflatten.name, left[0].name, left[0].name]:
        return None
    sizes = (right[0].operator_call.values[name] for name in unflatten.sizes)
    count, size = (v.symbol if isinstance(v, Poly) else None for v in sizes)
    return (count, size) if count and size and {count, size} == set(rule.free_symbols) else None

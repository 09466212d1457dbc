"""Streams: the operators of a model that can work on the batch slice by slice.

The samples are the first dimension of the model's inputs. An operator *streams* where it reads all
its samples at one index that the library has a rule for (``op(x) = batch(op(pipeline(x)))``). What
reads no samples is done once a step. What is left, the *tail*, sums over samples: it must be linear
in them, for then the gradient that it hands back to one slice depends on no other slice, and the
backward pass of the first slice can start before the last slice has come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph, Node, Value
from pcg.types.parallel_operators import IN_TIME
from search.cost.derivation import Derivation
from search.mesh.rules.cuts import Cuts, opened
from search.mesh.space.allow import sampled
from substitutions.rules.rule import Rule
from substitutions.rules.store import Library


@dataclass(frozen=True)
class Streams:
    """A whole-model graph of which the samples can be taken slice by slice.

    ``axes`` has the sample index of every operator that streams, and ``rules`` the rule that
    slices it; ``tail`` the operators after them. The others read no samples. ``opened``: the rules
    that led from the model to ``graph``.
    """

    graph: Graph
    batch: int
    axes: Mapping[Node, str]
    rules: Mapping[Node, Rule]
    tail: frozenset[Node]
    cancel: Mapping[int, tuple[Rule, ...]]
    """The rules ``pipeline(batch(x, i, k), i, k) = x``, by the rank of x."""
    opened: Derivation


def streams(graph: Graph, library: Library) -> Streams:
    """The graph with operators that sum over samples unfolded where rules say so, and the roles of
    its operators. Raises NegativeAnswer for a model with no samples to slice, or with an operator
    that reads all samples together and is not linear in them."""
    batch = _batch(graph)
    rules = library.concrete(graph)
    closed = _Roles(graph, Cuts(rules, IN_TIME))
    graph, steps = opened(graph, Derivation.start(graph), closed.tail, rules)
    rules = library.concrete(graph)  # blocks of an axis are an axis more
    roles = _Roles(graph, Cuts(rules, IN_TIME))
    if roles.mixing is not None:
        name = (closed.mixing or roles.mixing).name
        problem = "reads all samples together, so the batch cannot be taken in slices"
        raise NegativeAnswer(f"pipeline: {name} {problem}")
    if not roles.axes:
        raise NegativeAnswer("pipeline: no operator reads samples")
    cancel = _cancelling(rules)
    return Streams(graph, batch, roles.axes, roles.rules, frozenset(roles.tail), cancel, steps)


class _Roles:
    """The sample index of every operator that streams, and what comes after them."""

    def __init__(self, graph: Graph, cuts: Cuts) -> None:
        self.axes: dict[Node, str] = {}
        self.rules: dict[Node, Rule] = {}
        self.tail: list[Node] = []
        self._dims: dict[Value, int] = dict.fromkeys(sampled(graph), 0)
        self.dependent = {value.node for value in self._dims}
        """Everything that depends on a sample."""
        self._cuts = cuts
        for node in graph.nodes:
            if not node.is_leaf and any(value.node in self.dependent for value in node.inputs):
                self._operator(node)

    @property
    def mixing(self) -> Node | None:
        """The first operator that does not stream and is not linear in what depends on samples."""
        return next((node for node in self.tail if not _is_linear(node, self.dependent)), None)

    def _operator(self, node: Node) -> None:
        self.dependent.add(node)
        axis = self._sample_axis(node)
        rule = None if axis is None else self._cuts.of(node).get(axis[0])
        if axis is None or rule is None:
            self.tail.append(node)
            return
        self.axes[node], self.rules[node] = axis[0], rule
        for port, dim in enumerate(axis[1]):
            self._dims[node.value(port)] = dim

    def _sample_axis(self, node: Node) -> tuple[str, tuple[int, ...]] | None:
        """The index at which all samples are read, and where it stands in the outputs."""
        reads = {i: v for i, v in enumerate(node.inputs) if v.node in self.dependent}
        if any(value not in self._dims for value in reads.values()):
            return None
        ranks = tuple(value.rank for value in node.inputs)
        for axis in node.operator_call.typing(ranks).axes:
            outputs = tuple(dim for dim in axis.outputs if dim is not None)
            at = all(axis.operands[i] == self._dims[value] for i, value in reads.items())
            if at and len(outputs) == len(axis.outputs):
                return axis.name, outputs
        return None


def _batch(graph: Graph) -> int:
    batch = next((value.type.shape[0] for value in sampled(graph)), None)
    if batch is None:
        raise NegativeAnswer("pipeline: the model has no input with a dimension of samples")
    if batch == 1:
        raise NegativeAnswer("pipeline: one sample cannot be cut into micro-batches")
    return batch


def _is_linear(node: Node, dependent: set[Node]) -> bool:
    """Whether an operator is linear in what depends on samples: partial sums may pass there."""
    ranks = tuple(value.rank for value in node.inputs)
    reads = frozenset(i for i, value in enumerate(node.inputs) if value.node in dependent)
    return reads in node.operator_call.typing(ranks).carriers


def _cancelling(rules: tuple[Rule, ...]) -> Mapping[int, tuple[Rule, ...]]:
    """The library's rules that a pipeline after its batch is nothing, by the rank of the tensor."""
    cancelling: dict[int, tuple[Rule, ...]] = {}
    for rule in (way for both in rules for way in (both, both.reversed)):
        top = rule.left[0].node
        if top.is_leaf or top.name != "pipeline" or not rule.right[0].node.is_leaf:
            continue
        below = top.inputs[0].node
        if not below.is_leaf and below.name == "batch" and below.inputs[0].node.is_leaf:
            rank = below.inputs[0].rank
            cancelling[rank] = (*cancelling.get(rank, ()), rule)
    return cancelling

"""Streams: the operators of a model that can work on the batch slice by slice.

The samples are the first dimension of the model's inputs. An operator *streams* if it reads all its
samples at one index for which the library has a rule (``op(x) = batch(op(pipeline(x)))``).
Operators that read no samples run once a step. The remaining operators, the *tail*, sum over
samples. They must be linear in them: then the gradient for one slice depends on no other slice, and
the backward pass of the first slice can start before the last slice has arrived.

Values that depend on inputs alone may be computed *ahead*: once a step for the whole batch, before
the first slice. The tail need not be linear in these. So a mean over the labels that count is
divided by their number in the whole batch, which is known when the first slice goes back. Only what
the tail needs is computed ahead, with its operands. Slices of it are taken as of an input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph, Node, Value
from pcg.memo import remembered
from pcg.readings.saved import view_of
from pcg.readings.work import gradient_nodes
from pcg.types.infer import index_sizes
from pcg.types.parallel_operators import IN_TIME
from search.cost.derivation import Derivation
from search.cost.liveness import saved_positions
from search.map.choose.duties import Duties, duties_in
from search.map.rules.cuts import Cuts, with_unfolded
from search.map.space.samples import sampled
from search.split.colours import colours
from substitutions.rules.concrete.rooted import RootedRules
from substitutions.rules.rule import Rule
from substitutions.rules.store import Library


@dataclass(frozen=True)
class Streams:
    """A whole-model graph whose samples can be taken slice by slice.

    ``axes``: the sample index of every operator that streams; ``rules``: the rule that slices it;
    ``tail``: the operators after these; ``ahead``: the operators that are computed for the whole
    batch before any slice. All other operators read no samples. ``unfolding``: the derivation of
    ``graph`` from the model.
    """

    graph: Graph
    batch: int
    """The number of samples, or of groups of samples of batch norms. The number of slices divides
    it."""
    axes: Mapping[Node, str]
    rules: Mapping[Node, Rule]
    tail: frozenset[Node]
    ahead: frozenset[Node]
    cancel: Mapping[int, tuple[Rule, ...]]
    """The rules ``pipeline(batch(x, i, k), i, k) = x``, by the rank of x."""
    unfolding: Derivation

    @remembered
    def colours(self) -> Mapping[Node, int]:
        """The colour of each operator. Operators of one colour look alike, for any number of
        slices."""
        return colours(self.graph, lambda node: (node.signature, self.axes.get(node)))

    @remembered
    def shown(self, value: Value) -> float:
        """The part of a tensor's elements that is held if the tensor is a view: the rest repeats
        them, as in a mask that is expanded to all heads. 1 for other tensors."""
        root = value
        while not root.node.is_leaf and (of := view_of(root.node, root.port)) is not None:
            root = root.node.inputs[of]
        return min(1.0, root.type.elements / max(value.type.elements, 1))

    @remembered
    def duties(self, compiled: bool) -> Mapping[Node, Duties]:
        """The work of each operator in a training step. ``compiled``: whether element-wise
        operators are fused into shared kernels."""
        saved = saved_positions(self.graph)
        return duties_in(self.graph, self.graph.operators, saved, compiled=compiled)


def streams(graph: Graph, library: Library) -> Streams:
    """Return the graph, with operators that sum over samples unfolded where rules say so, and the
    roles of its operators. Raises NegativeAnswer if the model has no samples to slice, or an
    operator that reads all samples together and is not linear in them."""
    batch = _batch(graph)
    rules = library.concrete(graph)
    first_roles = _Roles.of(graph, Cuts.of_rules(rules, IN_TIME))
    graph, steps = with_unfolded(graph, Derivation.start(graph), first_roles.tail, rules)
    rules = library.concrete(graph)  # blocks of an axis are an axis more
    roles = _Roles.of(graph, Cuts.of_rules(rules, IN_TIME))
    if roles.mixing is not None:
        name = (first_roles.mixing or roles.mixing).name
        problem = "reads all samples together, so the batch cannot be taken in slices"
        raise NegativeAnswer(f"pipeline: {name} {problem}")
    if not roles.axes:
        raise NegativeAnswer("pipeline: no operator reads samples")
    cancel, tail = _cancelling(rules), frozenset(roles.tail)
    sizes = {node: _size(node, axis) for node, axis in roles.axes.items()}
    if (slices := gcd(batch, *sizes.values())) == 1:
        least = min(sizes, key=lambda node: gcd(batch, sizes[node]))
        problem = f"shares no factor with the {sizes[least]} groups of samples of {least.name}"
        raise NegativeAnswer(f"pipeline: batch {batch} {problem}, so it cannot be taken in slices")
    return Streams(graph, slices, roles.axes, roles.rules, tail, roles.ahead, cancel, steps)


class _Roles:
    """The sample index of every operator that streams, and the tail after these. ``ahead``: the
    operators that are computed for the whole batch before any slice."""

    def __init__(self, graph: Graph, cuts: Cuts, ahead: frozenset[Node] = frozenset()) -> None:
        self.axes: dict[Node, str] = {}
        self.rules: dict[Node, Rule] = {}
        self.tail: list[Node] = []
        self.ahead = ahead
        self._dims: dict[Value, int] = dict.fromkeys(sampled(graph), 0)
        self._dependent = {value.node for value in self._dims}
        """All nodes that depend on a sample; of those computed ahead, only nodes that have
        samples."""
        self._cuts = cuts
        for node in graph.nodes:
            if any(value.node in self._dependent for value in node.inputs):
                self._operator(node)

    @staticmethod
    def of(graph: Graph, cuts: Cuts) -> _Roles:
        """The roles with as much computed ahead as the tail needs."""
        given, roles = _of_inputs(graph), _Roles(graph, cuts)
        while more := roles._asked_ahead(given) - roles.ahead:
            roles = _Roles(graph, cuts, roles.ahead | more)
        return roles

    @property
    def mixing(self) -> Node | None:
        """The first operator that does not stream and is not linear in values that depend on
        samples."""
        return next((node for node in self.tail if not self._is_linear(node)), None)

    def _asked_ahead(self, given: frozenset[Node]) -> frozenset[Node]:
        """The operators to compute ahead so that all of the tail is linear in the rest, with their
        operands. ``given``: the operators that can be computed ahead."""
        asked: set[Node] = set()
        for node in self.tail:
            if not self._is_linear(node):
                asked |= {node, *(value.node for value in node.inputs)} & given
        left = list(asked)
        while left:
            more = {value.node for value in left.pop().inputs} & (given - asked)
            asked |= more
            left += more
        return frozenset(asked)

    def _is_linear(self, node: Node) -> bool:
        """Whether an operator is linear in values that depend on slices. Partial sums may pass
        through such operands."""
        ranks = tuple(value.rank for value in node.inputs)
        reads = frozenset(i for i, value in enumerate(node.inputs) if self._is_late(value.node))
        return reads in node.operator_call.typing(ranks).carriers

    def _is_late(self, node: Node) -> bool:
        """Whether the value of a node is known only after slices have arrived."""
        return node in self._dependent and not node.is_leaf and node not in self.ahead

    def _operator(self, node: Node) -> None:
        axis = self._sample_axis(node)
        rule = None if axis is None else self._cuts.of(node).get(axis[0])
        if node in self.ahead:
            if axis is None:
                return  # the result has no samples
        elif axis is None or rule is None:
            self._dependent.add(node)
            self.tail.append(node)
            return
        else:
            self.axes[node], self.rules[node] = axis[0], rule
        self._dependent.add(node)
        for port, dim in enumerate(axis[1]):
            self._dims[node.value(port)] = dim

    def _sample_axis(self, node: Node) -> tuple[str, tuple[int, ...]] | None:
        """The index at which all samples are read, and its dimension in each output; None if there
        is no such index."""
        reads = {i: v for i, v in enumerate(node.inputs) if v.node in self._dependent}
        if any(value not in self._dims for value in reads.values()):
            return None
        ranks = tuple(value.rank for value in node.inputs)
        for axis in node.operator_call.typing(ranks).axes:
            outputs = tuple(dim for dim in axis.outputs if dim is not None)
            at = all(axis.operands[i] == self._dims[value] for i, value in reads.items())
            if at and len(outputs) == len(axis.outputs):
                return axis.name, outputs
        return None


def _size(node: Node, axis: str) -> int:
    """The length of an index of an operator: the number of samples, or of groups of samples."""
    return index_sizes(node.operator_call, [value.type for value in node.inputs])[axis]


def _batch(graph: Graph) -> int:
    batch = next((value.type.shape[0] for value in sampled(graph)), None)
    if batch is None:
        raise NegativeAnswer("pipeline: the model has no input with a dimension of samples")
    if batch == 1:
        problem = "batch 1 cannot be cut in micro-batches, expected 2 or more samples"
        raise NegativeAnswer(f"pipeline: {problem}")
    return batch


def _of_inputs(graph: Graph) -> frozenset[Node]:
    """The operators that depend on no weight, nor on the shape of a value that does."""
    trained = gradient_nodes(graph)
    ahead: set[Node] = set()
    for node in graph.operators:
        if node not in trained and all(v.node.is_leaf or v.node in ahead for v in node.inputs):
            ahead.add(node)
    return frozenset(ahead)


@lru_cache(maxsize=8)
def _cancelling(rules: RootedRules) -> Mapping[int, tuple[Rule, ...]]:
    """The rules that cancel a pipeline and the batch before it, by the rank of the tensor."""
    cancelling: dict[int, tuple[Rule, ...]] = {}
    for rule in rules.rooted("pipeline", parallel=True):
        top = rule.left[0].node
        if top.is_leaf or not rule.right[0].node.is_leaf:
            continue
        below = top.inputs[0].node
        if not below.is_leaf and below.name == "batch" and below.inputs[0].node.is_leaf:
            rank = below.inputs[0].rank
            cancelling[rank] = (*cancelling.get(rank, ()), rule)
    return cancelling

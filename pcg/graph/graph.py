"""The parallel computation graph: immutable nodes that are equal if their structure is equal.

A node is an operator call on values, or a leaf. A graph is given by its outputs. The types of a
node are inferred once, on demand. A graph of a rule has no types, since its sizes are unknown.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Literal

from pcg.errors import OperatorError
from pcg.types.infer import infer
from pcg.types.operator import Call
from pcg.types.parallel_operators import PARALLEL
from pcg.types.tensor import ParallelTensor

LeafKind = Literal["input", "weight", "tensor"]

DRAWN = "drawn__"
"""Prefix of the names of inputs that are drawn anew in every step, such as dropout masks."""


@dataclass(frozen=True)
class Leaf:
    """An input or weight of known type or, if ``kind`` is "tensor", an input of a rule."""

    kind: LeafKind
    name: str
    rank: int
    type: ParallelTensor | None = None
    below: int | None = None
    """The bound of integer inputs such as token ids: every element is in [least, below)."""
    least: int = 0
    """The least element of an integer input. Below 0 if it has negative numbers, such as labels to
    be ignored."""
    share: float | None = None
    """The probability that an element of a drawn mask is 1. None for other leaves."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a leaf with a type. An input of a rule has none."""
        assert self.type is not None, "a graph that runs has types"
        return self.type.shape

    @property
    def uncut(self) -> tuple[str, str, tuple[int, ...], int, int | None, float | None]:
        """The properties of a leaf that are the same in all graphs of a model, cut or not."""
        return self.kind, self.name, self.shape, self.least, self.below, self.share

    def __str__(self) -> str:
        shape = f"rank {self.rank}" if self.type is None else str(self.type)
        return f"{self.kind} {self.name} {shape}{self.bounds}"

    @property
    def bounds(self) -> str:
        """Known facts of its elements: ``" from -100 below 96"``, ``" share 0.9"``, or ``""``."""
        least = f" from {self.least}" if self.least else ""
        below = f" below {self.below}" if self.below is not None else ""
        return least + below + (f" share {self.share}" if self.share is not None else "")


@dataclass(frozen=True)
class Signature:
    """An operator's call and the types of its operands. It is equal for nodes that do the same to
    different tensors."""

    call: Call
    operands: tuple[ParallelTensor, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # A key of nearly every cache of the search, so it is hashed once.
        return hash((self.call, self.operands))


@dataclass(frozen=True)
class Node:
    """An operator call on values, or a leaf. Nodes of equal structure are equal."""

    call: Call | Leaf
    inputs: tuple[Value, ...] = ()
    digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.call, Call) and len(self.inputs) != self.call.operator.arity:
            problem = f"{len(self.inputs)} operands, expected {self.call.operator.arity}"
            raise OperatorError(self.call.name, "*", None, problem)
        digests = [f"{v.node.digest}.{v.port}" for v in self.inputs]
        if isinstance(self.call, Call) and self.call.operator.commutative:
            digests.sort()
        name = self.call.identity if isinstance(self.call, Call) else str(self.call)
        text = f"{name}|{'|'.join(digests)}"
        object.__setattr__(self, "digest", blake2b(text.encode(), digest_size=12).hexdigest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Pickle without cached properties."""
        return _restored, (self.call, self.inputs, self.digest)

    def __repr__(self) -> str:
        return f"Node({self.call}, {len(self.inputs)} inputs)"

    @cached_property
    def types(self) -> tuple[ParallelTensor, ...]:
        """The types of its outputs. Raises OperatorError if the operands' types do not fit."""
        self._work_out_before("types")
        return self._infer()

    def _work_out_before(self, name: str) -> None:
        """Compute a cached property of all ancestors, operands first. Graphs may be too deep for
        recursion."""
        pending = [value.node for value in self.inputs]
        while pending:
            unknown = [v.node for v in pending[-1].inputs if name not in vars(v.node)]
            if unknown:
                pending += unknown
            else:
                getattr(pending.pop(), name)

    def _infer(self) -> tuple[ParallelTensor, ...]:
        if isinstance(self.call, Leaf):
            if self.call.type is None:
                problem = "the tensor of a rule has no type"
                raise OperatorError(self.call.name, "*", None, problem)
            return (self.call.type,)
        return infer(self.call, [value.type for value in self.inputs])

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of its outputs. Raises OperatorError if the operands' ranks do not fit."""
        if isinstance(self.call, Leaf):
            return (self.call.rank,)
        self._work_out_before("ranks")
        equation = self.call.instance(tuple(value.rank for value in self.inputs))
        return tuple(len(output.dims) for output in equation.outputs)

    @property
    def name(self) -> str:
        return self.call.name

    @property
    def is_leaf(self) -> bool:
        return isinstance(self.call, Leaf)

    @property
    def is_parallel(self) -> bool:
        """Whether it is one of the six parallel operators, which move data and compute nothing."""
        return isinstance(self.call, Call) and self.call.operator.parallel in PARALLEL

    @property
    def is_join(self) -> bool:
        """Whether it joins two tensors on different devices as the partials of one tensor."""
        return isinstance(self.call, Call) and self.call.operator.parallel == "join"

    @property
    def operator_call(self) -> Call:
        """The call of a node that is no leaf."""
        assert isinstance(self.call, Call)
        return self.call

    @cached_property
    def signature(self) -> Signature:
        """The signature of a node that is no leaf."""
        return Signature(self.operator_call, tuple(value.type for value in self.inputs))

    @property
    def leaf(self) -> Leaf:
        """The leaf of a node that is a leaf."""
        assert isinstance(self.call, Leaf)
        return self.call

    @property
    def is_weight(self) -> bool:
        """Whether it is a weight, which is a trained leaf."""
        return isinstance(self.call, Leaf) and self.call.kind == "weight"

    def value(self, port: int = 0) -> Value:
        return Value(self, port)

    def on(self, inputs: tuple[Value, ...]) -> Node:
        """Return the same call on other values of the same types, with the cached types."""
        node = Node(self.call, inputs)
        known = vars(self)
        vars(node).update({name: known[name] for name in _OF_TYPES if name in known})
        return node

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values of all its outputs, by port."""
        count = len(self.types)
        if count == 1:  # the usual case, which searches ask for very often
            return (Value(self, 0),)
        return tuple([Value(self, port) for port in range(count)])


_OF_TYPES = ("types", "ranks", "signature")
"""The cached properties that depend only on a node's call and the types of its operands."""


def _restored(call: Call | Leaf, inputs: tuple[Value, ...], digest: str) -> Node:
    """Return a node that another process has checked."""
    node = object.__new__(Node)
    for name, value in (("call", call), ("inputs", inputs), ("digest", digest)):
        object.__setattr__(node, name, value)
    return node


@dataclass(frozen=True)
class Value:
    """One output of a node: a tensor."""

    node: Node
    port: int = 0

    @property
    def type(self) -> ParallelTensor:
        return self.node.types[self.port]

    @property
    def rank(self) -> int:
        return self.node.ranks[self.port]

    def __repr__(self) -> str:
        return f"Value({self.node.call}, {self.port})"


@dataclass(frozen=True)
class Graph:
    """A graph, given by its outputs. The first output of a model is the loss."""

    outputs: tuple[Value, ...]

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Pickle operands before their users, as a graph may be too deep for recursion, and without
        cached properties."""
        return _of_nodes, (self.nodes, self.outputs)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, operands before their users, in an order that depends on structure only."""
        return topological(value.node for value in self.outputs)

    @cached_property
    def operators(self) -> tuple[Node, ...]:
        """The nodes that are no leaves, in the order of ``nodes``."""
        return tuple(node for node in self.nodes if not node.is_leaf)

    @cached_property
    def computing(self) -> tuple[Node, ...]:
        """The operators that compute: all but the parallel ones, in the order of ``nodes``."""
        return tuple(node for node in self.operators if not node.is_parallel)

    @cached_property
    def digest(self) -> str:
        """A hash of the structure. Equal graphs have equal digests, in any process."""
        text = "|".join(f"{v.node.digest}.{v.port}" for v in self.outputs)
        return blake2b(text.encode(), digest_size=12).hexdigest()

    @cached_property
    def users(self) -> Mapping[Node, tuple[Node, ...]]:
        """The nodes that read each node."""
        users: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for source in dict.fromkeys(value.node for value in node.inputs):
                users[source].append(node)
        return {node: tuple(readers) for node, readers in users.items()}

    @property
    def leaves(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.is_leaf)

    def check(self) -> None:
        """Infer all types. Raises OperatorError at the first node whose types do not fit."""
        for node in self.nodes:
            _ = node.types

    def replace(self, values: Mapping[Value, Value]) -> Graph:
        """Return the graph with some values replaced by others. All other nodes are shared."""
        return Graph(rebuild(self.outputs, values))


def _of_nodes(nodes: tuple[Node, ...], outputs: tuple[Value, ...]) -> Graph:
    """Return a graph that was pickled."""
    return Graph(outputs)


def topological(
    roots: Iterable[Node], stop: Container[Value] = frozenset[Value]()
) -> tuple[Node, ...]:
    """Return the nodes that ``roots`` depend on, operands first. Stops at values in ``stop``."""
    done: dict[str, Node] = {}  # by digest, which is faster to compare than a node
    stack: list[tuple[Node, bool]] = [(node, False) for node in reversed(tuple(roots))]
    while stack:
        node, ready = stack.pop()
        if node.digest in done:
            continue
        if ready or not node.inputs:
            done[node.digest] = node
            continue
        stack.append((node, True))
        stack += [(v.node, False) for v in reversed(node.inputs) if not stop or v not in stop]
    return tuple(done.values())


def rebuild(outputs: tuple[Value, ...], values: Mapping[Value, Value]) -> tuple[Value, ...]:
    """Return ``outputs`` with ``values`` replaced in everything that they depend on."""
    new: dict[Node, Node] = {}

    def image(value: Value) -> Value:
        replaced = values.get(value)
        if replaced is not None:
            return replaced
        node = new[value.node]
        return value if node is value.node else Value(node, value.port)

    roots = [v.node for v in outputs if v not in values]
    for node in topological(roots, values):
        inputs = tuple(image(value) for value in node.inputs)
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        new[node] = node if same else Node(node.call, inputs)
    return tuple(image(value) for value in outputs)


def leaf(
    kind: LeafKind, name: str, shape: tuple[int, ...], *, below: int | None = None, least: int = 0
) -> Value:
    """Return an input or weight that is not cut."""
    return Value(Node(Leaf(kind, name, len(shape), ParallelTensor.whole(shape), below, least)))


def drawn_mask(site: str, shape: tuple[int, ...], share: float) -> Value:
    """Return a 0/1 mask, not cut, that is drawn in every step for the call ``site``."""
    whole = ParallelTensor.whole(shape)
    return Value(Node(Leaf("input", f"{DRAWN}{site}", len(shape), whole, share=share)))


def tensor(name: str, rank: int) -> Value:
    """Return an input of a rule."""
    return Value(Node(Leaf("tensor", name, rank)))


def apply(call: Call, *inputs: Value) -> Value:
    """Return the first output of an operator applied to values."""
    return Value(Node(call, inputs))

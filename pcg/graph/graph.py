"""The parallel computation graph: immutable nodes that are equal where their structure is.

A node is an operator call on values, or a leaf; equal nodes are one node. A graph is its outputs.
Types are inferred once a node, on demand; a graph of a rule, whose sizes are not known, has none.
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
"""How inputs are called that are no part of any data, but drawn in every step, as for dropout."""


@dataclass(frozen=True)
class Leaf:
    """An input or weight of known type, or (``tensor``) an input of a rule, known by rank."""

    kind: LeafKind
    name: str
    rank: int
    type: ParallelTensor | None = None
    below: int | None = None
    """For integer inputs such as token ids: every element is in [least, below)."""
    least: int = 0
    """0, or less where negative numbers are among them, such as that of labels to be ignored."""
    share: float | None = None
    """For masks that are drawn: how likely an element is 1, and not 0."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a leaf of a graph that can run; an input of a rule has none."""
        assert self.type is not None, "a graph that runs has types"
        return self.type.shape

    @property
    def uncut(self) -> tuple[str, str, tuple[int, ...], int, int | None, float | None]:
        """What a leaf is in all graphs of a model, however it is cut in each."""
        return self.kind, self.name, self.shape, self.least, self.below, self.share

    def __str__(self) -> str:
        shape = f"rank {self.rank}" if self.type is None else str(self.type)
        return f"{self.kind} {self.name} {shape}{self.bounds}"

    @property
    def bounds(self) -> str:
        """What is said of its elements: ``" from -100 below 96"``, ``" share 0.9"``, or nothing."""
        least = f" from {self.least}" if self.least else ""
        below = f" below {self.below}" if self.below is not None else ""
        return least + below + (f" share {self.share}" if self.share is not None else "")


@dataclass(frozen=True)
class Signature:
    """An operator's call and the types of its operands: the same for operators that do the same to
    other tensors."""

    call: Call
    operands: tuple[ParallelTensor, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # A key of nearly every memory of the search: hashed once.
        return hash((self.call, self.operands))


@dataclass(frozen=True)
class Node:
    """An operator call on values, or a leaf. Equality is equality of structure."""

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
        """Between processes without what has been worked out of it."""
        return _restored, (self.call, self.inputs, self.digest)

    def __repr__(self) -> str:
        return f"Node({self.call}, {len(self.inputs)} inputs)"

    @cached_property
    def types(self) -> tuple[ParallelTensor, ...]:
        """The types of its outputs. Raises OperatorError where the inputs do not fit."""
        self._work_out_before("types")
        return self._infer()

    def _work_out_before(self, name: str) -> None:
        """A cached property of all that comes before, operands first: graphs may be too deep for
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
        """The ranks of its outputs. Raises OperatorError where the operands' ranks do not fit."""
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
        """Whether it is one of the six parallel operators, which move data and do no work."""
        return isinstance(self.call, Call) and self.call.operator.parallel in PARALLEL

    @property
    def is_join(self) -> bool:
        """Whether it makes one tensor in partials of two tensors on different devices."""
        return isinstance(self.call, Call) and self.call.operator.parallel == "join"

    @property
    def operator_call(self) -> Call:
        """The call of a node that is no leaf."""
        assert isinstance(self.call, Call)
        return self.call

    @cached_property
    def signature(self) -> Signature:
        """Of a node that is no leaf."""
        return Signature(self.operator_call, tuple(value.type for value in self.inputs))

    @property
    def leaf(self) -> Leaf:
        """The leaf of a node that is one."""
        assert isinstance(self.call, Leaf)
        return self.call

    @property
    def is_weight(self) -> bool:
        """Whether it is a leaf that is trained."""
        return isinstance(self.call, Leaf) and self.call.kind == "weight"

    def value(self, port: int = 0) -> Value:
        return Value(self, port)

    def on(self, inputs: tuple[Value, ...]) -> Node:
        """The same call on other values of the same types: what is known of types stays known."""
        node = Node(self.call, inputs)
        known = vars(self)
        vars(node).update({name: known[name] for name in _OF_TYPES if name in known})
        return node

    @property
    def outputs(self) -> tuple[Value, ...]:
        """All its outputs, by port."""
        count = len(self.types)
        if count == 1:  # as of almost all, and searches ask for them without end
            return (Value(self, 0),)
        return tuple([Value(self, port) for port in range(count)])


_OF_TYPES = ("types", "ranks", "signature")
"""What is worked out of a node that depends on its call and the types of its operands alone."""


def _restored(call: Call | Leaf, inputs: tuple[Value, ...], digest: str) -> Node:
    """A node that another process has checked."""
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
    """A graph, given by its outputs (for a model: the loss first)."""

    outputs: tuple[Value, ...]

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node, operands before their users, in an order that depends on structure only."""
        return topological(value.node for value in self.outputs)

    @cached_property
    def operators(self) -> tuple[Node, ...]:
        """The nodes that are no leaves, in order."""
        return tuple(node for node in self.nodes if not node.is_leaf)

    @cached_property
    def digest(self) -> str:
        """A hash of the structure: equal for equal graphs, in any process."""
        text = "|".join(f"{v.node.digest}.{v.port}" for v in self.outputs)
        return blake2b(text.encode(), digest_size=12).hexdigest()

    @cached_property
    def users(self) -> Mapping[Node, tuple[Node, ...]]:
        """The nodes that read a node."""
        users: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for source in dict.fromkeys(value.node for value in node.inputs):
                users[source].append(node)
        return {node: tuple(readers) for node, readers in users.items()}

    @property
    def leaves(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.is_leaf)

    def check(self) -> None:
        """Infer every type. Raises OperatorError at the first node that has none."""
        for node in self.nodes:
            _ = node.types

    def replace(self, values: Mapping[Value, Value]) -> Graph:
        """The graph with some values replaced by others; the rest is shared."""
        return Graph(rebuild(self.outputs, values))


def topological(
    roots: Iterable[Node], stop: Container[Value] = frozenset[Value]()
) -> tuple[Node, ...]:
    """The nodes that ``roots`` depend on, operands first; values in ``stop`` are not followed."""
    done: dict[str, Node] = {}  # by digest, which Python compares faster than a node
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
    """The values with ``values`` replaced in everything they depend on."""
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
    """A whole input or weight."""
    return Value(Node(Leaf(kind, name, len(shape), ParallelTensor.whole(shape), below, least)))


def drawn_mask(site: str, shape: tuple[int, ...], share: float) -> Value:
    """A whole mask of ones and zeros that is drawn in every step; ``site`` names what draws it."""
    whole = ParallelTensor.whole(shape)
    return Value(Node(Leaf("input", f"{DRAWN}{site}", len(shape), whole, share=share)))


def tensor(name: str, rank: int) -> Value:
    """An input of a rule."""
    return Value(Node(Leaf("tensor", name, rank)))


def apply(call: Call, *inputs: Value) -> Value:
    """The first output of an operator applied to values."""
    return Value(Node(call, inputs))

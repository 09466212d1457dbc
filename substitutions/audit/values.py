"""A mutable graph whose values keep their ids while other values are replaced.

Method: nodes of equal structure are one, as in ``pcg.graph.graph``. If a replacement makes two
nodes equal, they are merged, and the ids of both then name the remaining node (congruence closure).
Complexity: a replacement visits only the nodes that read replaced values, however large the graph.
Exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pcg.graph.graph import Graph, Leaf, Node, Value
from pcg.plan.text import node_names
from pcg.types.infer import infer
from pcg.types.operator import Call
from pcg.types.tensor import ParallelTensor
from substitutions.audit.errors import Refused


@dataclass(eq=False)
class GraphItem:
    """A node. ``readers``: the nodes that read it. ``kept``: how many outputs of the graph it
    computes. ``same``: the node that it has been merged into."""

    call: Call | Leaf
    inputs: tuple[Port, ...] = field(repr=False)
    types: tuple[ParallelTensor, ...]
    readers: dict[GraphItem, None] = field(default_factory=dict["GraphItem", None], repr=False)
    kept: int = 0
    same: GraphItem | None = field(default=None, repr=False)

    @property
    def is_used(self) -> bool:
        return bool(self.readers) or self.kept > 0


@dataclass(frozen=True)
class Port:
    """One output of a node."""

    item: GraphItem
    number: int = 0

    @property
    def type(self) -> ParallelTensor:
        return self.item.types[self.number]

    @property
    def current(self) -> Port:
        """The output of the node that this node has been merged into, if it has."""
        item = self.item
        while item.same is not None:
            item = item.same
        return self if item is self.item else Port(item, self.number)


def draft(call: Call, inputs: tuple[Port, ...]) -> GraphItem:
    """A node that is in no graph yet. Raises OperatorError if it has no type."""
    return GraphItem(call, inputs, infer(call, [port.type for port in inputs]))


_Key = tuple[Call | Leaf, tuple[tuple[int, int], ...]]


class NamedValues:
    """The values of a graph by id. At first they are those of a model, by their printed names."""

    def __init__(self, model: Graph) -> None:
        self._ids: dict[str, Port] = {}
        self._known: dict[_Key, GraphItem] = {}
        items: dict[Node, GraphItem] = {}
        for node, names in node_names(model).items():
            inputs = tuple(Port(items[v.node], v.port) for v in node.inputs)
            item = items[node] = GraphItem(node.call, inputs, node.types)
            self._insert(item)
            self.name(item, names)
        self._outputs = [Port(items[v.node], v.port) for v in model.outputs]
        for port in self._outputs:
            port.item.kept += 1

    def name(self, item: GraphItem, names: Iterable[str]) -> None:
        """Give the outputs of a node their ids."""
        self._ids.update({name: Port(item, number) for number, name in enumerate(names)})

    def at(self, name: str) -> Port:
        """The value of an id. Raises Refused if there is none, or it has been replaced."""
        named = self._ids.get(name)
        if named is None:
            raise Refused(f"{name} is no value, expected one of the model or of an earlier step")
        port = named.current
        if self._known.get(_key(port.item)) is not port.item:
            raise Refused(f"{name} is no longer part of the graph, a step before replaced it")
        return port

    def replace(self, old: Sequence[Port], new: Sequence[Port], made: Sequence[GraphItem]) -> None:
        """Let the readers of ``old`` read ``new`` instead. ``made``: the drafts that compute
        ``new``, operands first. The drafts themselves may still read ``old``."""
        images = dict(zip(old, new, strict=True))
        readers = {r: None for port in images for r in port.item.readers if _reads(r, images)}
        for reader in readers:
            del self._known[_key(reader)]
        for item in made:
            self._insert(item)
        images = {port: image.current for port, image in images.items()}
        self._redirect_outputs(images)
        for reader in readers:
            self._read(reader, [images.get(port, port) for port in reader.inputs])
        self._settle(readers)
        for item in (*(port.item for port in old), *made):
            self._drop_unused(item)

    def graph(self) -> Graph:
        """The current graph."""
        done: dict[GraphItem, Node] = {}
        outputs = [port.current for port in self._outputs]
        pending = [port.item for port in reversed(outputs)]
        while pending:
            item = pending[-1]
            missing = [p.item for p in item.inputs if p.item not in done]
            if missing and item not in done:
                pending += missing
                continue
            pending.pop()
            if item not in done:
                inputs = tuple(Value(done[p.item], p.number) for p in item.inputs)
                done[item] = Node(item.call, inputs)
        return Graph(tuple(Value(done[p.item], p.number) for p in outputs))

    def _insert(self, item: GraphItem) -> None:
        """Add a draft to the graph, or merge it into the node that is equal to it."""
        item.inputs = tuple(port.current for port in item.inputs)
        known = self._known.setdefault(_key(item), item)
        if known is not item:
            item.same = known
            return
        for port in item.inputs:
            port.item.readers[item] = None

    def _redirect_outputs(self, images: dict[Port, Port]) -> None:
        for i, port in enumerate(self._outputs):
            image = images.get(port.current)
            if image is not None:
                port.current.item.kept -= 1
                image.item.kept += 1
                self._outputs[i] = image

    def _read(self, reader: GraphItem, ports: Sequence[Port]) -> None:
        """Let a node read other values."""
        for port in reader.inputs:
            port.item.readers.pop(reader, None)
        reader.inputs = tuple(port.current for port in ports)
        for port in reader.inputs:
            port.item.readers[reader] = None

    def _settle(self, changed: dict[GraphItem, None]) -> None:
        """Merge changed nodes with nodes that they have become equal to. A merge changes the
        readers, which are merged in turn."""
        pending = dict(changed)
        while pending:
            item, _ = pending.popitem()
            self._read(item, item.inputs)
            known = self._known.setdefault(_key(item), item)
            if known is item:
                continue
            for reader in item.readers:
                if reader not in pending:
                    del self._known[_key(reader)]
                    pending[reader] = None
            known.kept, item.kept, item.same = known.kept + item.kept, 0, known
            for port in item.inputs:
                port.item.readers.pop(item, None)

    def _drop_unused(self, item: GraphItem) -> None:
        """Remove a node that nothing reads, and then the nodes that only it read."""
        pending = [item]
        while pending:
            item = pending.pop()
            if item.same is not None or item.is_used:
                continue
            if self._known.get(_key(item)) is item:
                del self._known[_key(item)]
                for port in item.inputs:
                    port.item.readers.pop(item, None)
                    pending.append(port.item)


def _reads(item: GraphItem, values: dict[Port, Port]) -> bool:
    return any(port in values for port in item.inputs)


def _key(item: GraphItem) -> _Key:
    """A key that is equal for equal nodes. The order of a commutative operator's operands does not
    count."""
    inputs = [(id(port.item), port.number) for port in item.inputs]
    if isinstance(item.call, Call) and item.call.operator.commutative:
        inputs.sort()
    return item.call, tuple(inputs)

"""The operators that a plan by hand recomputes, in the graph that is cut.

*Full* is activation checkpointing (Chen et al., arXiv:1604.06174): of each repeated block only the
tensors that another block reads are kept. *Alternate* also keeps attention and the first, third,
... product of a block, as torchtitan does (selective checkpointing by operators). *Selective*
(Korthikanti et al., MLSys 2023, section 5) recomputes the operators between the products of
attention, whose results take much memory and little time. Two kinds of communication are repeated
besides. Fully sharded weights are gathered again, as in ZeRO's third stage. With sequence
parallelism, so are the operands of products, of which a device keeps only its own part (Korthikanti
et al., section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pcg.graph.graph import Graph, Node, Value
from pcg.placement.in_parts import named_parts
from pcg.placement.schedule import trace
from pcg.readings.kind import kind_of, work_of
from pcg.readings.work import gradient_nodes
from search.by_hand.degrees import RecomputeKind
from search.split.blocks import Blocks


def recomputed(
    kind: RecomputeKind,
    graph: Graph,
    blocks: Blocks | None,
    inner: Sequence[Node],
    *,
    sharded: bool,
    sequence: bool,
) -> frozenset[Node]:
    """The operators that are recomputed. ``graph``: the whole graph; ``inner``: its operators after
    they are cut, in the same order."""
    cut = dict(zip(graph.operators, inner, strict=True))
    again = frozenset[Node]()
    if kind == "selective":
        again = frozenset(_with_data(graph, between_products(graph), cut))
    if kind in ("full", "alternate") and blocks is not None:
        kept = alternate(blocks) if kind == "alternate" else frozenset[Node]()
        again = frozenset(_within(blocks, cut, kept))
    if sequence:
        again |= frozenset(_gathered(inner))
    return again | frozenset(_gathers(inner)) if sharded else again


def _with_data(graph: Graph, chosen: frozenset[Node], cut: Mapping[Node, Node]) -> Iterator[Node]:
    """Some operators after the cut, and besides them operators that depend on data alone and are
    read by these alone, such as a mask, with the resharding of their results. If the latter were
    kept, they would take the memory that the former free."""
    readers: dict[Node, set[Node]] = {}
    for node in graph.operators:
        for value in node.inputs:
            readers.setdefault(value.node, set()).add(node)
    trained, outputs = gradient_nodes(graph), {value.node for value in graph.outputs}
    wanted = set(chosen)
    for node in reversed(graph.operators):
        read_by = readers.get(node, set())
        if node not in trained and node not in outputs and read_by and read_by <= wanted:
            wanted.add(node)
    for node in wanted:
        yield cut[node]
        for value, operand in zip(node.inputs, cut[node].inputs, strict=True):
            if value.node not in trained:
                yield from trace(operand)[1]


def alternate(blocks: Blocks) -> frozenset[Node]:
    """The operators of each block that *alternate* keeps: attention, and every second other product
    from the first on."""
    kept: set[Node] = set()
    for block in range(blocks.count):
        first = blocks.first + block * blocks.length
        operators = blocks.graph.operators[first : first + blocks.length]
        kept |= {node for node in operators if work_of(node) == "attention"}
        kept |= {*[node for node in operators if work_of(node) == "contraction"][::2]}
    return frozenset(kept)


def _within(blocks: Blocks, cut: Mapping[Node, Node], kept: frozenset[Node]) -> Iterator[Node]:
    """The operators within blocks after the cut, and the resharding of their operands, but not
    those that are ``kept`` or that another block reads."""
    operators = blocks.graph.operators
    first, last = blocks.first, blocks.first + blocks.count * blocks.length
    place = {node: (at - first) // blocks.length for at, node in enumerate(operators)}
    crossing = {
        value.node
        for at in range(first, len(operators))
        for value in operators[at].inputs
        if place.get(value.node) not in (None, place[operators[at]])
    }
    for node in operators[first:last]:
        if node not in crossing and node not in kept:
            yield cut[node]
        for value in cut[node].inputs:
            chain = trace(value)[1]
            # A tensor that came from another stage in parts is kept as it was gathered.
            yield from set(chain).difference(named_parts(chain) or ())


def _gathered(inner: Iterable[Node]) -> Iterator[Node]:
    """The resharding that gathers operands for products that read them whole, within the stage of
    these products."""
    for node in inner:
        if kind_of(node) != "contraction":
            continue
        for value in node.inputs:
            source, chain = trace(value)
            if not source.node.is_leaf and any(step.name == "combine" for step in chain):
                yield from set(chain).difference(named_parts(chain) or ())


def _gathers(inner: Iterable[Node]) -> Iterator[Node]:
    """The resharding that gathers weights from the devices that store them."""
    for node in inner:
        for value in node.inputs:
            source, chain = trace(value)
            if source.node.is_weight:
                yield from chain


def between_products(graph: Graph) -> frozenset[Node]:
    """The operators on paths from one product of tensors other than weights to another, with the
    first product included."""
    trained = {value for node in graph.leaves if node.is_weight for value in node.outputs}
    products: set[Node] = set()
    for node in graph.operators:
        if trained.issuperset(node.inputs):
            trained.update(node.outputs)
        elif kind_of(node) == "contraction" and trained.isdisjoint(node.inputs):
            products.add(node)
    between: set[Node] = set()
    ways: dict[Value, set[Node]] = {}
    for node in graph.operators:
        passed = set[Node]().union(*(ways.get(value, ()) for value in node.inputs))
        if node in products:
            between |= passed
            passed = {node}
        elif kind_of(node) == "contraction":
            passed = set()
        elif passed:
            passed = passed | {node}
        ways.update(dict.fromkeys(node.outputs, passed))
    return frozenset(between)

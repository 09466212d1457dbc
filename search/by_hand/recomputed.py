"""What a plan by hand recomputes, in the graph that is cut.

*Full* is activation checkpointing (Chen et al., arXiv:1604.06174): of each repeated block only what
another one reads is kept. *Alternate* keeps attention and the first, third, ... product of a block
too, as torchtitan does (selective checkpointing by operators). *Selective* (Korthikanti et al.,
MLSys 2023, section 5) is what lies between the products of attention, which takes much memory and
little time. Weights that are fully sharded are gathered again in any case, as in ZeRO's third
stage; so is what sequence parallelism gathers for a product, of which a device keeps its own part
(Korthikanti et al., section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pcg.graph.graph import Graph, Node, Value
from pcg.placement.in_parts import named_parts
from pcg.placement.schedule import trace
from pcg.readings.kind import kind_of, work_of
from pcg.readings.work import gradient_nodes
from search.by_hand.degrees import Again
from search.split.blocks import Blocks


def recomputed(
    kind: Again,
    graph: Graph,
    blocks: Blocks | None,
    inner: Sequence[Node],
    *,
    sharded: bool,
    sequence: bool,
) -> frozenset[Node]:
    """The operators that are recomputed. ``graph``: the whole one; ``inner``: its operators as they
    are cut, in the same order."""
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
    """Some operators, and what is made of data alone and read by them alone, such as a mask, with
    the moves of that: kept, it would take the memory that they free."""
    readers: dict[Node, set[Node]] = {}
    for node in graph.operators:
        for value in node.inputs:
            readers.setdefault(value.node, set()).add(node)
    trained, outputs = gradient_nodes(graph), {value.node for value in graph.outputs}
    wanted = set(chosen)
    for node in reversed(graph.operators):
        own = readers.get(node, set())
        if node not in trained and node not in outputs and own and own <= wanted:
            wanted.add(node)
    for node in wanted:
        yield cut[node]
        for value, operand in zip(node.inputs, cut[node].inputs, strict=True):
            if value.node not in trained:
                yield from trace(operand)[1]


def alternate(blocks: Blocks) -> frozenset[Node]:
    """Attention and every second other product of each block, the first among them."""
    kept: set[Node] = set()
    for block in range(blocks.count):
        first = blocks.first + block * blocks.length
        operators = blocks.graph.operators[first : first + blocks.length]
        kept |= {node for node in operators if work_of(node) == "attention"}
        kept |= {*[node for node in operators if work_of(node) == "contraction"][::2]}
    return frozenset(kept)


def _within(blocks: Blocks, cut: Mapping[Node, Node], kept: frozenset[Node]) -> Iterator[Node]:
    """All in the blocks, moves among it, but what is kept and what another block reads."""
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
            # What came from another stage in parts stays as it was gathered.
            yield from set(chain).difference(named_parts(chain) or ())


def _gathered(inner: Iterable[Node]) -> Iterator[Node]:
    """What brings results together for products that read them whole, in the stage where they
    lie."""
    for node in inner:
        if kind_of(node) != "contraction":
            continue
        for value in node.inputs:
            source, chain = trace(value)
            if not source.node.is_leaf and any(step.name == "combine" for step in chain):
                yield from set(chain).difference(named_parts(chain) or ())


def _gathers(inner: Iterable[Node]) -> Iterator[Node]:
    """What brings weights from where they are kept."""
    for node in inner:
        for value in node.inputs:
            source, chain = trace(value)
            if source.node.is_weight:
                yield from chain


def between_products(graph: Graph) -> frozenset[Node]:
    """The operators on the way from one product of tensors that are no weights to another, the
    first product among them."""
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

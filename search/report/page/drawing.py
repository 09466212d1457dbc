"""Pictures of the graph of a model and of its plan, with repeated blocks folded.

Operators are drawn, and the inputs that they read. Parallel operators are not drawn: they follow
from the placements. Weights are listed with the operators that read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pcg.graph.graph import Graph, Node, Value
from pcg.placement.schedule import trace
from pcg.placement.view import MachineView
from pcg.plan.text import node_names
from search.report.page.repetition import shown_for
from substitutions.browse.graph_drawing import Wire, layout
from substitutions.browse.picture import COMPUTES, FIRST_INPUT, STANDS_IN, Picture, PictureBox

LONGEST = 26
"""The most letters of a line in a box. Longer lines are shortened."""
MOST_WIRES = 3000
"""A graph with more wires is drawn as a list, since placing its boxes would take too long."""


@dataclass(frozen=True)
class DrawnGraph:
    """A picture, and for each of its boxes the operators that it stands for; none for an input."""

    picture: Picture
    members: tuple[tuple[Node, ...], ...]


def drawn(
    graph: Graph, cuts: Mapping[Node, str], views: Mapping[Node, MachineView] | None = None
) -> DrawnGraph:
    """Draw a graph. ``cuts``: the cut of each operator, as text; ``views``: operators on different
    devices are drawn as different ones."""
    nodes = graph.computing
    names = node_names(graph)
    keys = [(_key(node), cuts.get(node), views and views[node]) for node in nodes]
    numbers = {node: place for (place, _), node in zip(shown_for(keys), nodes, strict=True)}
    members: dict[int, list[Node]] = {}
    for node in nodes:
        members.setdefault(numbers[node], []).append(node)
    inputs = _inputs(nodes, numbers)
    order = [*inputs, *members]
    box: dict[object, int] = {shown: i for i, shown in enumerate(order)}
    boxes = [_input_box(leaf) for leaf in inputs]
    boxes += [_box(operators, names, cuts) for operators in members.values()]
    ends = dict.fromkeys(_ends(nodes, numbers, box))
    wires = [Wire(source, target) for source, target in ends if source < target]
    if len(wires) > MOST_WIRES:
        wires = [Wire(a, b) for a, b in pairwise(range(len(boxes)))]
    placed = layout([box_drawn.width for box_drawn in boxes], wires, ())
    stands = (*(() for _ in inputs), *(tuple(operators) for operators in members.values()))
    return DrawnGraph(Picture(tuple(boxes), tuple(wires), placed), stands)


def _key(node: Node) -> object:
    """A key that is equal for operators that do the same to tensors of the same sizes."""
    return node.operator_call.identity, tuple(value.type for value in node.inputs)


def _inputs(nodes: Sequence[Node], numbers: Mapping[Node, int]) -> list[Node]:
    """The model's inputs that shown operators read, in order."""
    shown = {numbers[node]: node for node in reversed(nodes)}
    read = (trace(value)[0].node for node in shown.values() for value in node.inputs)
    wanted = {leaf for leaf in read if leaf.is_leaf and not leaf.is_weight}
    every = (trace(value)[0].node for node in nodes for value in node.inputs)
    return [leaf for leaf in dict.fromkeys(every) if leaf in wanted]


def _ends(
    nodes: Sequence[Node], numbers: Mapping[Node, int], box: Mapping[object, int]
) -> list[tuple[int, int]]:
    """Pairs of boxes: a tensor goes from the first to the second."""
    pairs: list[tuple[int, int]] = []
    for node in nodes:
        for value in node.inputs:
            source = trace(value)[0].node
            place = numbers.get(source, source)
            if place in box:
                pairs.append((box[place], box[numbers[node]]))
    return pairs


def _input_box(leaf: Node) -> PictureBox:
    return PictureBox(FIRST_INPUT, (_short(leaf.leaf.name), _short(_sizes(leaf.value()))))


def _box(
    members: Sequence[Node], names: Mapping[Node, tuple[str, ...]], cuts: Mapping[Node, str]
) -> PictureBox:
    node = members[0]
    times = f" \u00d7{len(members)}" if len(members) > 1 else ""
    title = _short(node.name, LONGEST - len(times)) + times
    cut = (_short(cuts[node]),) if node in cuts else ()
    kind = COMPUTES if len(members) == 1 else STANDS_IN
    return PictureBox(kind, (title, _short(f"{names[node][0]} {_sizes(node.value())}"), *cut))


def _sizes(value: Value) -> str:
    return "[" + ", ".join(map(str, value.type.shape)) + "]"


def _short(text: str, most: int = LONGEST) -> str:
    return text if len(text) <= most else text[: most - 1] + "\u2026"

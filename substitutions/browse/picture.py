"""The picture of one side of a rule: placed boxes and wires, as short lists for the page.

The page draws a picture when it comes into view. Sizes are in pixels. All letters have the same
width, so that the width of a box is known here.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil

from pcg.graph.graph import Graph, Node, Value
from pcg.graph.pairs import Outputs
from pcg.ops.stand_ins import STAND_INS
from substitutions.browse.graph_drawing import BoxLayout, Wire, layout
from substitutions.browse.labels import NodeLabel

OUTPUT, COMPUTES, MOVES, STANDS_IN, FIRST_INPUT = range(5)
"""The kinds of boxes. The inputs are numbered from FIRST_INPUT on, in the order of the rule."""

TITLE, DETAIL = 7.3, 6.1
"""The widths of a letter in a box's title and in its details."""
PADDING = 18
NARROWEST = 30
LINE = 24
"""The most letters of a line of details, unless one word has more."""
PORTS = 13
"""The distance between wires that enter or leave the same box."""
OUTPUT_WIDTH = 18


@dataclass(frozen=True)
class PictureBox:
    """A box. ``kind``: one of the kinds above. ``lines``: the title, then details."""

    kind: int
    lines: tuple[str, ...]

    @property
    def width(self) -> int:
        if self.kind == OUTPUT:
            return OUTPUT_WIDTH
        title, *details = self.lines
        widest = max([TITLE * len(title), *(DETAIL * len(line) for line in details)])
        return max(NARROWEST, ceil(widest) + PADDING)


@dataclass(frozen=True)
class Picture:
    """One side of a rule: boxes, wires between them, and their positions."""

    boxes: tuple[PictureBox, ...]
    wires: tuple[Wire, ...]
    layout: BoxLayout

    def record(self) -> list[object]:
        """``[width, layers, boxes, wires]``: boxes as ``[kind, layer, middle, width, lines]``,
        wires as ``[source, where it leaves, target, where it enters, bends...]``."""
        places = zip(self.boxes, self.layout.layers, self.layout.centres, strict=True)
        boxes = [
            [box.kind, layer, round(centre), box.width, "\n".join(box.lines)]
            for box, layer, centre in places
        ]
        wires = [
            [w.source, round(w.leaves), w.target, round(w.enters), *map(round, bends)]
            for w, bends in zip(self.wires, self.layout.bends, strict=True)
        ]
        return [ceil(self.layout.width), self.layout.depth, boxes, wires]


def picture(side: Outputs, labels: Mapping[Node, NodeLabel], inputs: Sequence[str]) -> Picture:
    """The picture of a side. ``labels``: the labels of its nodes. ``inputs``: the rule's inputs."""
    nodes = Graph(side).nodes
    number = {node: i for i, node in enumerate(nodes)}
    used = {*side, *(value for node in nodes for value in node.inputs)}
    boxes = [_box(node, labels[node], inputs, used) for node in nodes]
    wires = [
        Wire(number[v.node], number[node], _leaves(v), _apart(port, len(node.inputs)))
        for node in nodes
        for port, v in enumerate(node.inputs)
    ]
    sinks: list[int] = []
    for port, value in zip(count(), side):
        sinks.append(len(boxes))
        wires.append(Wire(number[value.node], len(boxes), _leaves(value)))
        boxes.append(PictureBox(OUTPUT, (str(port + 1),) if len(side) > 1 else ("",)))
    placed = layout([box.width for box in boxes], wires, sinks)
    return Picture(tuple(boxes), tuple(wires), placed)


def _box(node: Node, label: NodeLabel, inputs: Sequence[str], used: Container[Value]) -> PictureBox:
    kind = COMPUTES
    if node.is_leaf:
        kind = FIRST_INPUT + inputs.index(node.leaf.name)
    elif node.is_parallel:
        kind = MOVES
    elif node.name in STAND_INS:
        kind = STANDS_IN
    axes = (label.axes,) if node.is_leaf and label.axes else ()
    return PictureBox(kind, (label.name, *_wrapped(label.attributes), *axes, *_only(node, used)))


def _only(node: Node, used: Container[Value]) -> tuple[str, ...]:
    """A line that names the used outputs of a node, if some of its outputs are not used."""
    ports = 1 if node.is_leaf else len(node.operator_call.operator.outputs)
    used_ports = [port for port in range(ports) if node.value(port) in used]
    return (
        ()
        if len(used_ports) == ports
        else (f"only {', '.join(f'.{port}' for port in used_ports)}",)
    )


def _wrapped(words: Sequence[str]) -> list[str]:
    """Lines of words that are separated by commas."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 2 + len(word) <= LINE:
            lines[-1] += f", {word}"
        else:
            lines.append(word)
    return lines


def _leaves(value: Value) -> float:
    """The distance from the middle of the box at which the wire of an output leaves it."""
    node = value.node
    return 0 if node.is_leaf else _apart(value.port, len(node.operator_call.operator.outputs))


def _apart(port: int, ports: int) -> float:
    """The distance of port ``port`` of ``ports`` from the middle of the box."""
    return PORTS * (port - (ports - 1) / 2)

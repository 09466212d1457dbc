"""Seeded training graphs with branches. How fast a plan of them is depends on what runs side by
side.

They have 10 to 40 operators: towers of unequal depth and width, N-shapes, dense and skip
connections, unequal branches of convolutions, experts, and an embedding beside convolutions. Some
batches are smaller than the devices, and some sizes are odd or prime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from pcg.graph.graph import Graph, Value, apply, leaf
from pcg.ops import OPERATORS

WIDTHS = (96, 251, 256, 384, 509, 512, 1000, 1024, 2048, 3000)
BATCHES = (3, 5, 6, 7, 12, 16, 24, 40, 64, 96, 120, 250)

TWO_TOWERS = """
x = input[64, 1024]
y = input[64, 1024]
a = weight[1024, 1024]
b = weight[1024, 512]
return mean_loss(concat(relu(matmul(x, a)), relu(matmul(y, b)), axis=1))
"""


@dataclass
class Drawing:
    """Draws one graph. Leaves are numbered."""

    random: Random
    batch: int = 0
    leaves: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.batch = self.random.choice(BATCHES)

    def width(self) -> int:
        return self.random.choice(WIDTHS)

    def weight(self, *shape: int) -> Value:
        self.leaves += 1
        return leaf("weight", f"w{self.leaves}", shape)

    def input(self, *shape: int) -> Value:
        self.leaves += 1
        return leaf("input", f"x{self.leaves}", shape)

    def dense(self, x: Value, width: int | None = None) -> Value:
        wide = self.width() if width is None else width
        return call("matmul", x, self.weight(x.type.shape[-1], wide))

    def tower(self, x: Value, layers: int, last: int | None = None) -> Value:
        """Layers, with a relu after some of them."""
        for layer in range(layers):
            x = self.dense(x, last if layer == layers - 1 else None)
            if self.random.random() < 0.5:
                x = call("relu", x)
        return x

    def convolution(self, x: Value, channels: int, size: int) -> Value:
        kernel = self.weight(channels, x.type.shape[1], size, size)
        height, width = x.type.shape[2:]
        padding = size // 2
        made = call(
            "conv2d",
            *(x, kernel),
            stride_h=1,
            stride_w=1,
            dilation_h=1,
            dilation_w=1,
            top=padding,
            left=padding,
            height=height,
            width=width,
        )
        return call("relu", made)


def call(operator: str, *operands: Value, **attributes: int) -> Value:
    return apply(OPERATORS[operator](**attributes), *operands)


def joined(values: Sequence[Value], axis: int = 1) -> Value:
    """All values, concatenated."""
    whole, *others = values
    for other in others:
        whole = call("concat", whole, other, axis=axis)
    return whole


def towers(draw: Drawing) -> Value:
    shared = draw.input(draw.batch, draw.width()) if draw.random.random() < 0.5 else None
    tops: list[Value] = []
    for _ in range(draw.random.randint(2, 5)):
        begin = draw.input(draw.batch, draw.width()) if shared is None else shared
        tops.append(draw.tower(begin, draw.random.randint(1, 5)))
    return draw.tower(joined(tops), 2)


def n_shape(draw: Drawing) -> Value:
    """An N-shape: the second of two rows reads the first one too, at one place or two."""
    wide = draw.width()
    left = draw.tower(draw.input(draw.batch, draw.width()), 2, wide)
    right = draw.tower(draw.input(draw.batch, draw.width()), draw.random.randint(1, 4), wide)
    for _ in range(draw.random.randint(1, 2)):
        right = draw.tower(call("add", left, right), draw.random.randint(1, 2), wide)
        left = draw.tower(left, draw.random.randint(1, 2), wide)
    return joined((left, right))


def dense_connections(draw: Drawing) -> Value:
    made = [draw.input(draw.batch, draw.width())]
    for _ in range(draw.random.randint(3, 5)):
        made.append(draw.tower(joined(made), 1))
    return joined(made[1:])


def skips(draw: Drawing) -> Value:
    wide = draw.width()
    rows = [draw.dense(draw.input(draw.batch, draw.width()), wide)]
    for _ in range(draw.random.randint(3, 6)):
        made = draw.tower(rows[-1], draw.random.randint(1, 2), wide)
        rows.append(call("add", made, draw.random.choice(rows)))
    return rows[-1]


def convolutions(draw: Drawing) -> Value:
    side, channels = draw.random.choice((7, 14, 15, 28)), draw.random.choice((32, 48, 96))
    x = draw.convolution(draw.input(draw.batch, 3, side, side), channels, 3)
    for _ in range(draw.random.randint(1, 2)):
        branches: list[Value] = []
        for _ in range(draw.random.randint(2, 4)):
            own = x
            for _ in range(draw.random.randint(1, 2)):
                size = draw.random.choice((1, 1, 3, 5))
                own = draw.convolution(own, draw.random.choice((16, 32, 64, 128)), size)
            branches.append(own)
        x = joined(branches)
    return x


def experts(draw: Drawing) -> Value:
    x, wide = draw.input(draw.batch, draw.width()), draw.width()
    made = [
        draw.tower(x, draw.random.randint(2, 3), wide) for _ in range(draw.random.randint(2, 4))
    ]
    total: Value | None = None
    for own in made:
        gate = call("sigmoid", draw.dense(x, wide))
        part = call("multiply", own, gate)
        total = part if total is None else call("add", total, part)
    assert total is not None
    return draw.dense(total)


def table_beside_convolutions(draw: Drawing) -> Value:
    side = draw.random.choice((14, 15, 28))
    x = draw.input(draw.batch, 3, side, side)
    for _ in range(draw.random.randint(2, 4)):
        x = draw.convolution(x, draw.random.choice((32, 64, 96)), draw.random.choice((1, 3)))
    image = call("flatten", call("flatten", x, axis=1), axis=1)
    rows: list[Value] = []
    for number in range(draw.random.randint(1, 3)):
        length = draw.random.choice((1000, 9973, 50000))
        ids = leaf("input", f"ids{number}", (draw.batch,), below=length)
        table = draw.weight(length, draw.random.choice((128, 251, 512)))
        rows.append(draw.tower(call("embedding", ids, table), draw.random.randint(1, 2)))
    return draw.tower(joined((draw.dense(image), *rows)), 2)


KINDS: tuple[Callable[[Drawing], Value], ...] = (
    *(towers, n_shape, dense_connections, skips),
    *(convolutions, experts, table_beside_convolutions),
)


def branched(seed: int) -> tuple[str, Graph]:
    """A kind of graph by name, and a graph of it: the same for the same seed."""
    kind, random = KINDS[seed % len(KINDS)], Random(seed)
    while True:
        graph = Graph((call("mean_loss", kind(Drawing(random))),))
        if 10 <= len(graph.operators) <= 40:
            graph.check()
            return kind.__name__.replace("_", " "), graph

"""Draws the figures of the documentation: ``python docs/images/figures.py`` writes them again.

Each figure is a function that returns an SVG. A test compares the files with what this makes.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from math import hypot
from pathlib import Path

HERE = Path(__file__).parent
FONT = "font-family='Helvetica, Arial, sans-serif'"
COLOURS = ("#cfe3f7", "#fbdcb8", "#d5ecc8", "#e6d4f0")
DARK = "#1f2933"
GREY = "#6b7785"


def svg(width: int, height: int, title: str, parts: list[str]) -> str:
    """A drawing on a white ground, so that it is legible on a dark page too."""
    ground = f"<rect width='{width}' height='{height}' fill='white'/>"
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}'"
        f" width='{width}' height='{height}' role='img'>"
    )
    return "\n".join([head, f"<title>{escape(title)}</title>", ground, *parts, "</svg>", ""])


def text(
    x: float,
    y: float,
    content: str,
    size: int = 14,
    *,
    anchor: str = "middle",
    colour: str = DARK,
    bold: bool = False,
) -> str:
    weight = " font-weight='bold'" if bold else ""
    return (
        f"<text x='{x:g}' y='{y:g}' {FONT} font-size='{size}' text-anchor='{anchor}'"
        f" fill='{colour}'{weight}>{escape(content)}</text>"
    )


def rectangle(
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    *,
    dashed: bool = False,
    round_by: int = 0,
    stroke: str = DARK,
) -> str:
    dash = " stroke-dasharray='5,4'" if dashed else ""
    return (
        f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='{round_by}'"
        f" fill='{fill}' stroke='{stroke}' stroke-width='1.2'{dash}/>"
    )


def box(x: float, y: float, width: float, height: float, lines: list[str], fill: str) -> list[str]:
    """A box with its name in bold, and what it is below."""
    top = y + height / 2 - 9 * (len(lines) - 1) + 5
    written = [
        text(x + width / 2, top + 18 * at, line, 15 if at == 0 else 12, bold=at == 0)
        for at, line in enumerate(lines)
    ]
    return [rectangle(x, y, width, height, fill, round_by=6), *written]


def arrow(*points: tuple[float, float]) -> str:
    """A line through points, with a head at the last. (Not a marker: some viewers leave it out.)"""
    (x1, y1), (x2, y2) = points[-2:]
    length = hypot(x2 - x1, y2 - y1)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    line = " ".join(f"{x:g},{y:g}" for x, y in (*points[:-1], (x2 - 8 * dx, y2 - 8 * dy)))
    corners = (x2, y2), (x2 - 10 * dx - 5 * dy, y2 - 10 * dy + 5 * dx)
    corners += ((x2 - 10 * dx + 5 * dy, y2 - 10 * dy - 5 * dx),)
    head = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    return (
        f"<polyline points='{line}' fill='none' stroke='{GREY}' stroke-width='1.8'/>"
        f"<polygon points='{head}' fill='{GREY}'/>"
    )


def overview() -> str:
    """What goes into a plan, and what is made of it."""
    blue, orange, green, violet = COLOURS
    parts = [
        *box(20, 30, 200, 64, ["operators", "one index equation each"], violet),
        *box(20, 140, 200, 64, ["rule library", "proved for all sizes"], violet),
        *box(20, 270, 200, 64, ["model, machine, batch", "PyTorch module, TOML file"], blue),
        *box(330, 205, 150, 64, ["search", "rewrites and cuts"], orange),
        *box(590, 205, 150, 64, ["plan.json", "graph, devices, rules"], green),
        *box(590, 30, 150, 64, ["audit", "replays the derivation"], orange),
        *box(590, 350, 150, 64, ["simulate", "predicts time, memory"], orange),
        *box(820, 205, 150, 64, ["run", "torch.distributed"], orange),
        arrow((120, 94), (120, 138)),
        text(130, 121, "generate, prove (Z3)", 12, anchor="start"),
        arrow((220, 178), (328, 225)),
        arrow((220, 296), (328, 250)),
        arrow((480, 237), (588, 237)),
        arrow((665, 205), (665, 96)),
        arrow((665, 269), (665, 348)),
        arrow((740, 237), (818, 237)),
        arrow((220, 160), (400, 62), (588, 62)),
        text(480, 54, "certificates of the proofs", 12),
        text(895, 292, "programs are validated", 12, colour=GREY),
        text(895, 308, "before each run", 12, colour=GREY),
    ]
    return svg(990, 440, "From operators, a model and a machine to a plan that trains", parts)


def _grid(x: float, y: float, fills: list[list[str]], cell: int = 26) -> list[str]:
    return [
        rectangle(x + cell * column, y + cell * row, cell, cell, fill)
        for row, line in enumerate(fills)
        for column, fill in enumerate(line)
    ]


def placements() -> str:
    """What two devices hold of one tensor, by its placement."""
    first, second = COLOURS[0], COLOURS[1]
    whole, upper, lower = [[first] * 4] * 4, [[first] * 4] * 2, [[second] * 4] * 2
    parts = [
        text(90, 30, "the tensor", 15, bold=True),
        *_grid(38, 70, [[first] * 4] * 2 + lower),
    ]
    columns = (
        (220, "Shard(0)", "partition", upper, lower, "", ""),
        (
            470,
            "Replicate",
            "replicate",
            [[first] * 4] * 2 + lower,
            [[first] * 4] * 2 + lower,
            "",
            "",
        ),
        (720, "Partial", "values to add up", whole, [[second] * 4] * 4, "A", "B"),
    )
    for x, name, how, left, right, a, b in columns:
        parts += [
            text(x + 110, 30, name, 15, bold=True),
            text(x + 110, 50, how, 12, colour=GREY),
            *_grid(x, 70, left),
            *_grid(x + 116, 70, right),
            text(x + 52, 200, "device 0", 12),
            text(x + 168, 200, "device 1", 12),
        ]
        if a:
            parts += [text(x + 52, 130, a, 22, bold=True), text(x + 168, 130, b, 22, bold=True)]
    parts.append(text(830, 226, "the tensor is A + B", 12, colour=GREY))
    return svg(960, 245, "Shard, Replicate and Partial of one tensor on two devices", parts)


def _product(left: int, x: list[list[str]], w: list[list[str]], out: list[list[str]]) -> list[str]:
    """A matrix product of three grids, from such a place on."""
    return [
        *_grid(left, 100, x, 20),
        text(left + 90, 145, "x", 16),
        *_grid(left + 102, 100, w, 20),
        text(left + 175, 145, "=", 18),
        *_grid(left + 192, 100, out, 20),
    ]


def matmul_cuts() -> str:
    """The three indices of a matrix product, cut in two."""
    none, one, two = "#ffffff", COLOURS[0], COLOURS[1]
    rows, columns = [[one] * 3] * 2 + [[two] * 3] * 2, [[one, two, two]] * 4
    wide, halves = [[one] * 4] * 2 + [[two] * 4] * 2, [[one, one, two, two]] * 4
    whole, sums = [[none] * 4] * 4, [[none] * 3] * 4
    cases = (
        ("cut a", "x Shard(0), w Replicate", (wide, sums, rows), "out Shard(0)"),
        ("cut n", "x Replicate, w Shard(1)", (whole, columns, columns), "out Shard(1)"),
        (
            "cut k",
            "x Shard(1), w Shard(0)",
            (halves, rows, sums),
            "out Partial: two values to add up",
        ),
    )
    parts = [text(480, 28, "out[a, n] = sum k: x[a, k] * w[k, n]", 16, bold=True)]
    for at, (name, how, grids, result) in enumerate(cases):
        left = 20 + 320 * at
        parts += [
            text(left + 140, 62, name, 15, bold=True),
            text(left + 140, 82, how, 12, colour=GREY),
            *_product(left, *grids),
            text(left + 140, 206, result, 12),
        ]
    for x, colour, name in ((330, one, "device 0"), (440, two, "device 1"), (550, none, "both")):
        parts.append(rectangle(x, 224, 16, 16, colour))
        parts.append(text(x + 24, 237, name, 12, anchor="start"))
    return svg(960, 255, "What each cut of a matrix product leaves", parts)


def mesh_axes() -> str:
    """Two nodes of Summit: each level of the machine is one mesh axis, or several."""
    parts: list[str] = []
    for node in range(2):
        left = 40 + 440 * node
        parts += [
            rectangle(left, 60, 410, 130, "white", round_by=8),
            text(left + 205, 84, f"node {node}", 14, bold=True),
        ]
        for socket in range(2):
            x = left + 12 + 196 * socket
            parts.append(rectangle(x, 98, 188, 80, "#f4f6f8", round_by=6))
            for place in range(3):
                number = 6 * node + 3 * socket + place
                parts += [
                    rectangle(x + 8 + 59 * place, 108, 54, 42, COLOURS[place], round_by=4),
                    text(x + 35 + 59 * place, 135, str(number), 16, bold=True),
                ]
            parts.append(text(x + 94, 169, f"socket {socket}", 12, colour=GREY))
    parts += [
        text(460, 34, "device number = 6 · node + 3 · socket + place", 15, bold=True),
        text(
            460,
            222,
            "mesh axes, outermost first: node (size 2), socket (size 2), place (size 3)",
            14,
        ),
        text(
            460,
            246,
            "a strategy gives each axis an index to cut, or leaves it idle",
            13,
            colour=GREY,
        ),
    ]
    return svg(920, 262, "Mesh axes of two nodes of Summit", parts)


def _slot(stage: int, start: int, kind: str, batch: int) -> list[str]:
    width = 34
    x, y = 110 + width * start, 50 + 44 * stage
    length = 1 if kind == "F" else 2
    fill = COLOURS[0] if kind == "F" else COLOURS[2]
    return [
        rectangle(x, y, width * length, 34, fill),
        text(x + width * length / 2, y + 22, str(batch), 14),
    ]


def pipeline() -> str:
    """1F1B: four stages, six micro-batches, a backward pass as long as two forward passes."""
    stages, batches = 4, 6
    orders = [_order(stage, stages, batches) for stage in range(stages)]
    ends, at = {}, [0] * stages
    free = [0] * stages
    parts = [
        text(14, 72 + 44 * stage, f"stage {stage}", 14, anchor="start") for stage in range(stages)
    ]
    while any(at[stage] < len(orders[stage]) for stage in range(stages)):
        for stage in range(stages):
            if at[stage] == len(orders[stage]):
                continue
            kind, batch = orders[stage][at[stage]]
            before = _before(kind, stage, batch, stages)
            if before is not None and before not in ends:
                continue
            start = max(free[stage], ends[before] if before is not None else 0)
            free[stage] = ends[kind, stage, batch] = start + (1 if kind == "F" else 2)
            at[stage] += 1
            parts += _slot(stage, start, kind, batch)
    end = max(free)
    parts += [
        text(110 + 17 * end, 28, "time", 13, colour=GREY),
        arrow((135 + 17 * end, 23), (210 + 17 * end, 23)),
        rectangle(300, 236, 22, 16, COLOURS[0]),
        text(330, 249, "forward pass", 13, anchor="start"),
        rectangle(460, 236, 22, 16, COLOURS[2]),
        text(490, 249, "backward pass", 13, anchor="start"),
        text(640, 249, "numbers are micro-batches", 13, anchor="start", colour=GREY),
    ]
    return svg(130 + 34 * end, 270, "A pipeline of four stages and six micro-batches, 1F1B", parts)


def _order(stage: int, stages: int, batches: int) -> list[tuple[str, int]]:
    ahead = min(stages - stage, batches)
    order = [("F", batch) for batch in range(ahead)]
    for batch in range(batches):
        order.append(("B", batch))
        if batch + ahead < batches:
            order.append(("F", batch + ahead))
    return order


def _before(kind: str, stage: int, batch: int, stages: int) -> tuple[str, int, int] | None:
    if kind == "F":
        return ("F", stage - 1, batch) if stage else None
    return ("B", stage + 1, batch) if stage + 1 < stages else ("F", stage, batch)


def proof() -> str:
    """Who checks what of a rule."""
    blue, orange, green, violet = COLOURS
    parts = [
        *box(20, 60, 170, 64, ["definitions", "index equations"], violet),
        *box(250, 60, 170, 64, ["candidates", "equal over two fields"], blue),
        *box(480, 60, 170, 64, ["proof", "expand, align, Z3"], orange),
        *box(710, 60, 170, 64, ["rule library", "what the search loads"], green),
        *box(480, 200, 170, 64, ["certificate", "choices, SMT-LIB 2"], green),
        *box(710, 200, 170, 64, ["recheck", "without the search"], orange),
        arrow((190, 92), (248, 92)),
        arrow((420, 92), (478, 92)),
        arrow((650, 92), (708, 92)),
        arrow((565, 124), (565, 198)),
        arrow((650, 232), (708, 232)),
        arrow((795, 200), (795, 126)),
        text(219, 50, "enumerate", 12, colour=GREY),
        text(449, 50, "decide", 12, colour=GREY),
        text(679, 50, "proved", 12, colour=GREY),
        text(795, 286, "Z3 and cvc5", 12, colour=GREY),
        text(335, 150, "what is not proved is no rule", 12, colour=GREY),
    ]
    return svg(900, 305, "From definitions to rules, and how proofs are checked again", parts)


FIGURES: dict[str, Callable[[], str]] = {
    "overview": overview,
    "placements": placements,
    "matmul-cuts": matmul_cuts,
    "mesh-axes": mesh_axes,
    "pipeline": pipeline,
    "proof": proof,
}


if __name__ == "__main__":
    for name, draw in FIGURES.items():
        (HERE / f"{name}.svg").write_text(draw(), "utf-8")

"""A program of its own: the cost of planning deep models, by layers and devices, as a table.

    python deep_table.py NAME LAYERS[,LAYERS...] NODES[,NODES...]

Each model is captured and planned in a process of its own by ``deep.py``, so that memory is counted
for it alone. Prints a row as soon as it is known. Seconds are processor seconds.
"""

from __future__ import annotations

import sys
from itertools import product
from subprocess import CalledProcessError

from benchmarks import deep
from support.runs.programs import answer_of

DEVICES = 8
"""The devices of a node."""
HEAD = (
    "| layers | devices | capture | search | memory | predicted step | plan |",
    "|---|---|---|---|---|---|---|",
)


def row(name: str, layers: int, nodes: int) -> str:
    begin = f"| {layers} | {nodes * DEVICES:,} |"
    command = [sys.executable, deep.__file__, name, str(layers), str(nodes)]
    try:
        answer = answer_of(command, deep.SECONDS)
    except CalledProcessError as error:
        problem = error.stderr.strip().splitlines()[-1].rpartition("Answer: ")[2]
        return f"{begin} - | - | - | - | {problem} |"
    seconds = f"{answer['capture']:.0f} s | {answer['plan']:.0f} s | {answer['peak_gb']:.1f} GB"
    plan = answer["pipeline"] or "no pipeline"
    return f"{begin} {seconds} | {answer['step_seconds']:.2f} s | {plan} |"


def main(name: str, layers: str, nodes: str) -> None:
    print(*HEAD, sep="\n", flush=True)
    for pair in product(layers.split(","), nodes.split(",")):
        print(row(name, *map(int, pair)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

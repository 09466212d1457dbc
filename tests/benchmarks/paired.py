"""Compare the commands of this checkout with those of another one, in pairs.

    python tests/benchmarks/paired.py OTHER [--models dlrm,xdl] [--devices 24] [--default]

OTHER is another checkout, such as ``git worktree add OTHER COMMIT``. For each model of the paper
and each machine, both run as commands, one right after the other: first ``unity.optimize`` of the
other one, then that of this one with a budget that lets it take no longer. Times are of whole
commands, by the clock, so nothing else should run. With ``--default`` this checkout also runs
without a budget. Each line has the seconds of both commands, the milliseconds of a step of both
plans, and the ratios of this one to the other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from os import environ
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from pcg.machine import load_machine

HERE = Path(__file__).parents[2]
MODELS = ("mlp", "dlrm", "xdl", "candle-uno", "bert-large", "resnext50", "inception-v3")
NODES = {"summit": (1, 2, 4, 8, 16, 32), "dgx-a100": (1, 2, 4, 8, 16, 32, 64, 128)}
NODES["dgx-h100"] = NODES["dgx-a100"]
MARGIN = 0.15
"""The seconds by which a command with a budget should end before the other one."""
LEAST = 0.1
"""The least budget in seconds."""


@dataclass(frozen=True)
class Ran:
    """A command that ran. ``wall``: its seconds by the clock; ``search``: those of its search;
    ``step``: seconds of a step of its plan."""

    wall: float
    search: float
    step: float


def ran(checkout: Path, plan: Path, *given: str) -> Ran:
    """Run ``unity.optimize`` of a checkout."""
    env = {**environ, "PYTHONPATH": str(checkout)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling all modules would take seconds each time
    command = sys.executable, "-m", "unity.optimize", *given, "--json", "-o", str(plan)
    begun = perf_counter()
    done = subprocess.run(command, cwd=checkout, env=env, stdout=subprocess.PIPE, check=True)
    wall, made = perf_counter() - begun, json.loads(done.stdout)
    return Ran(wall, made["search_seconds"], made["predicted_seconds"])


def cases(most: int) -> Iterator[tuple[str, int]]:
    """The machines and numbers of nodes, with at most so many devices."""
    for machine, counts in NODES.items():
        each = load_machine(machine).devices_per_node
        yield from ((machine, count) for count in counts if count * each <= most)


def compare(other: Path, models: list[str], most: int, *, with_default: bool) -> None:
    """Print a line for each model and machine, and then the number of pairs in which the command
    with a budget took longer, and of those in which its step does."""
    slower = {"to find": 0, "a step": 0}
    pairs = 0
    with TemporaryDirectory() as folder:
        plan = Path(folder, "plan.json")
        ran(HERE, plan, "mlp-tiny")  # machine code is compiled, if it was not
        for model in models:
            for machine, nodes in cases(most):
                given = model, "--machine", machine, "--nodes", str(nodes)
                before = ran(other, plan, *given)
                short = ran(HERE, plan, *given, "--budget", f"{LEAST}")
                budget = before.wall - (short.wall - short.search) - MARGIN
                now = ran(HERE, plan, *given, "--budget", f"{max(LEAST, budget):.2f}")
                text = f"{model:12} {machine:8} x {nodes:3}: {_beside(before, now)}"
                if with_default:
                    text += f"; without a budget {_beside(before, ran(HERE, plan, *given))}"
                print(text, flush=True)
                slower["to find"] += now.wall > before.wall
                slower["a step"] += now.step > before.step
                pairs += 1
    print(f"of {pairs} pairs, slower: {slower}")


def _beside(before: Ran, now: Ran) -> str:
    return (
        f"{before.wall:.1f} -> {now.wall:.1f} s ({now.wall / before.wall:.2f}),"
        f" step {before.step * 1e3:.3f} -> {now.step * 1e3:.3f} ms ({now.step / before.step:.3f})"
    )


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("other", type=Path)
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--devices", type=int, default=1024, help="the most devices")
    options.add_argument("--default", action="store_true")
    given = options.parse_args()
    models = given.models.split(",")
    compare(given.other.resolve(), models, given.devices, with_default=given.default)


if __name__ == "__main__":
    main()

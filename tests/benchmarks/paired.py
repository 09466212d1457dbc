"""Compare the commands of this checkout with those of another one, in pairs.

    python tests/benchmarks/paired.py OTHER [--models dlrm,xdl] [--devices 6-24] [--untimed]

OTHER is another checkout, such as ``git worktree add OTHER COMMIT``. For each model of the paper
and each machine, both run ``unity.optimize`` as a command, one right after the other. If that of
this checkout takes longer, it runs again with a budget that lets it take no longer: the question is
how soon it has a plan that is no slower. Times are of whole commands, by the clock, so nothing else
should run. Each line has the seconds of the commands, the milliseconds of a step of their plans,
and the ratios of this checkout to the other; then the seconds after which this one had a plan that
is no slower than the other's. With ``--untimed``, both run at the same time, and only steps are
compared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from math import inf
from os import environ
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from pcg.machine import load_machine
from search.cost.progress import Improvement, found_after

HERE = Path(__file__).parents[2]
MODELS = ("mlp", "dlrm", "xdl", "candle-uno", "bert-large", "resnext50", "inception-v3")
NODES = {"summit": (1, 2, 4, 8, 16, 32), "dgx-a100": (1, 2, 4, 8, 16, 32, 64, 128)}
NODES["dgx-h100"] = NODES["dgx-a100"]
MARGIN = 0.15
"""The seconds by which a command with a budget should end before the other one."""
LEAST = 0.1
"""The least budget in seconds."""
ROUNDING = 1e-9
"""The relative difference of equal steps. Sums of seconds in another order differ by less."""


@dataclass(frozen=True)
class Ran:
    """A command that ran. ``wall``: its seconds by the clock; ``search``: those of its search;
    ``step``: seconds of a step of its plan; ``plans``: the faster plans in the course of the
    search, with the seconds of the command until then."""

    wall: float
    search: float
    step: float
    plans: tuple[Improvement, ...]


def ran(checkout: Path, plan: Path, *given: str) -> Ran:
    """Run ``unity.optimize`` of a checkout."""
    env = {**environ, "PYTHONPATH": str(checkout)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling all modules would take seconds each time
    command = sys.executable, "-m", "unity.optimize", *given, "--json", "-o", str(plan)
    begun = perf_counter()
    done = subprocess.run(command, cwd=checkout, env=env, stdout=subprocess.PIPE, check=True)
    wall, made = perf_counter() - begun, json.loads(done.stdout)
    beside = wall - made["search_seconds"]  # before the search, and a little after it
    plans = [
        Improvement(beside + plan["after_seconds"], plan["step_seconds"])
        for plan in made.get("improvements", ())  # an older commit has none
    ]
    return Ran(wall, made["search_seconds"], made["predicted_seconds"], tuple(plans))


def cases(devices: range) -> Iterator[tuple[str, int]]:
    """The machines and numbers of nodes, by their number of devices."""
    for machine, counts in NODES.items():
        each = load_machine(machine).devices_per_node
        yield from ((machine, count) for count in counts if count * each in devices)


def compare(other: Path, models: list[str], devices: range) -> None:
    """Print a line for each model and machine, and then the number of pairs, of those in which a
    step is slower than that of the other plan, and of those in which it is slower within the
    other's time."""
    slower = {"a step": 0, "a step within the other's time": 0}
    pairs = 0
    with TemporaryDirectory() as folder:
        plan = Path(folder, "plan.json")
        ran(HERE, plan, "mlp-tiny")  # machine code is compiled, if it was not
        for model in models:
            begins = inf
            for machine, nodes in cases(devices):
                given = model, "--machine", machine, "--nodes", str(nodes)
                before, now = ran(other, plan, *given), ran(HERE, plan, *given)
                begins = min(begins, now.wall - now.search)
                most = before.step * (1 + ROUNDING)
                soon = found_after(now.plans, most / now.step)
                text, within = f"{model:12} {machine:8} x {nodes:3}: {_beside(before, now)}", now
                if soon is not None:
                    text += f"; no slower after {soon:.1f} s ({soon / before.wall:.2f})"
                if now.wall > before.wall:
                    budget = before.wall - begins - MARGIN
                    within = ran(HERE, plan, *given, "--budget", f"{max(LEAST, budget):.2f}")
                    text += f"; within {_beside(before, within)}"
                print(text, flush=True)
                slower["a step"] += now.step > most
                slower["a step within the other's time"] += within.step > most
                pairs += 1
    print(f"of {pairs} pairs, slower: {slower}")


def compare_steps(other: Path, models: list[str], devices: range) -> None:
    """Print the ratio of steps for each model and machine, and then in how many pairs a step is
    slower than that of the other plan."""
    ratios: list[float] = []
    with TemporaryDirectory() as folder, ThreadPoolExecutor(2) as threads:
        for model, (machine, nodes) in product(models, cases(devices)):
            given = model, "--machine", machine, "--nodes", str(nodes)
            ends = [
                threads.submit(ran, checkout, Path(folder, name), *given)
                for checkout, name in ((other, "before.json"), (HERE, "now.json"))
            ]
            before, now = (end.result() for end in ends)
            ratios.append(now.step / before.step)
            print(f"{model:12} {machine:8} x {nodes:3}: {_steps(before, now)}", flush=True)
    print(f"of {len(ratios)} pairs, slower: {sum(one > 1 + ROUNDING for one in ratios)}")


def _beside(before: Ran, now: Ran) -> str:
    walls = f"{before.wall:.1f} -> {now.wall:.1f} s ({now.wall / before.wall:.2f})"
    return f"{walls}, {_steps(before, now)}"


def _steps(before: Ran, now: Ran) -> str:
    ratio = now.step / before.step
    return f"step {before.step * 1e3:.3f} -> {now.step * 1e3:.3f} ms ({ratio:.3f})"


def _range(text: str) -> range:
    """The numbers from one to another, both included, such as ``6-24``."""
    first, last = text.split("-")
    return range(int(first), int(last) + 1)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("other", type=Path)
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--devices", type=_range, default=_range("1-1024"), metavar="LEAST-MOST")
    options.add_argument("--untimed", action="store_true")
    given = options.parse_args()
    (compare_steps if given.untimed else compare)(
        given.other.resolve(), given.models.split(","), given.devices
    )


if __name__ == "__main__":
    main()

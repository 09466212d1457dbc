"""A program that runs random searches with a budget and prints when each of them ends.

    python budgets.py [SEED [COUNT [LAYERS]]]

Models, machines, numbers of devices, planners, modes and budgets are drawn at random. The clock of
a search counts the processor seconds of this process, so other work on the computer changes
nothing. Each line has the budget, the seconds until the answer, the excess of these over the
budget, and the seconds in which the plan was completed and written. The last line has the largest
excess. Models are captured and the library is read before the clock starts. A search knows nothing
of earlier ones, except for what a process remembers of the library. With LAYERS, all models are
deep graphs of that many layers, with five or six operators in each.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from signal import ITIMER_PROF, SIGPROF, setitimer, signal
from tempfile import TemporaryDirectory
from time import process_time

from support.graphs import deep

from pcg.collection import seldom_collected, uncollected
from pcg.errors import UnityError
from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.models import build_model
from pcg.plan.plan import save_plan
from pcg.zoo import MODELS
from search.choices import PLANNER_NAMES, Mode
from search.cost.progress import timed_by
from substitutions.rules.store import load_library
from unity.support.comparison import first_devices
from unity.support.planners import SearchOptions, asked_training, planner_of

ZOO = [name for name in MODELS if not name.endswith(("-tiny", "-mnist"))]
DEEP = {"blocks": deep.blocks, "with_bias": deep.with_bias, "with_pairs": deep.with_pairs}
DEVICES = {"summit": (6, 12, 48), "dgx-a100": (8, 16, 64), "p3-16xlarge": (8, 32)}
BY_HAND = ("tensor=2,micro-batches=4", "tensor=4,sequence", "pipeline=2,micro-batches=8")


@dataclass(frozen=True)
class Budgeted:
    """A search with a budget. ``layers``: the depth of a deep graph, or 0 for a model of the
    zoo."""

    model: str
    layers: int
    machine: str
    devices: int
    planner: str
    asked: SearchOptions
    budget: float

    @property
    def graph(self) -> Graph:
        if self.layers:
            return DEEP[self.model](self.layers)
        return build_model(self.model, None, self.devices)

    def __str__(self) -> str:
        model = f"{self.model} x {self.layers}" if self.layers else self.model
        how = self.asked.degrees or f"{self.planner} {self.asked.mode}"
        return f"{model} on {self.devices} x {self.machine} by {how}"

    def interrupted(self, after: float) -> tuple[float, str]:
        """The seconds from an interrupt until the answer, and the answer. ``after``: the seconds
        before the interrupt, in which the model is read too."""
        start = process_time()
        with interrupting(after):
            try:
                answer = self.ended()[1]
            except KeyboardInterrupt:
                answer = "interrupted without a plan"
        return process_time() - start - after, answer

    def ended(self) -> tuple[float, str]:
        """The seconds until the answer, and the answer."""
        graph, machine = self.graph, first_devices(load_machine(self.machine), self.devices)
        training, library = asked_training(self.model, None, None, machine), load_library()
        with timed_by(process_time), seldom_collected():
            start = process_time()
            try:
                planner = planner_of(
                    self.planner, machine, library, self.budget, training, None, self.asked
                )
                planned = planner.plan(self.model, graph)
            except UnityError as none:
                return process_time() - start, str(none)
            seconds, found = planned.plan.estimates.step_seconds, process_time()
            with TemporaryDirectory() as folder, uncollected():
                save_plan(planned.plan, Path(folder) / "plan.json")
            end = process_time()
        ending = planned.report.phases.get("completing", 0.0) + end - found
        answer = (
            f"{seconds * 1e3:.4g} ms (stopped: {planned.report.stop}), written in {ending:.2f} s"
        )
        return end - start, answer


@contextmanager
def interrupting(after: float) -> Generator[None]:
    """Interrupt the context as Ctrl-C does, once the process has worked for ``after`` seconds."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal(SIGPROF, interrupt)
    setitimer(ITIMER_PROF, after)
    try:
        yield
    finally:
        setitimer(ITIMER_PROF, 0)
        signal(SIGPROF, before)


def searches(random: Random, depth: int | None = None) -> Iterator[Budgeted]:
    """Random searches without end. One in three is of a deep graph, and one in six is by hand.
    ``depth``: the layers of all graphs, if given."""
    while True:
        machine = random.choice(list(DEVICES))
        layers = depth or (random.choice((24, 96, 256)) if random.random() < 1 / 3 else 0)
        model = random.choice(list(DEEP) if layers else ZOO)
        degrees = random.choice(BY_HAND) if random.random() < 1 / 6 else None
        planner = "joint" if degrees else random.choice(("joint", "joint", *PLANNER_NAMES))
        mode = random.choice((Mode.JOINT, *Mode)) if planner == "joint" else Mode.JOINT
        yield Budgeted(
            model,
            layers,
            machine,
            random.choice(DEVICES[machine]),
            planner,
            SearchOptions(mode, degrees=degrees),
            round(random.uniform(1, 30) if random.random() < 0.5 else random.uniform(1, 5), 1),
        )


def worst_excess(seed: int, count: int, depth: int | None = None) -> float:
    """The largest excess of so many searches over their budgets, in seconds. Prints all of them."""
    worst = 0.0
    for one, _ in zip(searches(Random(seed), depth), range(count), strict=False):
        end, answer = one.ended()
        worst = max(worst, end - one.budget)
        excess = f"budget {one.budget:4.1f} s, end {end:5.2f} s, excess {end - one.budget:5.2f} s"
        print(f"{excess}: {one}: {answer}", flush=True)
    print(f"largest excess {worst:.2f} s of {count} searches")
    return worst


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    seed, count, *depth = numbers + [0, 20][len(numbers) :]
    worst_excess(seed, count, *depth)

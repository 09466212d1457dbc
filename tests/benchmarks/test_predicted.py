"""Predicted against measured step times on processes of this computer: `make bench`.

A profile is measured for each number of processes, because these share the cores. Plans are
searched and priced with it. The result is the order of the plans by time (Kendall's tau, Biometrika
1938).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log
from pathlib import Path
from statistics import fmean, median

import pytest

from pcg.machine import load_machine
from pcg.models import build_model
from pcg.plan.plan import load_plan, save_plan
from runtime.job.job import TrainingOptions
from runtime.program.lower import Lowering
from runtime.train.worker import train
from runtime.world.launch import launch
from search.cost.cost import SGD
from substitutions.rules.store import Library, load_library
from unity.profile import app
from unity.support.cli import run_app
from unity.support.planners import planner_of
from unity.support.speed import measured

MODELS = {"mlp-tiny": (64, 512), "bert-large-tiny": (8, 32), "candle-uno-tiny": (64, 1024)}
"""The models, each with two batches."""
PLANNERS = ("joint", "data-parallel", "megatron")
RANKS = (1, 2, 4)
STEPS, ROUNDS = 16, 3
"""Plans take turns this many times, so that other work on the computer disturbs all alike."""


@dataclass(frozen=True)
class Timed:
    """A plan's name, and the seconds of its step: predicted, and measured in each turn."""

    name: str
    predicted: float
    turns: tuple[float, ...]

    @property
    def measured(self) -> float:
        return median(self.turns)

    @property
    def error(self) -> float:
        """The error, relative to the measured seconds."""
        return self.predicted / self.measured - 1.0


def step_seconds(paths: Sequence[str]) -> list[tuple[float, ...]]:
    """The seconds of a step of some plans in every turn, on rank 0 of the processes that all plans
    share."""
    turns: list[list[float]] = []
    for _ in range(ROUNDS):
        turns.append([])
        for path in paths:
            report = train(
                Lowering(load_plan(path), path), TrainingOptions(STEPS), 120.0, lambda step: None
            )
            turns[-1].append((report.step_seconds or 0.0) if report else 0.0)
    return list(zip(*turns, strict=True))


def plans(ranks: int, folder: Path, library: Library) -> Iterator[tuple[str, Path, float]]:
    """Different plans for some processes: name, file, and predicted seconds of a step."""
    profile = folder / f"profile-{ranks}.json"
    with pytest.raises(SystemExit) as ended:
        run_app(app, "profile", ["--devices", str(ranks), "-o", str(profile)])
    assert ended.value.code == 0
    machine, speed = measured(load_machine("local"), profile)
    machine = machine.with_devices(ranks)
    for model, batches in MODELS.items():
        for batch in batches:
            graph, seen = build_model(model, batch, ranks), set[object]()
            for planner in PLANNERS if ranks > 1 else PLANNERS[:1]:
                plan = planner_of(planner, machine, library, 60.0, SGD, speed)
                chosen = plan.plan(model, graph).plan
                key = (
                    chosen.graph.digest,
                    tuple(chosen.views[n] for n in chosen.graph.nodes if n in chosen.views),
                )
                if key in seen:
                    continue
                seen.add(key)
                path = folder / f"{model}-{batch}-{planner}-{ranks}.json"
                save_plan(chosen, path)
                yield path.stem, path, chosen.estimates.step_seconds


def tau(pairs: Sequence[tuple[float, float]]) -> float:
    """Kendall's tau: pairs of plans in the same order, minus pairs in different orders, relative to
    all."""
    signs = [(a - c) * (b - d) for (a, b), (c, d) in combinations(pairs, 2)]
    return sum((sign > 0) - (sign < 0) for sign in signs) / len(signs)


@pytest.mark.benchmark
def test_plans_are_as_fast_as_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One thread a process: what several do on cores that others use as well varies too much.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    library = load_library()
    timed: list[Timed] = []
    for ranks in RANKS:
        made = list(plans(ranks, tmp_path, library))
        paths = [str(path) for _, path, _ in made]
        seconds = launch(step_seconds, (paths,), ranks)
        timed += [Timed(n, p, turns) for (n, _, p), turns in zip(made, seconds, strict=True)]
    print(f"\n{'plan':44} {'predicted':>10} {'measured':>10} {'error':>7}")
    for plan in sorted(timed, key=lambda plan: plan.measured):
        times = f"{plan.predicted * 1e3:8.2f}ms {plan.measured * 1e3:8.2f}ms"
        print(f"{plan.name:44} {times} {plan.error:+7.0%}")
    order = tau([(plan.predicted, plan.measured) for plan in timed])
    print(f"Kendall's tau over {len(timed)} plans of {len(MODELS)} models: {order:.2f}")
    again = [
        tau([(p.turns[i], p.turns[j]) for p in timed]) for i, j in combinations(range(ROUNDS), 2)
    ]
    print(f"of one turn's measurements and another's: {min(again):.2f} to {max(again):.2f}")
    for ranks in RANKS:
        bias = fmean(log(1 + plan.error) for plan in timed if plan.name.endswith(f"-{ranks}"))
        print(f"predicted to measured on {ranks}, geometric mean: {exp(bias):.2f}")
    assert len(timed) >= 20
    assert order >= 0.8

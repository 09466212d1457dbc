from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from by_hand import Views, make_plan

from pcg.graph import Graph
from pcg.plan import Plan, save_plan
from pcg.text import parse_graph
from pcg.view import MachineView
from runtime.job import Comparison, Options, Report, Step
from runtime.recipe import Recipe

ROOT = Path(__file__).parents[2]
RANKS = 4


class Ranks:
    """Four connected processes, started at first use and again after one of them has failed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._starts = 0

    def run(self, plan: Plan, options: Options) -> Report:
        path = self._folder / "plan.json"
        save_plan(plan, path)
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        print(
            json.dumps({"plan": str(path), "options": asdict(options)}),
            file=process.stdin,
            flush=True,
        )
        line = process.stdout.readline()
        reply: dict[str, Any] = json.loads(line) if line else {"error": "the ranks have ended"}
        if "error" in reply:
            self.stop()
            raise AssertionError(reply["error"])
        report = reply["report"]
        return Report(
            tuple(Step(**step) for step in report["steps"]),
            tuple(Comparison(**comparison) for comparison in report["comparisons"]),
            report["batches"],
        )

    def _start(self) -> subprocess.Popen[str]:
        self._starts += 1
        folder = self._folder / str(self._starts)
        folder.mkdir()
        script = Path(__file__).with_name("ranks.py")
        environment = os.environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(RANKS), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        return self._process

    def stop(self) -> None:
        """End the processes: at the end of its input the parent leaves and takes its children."""
        if self._process is not None:
            self._process.communicate(timeout=30)
            self._process = None


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    with TemporaryDirectory() as folder:
        pool = Ranks(Path(folder))
        yield pool
        pool.stop()


@dataclass(frozen=True)
class Agreement:
    """Runs plans on four processes and demands that they agree with one."""

    ranks: Ranks

    def __call__(
        self, model: str, graph: str, steps: int = 3, **views: MachineView | int
    ) -> Report:
        return self.of(make_plan(parse_graph(model), parse_graph(graph), RANKS, views), steps)

    def of(self, plan: Plan, steps: int = 3) -> Report:
        options = Options(steps=steps, recipe=Recipe(rate=0.1), dtype="float64", check=True)
        report = self.ranks.run(plan, options)
        assert len(report.steps) == steps
        assert {c.kind for c in report.comparisons} >= {"loss", "output"}
        wrong = [c for c in report.comparisons if not c.passes]
        assert not wrong
        return report


@pytest.fixture(scope="session")
def agree(ranks) -> Agreement:
    return Agreement(ranks)


@pytest.fixture(scope="session")
def plan_of() -> Callable[[Graph, Graph, int, Views], Plan]:
    return make_plan

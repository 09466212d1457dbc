"""Groups of ranks that run one plan after the other: connected processes, or threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from support.paths import ROOT
from support.runs.plain_steps import Stepped, load, stepped
from support.runs.simulated import on_ranks

from pcg.plan.plan import Plan, save_plan
from runtime.job.job import Comparison, FinishedStep, RunReport, TrainingOptions
from runtime.program.lower import Lowering
from runtime.train.worker import run_plan


class Ranks:
    """Connected processes, started at first use, and again after one of them has failed."""

    def __init__(self, folder: Path, size: int) -> None:
        self.size = size
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._starts = 0

    def run(self, plan: Plan, options: TrainingOptions) -> RunReport:
        """Train a plan as `unity run` does."""
        report = self._answer(plan, {"options": asdict(options)})["report"]
        return RunReport(
            tuple(FinishedStep(**step) for step in report["steps"]),
            tuple(Comparison(**comparison) for comparison in report["comparisons"]),
            report["batches"],
        )

    def steps(self, plan: Plan) -> list[Stepped]:
        """The state of each rank after some plain steps."""
        reply = self._answer(plan, {"results": str(self._folder)})
        return [load(path) for path in reply["results"]]

    def peaks(self, plan: Plan, optimizer: str) -> list[int]:
        """The peak bytes of tensors of each rank, from before its weights."""
        return self._answer(plan, {"peaks": optimizer})["peaks"]

    def _answer(self, plan: Plan, order: dict[str, Any]) -> dict[str, Any]:
        """The replies of the ranks to an order."""
        path = self._folder / "plan.json"
        save_plan(plan, path)
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps({"plan": str(path), **order}), file=process.stdin, flush=True)
        line = process.stdout.readline()
        reply: dict[str, Any] = json.loads(line) if line else {"error": "the ranks have ended"}
        if "error" in reply:
            self.stop()
            raise AssertionError(reply["error"])
        return reply

    def _start(self) -> subprocess.Popen[str]:
        self._starts += 1
        folder = self._folder / str(self._starts)
        folder.mkdir()
        script = ROOT / "tests" / "distributed" / "ranks.py"
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        environment = os.environ | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"}
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(self.size), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        return self._process

    def stop(self) -> None:
        """End the processes. The parent leaves at the end of its input and takes its children with
        it."""
        if self._process is not None:
            self._process.communicate(timeout=30)
            self._process = None


@contextmanager
def connected(size: int) -> Generator[Ranks]:
    """Connected processes. They end with the context."""
    with TemporaryDirectory() as folder:
        pool = Ranks(Path(folder), size)
        yield pool
        pool.stop()


@dataclass(frozen=True)
class RankThreads:
    """Ranks as threads of this process. They share one lowering."""

    size: int

    def run(self, plan: Plan, options: TrainingOptions) -> RunReport:
        """Train a plan as `unity run` does."""
        lowering = Lowering(plan)
        reports = on_ranks(
            self.size, lambda world: run_plan(lowering, options, world, lambda _: None)
        )
        assert reports[0] is not None
        return reports[0]

    def steps(self, plan: Plan) -> list[Stepped]:
        """The state of each rank after some plain steps."""
        return on_ranks(self.size, partial(stepped, Lowering(plan)))


@contextmanager
def light_ranks(size: int) -> Generator[Ranks | RankThreads]:
    """Threads, which neither start nor lower a plan for each rank. `make soak` runs the same plans
    on connected processes."""
    if settings.get_current_profile_name() != "soak":
        yield RankThreads(size)
        return
    with connected(size) as processes:
        yield processes

"""Connected processes that run one plan after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from support.paths import ROOT
from support.runs.plain_steps import Stepped, load

from pcg.plan.plan import Plan, save_plan
from runtime.job.job import Comparison, FinishedStep, RunReport, TrainingOptions


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

"""Print the difference between the Trainer of transformers by a plan and with
DistributedDataParallel, for several of its arguments, and killed and resumed.

    PYTHONPATH=.:tests python tests/benchmarks/public/trainers.py [--processes 4] [CASE ...]

The largest difference is that of losses, gradient norms, evaluations and weights, relative to the
largest of each, in float64. The status is 1 if it is more than ``NEAR``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.runs.trainers import Trainers, by_length

NEAR = 1e-9
CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "group_by_length": by_length(),
    "uneven evaluation": {"per_device_eval_batch_size": 3},
    "accumulated": {"gradient_accumulation_steps": 3},
    "epochs": {"max_steps": -1, "num_train_epochs": 1},
    "weight decay, cosine": {"weight_decay": 0.1, "lr_scheduler_type": "cosine"},
    "sgd": {"optim": "sgd"},
    "fp16, which CPUs leave out": {"fp16": True},
    "killed and resumed": {},
}
"""Arguments of the Trainer, by the name of a case."""
SAMPLES = {"uneven evaluation": 43}
"""The number of samples to evaluate with, if it is not 48."""
KILLED = "killed and resumed"


def main() -> None:
    """One line for each case and kind of plan."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="cases")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--planners", nargs="+", default=["zero"])
    given = parser.parse_args()
    print("| Trainer | plan | largest difference |\n|---|---|---|", flush=True)
    passes = [
        compared(name, planner, given.processes)
        for name in given.names or CASES
        for planner in given.planners
    ]
    sys.exit(not all(passes))


def compared(name: str, planner: str, processes: int) -> bool:
    """Print the line of a case, and return whether both train alike."""
    arguments, samples = CASES[name], SAMPLES.get(name, 48)
    with TemporaryDirectory() as folder:
        trainers = Trainers(Path(folder), processes)
        trainers.prepare(planner)
        trainers.train("expected", "", arguments, samples)
        if name == KILLED:
            trainers.kill("found", "plan.json", 4, arguments)
        trainers.train("found", "plan.json", arguments, samples)
        error = trainers.difference("found", "expected")
    print(f"| {name} | {planner} | {error:.1e} |", flush=True)
    # Not "error > NEAR": a NaN has to fail.
    return error <= NEAR


if __name__ == "__main__":
    main()

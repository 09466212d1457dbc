"""Runs that lose processes, hang or are told to stop, and the files that they leave behind."""

from __future__ import annotations

import random
import re
import signal
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from support.graphs.two_layers import BY_COLUMNS, BY_ROWS, BY_SLICES, MODEL
from support.runs.commands import no_worker_is_left, run_here
from support.runs.disturbed import Disturbed, RunFolder, same_course, survives_a_kill

from pcg.plan.pipeline import PipelineFile
from pcg.plan.plan import save_plan
from pcg.plan.text import node_names, parse_graph
from runtime.world.status import TRY_AGAIN

pytestmark = pytest.mark.distributed

PLANS = {"rows": BY_ROWS, "columns": BY_COLUMNS}
RECIPES = {
    "sgd": ("--optimizer", "sgd", "--lr", "0.1"),
    "momentum": ("--optimizer", "momentum", "--clip", "0.1", "--schedule", "cosine"),
    "adam": ("--optimizer", "adam", "--accumulate", "2"),
}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@pytest.fixture
def write(tmp_path, plan_of):
    def written(kind: str, ranks: int) -> Path:
        path = tmp_path / f"{kind}-{ranks}.json"
        if kind in ("slices", "chunks", "late"):
            save_plan(sliced(plan_of, kind), path)
            return path
        text = PLANS[kind].format(n=ranks) if ranks > 1 else MODEL
        graph = parse_graph(text)
        save_plan(plan_of(parse_graph(MODEL), graph, ranks, {}), path)
        return path

    return written


def sliced(plan_of, kind):
    """Two stages: with weights one update old, with a pass for weights, or of two chunks each."""
    graph = parse_graph(BY_SLICES)
    if kind in ("slices", "late"):
        second = ("matmul", "multiply", "mean_loss")
        later = [node for node in graph.nodes if node.name in second][1:]
        schedule = "2bw" if kind == "slices" else "zb-h1"
        pipeline = PipelineFile(stages=2, micro_batches=4, schedule=schedule)
    else:
        later = [node for node in graph.nodes if node.name in ("relu", "multiply", "mean_loss")]
        pipeline = PipelineFile(stages=2, micro_batches=4, schedule="1f1b", interleave=2)
    names = node_names(graph)
    stages = {names[node][0]: 1 for node in later}
    return replace(plan_of(parse_graph(MODEL), graph, 2, stages), pipeline=pipeline)


def options(steps, every, *more):
    return ("--steps", str(steps), "--every", str(every), "--timeout", "60", *more)


@pytest.mark.parametrize(
    ("kind", "launcher"),
    [
        ("columns", ()),
        pytest.param("columns", (*TORCHRUN, "2", "--max-restarts", "1"), marks=pytest.mark.soak),
        pytest.param("chunks", (), marks=pytest.mark.soak),
        pytest.param("late", (), marks=pytest.mark.soak),
    ],
    ids=["own", "torchrun", "interleaved", "zero bubble"],
)
def test_a_killed_worker_costs_the_steps_since_the_last_checkpoint(write, tmp_path, kind, launcher):
    given = options(40, 8, *RECIPES["adam"])
    survives_a_kill(write(kind, 2), tmp_path, given, steps=40, every=8, at=20, launcher=launcher)


@pytest.mark.soak
def test_restart_by_torchrun_does_not_resume_another_run(write, tmp_path):
    plan = write("columns", 1)
    old = RunFolder(tmp_path / "run")
    assert run_here(*old.arguments(plan, *options(3, 100))).status == 0
    launcher = (*TORCHRUN, "1", "--max-restarts", "1")
    again = Disturbed(plan, tmp_path / "run", options(6, 100), launcher)
    status, _, err = again.finish()
    assert status != 0
    line = f"{again.checkpoints}: has checkpoints already, expected --resume or another folder"
    assert err.count(f"unity: error: {line}") == 2
    assert [number for number, _ in again.steps()] == [1, 2, 3]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("rows", marks=pytest.mark.soak),
        "slices",
        pytest.param("chunks", marks=pytest.mark.soak),
        pytest.param("late", marks=pytest.mark.soak),
    ],
)
def test_stopped_run_leaves_a_checkpoint_that_another_plan_resumes(kind, write, tmp_path):
    """Also while slices of the next batch are under way."""
    run = Disturbed(write(kind, 2), tmp_path / "run", options(100_000, 100_000))
    run.wait_for_step(3)
    run.process.send_signal(signal.SIGTERM)
    status, _, err = run.finish()
    last = run.steps()[-1][0]
    assert status == 128 + signal.SIGTERM
    line = err.splitlines()[-1]
    assert line.startswith(f"unity: error: stopped by SIGTERM after step {last}, checkpoint ")
    assert run.is_gone()
    more = options(last + 2, 100, "--resume", "--lr", "0.02")
    again = run_here(*run.arguments(write("columns", 1), *more))
    assert again.status == 0, again.err
    assert f"going on with step {last + 1}" in again.err
    assert [number for number, _ in run.steps()][-2:] == [last + 1, last + 2]


HANGING = """
import os, threading, torch

class Samples:
    def __len__(self):
        return 1200

    def __getitem__(self, index):
        Samples.read = getattr(Samples, "read", 0) + 1
        if os.environ["RANK"] == "1" and Samples.read > 3 * 6:
            threading.Event().wait()
        return {"x": torch.ones(8)}
"""


def test_a_hung_peer_ends_the_run_with_rank_step_and_communication(write, tmp_path):
    """The data of rank 1 do not come in step 4. Rank 0 waits for its rows."""
    (tmp_path / "data.py").write_text(HANGING)
    given = ("--steps", "10", "--timeout", "3", "--data", f"{tmp_path / 'data.py'}:Samples")
    course = RunFolder(tmp_path / "run")
    run = run_here(*course.arguments(write("rows", 2), *given))
    assert run.status == TRY_AGAIN
    (line,) = [line for line in run.err.splitlines() if line.startswith("unity: error: ")]
    assert re.match(
        r"unity: error: rank 1 hangs in step 4, reading its data for \d+ s"
        r" \(rank 0: step 4: (messages with|\w+ over) .*1.*: Timed out",
        line,
    )
    assert [number for number, _ in course.steps()] == [1, 2, 3]
    assert no_worker_is_left()


STUCK = """
import os, threading, torch
import runtime.checkpoints.checkpoint, runtime.checkpoints.shards

class Samples:
    def __len__(self):
        return 1200

    def __getitem__(self, index):
        return {{"x": torch.ones(8)}}

if os.environ.get("RANK") == "1":
    {function} = lambda *given: threading.Event().wait()
"""
WRITING, READING = (
    "runtime.checkpoints.shards.ShardSaver.create_local_plan",
    "runtime.checkpoints.checkpoint.fill",
)


@pytest.mark.soak
@pytest.mark.parametrize("function", [WRITING, READING])
def test_a_peer_that_is_lost_in_a_checkpoint(write, tmp_path, function):
    (tmp_path / "data.py").write_text(STUCK.format(function=function))
    data = ("--data", f"{tmp_path / 'data.py'}:Samples", "--resume", "--timeout")
    course = RunFolder(tmp_path / "run")
    if function == READING:
        alone = course.arguments(write("rows", 1), "--steps", "2", *data, "60")
        assert run_here(*alone).status == 0
    run = run_here(*course.arguments(write("rows", 2), "--steps", "3", "--every", "2", *data, "3"))
    assert run.status == TRY_AGAIN
    (line,) = [line for line in run.err.splitlines() if line.startswith("unity: error: ")]
    path = course.checkpoints / "step-00000002"
    if function == READING:
        blamed = "rank 1 hangs before the first step, reading a checkpoint for "
        assert line.startswith(f"unity: error: {blamed}")
        assert f"(rank 0: checkpoint {path}: Timed out" in line
    else:
        assert line.startswith(f"unity: error: rank 0: step 2: checkpoint {path}: Timed out")
    assert no_worker_is_left()


@pytest.mark.soak
def test_thirty_kills_at_random_moments(write, tmp_path):
    """Over plans and optimizers. Each run is killed at random times: while it starts, in a step, in
    a checkpoint, and while it starts again."""
    drawn = random.Random(6)
    kills = runs = 0
    while kills < 30:
        kind, ranks = drawn.choice([*product(PLANS, [1, 2, 3]), ("slices", 2), ("chunks", 2)])
        recipe = drawn.choice(list(RECIPES))
        plan, number = write(kind, ranks), drawn.randint(1, 4)
        launcher = drawn.choice([(), (*TORCHRUN, str(ranks), "--max-restarts", str(number))])
        steps, every = drawn.randint(100, 300), drawn.randint(1, 20)
        given = options(steps, every, *RECIPES[recipe])
        alone = Disturbed(plan, tmp_path / f"alone{runs}", given)
        assert alone.finish()[0] == 0
        own = given if launcher else (*given, "--max-restarts", str(number))
        run, killed = Disturbed(plan, tmp_path / f"run{runs}", own, launcher), 0
        for _ in range(number):
            run.wait_at_random(drawn, steps)
            killed += run.kill_worker(drawn.randrange(ranks))
        kills, runs = kills + killed, runs + 1
        status, _, err = run.finish()
        how = "torchrun" if launcher else "own"
        print(f"{kind} {ranks} {recipe} {how}: {killed} kills", flush=True)
        assert status == 0, err
        same_course(run, alone)
        assert run.is_gone()

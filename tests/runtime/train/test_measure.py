"""Measurements: the measured quantities, their duration, and the profile."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import ROOT
from support.runs.simulated import on_ranks

from pcg.device import DType
from pcg.machine import load_machine
from pcg.models import build_model
from pcg.plan.profile import LinkSeries, Point, Profile, load_profile
from pcg.readings.kind import WorkKind
from runtime.train import measure
from runtime.train.measure import LinkTimings, RankMeasurements, Timing
from runtime.world.collectives import World
from search.cost.collectives import all_reduce, ring, seconds
from search.cost.cost import CostModel
from search.cost.efficiency import MeasuredEfficiency as MeasuredSpeed
from search.cost.efficiency import standard
from unity.profile import app
from unity.support.cli import run_app

PAUSE = 0.002
WORKS: tuple[WorkKind, ...] = ("update", "pointwise")


@pytest.fixture
def quick(monkeypatch):
    """Measure less of everything, to end in a moment."""
    monkeypatch.setattr(measure, "REPEATS", 3)
    monkeypatch.setattr(measure, "BATCH_SECONDS", 1e-6)
    monkeypatch.setattr(measure, "LONGEST", 1e-4)


def test_a_kernel_takes_its_part_of_the_call(quick):
    lengths = []

    def case(length):
        lengths.append(length)
        return float(length), 4, lambda: time.sleep(PAUSE * length)

    points = list(measure._series(World(), case, [1, 2, 3]))
    # The first size already takes longer than LONGEST, and a profile has two sizes at least.
    assert [timing.size for timing in points] == [1, 2]
    assert lengths == [1, 2]
    assert PAUSE / 4 <= points[0].seconds < 3 * PAUSE
    assert points[0].spread >= 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_kind_of_operator_is_measured_by_ascending_size(quick, dtype):
    by_kind = dict(measure._operators(World(), dtype))
    assert list(by_kind) == ["contraction", "pointwise", "reduction", "function", "update"]
    for series in by_kind.values():
        assert all(a.size < b.size for a, b in pairwise(series))
        assert all(timing.seconds > 0 for timing in series)
    assert by_kind["contraction"][0].size == 2 * 8**3
    itemsize = measure.DTYPES[dtype].itemsize
    assert by_kind["pointwise"][0].size == 2.5 * 64 * itemsize


def test_links_are_measured_by_messages_and_collectives(quick, monkeypatch):
    """Two nodes of two devices: between the devices of one node, and the first devices of both."""
    monkeypatch.setattr(measure, "BYTES", (64, 256))

    def work(world):
        return [list(measure._link(world, *units)) for units in ((1, 2), (2, 4), (4, 4))]

    links = on_ranks(4, work)[0]
    for level in links[:2]:
        assert [(link.of, link.devices) for link in level] == [
            ("message", 2),
            ("all_gather", 2),
            ("all_reduce", 2),
        ]
        sizes = [[timing.size for timing in link.timings] for link in level]
        # The bytes that a device sends in a step. A collective of two has twice as many in the end.
        assert sizes == [[64, 256], [128, 512], [128, 512]]
        assert all(timing.seconds > 0 for link in level for timing in link.timings)
    assert links[2] == []


@settings(max_examples=10, deadline=None)
@given(
    devices=st.sampled_from([2, 3, 4]),
    lines=st.lists(st.tuples(st.floats(1e-7, 1e-2), st.floats(1e6, 1e12)), min_size=3, max_size=3),
)
def test_cost_model_predicts_the_measured_communication(devices, lines):
    """Messages, all_gather and all_reduce have different times that are linear in the bytes. Their
    measurements are the predictions of the cost model."""
    patterns = ("message", "all_gather", "all_reduce")
    series = tuple(
        LinkSeries(
            level="node",
            of=of,
            devices=2 if of == "message" else devices,
            points=tuple(
                Point(size=size, seconds=fixed + size / rate, spread=0.0)
                for size in (1e3, 1e5, 1e7)
            ),
        )
        for of, (fixed, rate) in zip(patterns, lines, strict=True)
    )
    profile = Profile(schema_version=1, machine="local", device="", operators=(), links=series)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        path.write_text(profile.model_dump_json())
        _, machine = load_profile(path, load_machine("local"))
    hops = machine.hops(range(devices))
    link = machine.link(0, 1)
    for i in range(3):
        message, gather, reduce = (line.points[i] for line in series)
        assert link.latency + message.size / link.bandwidth == near(message.seconds)
        assert seconds(ring(hops), gather.size) == near(gather.seconds)
        assert seconds(all_reduce(hops), reduce.size) == near(reduce.seconds)


def near(value: float):
    return pytest.approx(value, rel=1e-6)


def test_cost_model_uses_the_measured_points(tmp_path, capsys, monkeypatch):
    """Made-up figures: seconds grow as the square root of the operations, so the price of a matmul
    follows from the points, and links have the latency and bandwidth of their messages."""
    series: dict[tuple[WorkKind, DType], tuple[Timing, ...]] = {
        ("contraction", "float32"): (Timing(1e3, 1e-3, 1e-4), Timing(1e9, 1.0, 0.1)),
        ("pointwise", "float32"): (Timing(1e3, 1e-6, 0.0), Timing(1e9, 1e-2, 0.0)),
        ("function", "float32"): (Timing(1e3, 1e-6, 0.0), Timing(1e9, 1.0, 0.0)),
    }
    timings = tuple(Timing(size, 2e-3 + size / 1e9, 0.0) for size in (1e2, 1e4, 1e6))
    measured = RankMeasurements("a device", series, ((LinkTimings("message", 2, timings),),))
    monkeypatch.setattr("unity.commands.profile._measured", lambda *_: measured)
    path = tmp_path / "profile.json"
    with pytest.raises(SystemExit) as ended:
        run_app(app, "profile", ["-o", str(path)])
    assert ended.value.code == 0
    assert "latency 2e+03 us a step, bandwidth 1 GB/s" in " ".join(capsys.readouterr().out.split())
    profile, machine = load_profile(path, load_machine("local"))
    link = machine.with_devices(2).group_link((0, 1))
    assert (link.latency, link.bandwidth) == (pytest.approx(2e-3), pytest.approx(1e9))
    speed = MeasuredSpeed(profile, machine.device, standard())
    cost = CostModel(machine, speed=speed)
    graph = build_model("mlp-mnist", 64, 1)
    node = next(node for node in graph.nodes if node.name == "matmul")
    forward, _ = cost.compute_seconds(node, frozenset())
    operations = 2 * 64 * 784 * 512
    # Updates that were not measured take as long as element-wise operators.
    for moved in (1e3, 1e6):
        took = [float(speed.seconds(work, machine.device, "float32", 0.0, moved)) for work in WORKS]
        assert took[0] == took[1]
    # Arithmetic that takes longer than the bytes counts instead of them.
    gelus = speed.seconds("pointwise", machine.device, "float32", [1e3, 1e9], [1e9, 1e9])
    assert gelus.tolist() == [near(1e-2), near(1.0)]
    # 1e3 operations take 1e-3 s, and 1e6 times as many 1e3 times as long.
    assert forward == pytest.approx(1e-3 * (operations / 1e3) ** 0.5, rel=1e-6)


def test_a_machine_so_slow_that_each_first_size_takes_too_long_has_a_profile(
    tmp_path, capsys, monkeypatch
):
    """Other programs use the cores: no size is short, and each kind has two sizes."""
    monkeypatch.setattr(measure, "REPEATS", 3)
    monkeypatch.setattr(measure, "BATCH_SECONDS", 1e-6)
    monkeypatch.setattr(measure, "LONGEST", 0.0)
    monkeypatch.setattr(
        "unity.commands.profile.launch", lambda _work, job, _count: measure.measure(*job)
    )
    path = tmp_path / "profile.json"
    with pytest.raises(SystemExit) as ended:
        run_app(app, "profile", ["--devices", "1", "--precision", "fp32", "-o", str(path)])
    assert ended.value.code == 0, capsys.readouterr().err
    profile, _ = load_profile(path, load_machine("local"))
    assert [len(series.points) for series in profile.operators] == [2] * 5


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--precision", "int8"), "precision int8: unknown, expected one of fp64"),
        (("--nodes", "2"), "--nodes: expected 8 processes that torchrun started, got 1"),
        (("--devices", "5"), "--devices: expected 1 to 4 devices of this computer, got 5"),
        (("--machine", "nowhere"), "nowhere: no such machine"),
        (("-o", "/dev/null/profile.json"), "/dev/null: cannot be made a folder"),
    ],
)
def test_profile_that_cannot_be_measured_is_refused(capsys, arguments, problem):
    with pytest.raises(SystemExit) as ended:
        run_app(app, "profile", list(arguments))
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


NODES = """
schema_version = 1
name = "pairs"

[device]
kind = "cpu"
memory_bytes = 1_000_000_000
memory_bandwidth = 1e9
kernel_latency = 1e-6
flops = { float64 = 1e9, float32 = 1e9 }

[[level]]
name = "node"
count = 2
latency = 1e-6
bandwidth = 1e9

[[level]]
name = "cluster"
count = 1
latency = 1e-6
bandwidth = 1e9
"""


@pytest.mark.soak
@pytest.mark.distributed
def test_links_between_nodes_under_torchrun(tmp_path):
    (tmp_path / "pairs.toml").write_text(NODES)
    path = tmp_path / "profile.json"
    given = ("--machine", str(tmp_path / "pairs.toml"), "--nodes", "2", "-o", str(path))
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    command = [sys.executable, *launcher, "-m", "unity.profile", *given, "--precision", "fp32"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    profile, _ = load_profile(path, load_machine(tmp_path / "pairs.toml").with_nodes(2))
    links = [(link.level, link.of, link.devices) for link in profile.links]
    patterns = ("message", "all_gather", "all_reduce")
    assert links == [(level, of, 2) for level in ("node", "cluster") for of in patterns]

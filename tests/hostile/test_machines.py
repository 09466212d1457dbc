"""Machine files and profiles that are wrong: they are refused in one line, or all their numbers can
be computed with."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.borders import command, files, refused
from support.cases import each
from support.paths import ROOT

from pcg.errors import InputError
from pcg.machine import load_machine
from pcg.models import build_model
from pcg.plan.plan import load_plan
from pcg.plan.profile import load_profile
from unity.optimize import app

PRESET = ROOT / "pcg" / "machines" / "local.toml"
NAN, INF, HUGE = "nan", "inf", "9" * 400


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def captured():
    """Capture once: torch takes long to prepare its first capture, which must not count."""
    return build_model("mlp-tiny", None, 2)


def must_refuse(*arguments: object) -> str:
    before = files(Path())
    line = refused(app, "optimize", "mlp-tiny", "-o", "plan.json", *arguments)
    assert files(Path()) == before
    return line


def changed(old: str, new: str) -> str:
    text = PRESET.read_text()
    assert old in text
    return text.replace(old, new, 1)


NODES = 'name = "cluster"\ncount = 1'
MACHINES = {
    "a bandwidth of 0": changed("bandwidth = 0.5e9", "bandwidth = 0"),
    "a bandwidth below 0": changed("bandwidth = 0.5e9", "bandwidth = -1.0"),
    "a bandwidth that is no number": changed("bandwidth = 0.5e9", f"bandwidth = {NAN}"),
    "a bandwidth without end": changed("bandwidth = 0.5e9", f"bandwidth = {INF}"),
    "a bandwidth of 1e308": changed("bandwidth = 0.5e9", "bandwidth = 1e308"),
    "a bandwidth of 5e-324": changed("bandwidth = 0.5e9", "bandwidth = 5e-324"),
    "a bandwidth of 400 digits": changed("bandwidth = 0.5e9", f"bandwidth = {HUGE}"),
    "a bandwidth that is a text": changed("bandwidth = 0.5e9", 'bandwidth = "fast"'),
    "a bandwidth that is a date": changed("bandwidth = 0.5e9", "bandwidth = 1979-05-27"),
    "a latency below 0": changed("latency = 1e-3", "latency = -1e-3"),
    "a latency that is no number": changed("latency = 1e-3", f"latency = {NAN}"),
    "a latency of 1e308": changed("latency = 1e-3", "latency = 1e308"),
    "a memory of 0": changed("memory_bytes = 4_000_000_000", "memory_bytes = 0"),
    "a reserve of all memory": changed(
        "memory_bytes = 4_000_000_000", "memory_bytes = 4\nreserved_bytes = 4"
    ),
    "a reserve below 0": changed(
        "memory_bytes = 4_000_000_000", "memory_bytes = 4\nreserved_bytes = -1"
    ),
    "a memory of 400 digits": changed("memory_bytes = 4_000_000_000", f"memory_bytes = {HUGE}"),
    "a memory that is no whole number": changed("4_000_000_000", "4e9"),
    "a rate of 0": changed("float32 = 40e9", "float32 = 0.0"),
    "a rate without end": changed("float32 = 40e9", f"float32 = {INF}"),
    "a rate that is missing": changed("float32 = 40e9", ""),
    "an unknown rate": changed("float32 = 40e9", "float32 = 40e9\nfloat128 = 1e9"),
    "10^9 nodes": changed(NODES, 'name = "cluster"\ncount = 1_000_000_000'),
    "2^20 nodes of 4 devices": changed(NODES, 'name = "cluster"\ncount = 1_048_576'),
    "no nodes": changed(NODES, 'name = "cluster"\ncount = 0'),
    "nodes below 0": changed(NODES, 'name = "cluster"\ncount = -1'),
    "half a node": changed(NODES, 'name = "cluster"\ncount = 0.5'),
    "true nodes": changed(NODES, 'name = "cluster"\ncount = true'),
    "two levels of a name": changed('name = "cluster"', 'name = "node"'),
    "a hundred levels": PRESET.read_text()
    + "".join(
        f'[[level]]\nname = "l{i}"\ncount = 1\nlatency = 0\nbandwidth = 1.0\n' for i in range(100)
    ),
    "an unknown key": changed('name = "local"', 'name = "local"\ncommand = "touch made"'),
    "a key twice": changed('name = "local"', 'name = "local"\nname = "local"'),
    "an empty name": changed('name = "local"', 'name = ""'),
    "a name with an escape": changed('name = "local"', 'name = "\\u001b[2J"'),
    "a name with a raw escape": changed('name = "local"', "name = '\x9b2J'"),
    "a name with a line break": changed('name = "local"', 'name = "a\\nb"'),
    "a name that runs backwards": changed('name = "local"', 'name = "\\u202Elacol"'),
    "a name of a megabyte": changed('name = "local"', f'name = "{"a" * 1_000_000}"'),
    "another kind": changed('kind = "cpu"', 'kind = "tpu"'),
    "a version to come": changed("schema_version = 1", "schema_version = 2"),
    "other devices before the first node": PRESET.read_text()
    + '[[other_device]]\nfirst_node = 0\nkind = "cpu"\nmemory_bytes = 1\nmemory_bandwidth = 1.0\n'
    + "kernel_latency = 0\n[other_device.flops]\nfloat64 = 1.0\nfloat32 = 1.0\n",
    "a limit of 0 devices": changed("schema_version = 1", "schema_version = 1\ndevice_limit = 0"),
    "lists nested deeply": "x = " + "[" * 100_000,
    "keys nested deeply": "a." * 100_000 + "b = 1",
    "no TOML": "\x00",
    "nothing": "",
    "a table in the place of a list": changed("[[level]]", "[level]"),
}


@each("name", MACHINES)
def test_wrong_machine_is_refused(name):
    Path("mine.toml").write_text(MACHINES[name])
    with pytest.raises(InputError) as caught:
        load_machine("mine.toml")
    assert str(caught.value).isprintable()
    assert must_refuse("--machine", "mine.toml") == str(caught.value)


@pytest.mark.soak
@pytest.mark.parametrize(
    "change",
    [
        ("bandwidth = 0.5e9", "bandwidth = 1e-12"),
        ("float32 = 40e9", "float32 = 1e-12"),
        ("memory_bytes = 4_000_000_000", "memory_bytes = 1"),
    ],
)
def test_strangest_accepted_machine_has_finite_times(captured, change):
    """The search ends, with a plan of finite numbers or the answer that there is none."""
    Path("mine.toml").write_text(changed(*change))
    given = ("mlp-tiny", "--machine", "mine.toml", "--devices", 2, "--budget", 3)
    result = command(app, "optimize", *given, "-o", "plan.json")
    assert result.status in (0, 1), result.err
    if result.status == 0:
        estimates = load_plan("plan.json").estimates
        assert math.isfinite(estimates.step_seconds)


POINTS = [{"size": 10.0**k, "seconds": 10.0 ** (k - 9), "spread": 0.0} for k in range(3, 8)]
PROFILE: dict[str, Any] = {
    "schema_version": 1,
    "machine": "local",
    "device": "mine",
    "operators": [{"kind": "contraction", "dtype": "float32", "points": POINTS}],
    "links": [{"level": "node", "of": "message", "devices": 2, "points": POINTS}],
}


def series(where: str, **changes: Any) -> dict[str, Any]:
    return PROFILE | {where: [PROFILE[where][0] | changes]}


def point(where: str, **changes: Any) -> dict[str, Any]:
    return series(where, points=[POINTS[0] | changes, *POINTS[1:]])


PROFILES: dict[str, Any] = {
    "a time of 0": point("operators", seconds=0.0),
    "a time below 0": point("operators", seconds=-1.0),
    "a time that is no number": point("operators", seconds=float("nan")),
    "a time without end": point("links", seconds=float("inf")),
    "a time of 1e308": point("links", seconds=1e308),
    "a size of 0": point("operators", size=0.0),
    "a size of 400 digits": point("operators", size=10**400),
    "a size that is a text": point("links", size="1e3"),
    "a spread below 0": point("operators", spread=-1.0),
    "sizes that go down": series("operators", points=POINTS[::-1]),
    "a size twice": series("links", points=[POINTS[0], *POINTS]),
    "a single point": series("operators", points=POINTS[:1]),
    "no points": series("operators", points=[]),
    "10,000 points": series("operators", points=POINTS * 2000),
    "an unknown kind": series("operators", kind="os.system"),
    "an unknown format": series("operators", dtype="float8"),
    "a level that is not there": series("links", level="moon"),
    "a level with an escape": series("links", level="\x1b[2J"),
    "a single device": series("links", devices=1),
    "10^9 devices": series("links", devices=10**9),
    "more bytes in less time": series(
        "links", points=[p | {"seconds": 1.0 / p["size"]} for p in POINTS]
    ),
    "a kind twice": PROFILE | {"operators": PROFILE["operators"] * 2},
    "another machine": PROFILE | {"machine": "summit"},
    "a device with an escape": PROFILE | {"device": "\x1b]0;owned\x07"},
    "an unknown field": PROFILE | {"command": "touch made"},
    "a version to come": PROFILE | {"schema_version": 2},
    "a list": [],
}


@each("name", PROFILES)
def test_wrong_profile_is_refused(name):
    Path("profile.json").write_text(json.dumps(PROFILES[name]))
    with pytest.raises(InputError) as caught:
        load_profile("profile.json", load_machine("local"))
    assert str(caught.value).isprintable()
    assert must_refuse("--profile", "profile.json") == str(caught.value)


def test_unchanged_machine_and_profile_are_accepted():
    Path("profile.json").write_text(json.dumps(PROFILE))
    load_profile("profile.json", load_machine("local"))
    assert tomllib.loads(PRESET.read_text())["name"] == "local"

"""Machines: the figures of presets, the arithmetic of levels, and wrong machine files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcg.errors import InputError
from pcg.machine import WITHIN_DEVICE, Level, Link, Machine, load_machine, preset_names

GOOD = """
schema_version = 1
name = "mine"

[device]
kind = "cpu"
memory_bytes = 1000
memory_bandwidth = 1e9
kernel_latency = 0
flops = { float64 = 1e9, float32 = 2e9 }

[[level]]
name = "node"
count = 4
latency = 1e-6
bandwidth = 1e9

[[level]]
name = "cluster"
count = 2
latency = 1e-5
bandwidth = 1e8
"""


def meeting(machine: Machine, a: int, b: int) -> int:
    """The number of the level whose links two devices communicate over."""
    return int(machine.meeting_levels(np.array([a]), np.array([b]))[0])


def with_counts(*counts: int) -> Machine:
    """Return a machine whose levels have these counts."""
    levels = tuple(
        Level(name=f"level{i}", count=count, latency=0.0, bandwidth=1.0)
        for i, count in enumerate(counts)
    )
    local = load_machine("local")
    return Machine(schema_version=1, name="test", device=local.device, level=levels)


machines = st.lists(st.integers(1, 4), min_size=2, max_size=4).map(lambda c: with_counts(*c))


def test_presets_are_listed():
    assert preset_names() == (
        *("dgx-a100", "dgx-h100", "dgx-h200", "local", "p3-16xlarge", "summit"),
    )


@pytest.mark.parametrize(
    ("name", "kind", "per_node"),
    [
        ("local", "cpu", 4),
        ("summit", "gpu", 6),
        ("p3-16xlarge", "gpu", 8),
        ("dgx-a100", "gpu", 8),
        ("dgx-h100", "gpu", 8),
        ("dgx-h200", "gpu", 8),
    ],
)
def test_preset_is_one_node(name: str, kind: str, per_node: int):
    machine = load_machine(name)
    assert (machine.name, machine.device.kind) == (name, kind)
    assert (machine.nodes, machine.devices, machine.devices_per_node) == (1, per_node, per_node)
    assert machine.with_nodes(3).devices == 3 * per_node


def test_rate_falls_back_to_float32():
    v100 = load_machine("summit").device.flops
    assert v100.rate("fp16") == 125e12
    assert v100.rate("tf32") == v100.rate("float32") == 15.7e12


@pytest.mark.parametrize(
    ("a", "b", "level", "link"),
    [
        (0, 2, 0, Link(3e-6, 50e9)),
        (2, 3, 1, Link(5e-6, 64e9 / 3)),  # three GPUs share the X-Bus
        (5, 6, 2, Link(8e-6, 25e9 / 6)),  # six GPUs share the two ports
    ],
)
def test_summit_links(a: int, b: int, level: int, link: Link):
    machine = load_machine("summit").with_nodes(2)
    assert meeting(machine, a, b) == level
    assert machine.link(a, b).latency == link.latency
    assert machine.link(a, b).bandwidth == pytest.approx(link.bandwidth)


@pytest.mark.parametrize(
    ("devices", "bandwidth"),
    [
        (range(3), 50e9),
        (range(6), 50e9),  # one ring crosses the X-Bus once, so NVLink is the slower
        (range(12), 25e9),  # one ring has both ports of a node
        ((0, 3, 6, 9), 25e9 / 3),  # three such rings share the ports
        ((0, 1, 2, 6), 25e9 / 6),  # the node with one member counts
    ],
)
def test_summit_group_links(devices: range | tuple[int, ...], bandwidth: float):
    machine = load_machine("summit").with_nodes(2)
    assert machine.group_link(devices).bandwidth == pytest.approx(bandwidth)


def test_latency_of_a_group_is_that_of_its_widest_level():
    machine = load_machine("dgx-h100").with_nodes(4)
    assert machine.group_link(range(8)) == Link(3e-6, 8 * 450e9 / 8)
    assert machine.group_link(range(16)).latency == 8e-6


def test_group_of_one_device_has_the_link_within_a_device():
    machine = load_machine("local")
    assert meeting(machine, 3, 3) == 0
    assert machine.group_link([3]) == machine.link(3, 3) == WITHIN_DEVICE
    assert 1.0 / WITHIN_DEVICE.bandwidth == 0.0


@given(machines, st.data())
def test_devices_meet_at_the_innermost_level_that_holds_both(machine: Machine, data: st.DataObject):
    a, b = (data.draw(st.integers(0, machine.devices - 1)) for _ in range(2))
    level = meeting(machine, a, b)
    units = [math.prod(inner.count for inner in machine.levels[:i]) for i in range(5)]
    assert a // units[level + 1] == b // units[level + 1]
    assert level == 0 or a // units[level] != b // units[level]


@given(machines, st.data())
def test_first_devices(machine: Machine, data: st.DataObject):
    n = data.draw(st.integers(1, machine.devices))
    part = machine.with_devices(n)
    assert part.devices == n
    assert part.nodes == math.ceil(n / machine.devices_per_node)
    assert part.with_devices(n) == part
    for a in range(n):
        assert meeting(part, 0, a) == meeting(machine, 0, a)
    with pytest.raises(InputError, match="expected devices 0 to"):
        part.link(0, n)


@given(machines, st.integers(1, 4))
def test_whole_nodes_are_equal_machines(machine: Machine, nodes: int):
    whole = machine.with_nodes(nodes)
    part = machine.with_nodes(nodes + 1).with_devices(whole.devices)
    assert part == whole
    assert part.hash() == whole.hash()


def test_hash_tells_content_apart(tmp_path: Path):
    machine = load_machine("summit")
    (tmp_path / "m.toml").write_text(GOOD)
    assert len(machine.hash()) == 64
    assert machine.hash() == load_machine("summit").hash()
    others = (machine.with_nodes(2), machine.with_devices(5), load_machine(tmp_path / "m.toml"))
    assert len({machine.hash(), *(other.hash() for other in others)}) == 4


def test_own_file(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    machine = load_machine(str(path))
    assert (machine.devices, machine.nodes) == (8, 2)
    path.write_text(GOOD.replace("[device]", "device_limit = 7\n[device]"))
    assert load_machine(path).devices == 7


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("count = 4", "count = 0", "at level[0].count: expected greater than or equal to 1, got 0"),
        ("count = 4", "", "at level[0].count: missing"),
        ("count = 4", "count = 4.5", "at level[0].count: expected integer, got 4.5"),
        (
            "1e8",
            "-1e8",
            "at level[1].bandwidth: expected greater than 0, got -100000000.0",
        ),
        ("1e8", "nan", "at level[1].bandwidth: expected a finite number, got NaN"),
        (", float32 = 2e9", "", "at device.flops.float32: missing"),
        ("float32", "float16", "at device.flops.float32: missing (and 1 more error)"),
        ('kind = "cpu"', 'kind = "tpu"', "at device.kind: expected 'gpu' or 'cpu', got \"tpu\""),
        ("kernel_latency", "kernel_latenzy", "at device.kernel_latency: missing (and 1 more"),
        ("[device]", "cores = 2\n[device]", "at cores: unknown field"),
        ("schema_version = 1", "schema_version = 2", "at schema_version: expected 1, got 2"),
        ("[[level]]", "[[levels]]", "at level: missing (and 1 more error)"),
        ('"cluster"', '"node"', 'level: expected distinct names, got "node" 2 times'),
        (GOOD[GOOD.rindex("[[level]]") :], "", "level: expected at least two tables"),
        ("count = 4", "count = 1000000", "level: expected at most 1048576 devices, got 2000000"),
        ("[device]", "device_limit = 8\n[device]", "device_limit: expected less than the 8"),
    ],
)
def test_wrong_file(tmp_path: Path, old: str, new: str, problem: str):
    assert old in GOOD
    path = tmp_path / "wrong.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_machine(path)
    assert caught.value.where == str(path)
    assert caught.value.problem.startswith(problem)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["frontier", "", "../machines/local", "local.json"])
def test_unknown_preset_lists_those_there_are(name: str):
    with pytest.raises(InputError, match="dgx-a100, dgx-h100, dgx-h200, local, p3-16"):
        load_machine(name)


def test_missing_file():
    with pytest.raises(InputError, match=r"gone\.toml: no such file"):
        load_machine("gone.toml")


def test_wrong_counts():
    machine = load_machine("local")
    with pytest.raises(InputError, match="local: expected 1 node or more, got 0"):
        machine.with_nodes(0)
    with pytest.raises(InputError, match="local: expected at most 1048576 devices"):
        machine.with_nodes(10**9)
    with pytest.raises(InputError, match="local: expected 1 to 4 devices, got 0"):
        machine.with_devices(0)
    with pytest.raises(InputError, match=r"got 5 \(more nodes hold more devices\)"):
        machine.with_devices(5)
    with pytest.raises(InputError, match="local: expected a group of devices, got none"):
        machine.group_link([])
    with pytest.raises(InputError, match="local: expected devices 0 to 3, got -1"):
        machine.group_link([0, -1])


def test_reserved_bytes_reduce_the_memory_limit():
    machine = load_machine("dgx-a100")
    device = machine.device.model_copy(update={"reserved_bytes": 0})
    whole = machine.model_copy(update={"device": device})
    assert whole.memory_limit() - machine.memory_limit() == machine.device.reserved_bytes > 0
    assert whole.hash() != machine.hash()

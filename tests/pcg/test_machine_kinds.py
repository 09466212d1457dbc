"""Machines with several kinds of devices, and the levels that groups communicate over."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcg.errors import InputError
from pcg.machine import Machine, Rate, load_machine
from pcg.machine_part import machine_part

PLAIN = load_machine("summit")


def mixed(nodes: int, starts: tuple[int, ...], name: str = "summit") -> Machine:
    """A preset with ``nodes`` nodes. At some nodes a kind begins with twice the memory of the kind
    before."""
    fields: dict[str, Any] = load_machine(name).model_dump(mode="json", by_alias=True)
    fields["level"][-1]["count"] = nodes
    device = fields["device"]
    fields["other_device"] = [
        {**device, "memory_bytes": device["memory_bytes"] << i, "first_node": first}
        for i, first in enumerate(starts, 1)
    ]
    return Machine.model_validate_json(json.dumps(fields))


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    nodes = draw(st.integers(1, 5))
    starts = draw(st.sets(st.integers(1, nodes - 1), max_size=3)) if nodes > 1 else set[int]()
    return mixed(nodes, tuple(sorted(starts)), draw(st.sampled_from(["summit", "p3-16xlarge"])))


@given(machines(), st.data())
@settings(max_examples=15)
def test_a_device_is_of_the_last_kind_that_began(machine: Machine, data: st.DataObject):
    device = data.draw(st.integers(0, machine.devices - 1))
    begun = sum(o.first_node <= device // machine.devices_per_node for o in machine.others)
    assert machine.device_at(device).memory_bytes == machine.device.memory_bytes << begun
    some = data.draw(st.sets(st.integers(0, machine.devices - 1), min_size=1))
    kinds = machine.kinds_of(some)
    assert all(machine.device_at(d) in kinds for d in some)
    assert len(kinds) == len({id(machine.device_at(d)) for d in some})
    least = min(machine.device_at(d).usable_bytes for d in some)
    assert machine.memory_limit(some) == least
    assert machine.memory_limit() == machine.memory_limit(range(machine.devices))
    half = machine.with_memory(least // 2)
    assert {kind.usable_bytes for kind in half.kinds} == {least // 2}


@given(machines(), st.data())
@settings(max_examples=15)
def test_a_part_keeps_the_kinds_of_its_devices(machine: Machine, data: st.DataObject):
    n = data.draw(st.integers(1, machine.devices))
    part = machine.with_devices(n)
    assert part == part.with_devices(n)
    assert len(part.others) == sum(o.first_node < part.nodes for o in machine.others)
    for device in range(n):
        assert part.device_at(device) == machine.device_at(device)
    more = machine.with_nodes(machine.nodes + 2)
    assert more.device_at(more.devices - 1) == machine.kinds[-1]


@given(machines(), st.data())
@settings(max_examples=15)
def test_a_part_from_any_node_on_has_the_kinds_of_its_devices(machine: Machine, data):
    each = machine.devices_per_node
    size = each * data.draw(st.integers(1, machine.nodes))
    first = each * data.draw(st.integers(0, machine.nodes - size // each))
    part = machine_part(machine, first, size)
    assert part == Machine.model_validate_json(part.model_dump_json(by_alias=True))
    assert part.devices == size
    for device in range(size):
        assert part.device_at(device).memory_bytes == machine.device_at(first + device).memory_bytes
    assert part.kinds_of(range(size)) == part.kinds
    with pytest.raises(InputError, match="expected devices 0 to"):
        machine_part(machine, machine.devices, 1)


def test_kinds_and_collectives_are_part_of_the_hash_where_they_are_given():
    """Machines of one kind keep their hash, so plans for them stay valid."""
    fields = PLAIN.model_dump(mode="json", exclude={"others"})
    for level in fields["levels"]:
        del level["all_gather"], level["all_reduce"]
    for name in ("efficiency", "slowdown", "reserved_bytes"):
        del fields["device"][name]
    content = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    assert PLAIN.hash() == hashlib.sha256(content.encode()).hexdigest()
    level = PLAIN.levels[0]
    rates = {"all_reduce": (Rate(latency=level.latency, bandwidth=level.bandwidth),)}
    levels = (level.model_copy(update=rates), *PLAIN.levels[1:])
    assert PLAIN.model_copy(update={"levels": levels}).hash() != PLAIN.hash()
    assert mixed(4, (2,)).hash() != mixed(4, (3,)).hash() != mixed(4, ()).hash()


MIXED = """
schema_version = 1
name = "two kinds"

[device]
kind = "gpu"
memory_bytes = 16_000_000_000
memory_bandwidth = 900e9
kernel_latency = 5e-6
flops = { float64 = 7.8e12, float32 = 15.7e12 }

[[other_device]]
first_node = 2
kind = "gpu"
memory_bytes = 80_000_000_000
memory_bandwidth = 2e12
kernel_latency = 5e-6
flops = { float64 = 9.7e12, float32 = 19.5e12 }

[[level]]
name = "node"
count = 8
latency = 3e-6
bandwidth = 100e9

[[level]]
name = "cluster"
count = 4
latency = 8e-6
bandwidth = 12.5e9
"""


def test_own_file(tmp_path: Path):
    path = tmp_path / "mixed.toml"
    path.write_text(MIXED)
    machine = load_machine(path)
    assert [machine.device_at(d).memory_bytes for d in (15, 16)] == [16 * 10**9, 80 * 10**9]
    assert machine.with_nodes(2).kinds == (machine.device,)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("first_node = 2", "first_node = 4", "other_device[0].first_node: expected 1 to 3, for"),
        ("first_node = 2", "first_node = 0", "at other_device[0].first_node: expected greater"),
        ("first_node = 2", "", "at other_device[0].first_node: missing"),
        ("[[other_device]]", "[other_device]", "at other_device: expected"),
    ],
)
def test_wrong_file(tmp_path: Path, old: str, new: str, problem: str):
    path = tmp_path / "wrong.toml"
    path.write_text(MIXED.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_machine(path)
    assert caught.value.problem.startswith(problem)


def test_kinds_have_to_ascend():
    with pytest.raises(ValueError, match=r"other_device\[1\]\.first_node: expected 3 to 4"):
        mixed(5, (2, 2))


@given(machines(), st.data())
@settings(max_examples=20)
def test_hops_make_up_a_group(machine: Machine, data: st.DataObject):
    some = data.draw(st.sets(st.integers(0, machine.devices - 1), min_size=1, max_size=12))
    hops = machine.hops(some)
    assert math.prod(hop.units for hop in hops) == len(some)
    assert all(hop.units > 1 for hop in hops)
    if hops:
        link = machine.group_link(some)
        assert link.latency == max(hop.link.latency for hop in hops)
        assert link.bandwidth == min(hop.link.bandwidth for hop in hops)


def test_hops_of_summit():
    machine = PLAIN.with_nodes(4)
    assert [hop.units for hop in machine.hops(range(24))] == [3, 2, 4]
    assert [hop.units for hop in machine.hops((0, 6, 12, 18))] == [4]
    assert [hop.units for hop in machine.hops((0, 3, 6, 9))] == [2, 2]
    # Three devices in one node and one in another: no regular group.
    assert [hop.units for hop in machine.hops((0, 1, 2, 6))] == [4]


@given(st.sampled_from([1, 2, 3, 6]))
def test_groups_of_one_form_share_a_port(members: int):
    """The groups through the same two nodes together have the bandwidth of the nodes' ports."""
    machine = PLAIN.with_nodes(2)
    groups = [
        tuple(6 * node + start + i for node in (0, 1) for i in range(members))
        for start in range(0, 6, members)
    ]
    *_, last = machine.levels
    assert last.ports is not None
    together = sum(machine.hops(group)[-1].link.bandwidth for group in groups)
    assert together == pytest.approx(last.bandwidth * last.ports)

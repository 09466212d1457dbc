"""Collectives by their formulas: for all sets of mesh axes at once, and for one group."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcg.machine import Hop, Link, load_machine
from search.cost.collectives import BUCKET, all_reduce, bucketed, ring, seconds
from search.map.space.axes import Mesh

hops = st.builds(
    Hop,
    st.integers(2, 9),
    st.builds(Link, st.floats(1e-7, 1e-3), st.floats(1e8, 1e12)),
)


def around(link: Link, n: int, volume: float) -> float:
    return (n - 1) * (link.latency + volume / n / link.bandwidth)


@given(hops, st.floats(0, 1e10))
def test_collectives_within_one_level_take_ring_or_tree_time(hop: Hop, volume: float):
    n, link = hop.units, hop.link
    assert float(seconds(ring([hop]), volume)) == pytest.approx(around(link, n, volume))
    tree = 2 * log2(n) * link.latency + 2 * volume / link.bandwidth
    expected = min(2 * around(link, n, volume), tree)
    assert float(seconds(all_reduce([hop]), volume)) == pytest.approx(expected)


@given(st.lists(hops, min_size=1, max_size=4), st.floats(0, 1e10))
@settings(max_examples=25)
def test_no_division_of_levels_into_stages_is_cheaper(levels: list[Hop], volume: float):
    """All divisions into stages, by the bytes that each stage really moves: 1/m of the bytes, in m
    groups side by side that each have 1/m of the bandwidth."""
    best = np.inf
    for cuts in range(1 << (len(levels) - 1)):
        stages: list[list[Hop]] = [[levels[0]]]
        for i, hop in enumerate(levels[1:]):
            if cuts >> i & 1:
                stages.append([])
            stages[-1].append(hop)
        for tree in (False, True):
            total, members = 0.0, 1
            for stage in stages:
                n = int(np.prod([hop.units for hop in stage]))
                latency = max(hop.link.latency for hop in stage)
                own = Link(latency, min(hop.link.bandwidth for hop in stage) / members)
                if tree and stage is stages[-1]:
                    total += 2 * log2(n) * latency + 2 * volume / members / own.bandwidth
                else:
                    total += 2 * around(own, n, volume / members)
                members *= n
            best = min(best, total)
    assert float(seconds(all_reduce(levels), volume)) == pytest.approx(best)


@given(st.lists(hops, max_size=4), st.floats(0, 1e9), st.floats(1, 10))
def test_more_bytes_take_longer_and_no_less_than_the_wires_need(levels, volume, factor):
    for lines in (ring(levels), all_reduce(levels)):
        assert seconds(lines, volume * factor) >= seconds(lines, volume)
    lower = max((volume / 2 / hop.link.bandwidth for hop in levels), default=0.0)
    assert seconds(ring(levels), volume) >= 0.999 * lower
    assert seconds(all_reduce(levels), volume) >= 0.999 * 2 * lower


def test_a_group_of_one_has_nothing_to_do():
    assert seconds(ring(()), 1e9) == seconds(all_reduce(()), 1e9) == 0


@settings(max_examples=10, deadline=None)
@given(hop=hops, parts=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5))
def test_gradients_that_share_a_buffer_share_its_latency(hop: Hop, parts: list[float]):
    """Gradients in one buffer take as long as the buffer together. A large gradient takes its own
    time."""
    lines, total = all_reduce([hop]), sum(parts)
    whole = float(seconds(lines, BUCKET))
    in_buckets = sum(float(bucketed(lines, part * BUCKET)) for part in parts)
    assert in_buckets == pytest.approx(total * whole)
    assert bucketed(lines, 3 * BUCKET) == seconds(lines, 3 * BUCKET)


def test_on_192_gpus_latency_is_not_that_of_a_flat_ring():
    machine = load_machine("summit").with_nodes(32)
    hops = machine.hops(range(192))
    link = machine.group_link(range(192))
    small, large = 4.0, 1e9
    assert seconds(all_reduce(hops), small) < 0.1 * 2 * around(link, 192, small)
    assert seconds(all_reduce(hops), large) <= 2 * around(link, 192, large)


@pytest.mark.parametrize("machine", [("summit", 4), ("p3-16xlarge", 2), ("dgx-a100", 3)])
def test_mesh_and_groups_have_equal_collective_times(machine):
    target = load_machine(machine[0]).with_nodes(machine[1])
    mesh = Mesh(target)
    masks = np.arange(1 << len(mesh))
    for volume in (0.0, 1e3, 1e9):
        volumes = np.full(masks.shape, volume)
        shared = mesh.gradient_seconds(masks, volumes)
        for mask in masks:
            group = [
                d
                for d in range(target.devices)
                if all(
                    mask >> i & 1 or d // stride % prime == 0
                    for i, (stride, prime) in enumerate(zip(mesh.strides, mesh.primes, strict=True))
                )
            ]
            own = target.hops(group)
            passed = float(seconds(mesh.peers(int(mask)).ring, volume))
            assert passed == pytest.approx(float(seconds(ring(own), volume)))
            assert shared[mask] == pytest.approx(float(bucketed(all_reduce(own), volume)))

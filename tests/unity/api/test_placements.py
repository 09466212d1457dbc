"""The placements stated in the terms of DTensor are those that DTensor makes, on every device."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs.own_loop import (
    RANKS,
    planned,
    words_captured,
    words_cut_at_random,
    words_planned,
)
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

from pcg.plan.plan import Plan
from runtime.program.lower import Lowering
from unity.api.placements import to_dtensor


@contextmanager
def rank_of(rank: int, ranks: int) -> Generator[None]:
    """A process group that only knows its ranks."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def check(plan: Plan) -> int:
    """Compare all placements with the pieces of each rank. Returns their number."""
    said, lowering = to_dtensor(plan), Lowering(plan)
    parameters = {leaf: plan.naming.parameter(leaf) for leaf in plan.naming.parameters}
    compared = 0
    for rank in range(plan.machine.devices):
        program = lowering.program(rank)
        pieces = [(w.leaf, w.region) for w in program.weights]
        pieces += [(load.leaf, load.region) for load in program.inputs]
        with rank_of(rank, plan.machine.devices):
            mesh = said.mesh()
            for leaf, region in pieces:
                shape, own = torch.Size(leaf.shape), list(region)
                name = leaf.name
                if name in parameters:
                    name = parameters[name].names[0]
                    if parameters[leaf.name].transposed:
                        shape, own = shape[::-1], own[::-1]
                placements = said.parameters.get(name) or said.inputs.get(name)
                if placements is None:
                    assert any(line.startswith(f"{name}: ") for line in said.unsaid)
                    continue
                sizes, offsets = compute_local_shape_and_global_offset(shape, mesh, placements)
                slices = [(a, a + n) for a, n in zip(offsets, sizes, strict=True)]
                assert slices == own, name
                compared += 1
    return compared


def test_planners_weights_and_inputs_are_said():
    plan = words_planned("zero")
    assert check(plan) >= RANKS * (len(words_captured().weights) + 1)
    said = to_dtensor(plan)
    assert said.mesh_shape == (RANKS,)
    assert said.inputs["ids"] == (Shard(0),)
    assert Shard(0) in {p for placements in said.parameters.values() for p in placements}
    copied = to_dtensor(words_planned("data-parallel"))
    assert set(copied.parameters.values()) == {(Replicate(),)}
    assert copied.parameters["head.weight"] == copied.parameters["table.weight"]


@pytest.mark.parametrize(("ranks", "machine"), [(1, "local"), (6, "summit")])
def test_placements_for_dtensor_hold_for_other_numbers_of_devices(ranks: int, machine: str):
    plan = planned(words_captured(), "zero", ranks, machine)
    on_cpus = plan.machine.model_copy(update={"kind": "cpu"})
    assert check(replace(plan, machine=on_cpus))


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_placements_for_dtensor_hold_for_random_plans(data):
    plan = words_cut_at_random(data.draw)
    check(plan)
    assert to_dtensor(plan).unsaid

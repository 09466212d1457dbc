"""Batch norms by local statistics: what torch's DistributedDataParallel trains."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from by_hand import make_plan
from ddp_steps import SAMPLE, Net, trained
from plain_steps import STEPS, stepped
from simulated import on_ranks

from pcg.capture import capture
from pcg.machine import load_machine
from pcg.plan import load_plan, save_plan
from runtime.collectives import World
from runtime.data import input_batch
from runtime.executor import Executor
from runtime.lower import Lowering
from search.mesh.planner import MeshPlanner
from substitutions.locate import of_module
from substitutions.store import load_library

BATCH, NEAR = 16, 1e-9


@pytest.fixture(scope="module")
def library():
    return load_library()


@cache
def captured_of(groups):
    return capture(Net().to("meta"), (torch.empty(BATCH, *SAMPLE, device="meta"),), "net", groups)


def planned(groups, devices, library, family="data-parallel"):
    captured = captured_of(groups)
    machine = load_machine("local").with_devices(devices)
    plan = MeshPlanner(machine, library, family).plan("net", captured.graph).plan
    return of_module(plan, captured, library.rules)


def alone(groups, library):
    """The same function on one device."""
    captured = captured_of(groups)
    plan = make_plan(captured.graph, captured.graph, 1, {})
    return of_module(plan, captured, library.rules)


def whole(plan, steps, part):
    """A tensor of each weight, put together of the pieces of all ranks."""
    shapes = {n.leaf.name: n.leaf.type.shape for n in plan.model.leaves if n.leaf.kind == "weight"}
    found = {name: torch.full(shape, torch.nan).double() for name, shape in shapes.items()}
    for piece in (piece for rank in steps for piece in rank.pieces):
        at = tuple(slice(start, stop) for start, stop in piece.region)
        found[piece.leaf][at] = getattr(piece, part)
    return named(plan, found)


def named(plan, tensors):
    """By the names and in the shapes of the module."""
    parameters = {name: plan.naming.parameter(name) for name in tensors}
    return {
        p.names[0]: tensors[n].mT if p.transposed else tensors[n] for n, p in parameters.items()
    }


def started(plan):
    """The module's state as a run of ours begins."""
    program = Lowering(plan).program(0)
    executor = Executor(program, World(), "float64")
    weights = {w.leaf.name: executor.weights[w.register] for w in program.weights}
    return Net().double().state_dict() | named(plan, weights)


def batches(plan):
    (leaf,) = [node.leaf for node in plan.model.leaves if node.leaf.kind == "input"]
    return [input_batch(leaf, 0, step) for step in range(STEPS)]


def assert_same(plan, steps, wanted, *, running=True):
    losses, gradients, state = wanted
    for rank in steps:
        assert rank.losses == pytest.approx(losses, rel=NEAR)
        if running:
            kept = {n: t for n, t in state.items() if n in dict(Net().named_buffers())}
            assert rank.running.keys() == kept.keys()
            torch.testing.assert_close(rank.running, kept, rtol=NEAR, atol=NEAR)
    for part, expected in (("weight", state), ("gradient", gradients)):
        found = whole(plan, steps, part)
        expected = {name: expected[name] for name in found}
        torch.testing.assert_close(found, expected, rtol=NEAR, atol=NEAR)


@pytest.mark.parametrize("devices", [2, 4])
def test_they_are_those_of_distributed_data_parallel(devices, library, tmp_path, request):
    """Losses, gradients, weights and running statistics, on as many devices as there are groups,
    and on fewer, of which each has several."""
    first = alone(devices, library)
    wanted = trained(tmp_path, devices, started(first), batches(first))
    plans = [first]
    for fewer in {2, devices}:
        for family in ("data-parallel", "zero"):
            plans.append(planned(devices, fewer, library, family))
    for plan in plans:
        save_plan(plan, tmp_path / "plan.json")
        plan = load_plan(tmp_path / "plan.json")
        assert plan.norm_groups == devices
        if plan.machine.devices == 4:
            steps = request.getfixturevalue("ranks").steps(plan)
        else:
            steps = on_ranks(plan.machine.devices, partial(stepped, Lowering(plan)))
        assert_same(plan, steps, wanted)


def test_the_data_parallel_plan_exchanges_gradients_alone(library):
    """Nothing forward: each device has the statistics that it needs."""
    plan = planned(2, 2, library)
    for rank in range(2):
        lines = str(Lowering(plan).program(rank)).splitlines()
        assert not [line for line in lines if " = all_reduce" in line or "exchange" in line]
    assert "ghost_batch_norm" in {node.name for node in plan.graph.nodes}


def test_statistics_of_what_no_norm_reads_directly(library):
    """Where a plan takes a batch norm apart, the first group's rows are read once more."""
    plan = alone(4, library)
    (record, *_), found = plan.statistics, {}
    for at in (record.at, None):
        lowering = Lowering(replace(plan, statistics=(record.model_copy(update={"at": at}),)))
        executor = Executor(lowering.program(0), World(), "float64")
        executor.step(0, lambda _: None)
        found[at] = executor.running.tensors
    assert found[None]["first.running_mean"].eq(0).all()
    assert not found[record.at]["first.running_mean"].eq(0).all()

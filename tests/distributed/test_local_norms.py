"""Batch norms by local statistics train as torch's DistributedDataParallel."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from support.cases import a_third
from support.plans.by_hand import make_plan
from support.runs.ddp_steps import SAMPLE, Net, trained
from support.runs.plain_steps import STEPS, stepped
from support.runs.simulated import on_ranks

from pcg.capture import capture
from pcg.machine import load_machine
from pcg.ops.norms import ghost_batch_norm
from pcg.plan.plan import load_plan, save_plan
from pcg.plan.statistics import RunningFile, named_values
from pcg.plan.text import parse_graph
from runtime.execute.executor import Executor
from runtime.execute.kernels import run_equation, run_whole, whole_task
from runtime.inputs.seeded import input_batch
from runtime.program.lower import Lowering
from runtime.program.norms import FIRST_STATISTICS, GROUP_NORM
from runtime.program.validate import validate_lowered
from runtime.world.collectives import World
from search.plan.planner import MeshPlanner
from substitutions.audit.locate import of_module
from substitutions.rules.store import load_library

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
    """The whole tensor of each weight, from the pieces of all ranks."""
    shapes = {n.leaf.name: n.leaf.type.shape for n in plan.model.leaves if n.leaf.kind == "weight"}
    assembled = {name: torch.full(shape, torch.nan).double() for name, shape in shapes.items()}
    for piece in (piece for rank in steps for piece in rank.pieces):
        at = tuple(slice(start, stop) for start, stop in piece.region)
        assembled[piece.leaf][at] = getattr(piece, part)
    return named(plan, assembled)


def named(plan, tensors):
    """The tensors by the names and in the shapes of the module."""
    parameters = {name: plan.naming.parameter(name) for name in tensors}
    return {
        p.names[0]: tensors[n].mT if p.transposed else tensors[n] for n, p in parameters.items()
    }


def started(plan):
    """The module's state at the start of one of our runs."""
    program = Lowering(plan).program(0)
    executor = Executor(program, World(), "fp64")
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
        actual = whole(plan, steps, part)
        expected = {name: expected[name] for name in actual}
        torch.testing.assert_close(actual, expected, rtol=NEAR, atol=NEAR)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("devices", "families"),
    [(2, ("data-parallel", "zero")), (4, ("data-parallel",)), (4, ("zero",))],
)
def test_local_statistics_train_as_distributed_data_parallel(
    devices, families, library, tmp_path, request
):
    """Losses, gradients, weights and running statistics, on as many devices as there are groups,
    and on fewer devices with several groups each."""
    first = alone(devices, library)
    wanted = trained(tmp_path, devices, started(first), batches(first))
    plans = [first]
    for fewer in {2, devices}:
        for family in families:
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
    """Nothing is exchanged in the forward pass: each device has the statistics that it needs."""
    plan = planned(2, 2, library)
    for rank in range(2):
        lines = str(Lowering(plan).program(rank)).splitlines()
        assert not [line for line in lines if " = all_reduce" in line or "exchange" in line]
    assert "ghost_batch_norm" in {node.name for node in plan.graph.nodes}


@pytest.mark.parametrize("family", ["data-parallel", "zero"])
@pytest.mark.parametrize(("groups", "devices"), a_third([(2, 2), (4, 2), (4, 4)]))
def test_programs_of_local_statistics_are_valid(groups, devices, family, library):
    validate_lowered(Lowering(planned(groups, devices, library, family)))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_statistics_are_those_of_the_first_group(groups):
    """By kernel and by equation, from the norm itself and from tensors that no norm reads
    directly."""
    torch.manual_seed(0)
    x = torch.randn(8, 3, 2, 5, dtype=torch.float64)
    weight, bias = torch.randn(2, 3, dtype=torch.float64)
    first = x[: 8 // groups].transpose(0, 1).flatten(1)
    wanted = first.mean(1), first.var(1)
    normed, called = GROUP_NORM(groups=groups, eps=0.1), FIRST_STATISTICS(rows=8 // groups)
    for call, given in ((normed, (x, weight, bias)), (called, (x,))):
        for run in (run_whole, by_equation):
            torch.testing.assert_close(run(call, given)[-2:], wanted)
    ours = run_whole(ghost_batch_norm(groups=groups, eps=0.1), (x, weight, bias))
    torch.testing.assert_close(run_whole(normed, (x, weight, bias))[:1], ours)


def by_equation(call, tensors):
    task = whole_task(call, [tuple(tensor.shape) for tensor in tensors])
    return run_equation(call, task, tensors, [(0,) * tensor.dim() for tensor in tensors])


def test_a_tensor_that_no_norm_reads_is_read_once_more():
    """If rules have decomposed a norm, the rows of its first group are read on the devices that
    hold them."""
    model = parse_graph(
        "x = input[8, 3]\nw = weight[3]\nb = weight[3]\n"
        "return mean_loss(ghost_batch_norm(sigmoid(x), w, b, groups=2, eps=0.1))"
    )
    graph = parse_graph(
        "x = input[8/4, 3]\nw = weight[3]\nb = weight[3]\n"
        "y = combine(sigmoid(x), dim=0, degree=4)\n"
        "return mean_loss(ghost_batch_norm(scale(y, factor=1.0), w, b, groups=2, eps=0.1))"
    )
    names = {value: name for name, value in named_values(model).items()}
    (value,) = (names[node.inputs[0]] for node in model.nodes if node.name == "ghost_batch_norm")
    (at,) = (n for n, v in named_values(graph).items() if v.node.name == "sigmoid")
    kept = RunningFile(value=value, at=at, mean=("m",), variance=("v",), momentum=1.0)
    plan = replace(make_plan(model, graph, 4, {}), statistics=(kept,), norm_groups=2)

    def work(world):
        executor = Executor(Lowering(plan).program(world.rank), world, "fp64")
        executor.step(0, lambda _: None)
        return executor.running.tensors

    (leaf,) = [node.leaf for node in model.leaves if node.leaf.kind == "input"]
    first = input_batch(leaf, 0, 0)[:4].sigmoid()
    for counted in on_ranks(4, work):
        torch.testing.assert_close(counted["m"], first.mean(0))
        torch.testing.assert_close(counted["v"], first.var(0))

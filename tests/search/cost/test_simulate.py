"""The simulated time of a step: streams by device, overlap, and changes of a program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans.random_programs import DEVICES, POOL, programs

from pcg.graph.graph import Graph, Node
from pcg.machine import load_machine
from pcg.placement.backward import gradients
from pcg.placement.layout import grid
from pcg.placement.schedule import Reshard, schedule
from pcg.placement.view import MachineView
from pcg.plan.text import parse_graph
from search.cost.cost import NOTHING, CostModel, GradientExchange
from search.cost.efficiency import PLAIN
from search.cost.events import events, exposures, usage
from search.cost.simulate import SNAPSHOT, price, run, simulate
from search.cost.tasks import (
    BACKWARD,
    SYNC,
    UPDATE,
    ProgramStep,
    Task,
    TaskProgram,
    _buffers,
    program,
    tasks,
)


def cost_of(devices: int) -> CostModel:
    """Two nodes of A100 with the links of the data sheet."""
    machine = load_machine("dgx-a100").with_devices(devices)
    rates = {"all_reduce": None, "all_gather": None}
    levels = tuple(level.model_copy(update=rates) for level in machine.levels)
    device = machine.device.model_copy(update={"slowdown": 1.0})
    return CostModel(machine.model_copy(update={"levels": levels, "device": device}), speed=PLAIN)


def checked(text: str) -> Graph:
    graph = parse_graph(text)
    graph.check()
    return graph


def views_at(graph: Graph, starts: dict[str, int]) -> dict[Node, MachineView]:
    """Views from the first device on, or from the device that ``starts`` gives for an operator's
    name."""
    return {
        node: MachineView.packed(starts.get(node.name, 0), grid(node))
        for node in graph.nodes
        if not (node.is_leaf or node.is_parallel)
    }


BRANCHES = """
x = input[512, 512]
w = weight[512, 512]
v = weight[512, 512]
return mean_loss(add(relu(w), gelu(v)))
"""


def test_step_time_on_one_device_is_the_sum_of_its_tasks():
    graph, cost = checked(BRANCHES), cost_of(2)
    simulation = simulate(schedule(graph, views_at(graph, {})), cost)
    operators = [node for node in graph.nodes if not node.is_leaf]
    both = [cost.compute_seconds(n, frozenset(range(len(n.inputs)))) for n in operators]
    assert simulation.forward == pytest.approx(sum(forward for forward, _ in both))
    assert simulation.backward == pytest.approx(sum(backward for _, backward in both))
    assert simulation.sync == 0
    device = cost.machine.device
    update = device.kernel_latency + 3 * 4 * 512 * 512 / device.memory_bandwidth
    assert simulation.update == pytest.approx(2 * update)
    phases = simulation.forward + simulation.backward + simulation.sync + simulation.update
    assert simulation.step_seconds == pytest.approx(phases)


def test_disjoint_branches_run_at_the_same_time():
    graph, cost = checked(BRANCHES), cost_of(2)
    steps = schedule(graph, views_at(graph, {"gelu": 1}))
    simulation = simulate(steps, cost)
    seconds = {
        node.name: cost.compute_seconds(node, frozenset({0, 1} if node.name == "add" else {0}))
        for node in graph.nodes
        if not node.is_leaf
    }
    (move,) = [step for step in steps.steps if isinstance(step, Reshard)]
    moved = cost.movement(move.transfer).longest
    rest = seconds["add"][0] + seconds["mean_loss"][0]
    branches = max(seconds["relu"][0], seconds["gelu"][0])
    assert simulation.forward == pytest.approx(branches + moved + rest)
    last = max(
        seconds["relu"][1],  # device 0 goes on once the gradient is sent, device 1 has it then
        seconds["gelu"][1],
    )
    rest = seconds["add"][1] + seconds["mean_loss"][1]
    assert simulation.backward == pytest.approx(rest + moved + last)
    together = simulate(schedule(graph, views_at(graph, {})), cost)
    assert simulation.update == pytest.approx(together.update / 2, rel=0.5)


def test_gradients_from_several_readers_are_added_up():
    """Three readers need two additions, also if one operator reads the tensor twice."""
    text = "x = input[64, 64]\nw = weight[64, 64]\ny = matmul(x, w)\nreturn mean_loss({})"
    several = checked(text.format("add(multiply(y, y), relu(y))"))
    apart = checked(text.format("add(multiply(y, w), relu(w))"))
    cost = cost_of(1)
    backward, alone = (
        simulate(schedule(graph, views_at(graph, {})), cost).backward for graph in (several, apart)
    )
    one = cost.kernel_seconds("pointwise", cost.machine.device, 0, 3 * 64 * 64 * 4, 1)
    assert backward == pytest.approx(alone + 2 * float(one))


def test_a_deep_model_is_simulated_from_its_end():
    layers = "".join(f"y{i + 1} = relu(y{i})\n" for i in range(1500))
    graph = checked(f"y0 = weight[2, 2]\n{layers}return mean_loss(y1500)")
    simulation = simulate(schedule(graph, views_at(graph, {})), cost_of(1))
    assert simulation.backward > 1500 * cost_of(1).machine.device.kernel_latency


def test_graph_without_weights_has_no_backward_pass():
    graph = checked("x = input[8, 8]\nreturn mean_loss(relu(x))")
    simulation = simulate(schedule(graph, views_at(graph, {})), cost_of(1))
    assert simulation.backward == simulation.sync == simulation.update == 0


def test_data_parallelism_exchanges_gradients():
    graph = checked(
        """
        x = input[64/2, 512]
        w = weight[512, 512]
        return reduce(mean_loss(matmul(x, replicate(w, degree=2))), degree=2)
        """
    )
    cost = cost_of(2)
    simulation = simulate(schedule(graph, views_at(graph, {})), cost)
    link = cost.machine.group_link((0, 1))
    # A weight of 1 MiB has a buffer of its own.
    assert simulation.sync == pytest.approx(2 * (link.latency + 2**19 / link.bandwidth))


def data_parallel(widths: int, size: int = 512) -> Graph:
    """Dense layers of one size on two devices, the batch cut."""
    layers = "replicate(w{0}, degree=2)"
    text = f"x = input[4096/2, {size}]\n"
    value = "x"
    for i in range(widths):
        text += f"w{i} = weight[{size}, {size}]\n"
        value = f"matmul({value}, {layers.format(i)})"
    return checked(f"{text}return reduce(mean_loss({value}), degree=2)")


def test_gradients_are_exchanged_behind_the_rest_of_the_backward_pass(monkeypatch):
    """All gradients but those of the first layer, which come last."""
    monkeypatch.setattr("search.cost.tasks.FULL", 1 << 20)  # each has a buffer of its own
    graph, cost = data_parallel(3), cost_of(2)
    steps = schedule(graph, views_at(graph, {}))
    overlapped, apart = simulate(steps, cost), simulate(steps, cost, overlap=False)
    done = run(tasks(program(steps, cost)), 2)
    syncs = [event for event in events(done, 1) if event.task.phase == SYNC]
    assert len(syncs) == 3
    back = [event for event in events(done, 1) if event.task.phase == BACKWARD]
    # The gradient of a weight is the last that a step makes.
    ends = {event.task.what: event.end for event in back}
    adding = [i for i, step in enumerate(program(steps, cost).steps) if step.weights]
    assert [sync.start for sync in syncs] == pytest.approx([ends[i] for i in reversed(adding)])
    assert overlapped.sync == pytest.approx(syncs[-1].seconds)
    assert apart.sync == pytest.approx(3 * syncs[0].seconds)
    # In the backward pass nobody waits for the loss, unless there is but one stream.
    (loss,) = [step.transfer for step in steps.steps if isinstance(step, Reshard)]
    summed = cost.movement(loss).longest
    assert overlapped.forward == pytest.approx(apart.forward)
    assert overlapped.backward + summed == pytest.approx(apart.backward)
    used = usage(done, 0)
    assert used.communicating == pytest.approx(used.hidden + used.exposed)
    hidden = exposures(done, 0, SYNC)
    # An update of the layer before goes on while the last is exchanged.
    updates = [event.seconds for event in events(done, 0) if event.task.phase == UPDATE]
    behind = min(syncs[0].seconds, updates[0] + updates[1])
    assert hidden[0] == pytest.approx(1 - behind / syncs[0].seconds)
    assert hidden[1] == hidden[2] == pytest.approx(0)


def test_small_gradients_share_an_all_reduce():
    """Three layers of 256 KiB share one buffer. It is sent when the last gradient is there, and no
    update begins before the sums are there."""
    graph, cost = data_parallel(3, 256), cost_of(2)
    done = run(tasks(program(schedule(graph, views_at(graph, {})), cost)), 2)
    by_phase = {phase: [e for e in events(done, 0) if e.task.phase == phase] for phase in range(4)}
    syncs = by_phase[SYNC]
    assert len(syncs) == 3
    link = cost.machine.group_link((0, 1))
    together = 2 * (link.latency + 3 * 2**18 / 2 / link.bandwidth)
    assert sum(sync.seconds for sync in syncs) == pytest.approx(together)
    assert syncs[0].start == pytest.approx(by_phase[BACKWARD][-1].end)
    assert by_phase[UPDATE][0].start == pytest.approx(syncs[-1].end)


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([4, 4, 4], [(2, 1, 0)]),
        # The first buffer is sent sooner than those after it.
        ([4, 4, 1 << 20], [(2,), (1, 0)]),
        ([4, 25 << 20, 4, 1 << 20], [(3,), (2, 1), (0,)]),
    ],
)
def test_buffers_fill_in_the_order_of_the_backward_pass(blocks, expected):
    given = [GradientExchange(block, ((0, 1),)) for block in blocks]
    assert _buffers(range(len(blocks)), given) == expected


def test_buffers_are_of_gradients_that_the_same_devices_add_up():
    pairs, alone, every = ((0, 1), (2, 3)), (), ((0, 1, 2, 3),)
    given = [GradientExchange(4, groups) for groups in (pairs, every, alone, pairs)]
    assert sorted(_buffers(range(4), given)) == [(1,), (3, 0)]


def test_joining_the_loss_has_no_backward_resharding():
    graph, cost = data_parallel(1), cost_of(2)
    steps = schedule(graph, views_at(graph, {}))
    (joining,) = [i for i, step in enumerate(steps.steps) if isinstance(step, Reshard)]
    assert gradients(steps).joining == joining
    *_, last = program(steps, cost).steps
    assert last.reshards
    assert last.forward.longest > 0
    assert last.backward is NOTHING


def test_an_empty_program_takes_no_time():
    assert price(TaskProgram([], []), 4).step_seconds == 0


# Random programs ----------------------------------------------------------------------------


def by_hand(given: list[Task]) -> tuple[list[list[float]], float]:
    """The end of each task by device, and of the last task; computed one device at a time."""
    clocks = [[0.0] * DEVICES for _ in range(2)]
    ready: list[list[float]] = []
    for task in given:
        inputs = [ready[number] for number in task.after]
        have = [max([0.0, *(r[d] for r in inputs)]) for d in range(DEVICES)]
        result = have if task.passes else [0.0] * DEVICES
        result = list(result)
        for group, seconds in zip(task.duration.groups, task.duration.seconds, strict=True):
            end = max(max(clocks[task.stream][d], have[d]) for d in group) + float(seconds)
            for device in group:
                clocks[task.stream][device] = result[device] = end
        ready.append(result)
    return ready, max(max(clock) for clock in clocks)


@given(programs(), st.booleans())
@settings(deadline=None, max_examples=30)
def test_tasks_start_when_they_can(given_program, overlap):
    issued = tasks(given_program, overlap=overlap)
    done = run(issued, DEVICES)
    expected, last = by_hand(issued)
    for task, actual, each in zip(issued, done.ready, expected, strict=True):
        taking = task.duration.groups.ravel()
        np.testing.assert_array_equal(
            np.broadcast_to(actual, DEVICES)[taking], np.array(each)[taking]
        )
    assert done.simulation.step_seconds == last


@given(programs())
@settings(deadline=None, max_examples=20)
def test_tasks_are_issued_after_their_operands(given_program):
    issued = tasks(given_program)
    for number, task in enumerate(issued):
        assert all(other < number for other in task.after)
    backward = [task.what for task in issued if task.phase == BACKWARD]
    assert backward == sorted(backward, reverse=True)
    steps = given_program.steps
    for number, task in enumerate(issued):
        if task.phase == SYNC:
            adds = [i for i, step in enumerate(steps) if task.what in step.weights]
            done = {t.what for t in issued[:number] if t.phase == BACKWARD}
            assert set(adds) <= done
    assert sum(task.phase == UPDATE for task in issued) == len(given_program.weights)


@st.composite
def changes(draw: st.DrawFn) -> tuple[TaskProgram, TaskProgram]:
    """A program of some length, and the same with a few steps changed, dropped or added."""
    before = draw(programs(most=40))
    steps = list(before.steps)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(steps) - 1))
        match draw(st.sampled_from(["forward", "backward", "last", "more"])):
            case "forward":
                steps[at] = steps[at]._replace(forward=draw(st.sampled_from(POOL)))
            case "backward" if steps[at].backward is not NOTHING:
                steps[at] = steps[at]._replace(backward=draw(st.sampled_from(POOL)))
            case "more":
                steps.append(ProgramStep(POOL[0], POOL[1], (at,)))
            case _:
                steps[-1] = steps[-1]._replace(reads=())
    return before, TaskProgram(steps, before.weights)


@given(changes())
@settings(deadline=None, max_examples=30)
def test_changed_program_is_simulated_as_from_the_start(pair):
    """Starts, results, clocks and phases are equal to the last bit."""
    before, after = (tasks(given_program) for given_program in pair)
    whole, changed = run(after, DEVICES), run(after, DEVICES, run(before, DEVICES))
    assert changed.simulation == whole.simulation
    for actual, expected in zip(changed.starts, whole.starts, strict=True):
        np.testing.assert_array_equal(actual, expected)
    for actual, expected in zip(changed.ready, whole.ready, strict=True):
        np.testing.assert_array_equal(actual, expected)
    for actual, expected in zip(changed.states, whole.states, strict=True):
        assert actual.ends == expected.ends
        for a, b in zip(actual.clocks, expected.clocks, strict=True):
            np.testing.assert_array_equal(a, b)


def test_tasks_issued_before_a_change_are_not_simulated_again():
    steps = [ProgramStep(POOL[i % len(POOL)], NOTHING, (i - 1,) if i else ()) for i in range(100)]
    before = run(tasks(TaskProgram(steps, [])), DEVICES)
    steps[70] = steps[70]._replace(forward=POOL[5])
    after = run(tasks(TaskProgram(steps, [])), DEVICES, before)
    kept = 70 - 70 % SNAPSHOT
    assert all(a is b for a, b in zip(after.ready[:kept], before.ready, strict=False))
    assert after.simulation == run(after.tasks, DEVICES).simulation

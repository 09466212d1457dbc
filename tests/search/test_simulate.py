"""The simulated time of a step: clocks by device, branches at the same time, the phases' sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcg.graph import Graph, Node
from pcg.layout import grid
from pcg.machine import load_machine
from pcg.schedule import Move, schedule
from pcg.text import parse_graph
from pcg.view import MachineView
from search.cost import CostModel, Duration
from search.efficiency import PLAIN
from search.simulate import Clocks, Program, run, simulate


def cost_of(devices: int) -> CostModel:
    return CostModel(load_machine("dgx-a100").with_devices(devices), speed=PLAIN)


def checked(text: str) -> Graph:
    graph = parse_graph(text)
    graph.check()
    return graph


def views_at(graph: Graph, starts: dict[str, int]) -> dict[Node, MachineView]:
    """Views from the first device on, or from where ``starts`` says for an operator's name."""
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


def test_one_device_does_one_thing_after_the_other():
    graph, cost = checked(BRANCHES), cost_of(2)
    found = simulate(schedule(graph, views_at(graph, {})), cost)
    operators = [node for node in graph.nodes if not node.is_leaf]
    both = [cost.compute_seconds(n, frozenset(range(len(n.inputs)))) for n in operators]
    assert found.forward == pytest.approx(sum(forward for forward, _ in both))
    assert found.backward == pytest.approx(sum(backward for _, backward in both))
    assert found.sync == 0
    device = cost.machine.device
    update = device.kernel_latency + 3 * 4 * 512 * 512 / device.memory_bandwidth
    assert found.update == pytest.approx(2 * update)
    phases = found.forward + found.backward + found.sync + found.update
    assert found.step_seconds == pytest.approx(phases)


def test_disjoint_branches_run_at_the_same_time():
    graph, cost = checked(BRANCHES), cost_of(2)
    steps = schedule(graph, views_at(graph, {"gelu": 1}))
    found = simulate(steps, cost)
    seconds = {
        node.name: cost.compute_seconds(node, frozenset({0, 1} if node.name == "add" else {0}))
        for node in graph.nodes
        if not node.is_leaf
    }
    (move,) = [step for step in steps.steps if isinstance(step, Move)]
    moved, _ = cost.transfer_seconds(move.transfer)
    rest = seconds["add"][0] + seconds["mean_loss"][0]
    branches = max(seconds["relu"][0], seconds["gelu"][0])
    assert found.forward == pytest.approx(branches + moved + rest)
    last = max(
        seconds["relu"][1],  # device 0 goes on once the gradient is sent, device 1 has it then
        seconds["gelu"][1],
    )
    rest = seconds["add"][1] + seconds["mean_loss"][1]
    assert found.backward == pytest.approx(rest + moved + last)
    together = simulate(schedule(graph, views_at(graph, {})), cost)
    assert found.update == pytest.approx(together.update / 2, rel=0.5)


def test_nothing_goes_back_without_weights():
    graph = checked("x = input[8, 8]\nreturn mean_loss(relu(x))")
    found = simulate(schedule(graph, views_at(graph, {})), cost_of(1))
    assert found.backward == found.sync == found.update == 0


def test_data_parallelism_exchanges_gradients():
    graph = checked(
        """
        x = input[64/2, 32]
        w = weight[32, 32]
        return reduce(mean_loss(matmul(x, replicate(w, degree=2))), degree=2)
        """
    )
    cost = cost_of(2)
    found = simulate(schedule(graph, views_at(graph, {})), cost)
    link = cost.machine.group_link((0, 1))
    assert found.sync == pytest.approx(2 * (link.latency + 4 * 512 / link.bandwidth))


durations = st.tuples(
    st.permutations(range(4)), st.sampled_from([(1, 4), (2, 2), (4, 1), (1, 2), (1, 1)])
)


@given(st.lists(st.tuples(durations, st.integers(1, 5)), max_size=10))
@settings(deadline=None)
def test_clocks(steps):
    """One number for all clocks, where they agree, makes no difference."""
    clocks, plain = Clocks(4), [0.0] * 4
    for (order, (groups, members)), seconds in steps:
        devices = np.array(order[: groups * members], np.intp).reshape(groups, members)
        clocks.advance(Duration(devices, np.full(groups, float(seconds))))
        for group in devices:
            end = max(plain[device] for device in group) + seconds
            for device in group:
                plain[device] = end
    assert clocks.latest == max(plain)


def test_an_empty_program_takes_no_time():
    assert run(Program([], []), 4).step_seconds == 0

"""Programs simulated up to a limit: the same seconds as the full simulation, to the last bit."""

from __future__ import annotations

from math import inf, nextafter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans.random_programs import DEVICES, POOL, programs

from search.cost import bounded
from search.cost.bounded import BoundedSimulation
from search.cost.cost import NOTHING, Duration
from search.cost.simulate import price, run
from search.cost.tasks import ProgramStep, TaskProgram, tasks


@given(programs(), st.booleans(), st.floats(0.5, 1.5), st.sampled_from([0, DEVICES]))
@settings(deadline=None, max_examples=100)
def test_bounded_simulation_equals_full_simulation_below_the_limit(program, overlap, part, few):
    issued = tasks(program, overlap=overlap)
    whole = run(issued, DEVICES).simulation.step_seconds
    simulation = BoundedSimulation(DEVICES, few)
    assert simulation.seconds(issued, inf) == whole
    assert simulation.seconds(issued, nextafter(whole, inf)) == whole
    assert simulation.seconds(issued, whole) is None
    limit = part * whole
    assert simulation.seconds(issued, limit) == (whole if whole < limit else None)


def test_empty_program_takes_no_time():
    assert BoundedSimulation(DEVICES).seconds([], 1.0) == 0.0


def test_tasks_do_not_wait_for_tasks_of_other_devices():
    """A task of devices 1 and 3 alone does not wait for a task of device 2, even if it reads its
    result."""
    steps = [ProgramStep(POOL[5], NOTHING, ()), ProgramStep(POOL[6], NOTHING, (0,))]
    program = TaskProgram(steps, [])
    assert price(program, DEVICES).step_seconds == 5.0
    assert BoundedSimulation(DEVICES).seconds(tasks(program), 5.1) == 5.0


def test_longest_chain_rules_a_program_out_without_simulation(monkeypatch):
    """A chain that takes too long needs no simulation, and a busy stream needs little."""
    started: list[object] = []

    class Counted(bounded.Clocks):
        def advance(self, task):
            started.append(task)
            super().advance(task)

    monkeypatch.setattr(bounded, "Clocks", Counted)
    simulation = BoundedSimulation(DEVICES, few=0)
    second = Duration(np.arange(DEVICES)[None], np.array([1.0]))
    chain = [ProgramStep(second, NOTHING, (i - 1,) if i else ()) for i in range(20)]
    assert simulation.seconds(tasks(TaskProgram(chain, [])), 20.0) is None
    assert not started
    apart = [ProgramStep(second, NOTHING, ()) for _ in range(20)]
    assert simulation.seconds(tasks(TaskProgram(apart, [])), 5.0) is None
    assert len(started) == 5

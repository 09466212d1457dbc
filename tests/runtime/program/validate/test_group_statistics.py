"""Only programs that take statistics of the first group of samples are accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.plans.by_hand import make_plan

from pcg.plan.plan import Plan
from pcg.plan.statistics import RunningFile, named_values
from pcg.plan.text import parse_graph
from pcg.types.task import KernelTask
from runtime.program.lower import Lowering
from runtime.program.norms import FIRST_STATISTICS, GROUP_NORM, NORM, STATISTICS
from runtime.program.program import Instruction, Program, Run
from runtime.program.validate import ProgramError, validate

LEAVES = "x = input[8, 3]\nw = weight[3]\nb = weight[3]\n"
NORMED = LEAVES + "return mean_loss(ghost_batch_norm(sigmoid(x), w, b, groups={groups}, eps=0.1))"
CUT = """
y = ghost_batch_norm(sigmoid(partition(x, dim=0, degree=2)), replicate(w, degree=2),
 replicate(b, degree=2), groups={groups}, eps=0.1)
return mean_loss(combine(y, dim=0, degree=2))
""".replace("\n replicate", " replicate")
APART = """
y = combine(sigmoid(partition(x, dim=0, degree=4)), dim=0, degree=4)
return mean_loss(ghost_batch_norm(scale(y, factor=1.0), w, b, groups={groups}, eps=0.1))
"""
PLANS = {"normed": (CUT, 2), "taken once more": (APART, 4)}
"""Norms that also give statistics, and a tensor that no norm reads, with their devices."""


def plan_of(name: str, groups: int) -> Plan:
    text, devices = PLANS[name]
    model = parse_graph(NORMED.format(groups=groups))
    graph = parse_graph(LEAVES + text.strip().format(groups=groups))
    (value,) = (n for n, v in named_values(model).items() if v.node.name == "sigmoid")
    (at,) = (n for n, v in named_values(graph).items() if v.node.name == "sigmoid")
    kept = RunningFile(value=value, at=at, mean=("m",), variance=("v",), momentum=1.0)
    return replace(make_plan(model, graph, devices, {}), statistics=(kept,), norm_groups=groups)


def programs_of(plan: Plan) -> list[Program]:
    lowering = Lowering(plan)
    return [lowering.program(rank) for rank in range(lowering.ranks)]


def changed(programs: list[Program], change) -> list[Program]:
    """The programs with another instruction for the statistics on rank 0."""

    def other(instruction: Instruction) -> Instruction:
        takes = isinstance(instruction, Run) and instruction.call.operator in (
            FIRST_STATISTICS,
            GROUP_NORM,
        )
        return change(instruction) if takes else instruction

    first, *others = programs
    made = replace(first, instructions=tuple(map(other, first.instructions)))
    assert made != first
    return [made, *others]


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("groups", [2, 4, 8])
def test_statistics_of_the_first_group_are_accepted(name: str, groups: int):
    plan = plan_of(name, groups)
    validate(plan, programs_of(plan))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("factor", [0.5, 2])
def test_statistics_of_more_or_fewer_samples_are_refused(name: str, factor: float):
    """Also if the programs agree with one another, but not with the plan."""
    plan = plan_of(name, 4)
    other = replace(plan, norm_groups=round(4 / factor))
    with pytest.raises(ProgramError, match="rank 0"):
        validate(other, programs_of(plan))


@pytest.mark.parametrize("rows", [0, 1, 3, -2, 1.5, None])
def test_statistics_of_other_rows_are_refused(rows: object):
    def change(run: Run) -> Run:
        return replace(run, task=KernelTask({"rows": rows}, {}, {}))

    plan = plan_of("taken once more", 4)
    with pytest.raises(ProgramError, match=r"rank 0: .*(samples of|elements of)"):
        validate(plan, changed(programs_of(plan), change))


def test_statistics_of_all_samples_are_refused():
    def whole(run: Run) -> Run:
        values = dict(run.call.values)
        values.pop("groups")
        return replace(run, call=NORM(**values))

    plan = plan_of("normed", 4)
    with pytest.raises(ProgramError, match="the plan has no batch_norm of"):
        validate(plan, changed(programs_of(plan), whole))

    def all_rows(run: Run) -> Run:
        return replace(run, call=STATISTICS(), task=KernelTask({}, {}, {}))

    plan = plan_of("taken once more", 8)
    with pytest.raises(ProgramError, match="1 elements of channels"):
        validate(plan, changed(programs_of(plan), all_rows))


@pytest.mark.parametrize("name", PLANS)
def test_statistics_that_nobody_takes_are_missed(name: str):
    def gone(program: Program) -> Program:
        return replace(program, running=tuple(replace(r, piece=None) for r in program.running))

    plan = plan_of(name, 4)
    with pytest.raises(ProgramError, match=r"rank 0: t1\.mean: "):
        validate(plan, list(map(gone, programs_of(plan))))

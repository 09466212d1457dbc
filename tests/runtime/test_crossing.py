"""Tensors that cross stages in parts, on simulated ranks, against the model in one process."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.plans.pipelines import by_degrees, trained

from runtime.program.lower import Lowering
from runtime.program.program import AllGather, Exchange, Program
from runtime.program.validate import ProgramError, validate, validate_lowered
from substitutions.rules.store import load_library

SMALLEST = "tensor=2,pipeline=2,micro-batches=4"
PLANS = [
    pytest.param(SMALLEST, marks=pytest.mark.soak),
    pytest.param(
        "tensor=2,pipeline=2,interleave=2,micro-batches=8,recompute=full", marks=pytest.mark.soak
    ),
    "tensor=2,pipeline=2,interleave=2,micro-batches=4,recompute=selective",
]


@pytest.fixture(scope="module")
def library():
    return load_library()


def arrivals(program: Program) -> list[tuple[Exchange, AllGather]]:
    """The parts of the first slice that a rank receives from the stage before, and their
    gathers."""
    assert program.pipeline is not None
    own = program.pipeline.slices[0]
    gathers = {i.source: i for i in own if isinstance(i, AllGather)}
    came = (i for i in own if isinstance(i, Exchange) and i.receives)
    return [(one, gathers[one.target]) for one in came if one.target in gathers]


@pytest.mark.parametrize("text", PLANS)
def test_stages_compute_what_the_model_does(text, library):
    """A group has one order for all its operations, as with NCCL."""
    report = trained(by_degrees(text, library), steps=2, ordered=True)
    assert {c.kind for c in report.comparisons} >= {"loss", "weight"}
    assert not [c for c in report.comparisons if not c.passes]


@pytest.mark.parametrize("text", PLANS)
def test_each_rank_sends_a_part_of_its_own(text, library):
    lowering = Lowering(by_degrees(text, library))
    validate_lowered(lowering)
    programs = lowering.programs()
    later = [arrivals(program) for program in programs[2:]]
    assert all(later)
    for program, own in zip(programs[2:], later, strict=True):
        for exchange, gather in own:
            # Half of the tensor comes from its counterpart, the other half from its neighbour.
            assert [part.peer for part in exchange.receives] == [program.rank - 2]
            whole, half = program.shapes[gather.target], program.shapes[gather.source]
            assert 2 * half[0] == whole[0] or 2 * half[1] == whole[1]
            assert gather.group == (2, 3)


def test_a_rank_that_does_not_gather_is_found(library):
    lowering = Lowering(by_degrees(SMALLEST, library))
    programs = lowering.programs()
    slices = programs[3].pipeline
    assert slices is not None
    (gather,) = {gather for _, gather in arrivals(programs[3])}
    first = tuple(i for i in slices.slices[0] if i != gather)
    changed = replace(slices, slices=(first, *slices.slices[1:]))
    programs[3] = replace(programs[3], pipeline=changed)
    with pytest.raises(ProgramError):
        validate(lowering.plan, programs)

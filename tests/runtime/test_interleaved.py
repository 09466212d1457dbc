"""Interleaved pipelines on simulated ranks, against the model in one process."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
from support.cases import a_third
from support.plans.pipelines import DEVICES, in_stages, planned, skipping, trained
from support.plans.small_plans import small_plan
from support.runs.simulated import on_ranks

from pcg.errors import InputError
from pcg.plan.chunks import ChunksError, chunks_of, ordered
from pcg.plan.pipeline import PipelineFile, misfit
from pcg.plan.plan import load_plan, save_plan
from runtime.execute.executor import Executor
from runtime.program import buckets
from runtime.program.lower import Lowering
from runtime.program.program import Exchange
from runtime.program.validate import ProgramError, validate, validate_lowered
from substitutions.rules.store import load_library

CASES = [
    ("mlp-mnist", 8, 2, 2),
    ("mlp-mnist", 4, 4, 2),
    ("candle-uno-tiny", 4, 2, 3),
    ("candle-uno-tiny", 8, 4, 2),
    ("xdl-tiny", 4, 4, 3),
    ("xdl-tiny", 8, 2, 2),
    ("tied", 2, 4, 3),
    ("tied", 8, 2, 2),
    ("tied", 4, 4, 2),
]
"""Models, slices, stages, and chunks of each stage. In a tower of candle-uno, chunks send to
several."""


@pytest.fixture(scope="module")
def library():
    return load_library()


@pytest.mark.parametrize(("name", "slices", "stages", "interleave"), a_third(CASES))
def test_interleaved_stages_compute_what_the_model_does(name, slices, stages, interleave, library):
    plan = planned(name, library, slices, stages, interleave=interleave)
    report = trained(plan)
    assert report.comparisons
    assert not [c for c in report.comparisons if not c.passes]


@pytest.mark.parametrize(
    ("name", "slices", "stages", "interleave"), [CASES[0], CASES[1], CASES[-1]]
)
def test_no_group_has_to_do_two_things_at_once(
    name, slices, stages, interleave, library, monkeypatch
):
    """A group has one order for all its operations, as with NCCL. Every gradient is sent when it is
    complete."""
    monkeypatch.setattr(buckets, "FIRST_BYTES", 1)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 1)
    plan = planned(name, library, slices, stages, interleave=interleave)
    report = trained(plan, ordered=True)
    assert not [c for c in report.comparisons if not c.passes]


@pytest.mark.parametrize(("name", "slices", "stages", "interleave"), CASES)
def test_programs_of_all_ranks_are_shown_to_be_the_plan(name, slices, stages, interleave, library):
    validate_lowered(Lowering(planned(name, library, slices, stages, interleave=interleave)))


@pytest.mark.parametrize("seed", [0, 3, 16])
def test_layers_may_send_to_any_later_chunk(seed, library):
    """Over all stages and more than once around, cut anywhere. If a group has one order, nobody
    waits for ever either."""
    drawn = Random(seed)
    graph = skipping(drawn, drawn.randint(4, 7))
    stages, interleave = drawn.choice([(2, 2), (2, 3), (4, 2), (4, 3)])
    slices = drawn.choice([2, 4, 8])
    plan = in_stages(graph, library, slices, stages, interleave=interleave, drawn=drawn)
    validate_lowered(Lowering(plan))
    report = trained(plan, steps=2, ordered=True)
    assert not [c for c in report.comparisons if not c.passes]


def test_program_of_another_pipeline_is_refused(library):
    """With a single channel, messages to an earlier stage and those to a later one wait for
    ever."""
    lowering = Lowering(planned("mlp-mnist", library, 4, 4, interleave=2))
    programs = lowering.programs()

    def changed(rank: int, **fields):
        program = programs[rank]
        assert program.pipeline is not None
        other = replace(program, pipeline=replace(program.pipeline, **fields))
        return [other if p is program else p for p in programs]

    pipeline = programs[1].pipeline
    assert pipeline is not None
    for fields in (
        {"turns": pipeline.turns[::-1]},
        {"turns": tuple(t._replace(chunk=0) for t in pipeline.turns)},
        {"turns": tuple(t._replace(chunk=t.chunk + 1) for t in pipeline.turns)},
        {"chunk_ends": ()},
        {"channels": ()},
    ):
        with pytest.raises(ProgramError):
            validate(lowering.plan, changed(1, **fields))
    straight = [
        replace(p, pipeline=replace(p.pipeline, slices=_straight(p.pipeline.slices)))
        for p in programs
        if p.pipeline is not None
    ]
    with pytest.raises(ProgramError, match="never ends"):
        validate(lowering.plan, straight)


def _straight(slices):
    return tuple(
        tuple(replace(i, stages=None) if isinstance(i, Exchange) else i for i in own)
        for own in slices
    )


def test_forward_pass_alone_has_the_loss_of_a_step():
    """Slices without a backward pass."""
    lowering = Lowering(small_plan("interleaved"))

    def work(world):
        executor = Executor(lowering.program(world.rank), world, "fp64")
        forward = executor.forward(0, executor.formats, trains=False).loss
        alone = world.total(0.0 if forward is None else float(forward))
        return alone, executor.step(0, None).loss

    for alone, stepped in on_ranks(DEVICES, work):
        assert alone == pytest.approx(stepped, rel=1e-12)
        assert alone > 0


def test_steps_belong_to_the_first_chunk_that_has_what_they_read(library):
    plan = planned("tied", library, 4, 2, interleave=2)
    schedule = Lowering(plan).schedule
    chunks = chunks_of(schedule, 2, 2, 2)
    order = {step: at for at, step in enumerate(ordered(chunks, chunks.steps))}
    makers = {slot: at for at, step in enumerate(schedule.steps) for slot in step.results}
    numbers: set[int] = set()
    for at, (source, target) in chunks.steps.items():
        assert source <= target < source + 2
        numbers.add(target)
        for slot in schedule.steps[at].operands:
            if makers[slot] in order:
                assert chunks.steps[makers[slot]].target <= source
                assert order[makers[slot]] < order[at]
    assert numbers == {0, 1, 2, 3}
    with pytest.raises(ChunksError, match="needs chunk 2 of its stage, expected 1 at most"):
        chunks_of(schedule, 2, 2, 1)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"schedule": "2bw"}, "2 chunks of each stage with 2bw, expected 1f1b"),
        ({"stages": 1}, "2 chunks of each stage, expected 1 where there is one stage"),
        ({"stages": 3}, "3 stages, expected a divisor of 4 devices"),
        ({"interleave": 1 << 20}, "1048576 chunks of each stage, expected no more than operators"),
        ({"interleave": 0}, "interleave"),
        ({"interleave": 1 << 21}, "interleave"),
        ({"interleave": True}, "interleave"),
    ],
)
def test_wrong_interleaved_pipeline_in_a_plan_is_refused(fields, problem, library, tmp_path):
    path = tmp_path / "plan.json"
    save_plan(planned("mlp-mnist", library, 4, 2, interleave=2), path)
    content = json.loads(path.read_text())
    assert content["decisions"]["pipeline"]["interleave"] == 2
    assert load_plan(path).pipeline == PipelineFile(
        stages=2, micro_batches=4, schedule="1f1b", interleave=2
    )
    content["decisions"]["pipeline"].update(fields)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=problem):
        load_plan(path)


def test_data_that_comes_to_a_stage_too_often_is_refused(library):
    plan = planned("tied", library, 4, 2, interleave=3)
    assert plan.pipeline is not None
    fewer = plan.pipeline.model_copy(update={"interleave": 2})
    problem = misfit(fewer, plan.graph, plan.views, DEVICES)
    assert problem is not None
    assert problem.endswith("needs chunk 3 of its stage, expected 2 at most")


def test_a_program_shows_chunks_and_their_order(library):
    shown = str(Lowering(planned("mlp-mnist", library, 2, 2, interleave=2)).program(0))
    assert "in the order F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0" in shown
    assert shown.count("    chunk ") == 2

"""Recomputed operators and communication, on simulated ranks: plans of every kind train as before,
in the order that validation foresees, if a group has one order."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from support.cases import a_third
from support.plans.pipelines import planned, trained
from support.plans.small_plans import NAMES, again, gathered, small_plan

from pcg.plan.plan import Plan
from runtime.program import buckets
from runtime.program.lower import Lowering
from runtime.program.program import AllGather, Exchange, Program, Repeat
from runtime.program.validate import ProgramError, validate, validate_lowered
from substitutions.rules.store import load_library


def trains(plan: Plan) -> None:
    validate_lowered(Lowering(plan))
    report = trained(plan, ordered=True)
    assert not [c for c in report.comparisons if not c.passes]


def repeats(program: Program) -> list[Repeat]:
    parts = [program.instructions, *(program.pipeline.slices if program.pipeline else ())]
    return [i for part in parts for i in part if isinstance(i, Repeat)]


@pytest.mark.parametrize("name", a_third([name for name in NAMES if name != "halos"]))
def test_plan_that_recomputes_everything_trains_as_before(name, monkeypatch):
    """Gradients are sent as soon as they are complete, so their sums have to keep their place among
    the repeated communication."""
    monkeypatch.setattr(buckets, "FIRST_BYTES", 1)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 1)
    trains(again(small_plan(name)))


def sharded() -> Plan:
    plan = small_plan("fully sharded weights")
    gathers = frozenset(node for node in plan.graph.nodes if node.name == "combine")
    return replace(plan, recompute=gathers)


def test_a_fully_sharded_weight_is_gathered_twice():
    plan = sharded()
    for program in (Lowering(plan).program(rank) for rank in range(4)):
        (repeat,) = repeats(program)
        gathers = [i for i in program.instructions if isinstance(i, AllGather)]
        # The backward pass reads the second weight alone: the first is a factor of data.
        assert repeat.of == gathers[1]
        assert str(repeat).endswith("again in the backward pass, before that of what comes above")


@pytest.mark.parametrize("stages", [1, 2])
def test_weights_are_gathered_again_for_each_micro_batch(stages):
    plan = planned("mlp-mnist", load_library(), 4, stages, "1f1b")
    plan = gathered(plan, 4 // stages)
    once = Lowering(replace(plan, recompute=frozenset())).program(0)
    each = Lowering(plan).program(0)
    assert each.pipeline is not None
    assert once.pipeline is not None

    def moved(instructions) -> int:
        return sum(isinstance(i, Exchange | AllGather) for i in instructions)

    assert moved(once.instructions) > 0 == moved(each.instructions)
    for before, part in zip(once.pipeline.slices, each.pipeline.slices, strict=True):
        assert moved(part) == moved(before) + moved(once.instructions)
    trains(plan)


@pytest.mark.parametrize(
    ("name", "slices", "stages", "kind"),
    a_third(
        [
            ("mlp-mnist", 8, 2, "2bw"),
            ("candle-uno-tiny", 4, 2, "1f1b"),
            ("tied", 4, 2, "1f1b"),
            ("tied", 4, 2, "2bw"),
            ("xdl-tiny", 4, 1, "1f1b"),
            ("bert-large-tiny", 2, 2, "1f1b"),
        ]
    ),
)
def test_any_set_of_operators_is_recomputed_in_micro_batches(name, slices, stages, kind):
    plan = gathered(planned(name, load_library(), slices, stages, kind), 4 // stages)
    trains(plan)
    random = Random(0)
    nodes = [node for node in plan.graph.nodes if not node.is_leaf]
    trains(replace(plan, recompute=frozenset(n for n in nodes if random.random() < 0.5)))


def test_communication_repeated_on_all_ranks_but_one_is_refused():
    lowering = Lowering(sharded())
    programs = lowering.programs()
    alone = [i for i in programs[2].instructions if not isinstance(i, Repeat)]
    wrong = [*programs[:2], replace(programs[2], instructions=tuple(alone)), programs[3]]
    with pytest.raises(ProgramError, match="rank"):
        validate(lowering.plan, wrong)


def test_repetition_before_its_communication_is_refused():
    lowering = Lowering(sharded())
    programs = lowering.programs()
    moved: list[Program] = []
    for program in programs:
        (repeat,) = repeats(program)
        others = [i for i in program.instructions if i != repeat]
        moved.append(replace(program, instructions=(repeat, *others)))
    with pytest.raises(ProgramError, match="expected a communication from before it"):
        validate(lowering.plan, moved)

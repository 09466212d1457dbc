"""Pipelines with a pass for weights (ZB-H1), on simulated ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.plans.pipelines import DEVICES, by_degrees, in_stages, layers, planned, trained
from support.plans.small_plans import two_stages
from support.runs.simulated import on_ranks

from pcg.plan.pipeline import turns
from runtime.execute.executor import Executor
from runtime.program import buckets
from runtime.program.lower import Lowering
from runtime.program.program import Run
from runtime.program.validate import ProgramError, validate, validate_lowered
from substitutions.rules.store import load_library


@pytest.fixture(scope="module")
def library():
    return load_library()


@pytest.mark.parametrize(
    ("name", "slices", "stages", "small"),
    [
        pytest.param("mlp-mnist", 8, 4, True, marks=pytest.mark.soak),
        ("tied", 4, 4, True),
        ("mlp-mnist", 2, 2, False),
    ],
)
def test_zero_bubble_pipeline_trains_as_the_model(
    name, slices, stages, small, library, monkeypatch
):
    """Also with fewer slices than the delay of stages, and if every gradient is sent by itself."""
    if small:
        monkeypatch.setattr(buckets, "FIRST_BYTES", 1)
        monkeypatch.setattr(buckets, "BUCKET_BYTES", 1)
    plan = planned(name, library, slices, stages, "zb-h1")
    validate_lowered(Lowering(plan))
    report = trained(plan, ordered=True)
    assert not [c for c in report.comparisons if not c.passes]


BY_HAND = "pipeline=2,micro-batches=4,schedule=zb-h1"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"tensor=2,{BY_HAND}", marks=pytest.mark.soak),
        f"tensor=2,sequence,{BY_HAND},recompute=selective",
        pytest.param(f"{BY_HAND},recompute=full", marks=pytest.mark.soak),
        pytest.param(f"{BY_HAND},sharded", marks=pytest.mark.soak),
    ],
)
def test_decoders_by_hand(text, library):
    plan = by_degrees(text, library)
    report = trained(plan, steps=2, batches=2, ordered=True)
    assert not [c for c in report.comparisons if not c.passes]


def test_each_rank_follows_the_order_of_its_stage(library):
    """The delayed gradients of products come in the pass for weights of their slice, and not
    before."""
    plan = in_stages(layers(8, 8, 6), library, 8, 4, "zb-h1")
    lowering = Lowering(plan)

    def work(world):
        program, events = lowering.program(world.rank), []
        executor = Executor(program, world, "fp64")
        late = {w.register for w in program.trained if w.late is not None}
        for register in late:
            leaf = executor._versions[0].leaves[register]
            leaf.register_post_accumulate_grad_hook(lambda _, r=register: events.append(r))
        exchange = world.exchange

        def exchanged(outgoing, incoming, dtype, channel="forward", *rest):
            if incoming:
                events.append(channel[0].upper())
            return exchange(outgoing, incoming, dtype, channel, *rest)

        world.exchange = exchanged
        executor.step(0, lambda gradients: None)
        return [*late], events

    for stage, (late, events) in enumerate(on_ranks(DEVICES, work, ordered=True)):
        # The first stage receives nothing forward and the last nothing backward.
        seen = {"forward": stage > 0, "backward": stage < DEVICES - 1, "weights": True}
        order = [t.kind for t in turns(stage, DEVICES, 8, kind="zb-h1") if seen[t.kind]]
        actual = ["weights" if e in late else e for e in events]
        letters = {"forward": "F", "backward": "B", "weights": "weights"}
        wanted = [letters[kind] for kind in order for _ in (late if kind == "weights" else "x")]
        assert actual == wanted


def test_gradients_are_added_up_in_the_last_pass_for_weights(monkeypatch):
    """Gradients that are complete earlier are sent first."""
    monkeypatch.setattr(buckets, "FIRST_BYTES", 1)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 1)
    lowering = Lowering(two_stages("zb-h1"))

    def work(world):
        program, events = lowering.program(world.rank), []
        executor = Executor(program, world, "fp64")
        start = world.start_all_reduce
        for weight in program.trained:
            leaf, name = executor._versions[0].leaves[weight.register], weight.leaf.name
            leaf.register_post_accumulate_grad_hook(lambda _, n=name: events.append(n))

        def started(values, group):
            events.append("sum")
            return start(values, group)

        world.start_all_reduce = started
        executor.step(0, lambda gradients: None)
        return " ".join(events)

    first, *_, last = on_ranks(DEVICES, work, ordered=True)
    # Gradients of other operators, and of products without another gradient, are complete in the
    # backward pass.
    assert first == "w sum w"
    assert last == "u v u sum v sum"


def changed(program, **fields):
    return replace(program, pipeline=replace(program.pipeline, **fields))


def test_program_with_another_order_of_weight_passes_is_refused(library):
    lowering = Lowering(planned("mlp-mnist", library, 4, 4, "zb-h1"))
    programs = lowering.programs()
    validate(lowering.plan, programs)
    for rank in range(1, DEVICES):
        own = programs[rank]
        assert own.pipeline is not None
        order = own.pipeline.turns
        weights = [t for t in order if t.kind == "weights"]
        for wrong in (
            tuple(t for t in order if t.kind != "weights"),
            (*weights, *(t for t in order if t.kind != "weights")),
            order[:-1],
            (*order, order[-1]),
        ):
            others = [*programs]
            others[rank] = changed(own, turns=wrong)
            with pytest.raises(ProgramError):
                validate(lowering.plan, others)


def test_a_gradient_that_is_sent_before_its_pass_is_found(library):
    lowering = Lowering(two_stages("zb-h1"))
    programs = lowering.programs()
    early = [replace(p, weights=tuple(replace(w, late=None) for w in p.weights)) for p in programs]
    with pytest.raises(ProgramError, match="after its gradients have been summed"):
        validate(lowering.plan, early)


def test_only_products_of_slices_put_their_gradients_off():
    """Without slices there is no pass for weights."""
    lowering = Lowering(two_stages("zb-h1"))
    programs = lowering.programs()
    pipeline = programs[-1].pipeline
    assert pipeline is not None
    run = next(i for i in pipeline.slices[0] if isinstance(i, Run) and i.late is not None)
    others = [*programs]
    others[-1] = replace(programs[-1], instructions=(*programs[-1].instructions, run))
    with pytest.raises(ProgramError, match="puts a gradient off, and is of no slice"):
        validate(lowering.plan, others)


def test_a_program_shows_its_passes_for_weights(library):
    lowering = Lowering(planned("mlp-mnist", library, 4, 2, "zb-h1"))
    assert "in the order F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3" in str(lowering.program(0))
    assert "in the order F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3" in str(lowering.program(3))

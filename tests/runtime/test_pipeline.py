"""Pipelines on simulated ranks, against models of their update rules in one process."""

from __future__ import annotations

import pytest
from support.cases import a_third
from support.graphs import labels
from support.plans.pipelines import DEVICES, plan_of, planned, trained
from support.plans.small_plans import two_stages
from support.runs.simulated import on_ranks

from pcg.errors import InputError
from pcg.placement.layout import grid
from pcg.placement.view import MachineView
from pcg.plan.plan import Plan
from pcg.plan.text import parse_graph
from runtime.execute.executor import Executor
from runtime.program import buckets
from runtime.program.lower import Lowering
from substitutions.rules.store import load_library


@pytest.fixture(scope="module")
def library():
    return load_library()


@pytest.mark.parametrize(
    ("name", "slices", "stages"),
    a_third(
        [
            ("mlp-mnist", 8, 2),
            ("candle-uno-tiny", 4, 4),
            ("xdl-tiny", 2, 2),
            ("xdl-tiny", 4, 1),
            ("tied", 2, 2),
            ("tied", 4, 4),
        ]
    ),
)
def test_1f1b_computes_what_the_model_does(name, slices, stages, library):
    report = trained(planned(name, library, slices, stages, "1f1b"))
    assert not [c for c in report.comparisons if not c.passes]


@pytest.mark.parametrize(
    ("slices", "stages", "kind", "interleave"),
    [(4, 2, "1f1b", 1), (8, 4, "1f1b", 1), (4, 2, "1f1b", 2), (8, 1, "1f1b", 1), (4, 4, "2bw", 1)],
)
def test_labels_that_do_not_count_are_counted_in_the_whole_batch(
    slices, stages, kind, interleave, library
):
    """Micro-batches have different numbers of labels that count, and some have none."""
    plan = planned("labels", library, slices, stages, kind, interleave)
    report = trained(plan, data=f"{labels.__file__}:texts")
    assert not [c for c in report.comparisons if not c.passes]


@pytest.mark.parametrize(
    ("name", "slices", "stages", "kind"),
    [
        ("mlp-mnist", 8, 2, "1f1b"),
        ("mlp-mnist", 8, 4, "1f1b"),
        ("mlp-mnist", 8, 4, "2bw"),
        ("xdl-tiny", 4, 2, "1f1b"),
        ("tied", 4, 4, "1f1b"),
        ("tied", 4, 2, "2bw"),
    ],
)
def test_no_group_has_to_do_two_things_at_once(name, slices, stages, kind, library, monkeypatch):
    """A group has one order for all its operations, as with NCCL. Every gradient is sent when it is
    complete."""
    monkeypatch.setattr(buckets, "FIRST_BYTES", 1)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 1)
    report = trained(planned(name, library, slices, stages, kind), ordered=True)
    assert not [c for c in report.comparisons if not c.passes]


@pytest.mark.parametrize("kind", ["1f1b", "2bw"])
def test_sent_tensors_are_not_held_until_the_batch_ends(kind, library):
    def most(slices: int) -> list[int]:
        lowering = Lowering(planned("mlp-mnist", library, slices, 2, kind))

        def work(world):
            held: list[int] = []
            exchange = world.exchange

            def noted(*given):
                held_bytes = exchange(*given)
                held.append(world.held)
                return held_bytes

            world.exchange = noted
            executor = Executor(lowering.program(world.rank), world, "fp64")
            for step in range(3):
                executor.step(step, lambda gradients: None, more=step < 2)
            return max(held, default=0)

        return on_ranks(DEVICES, work)

    assert most(8) == most(4)


@pytest.mark.parametrize("kind", ["1f1b", "2bw"])
@pytest.mark.parametrize("ordered", [False, True])
def test_gradients_are_added_up_while_the_last_slice_goes_back(kind, ordered, monkeypatch):
    monkeypatch.setattr(buckets, "FIRST_BYTES", 1)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 1)
    plan = two_stages(kind)
    lowering = Lowering(plan)

    def work(world):
        events: list[str] = []
        exchange, start = world.exchange, world.start_all_reduce

        def exchanged(outgoing, incoming, dtype, channel="forward", *rest):
            events.append(channel)
            return exchange(outgoing, incoming, dtype, channel, *rest)

        def started(values, group):
            events.append("sum")
            return start(values, group)

        world.exchange, world.start_all_reduce = exchanged, started
        executor = Executor(lowering.program(world.rank), world, "fp64")
        executor.step(0, lambda gradients: None)
        return " ".join(events)

    # The gradient of one weight is ready before that of h is sent for the last time. That of the
    # product that reads h is computed meanwhile.
    for events in on_ranks(DEVICES, work, ordered=ordered)[2:]:
        assert events.endswith("backward sum backward sum")
    assert not [c for c in trained(plan, ordered=ordered).comparisons if not c.passes]


def by_hand(graph: str, **pipeline) -> Plan:
    """The plan with all operators on one device."""
    cut = parse_graph(graph)
    nodes = [node for node in cut.nodes if not node.is_leaf and not node.is_parallel]
    views = {node: MachineView.packed(0, grid(node)) for node in nodes}
    return plan_of(parse_graph(MODEL), cut, views, 1, 2, devices=1)


MODEL = """
x = input[8, 12]
w = weight[12, 6]
v = weight[6]
h = relu(matmul(x, w))
return sum_loss(matmul(h, unflatten(v, axis=0, outer=6, inner=1)))
"""


def test_the_tail_may_have_weights_of_its_own():
    """Gradients for slices are taken with zeros, those for the tail's own weights with the
    values."""
    plan = by_hand(
        """
        x = input[8, 12]
        w = weight[12, 6]
        v = weight[6]
        h = batch(relu(matmul(pipeline(x, dim=0, degree=2), w)), dim=0, degree=2)
        return sum_loss(matmul(h, unflatten(v, axis=0, outer=6, inner=1)))
        """
    )
    pipeline = Lowering(plan).program(0).pipeline
    assert pipeline is not None
    assert pipeline.tail_trains
    assert not [c for c in trained(plan).comparisons if not c.passes]


def test_a_tail_that_is_not_linear_is_refused():
    plan = by_hand(
        """
        x = input[8, 12]
        w = weight[12, 6]
        v = weight[6]
        h = relu(batch(matmul(pipeline(x, dim=0, degree=2), w), dim=0, degree=2))
        return sum_loss(matmul(h, unflatten(v, axis=0, outer=6, inner=1)))
        """
    )
    with pytest.raises(InputError, match="relu: joins slices and is not linear in them"):
        Lowering(plan).program(0)


def test_a_program_shows_slices_and_their_order(library):
    plan = planned("mlp-mnist", library, 4, 2, "2bw")
    shown = str(Lowering(plan).program(0))
    assert "in the order F0 F1 B0 F2 B1 F3 B2 B3" in shown
    assert "with the weights of one update before" in shown


@pytest.mark.parametrize(("kind", "batches"), [("2bw", 1), ("2bw", 2), ("1f1b", 2)])
def test_updates_agree_with_one_process(library, kind, batches):
    """Also with gradients of several batches. For 2bw these are all at the same older weights."""
    plan = planned("mlp-mnist", library, 4, 2, kind)
    report = trained(plan, steps=4, batches=batches)
    assert not [c for c in report.comparisons if not c.passes]

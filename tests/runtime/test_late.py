"""Gradients of weights that are computed while others are sent, on simulated ranks."""

from __future__ import annotations

import pytest
from support.plans.pipelines import DEVICES, by_degrees, trained
from support.runs.simulated import on_ranks

from runtime.execute.executor import Executor
from runtime.program import buckets
from runtime.program.lower import Lowering
from runtime.program.validate import validate_lowered
from substitutions.rules.store import load_library

PLANS = [
    "tensor=4,sequence",
    "tensor=2,sequence",
    "tensor=2,pipeline=2,micro-batches=4,sequence",
    "tensor=4,sequence,recompute=selective",
]
LARGE = "tensor=2,sequence"
"""The plan that also sends gradients together in each run."""
BY_ITSELF = PLANS[2:]
"""The plans that send every gradient by itself in each run."""


@pytest.mark.parametrize(
    ("text", "small"),
    [
        *(
            pytest.param(text, True, marks=() if text in BY_ITSELF else pytest.mark.soak)
            for text in PLANS
        ),
        *(
            pytest.param(text, False, marks=() if text == LARGE else pytest.mark.soak)
            for text in PLANS
        ),
    ],
)
def test_late_gradients_equal_those_of_the_model(text, small, monkeypatch):
    """Also if every gradient is sent by itself, in the order that a validation foresees."""
    if small:
        monkeypatch.setattr(buckets, "FIRST_BYTES", 1)
        monkeypatch.setattr(buckets, "BUCKET_BYTES", 1)
    plan = by_degrees(text, load_library())
    lowering = Lowering(plan)
    assert any(weight.late is not None for weight in lowering.program(0).weights)
    validate_lowered(lowering)
    report = trained(plan, steps=2, ordered=True)
    assert not [c for c in report.comparisons if not c.passes]


class Noted:
    """Communication that notes when it is waited for."""

    def __init__(self, inner, events: list[str]) -> None:
        self._inner, self._events = inner, events

    def wait(self) -> None:
        self._events.append("received")
        self._inner.wait()


def test_late_gradients_are_computed_between_sending_and_receiving():
    """The products that read tensors gathered along the sequence have late gradients."""
    lowering = Lowering(by_degrees("tensor=4,sequence", load_library()))
    late = {w.register for w in lowering.program(0).weights if w.late is not None}
    assert len(late) == 4, "two a layer"

    def work(world):
        events: list[str] = []
        collective = world.network.collective

        def noted(name, result, own, group):
            events.append(name)
            return Noted(collective(name, result, own, group), events)

        world.network.collective = noted
        executor = Executor(lowering.program(world.rank), world, "fp64")
        for register in late:
            leaf = executor._versions[0].leaves[register]
            leaf.register_post_accumulate_grad_hook(lambda _, r=register: events.append(r))
        executor.step(0, lambda gradients: None)
        return events

    for events in on_ranks(DEVICES, work, ordered=True):
        assert late <= set(events)
        for register in late:
            at = events.index(register)
            assert events[at - 1 : at + 2] == ["reduce_scatter", register, "received"]

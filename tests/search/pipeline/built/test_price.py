"""Memory of pipelines, device by device, against the lifetimes of their tensors."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import pytest
from support.plans.pipelines import DEVICES, in_stages, layers, model_graph

from pcg.machine import load_machine
from pcg.placement.late import late_steps
from pcg.placement.schedule import schedule
from search.cost.cost import CostModel
from search.cost.liveness import liveness
from search.cost.memory import itemsizes
from search.pipeline.built.price import StageGroups, chunks_on, held_by_device
from search.pipeline.flights import flights
from substitutions.rules.store import load_library


@pytest.mark.parametrize(
    ("name", "slices", "stages", "interleave", "kind", "again"),
    [
        ("mlp-mnist", 4, 2, 1, "1f1b", ()),
        ("mlp-mnist", 8, 2, 2, "1f1b", ()),
        ("tied", 4, 4, 1, "1f1b", ()),
        ("labels", 4, 2, 2, "1f1b", ()),
        ("mlp-mnist", 8, 4, 1, "zb-h1", ()),
        ("layers", 8, 4, 1, "zb-h1", ()),
        ("layers", 8, 4, 1, "zb-h1", ("relu",)),
    ],
)
def test_price_of_memory_equals_the_live_tensors_of_a_device(
    name, slices, stages, interleave, kind, again
):
    """At the peak of one micro-batch, with the tensors that others leave behind."""
    graph = layers(8, 8, 12) if name == "layers" else model_graph(name)
    plan = in_stages(graph, load_library(), slices, stages, kind, interleave)
    remade = {node for node in plan.graph.operators if node.name in again}
    steps = schedule(plan.graph, plan.views)
    cost = CostModel(load_machine("dgx-a100").with_devices(DEVICES))
    groups = StageGroups(stages, DEVICES // stages, slices, interleave)
    *_, by_device = held_by_device(steps, cost, groups, kind, remade)
    chunks = chunks_on(steps, groups)
    numbers, has_pass = chunks.numbers if chunks else {}, kind == "zb-h1"
    living = liveness(steps, remade, groups.size, numbers, has_weights_pass=has_pass)
    again_steps = {at for at, step in enumerate(steps.steps) if getattr(step, "node", 0) in remade}
    itemsize = itemsizes(steps, cost.training)

    def chunk_of(slot) -> int:
        return chunks.slots.get(slot, 0) // stages if chunks else 0

    def held(device: int, chunk: int, time: int) -> int:
        """Bytes of a chunk at that time, and of the tensors that all chunks share."""
        total = 0
        for life in living.lifetimes:
            one = life.layout.one_slice
            if device not in life.layout.devices or not life.first <= time <= life.last:
                continue
            sliced = one is not None and chunk_of(life.slot) == chunk
            if sliced or one is None:
                total += prod((one or life.layout).type.block) * itemsize(life)
        return total

    def at_turn(device: int, working: int, waiting: tuple[int, ...], left: tuple[int, ...]) -> int:
        turn, times = living.end // 2, range(living.end + 1)
        behind = [between(device, chunk, turn) for chunk in range(interleave)]
        most = max(held(device, working, time) for time in times)
        late = sum(late_on(device)) if left else 0
        return most + int(np.dot(waiting, behind)) + sum(left) * late

    def late_on(device: int) -> Iterator[int]:
        """Bytes that the pass for weights needs: the operands of products with weights, and their
        gradients."""
        held = {
            slot
            for at, operand in late_steps(steps, again_steps).items()
            for slot in (steps.steps[at].operands[1 - operand], *steps.steps[at].results)
        }
        for slot in held:
            if device in slot.layout.devices and (one := slot.layout.one_slice):
                yield prod(one.type.block) * cost.itemsize

    def between(device: int, chunk: int, turn: int) -> int:
        """Bytes that are live on both sides of the turn from forward to backward."""
        return sum(
            prod(one.type.block) * itemsize(life)
            for life in living.lifetimes
            if (one := life.layout.one_slice) is not None
            and device in life.layout.devices
            and chunk_of(life.slot) == chunk
            and life.first < turn <= life.last
        )

    for device in range(DEVICES):
        turns = flights(device // groups.size, stages, slices, interleave, kind)
        assert by_device[device] == max(at_turn(device, *flight) for flight in turns)

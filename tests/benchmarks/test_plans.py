"""How good plans are, and how long they take to find: `make bench`.

Every figure is a ratio of two plans priced by the same cost model in one run.
"""

from __future__ import annotations

from math import inf

import pytest
from benchmarks.plans_by_hand import data_times_tensor

from pcg.errors import OperatorError
from pcg.machine import Machine, load_machine
from pcg.models import MODELS, build_model
from search.cost import CostModel
from search.mapping import Mapper
from search.optimizer import Optimizer
from substitutions.store import load_library

WIDTHS = {"mlp": (8192,) * 17, "mlp-tiny": (512,) * 5, "mlp-mnist": (784, 512, 10)}


def best_by_hand(machine: Machine, model: str) -> tuple[float, str]:
    """Seconds of the best data x tensor plan of all degrees, and its name."""
    mapper = Mapper(machine, CostModel(machine))
    batch = MODELS[model].batch_per_device * machine.devices
    best, name = inf, "none"
    degrees = [d for d in range(1, machine.devices + 1) if machine.devices % d == 0]
    for data in degrees:
        for tensor in (d for d in degrees if data * d <= machine.devices):
            graph = data_times_tensor(batch, WIDTHS[model], data, tensor)
            try:
                graph.check()
            except OperatorError:
                continue  # the degree does not divide a size
            mapped = mapper.best(graph)
            if mapped is not None and mapped.seconds < best:
                best, name = mapped.seconds, f"data {data} x tensor {tensor}"
    return best, name


@pytest.mark.benchmark
@pytest.mark.parametrize(
    ("model", "preset", "nodes"),
    [
        ("mlp-tiny", "local", 1),
        ("mlp-mnist", "local", 1),
        ("mlp", "summit", 1),
        ("mlp", "dgx-a100", 1),
        ("mlp", "dgx-h100", 1),
    ],
)
def test_plans_against_the_best_by_hand(model: str, preset: str, nodes: int) -> None:
    machine = load_machine(preset).with_nodes(nodes)
    graph = build_model(model, None, machine.devices)
    found = Optimizer(machine, load_library()).optimize(model, graph)
    seconds = found.plan.estimates.step_seconds
    by_hand, name = best_by_hand(machine, model)
    print(
        f"\n{model} on {machine.devices} x {preset}: {seconds * 1e3:.3g} ms a step,"
        f" {by_hand / seconds:.3f} x the best by hand ({name}),"
        f" {found.plan.estimates.one_device_seconds / seconds:.2f} x one device;"
        f" {found.report.candidates} candidates in {found.report.seconds:.1f} s"
    )
    assert seconds <= by_hand * 1.01

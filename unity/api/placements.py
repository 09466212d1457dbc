"""Describe a plan in the terms of DTensor: placements of parameters and inputs on one device mesh.

Problem: a plan places every tensor by itself, each piece on given devices. DTensor has one mesh,
whose axes cut or copy whole tensors.

Method: the finest mesh has an axis for each prime factor of the number of devices. A step along an
axis from device 0 either leaves a tensor's region as it is or changes it along one dimension. That
suggests a placement. DTensor's regions for the suggested placements are compared with the plan's on
every device, so the result is exact. If the factors differ, up to ``MOST_ORDERS`` of their orders
are tried, and the order that describes most tensors is used. Axes that all tensors treat alike are
joined.

Complexity: orders times tensors times devices times axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import Any

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard

from pcg.placement import schedule as steps
from pcg.placement.layout import Layout
from pcg.placement.region import Region
from pcg.plan.naming import swapped_last
from pcg.plan.plan import Plan
from runtime.program.lower import Lowering
from search.report.describe import pipeline_text

MOST_ORDERS = 24
"""The most orders of the prime factors that are tried."""
Cuts = tuple[int | None, ...]
"""For each axis of a mesh: the dimension that it cuts, or None if it copies."""


@dataclass(frozen=True)
class DTensorPlan:
    """The part of a plan that DTensor can express.

    ``mesh_shape``: the shape of the mesh of devices in order; the last axis is the innermost.
    ``parameters``: placements by name in the module, in its orientation. ``inputs``: placements by
    name. ``unsaid``: a line for each part of the plan that is left out.
    """

    device_type: str
    mesh_shape: tuple[int, ...]
    parameters: Mapping[str, tuple[Placement, ...]]
    inputs: Mapping[str, tuple[Placement, ...]]
    unsaid: tuple[str, ...]

    def mesh(self, **options: Any) -> DeviceMesh:
        """Return the mesh. It needs as many processes as devices. ``options``: further options of
        ``init_device_mesh``, such as ``mesh_dim_names``."""
        return init_device_mesh(self.device_type, self.mesh_shape, **options)


def to_dtensor(plan: Plan) -> DTensorPlan:
    """Describe a plan in DTensor's terms. Raises InputError for a plan that cannot be executed."""
    lowering = Lowering(plan)
    devices = plan.machine.devices
    weights = {node.leaf.name: layout for node, layout in lowering.schedule.homes.items()}
    inputs: dict[str, Layout] = {}
    for step in lowering.schedule.steps:
        if isinstance(step, steps.LeafAtHome) and step.slot.value.node.leaf.kind == "input":
            inputs.setdefault(step.slot.value.node.leaf.name, step.slot.layout)
    layouts = {**weights, **inputs}
    shape, placements = _said(layouts, devices)
    unsaid: list[str] = []
    for name in (name for name in layouts if name not in placements):
        called = plan.naming.parameter(name).names[0] if name in weights else name
        unsaid.append(f"{called}: {_why(layouts[name], devices)}")
    parameters: dict[str, tuple[Placement, ...]] = {}
    for name in (name for name in weights if name in placements):
        record, rank = plan.naming.parameter(name), weights[name].type.rank
        turned = _turned(placements[name], rank) if record.transposed else placements[name]
        parameters.update(dict.fromkeys(record.names, _placements(turned)))
    said = {name: _placements(placements[name]) for name in inputs if name in placements}
    kind = "cuda" if plan.machine.kind == "gpu" else "cpu"
    return DTensorPlan(kind, shape, parameters, said, (*unsaid, *_further(plan)))


def _said(layouts: Mapping[str, Layout], devices: int) -> tuple[tuple[int, ...], dict[str, Cuts]]:
    """Return the mesh that describes most layouts, and the cuts of these tensors by its axes."""
    best: tuple[tuple[int, ...], dict[str, Cuts]] | None = None
    for factors in islice(_orders(_factors(devices)), MOST_ORDERS):
        cuts = {name: _cuts(layout, devices, factors) for name, layout in layouts.items()}
        by_leaf = {name: own for name, own in cuts.items() if own is not None}
        if best is None or len(by_leaf) > len(best[1]):
            best = factors, by_leaf
        if len(by_leaf) == len(layouts):
            break
    assert best is not None, "there is an order"
    return _joined(*best)


def _orders(factors: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield every order of some numbers, each once."""
    if not factors:
        yield ()
    for first in dict.fromkeys(factors):
        at = factors.index(first)
        for others in _orders((*factors[:at], *factors[at + 1 :])):
            yield first, *others


def _cuts(layout: Layout, devices: int, factors: Sequence[int]) -> Cuts | None:
    """Return the cuts of a tensor by the axes of the finest mesh; None if no placement fits."""
    regions = layout.regions
    if sorted(regions) != list(range(devices)) or layout.type.degrees.partials > 1:
        return None
    cuts: list[int | None] = []
    for axis in range(len(factors)):
        ours, other = regions[0], regions[prod(factors[axis + 1 :]) % devices]
        moved = [dim for dim, (a, b) in enumerate(zip(ours, other, strict=True)) if a != b]
        if len(moved) > 1:
            return None
        cuts.append(moved[0] if moved else None)
    for device, place in enumerate(product(*map(range, factors))):
        if regions[device] != _region(layout.type.shape, cuts, factors, place):
            return None
    return tuple(cuts)


def _region(
    shape: Sequence[int], cuts: Sequence[int | None], factors: Sequence[int], place: Sequence[int]
) -> Region | None:
    """Return the region that DTensor gives a device. Axes cut a dimension one after the other, the
    outermost first. None if a size does not divide."""
    bounds = [(0, size) for size in shape]
    for cut, factor, at in zip(cuts, factors, place, strict=True):
        if cut is None:
            continue
        start, stop = bounds[cut]
        size, left = divmod(stop - start, factor)
        if left:
            return None
        bounds[cut] = (start + at * size, start + (at + 1) * size)
    return tuple(bounds)


def _joined(
    factors: Sequence[int], found: Mapping[str, Cuts]
) -> tuple[tuple[int, ...], dict[str, Cuts]]:
    """Join neighbouring axes of the mesh that cut every tensor alike."""
    shape: list[int] = []
    kept: list[int] = []
    for axis, factor in enumerate(factors):
        if kept and all(cuts[axis] == cuts[kept[-1]] for cuts in found.values()):
            shape[-1] *= factor
        else:
            shape.append(factor)
            kept.append(axis)
    return tuple(shape), {name: tuple(cuts[a] for a in kept) for name, cuts in found.items()}


def _why(layout: Layout, devices: int) -> str:
    """Return why no placements describe a layout."""
    held = sorted(layout.regions)
    if len(held) < devices:
        return (
            f"is on {len(held)} of {devices} devices, but a DTensor is on all devices of its mesh"
        )
    return "its pieces are in an order that no mesh has"


def _further(plan: Plan) -> list[str]:
    """Return lines about the parts of a plan that are not placements of parameters or inputs."""
    lines: list[str] = []
    if (text := pipeline_text(plan)) is not None:
        lines.append(f"{text}: DTensor has no schedule")
    if plan.derivation:
        lines.append(f"{len(plan.derivation)} rewrites of the graph")
    if plan.recompute:
        lines.append(f"{len(plan.recompute)} operators recomputed")
    lines.append("cuts of the results of operators, which DTensor derives by itself")
    return lines


def _turned(cuts: Cuts, rank: int) -> Cuts:
    """Return the cuts of the transposed matrix, or matrices."""
    order = swapped_last(range(rank))
    return tuple(None if cut is None else order[cut] for cut in cuts)


def _placements(cuts: Cuts) -> tuple[Placement, ...]:
    return tuple(Replicate() if cut is None else Shard(cut) for cut in cuts)


def _factors(number: int) -> tuple[int, ...]:
    """Return the prime factors of a number, ascending; (1,) for 1."""
    factors: list[int] = []
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return (*factors, number) if number > 1 or not factors else tuple(factors)

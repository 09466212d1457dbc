"""Measures a machine: in processes of its own, or as a process of torchrun."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from pcg.device import DeviceKind, DType
from pcg.errors import InputError
from pcg.files import check_writable, write_text_atomic
from pcg.machine import Machine, load_machine
from pcg.plan.precision import FORMATS, Precision, precision_of
from pcg.plan.profile import LinkSeries, OperatorSeries, Point, Profile, link_rate
from runtime.world.launch import launch
from unity.profile import Options
from unity.support.cli import say_json
from unity.support.console import PlainConsole

if TYPE_CHECKING:
    from runtime.train.measure import RankMeasurements, Timing

PRECISIONS: dict[DeviceKind, tuple[Precision, ...]] = {
    "cpu": ("fp32", "fp64"),
    "gpu": ("fp32", "tf32", "fp64", "bf16", "fp16"),
}
"""The number formats to measure on each kind of device, by default."""
TIMEOUT = 120.0
"""Seconds that a communication may take."""


def run(options: Options) -> None:
    """Measure, and write a profile. Raises InputError for devices that this computer lacks."""
    machine = _target(load_machine(options.machine), options.nodes)
    formats = _formats(machine, options.precision)
    check_writable(options.out)
    measured = _measured(machine, formats, options.devices)
    if measured is None:
        return
    profile = _profile(machine, measured)
    content = profile.model_dump(mode="json")
    write_text_atomic(options.out, json.dumps(content, indent=1) + "\n")
    if options.as_json:
        say_json(content)
    else:
        _print(profile, options.out)


def _target(machine: Machine, nodes: int) -> Machine:
    """Return the machine with so many nodes. Raises InputError without torchrun's processes."""
    if nodes == 1:
        return machine
    target = machine.with_nodes(nodes)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes != target.devices:
        problem = f"expected {target.devices} processes that torchrun started, got {processes}"
        raise InputError("--nodes", problem)
    return target


def _formats(machine: Machine, wanted: list[str] | None) -> tuple[DType, ...]:
    known = PRECISIONS[machine.device.kind]
    asked = [precision_of(name) for name in wanted or known]
    for name in asked:
        if name not in known:
            raise InputError("--precision", f"{name}: expected some of {', '.join(known)}")
    return tuple(FORMATS[name].products for name in known if name in asked)


def _measured(
    machine: Machine, formats: Sequence[DType], devices: int | None
) -> RankMeasurements | None:
    """Measure as a process of torchrun, or in new processes. Only rank 0 has a result."""
    units = (*machine.units, machine.devices)
    job = (machine.device.kind, formats, units, TIMEOUT)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return work(*job)
    here = machine.devices_per_node
    if machine.device.kind == "gpu":
        import torch

        here = min(here, torch.cuda.device_count())
        if not here:
            raise InputError("machine", f"{machine.name} has GPUs, this computer has none")
    count = here if devices is None else devices
    if not 1 <= count <= here:
        where = "--devices" if devices is not None else "machine"
        raise InputError(where, f"expected 1 to {here} devices of this computer, got {count}")
    # A new process even for one device: this one may have changed settings of torch.
    return launch(work, job, count)


def work(
    kind: str, formats: Sequence[DType], units: Sequence[int], timeout: float
) -> RankMeasurements | None:
    """Measure as one process."""
    # Imported here because the command, which starts processes, does not need torch.
    from runtime.train.measure import measure

    return measure("gpu" if kind == "gpu" else "cpu", formats, units, timeout)


def _profile(machine: Machine, measured: RankMeasurements) -> Profile:
    operators = [
        OperatorSeries(kind=kind, dtype=dtype, points=_points(series))
        for (kind, dtype), series in measured.operators.items()
    ]
    links = [
        LinkSeries(level=level.name, of=link.of, devices=link.devices, points=_points(link.timings))
        for level, links in zip(machine.levels, measured.links, strict=False)
        for link in links
    ]
    return Profile(
        schema_version=1,
        machine=machine.name,
        device=measured.device,
        operators=tuple(operators),
        links=tuple(links),
    )


def _points(series: Sequence[Timing]) -> tuple[Point, ...]:
    return tuple(Point(size=t.size, seconds=t.seconds, spread=t.spread) for t in series)


def _print(content: Profile, out: Path) -> None:
    console = PlainConsole()
    table = Table(title=f"{content.machine}: {content.device}")
    for heading in ("what", "format", "least", "spread", "best rate"):
        table.add_column(heading, justify="left" if heading in ("what", "format") else "right")
    for series in content.operators:
        unit = "FLOP/s" if series.kind in ("contraction", "function") else "B/s"
        table.add_row(series.kind, series.dtype, *_summary(series.points, unit))
    for link in content.links:
        table.add_row(f"{link.of}, {link.level}", "", *_summary(link.points, "B/s"))
    console.print(table)
    for link in content.links:
        rate = link_rate(link, out)
        console.print(
            f"{link.level}, {link.of}: latency {rate.latency * 1e6:.3g} us a step,"
            f" bandwidth {rate.bandwidth / 1e9:.3g} GB/s",
            soft_wrap=True,
        )
    console.print(f"written to {out}", soft_wrap=True)


def _summary(points: Sequence[Point], unit: str) -> tuple[str, str, str]:
    """The time of the smallest point, the largest spread, and the best rate."""
    spread = max(point.spread / point.seconds for point in points)
    rate = max(point.size / point.seconds for point in points)
    return f"{points[0].seconds * 1e6:.3g} us", f"{spread:.0%}", f"{rate / 1e9:.3g} G{unit}"

"""`unity simulate`: the predicted step of a plan, in time and memory.

python -m unity.simulate plan.json
python -m unity.simulate plan.json --trace trace.json --devices 0-7
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from pcg.errors import InputError
from pcg.files import check_writable
from pcg.machine import Machine, load_machine
from pcg.plan.plan import load_plan
from pcg.plan.schema import MachineFile
from search.cost.efficiency import Speed
from search.pipeline.stage_timeline import PipelineRun
from search.report.describe import pipeline_text
from search.report.trace import (
    SimulatedPlan,
    representatives,
    simulate_plan,
    stage_span,
    write_trace,
)
from unity.support.cli import PlainConsole, new_app, run_app, say
from unity.support.declarations import load_user_operators
from unity.support.origin import machine_of
from unity.support.speed import PROFILE_HELP, measured

app = new_app()


@app.command()
def simulate(
    plan: Annotated[Path, typer.Argument(help="A plan that `unity optimize` wrote.")],
    machine: Annotated[
        str | None,
        typer.Option(help="The machine's file; by default the preset that the plan names."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Its nodes; by default as many as the plan's devices take.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write the timeline for Chrome's viewer or Perfetto.")
    ] = None,
    devices: Annotated[
        str | None, typer.Option(help="Devices of the timeline, such as 0-7,12; by default a few.")
    ] = None,
    profile: Annotated[Path | None, typer.Option(help=PROFILE_HELP)] = None,
    operators: Annotated[
        Path | None, typer.Option(help="A Python file that declares further operators.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Simulate a training step by PLAN."""
    if operators is not None:
        load_user_operators(operators)
    loaded = load_plan(plan)
    target, speed = _machine(str(plan), loaded.machine, machine, nodes, profile)
    shown = None if devices is None else device_list(devices, target.devices)
    found = simulate_plan(loaded, target, speed)
    if trace is not None:
        save_trace(found, trace, shown)
    if as_json:
        say(json.dumps(report(found), indent=1))
    else:
        _print(found, trace)


def save_trace(found: SimulatedPlan, path: Path, devices: tuple[int, ...] | None = None) -> None:
    """Write the timeline of some devices, a few by default."""
    check_writable(path)
    write_trace(found, path, representatives(found) if devices is None else devices)


def _machine(
    plan: str, wanted: MachineFile, name: str | None, nodes: int | None, profile: Path | None
) -> tuple[Machine, Speed | None]:
    """The machine of a plan, and how fast its devices are; InputError where it is another than the
    plan was made for."""
    found = load_machine(wanted.name if name is None else name)
    return measured(machine_of(wanted, plan, found, nodes), profile)


def device_list(text: str, devices: int) -> tuple[int, ...]:
    """Device numbers, such as ``0-7,12``. Raises InputError for other text and for devices that
    the machine lacks."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if match is None:
            raise InputError("--devices", f"{text}: expected numbers and ranges, such as 0-7,12")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < devices:
            raise InputError("--devices", f"{part.strip()}: expected some of 0 to {devices - 1}")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def report(found: SimulatedPlan) -> dict[str, object]:
    """What is printed, as JSON: seconds and bytes."""
    use, memory, estimates = found.busiest, found.memory, found.plan.estimates
    return {
        "model": found.plan.model_name,
        "machine": found.machine.name,
        "devices": found.machine.devices,
        "optimizer": found.plan.optimizer,
        "recomputed_operators": len(found.plan.recompute),
        "step_seconds": found.step_seconds,
        "phases": dict(found.phases),
        "pipeline": None if found.pipeline is None else _stages(found.pipeline),
        "busiest_device": {
            "device": use.device,
            "computing": use.computing,
            "communication_hidden": use.hidden,
            "communication_exposed": use.exposed,
            "idle": _idle(found),
        },
        "memory": {
            "device": memory.device,
            "bytes": memory.total,
            "parameters": memory.parameters,
            "gradients": memory.gradients,
            "optimizer": memory.optimizer,
            "activations": memory.activations,
        },
        "plan_estimate": {
            "step_seconds": estimates.step_seconds,
            "peak_memory_bytes": estimates.peak_memory_bytes,
        },
    }


def _stages(run: PipelineRun) -> dict[str, object]:
    """A pipeline as JSON. Seconds ``forward`` and ``backward`` are those of one micro-batch, and
    ``once`` those of what is done once a step."""
    return {
        "schedule": run.pipeline.schedule,
        "micro_batches": run.pipeline.micro_batches,
        "stages": [
            {
                "forward": stage.forward,
                "backward": stage.backward,
                "once": stage.before + stage.after,
                "waiting": run.waiting(number),
            }
            for number, stage in enumerate(run.seconds)
        ],
    }


def _idle(found: SimulatedPlan) -> float:
    """Seconds for which the busiest device has nothing to do."""
    return max(found.step_seconds - found.busiest.busy, 0.0)


PHASES = {
    "forward": "forward",
    "backward": "backward",
    "sync": "exchange of gradients after it",
    "update": "update",
    "waiting": "waiting for other stages",
}
"""What is printed of phases."""


def _phase_rows(found: SimulatedPlan) -> list[tuple[str, float]]:
    """The phases by name; of a pipeline, those of the stage that decides how long a step takes."""
    names = [PHASES[name] for name in found.phases]
    if (run := found.pipeline) is not None:
        why = "the last to end" if run.pipeline.schedule == "1f1b" else "the slowest"
        first, *rest = names
        names = [f"stage {run.last}, {why}: {first}", *(f"    {name}" for name in rest)]
    return list(zip(names, found.phases.values(), strict=True))


def _print(found: SimulatedPlan, trace: Path | None) -> None:
    use, memory, run = found.busiest, found.memory, found.pipeline
    console = PlainConsole()
    pipeline = pipeline_text(found.plan)
    title = f"{found.plan.model_name} on {found.machine.devices} x {found.machine.name}"
    table = Table(title=f"{title}, {pipeline}" if pipeline else title)
    for heading in ("what", "ms", "part"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for name, seconds in (
        *_phase_rows(found),
        ("step", found.step_seconds),
        (f"device {use.device}, the busiest: computing", use.computing),
        ("    communication, hidden", use.hidden),
        ("    communication, exposed", use.exposed),
        ("    idle", _idle(found)),
    ):
        part = seconds / found.step_seconds if found.step_seconds else 0.0
        table.add_row(name, f"{seconds * 1e3:.3f}", f"{part:.1%}")
    console.print(table)
    if run is not None:
        console.print(_stage_table(run))
    kinds = ("parameters", "gradients", "optimizer", "activations")
    shares = ", ".join(f"{kind} {_size(getattr(memory, kind))}" for kind in kinds)
    console.print(
        f"at most {_size(memory.total)}, on device {memory.device}: {shares}", soft_wrap=True
    )
    estimates = found.plan.estimates
    console.print(
        f"the plan's own estimate: {estimates.step_seconds * 1e3:.3f} ms,"
        f" {_size(estimates.peak_memory_bytes)}",
        soft_wrap=True,
    )
    if trace is not None:
        console.print(f"timeline written to {trace}", soft_wrap=True)


def _stage_table(run: PipelineRun) -> Table:
    """What each stage does in a step, in milliseconds."""
    table = Table(title="ms a stage")
    for heading in ("stage", "devices", "forward", "backward", "once a step", "waiting"):
        table.add_column(heading, justify="right")
    for number, stage in enumerate(run.seconds):
        times = f"{run.pipeline.micro_batches} x"
        once = stage.before + stage.after
        table.add_row(
            str(number),
            stage_span(number, run.groups).split()[1],
            f"{times} {stage.forward * 1e3:.3f}",
            f"{times} {stage.backward * 1e3:.3f}",
            f"{once * 1e3:.3f}",
            f"{run.waiting(number) * 1e3:.3f}",
        )
    return table


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.2f} MB"


if __name__ == "__main__":
    run_app(app, "simulate")

"""Predicts the time and memory of a step, in parts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from pcg.errors import InputError
from pcg.files import check_writable
from pcg.plan.plan import load_plan
from pcg.plan.precision import precision_of
from search.pipeline.stage_timeline import PipelineRun
from search.report.describe import pipeline_text
from search.report.trace import (
    SimulatedPlan,
    representatives,
    simulate_plan,
    stage_span,
    write_trace,
)
from unity.simulate import Options
from unity.support.cli import say_json
from unity.support.console import PlainConsole
from unity.support.declarations import load_user_operators
from unity.support.origin import machine_and_speed


def run(options: Options) -> None:
    """Simulate a step. Raises InputError for a plan of another machine."""
    load_user_operators(options.operators)
    plan = load_plan(options.plan)
    if options.precision is not None:
        training = replace(plan.training, precision=precision_of(options.precision))
        plan = replace(plan, training=training)
    where = str(options.plan)
    machine, speed = machine_and_speed(plan, where, options.machine, options.nodes, options.profile)
    devices = None if options.devices is None else device_list(options.devices, machine.devices)
    simulated = simulate_plan(plan, machine, speed)
    if options.trace is not None:
        check_writable(options.trace)
        write_trace(simulated, options.trace, devices or representatives(simulated))
    if options.as_json:
        say_json(report(simulated))
    else:
        _print(simulated, options.trace)


def device_list(text: str, devices: int) -> tuple[int, ...]:
    """Return the device numbers of a text such as ``0-7,12``. Raises InputError for other text, and
    for devices that the machine lacks."""
    listed: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if match is None:
            raise InputError("--devices", f"{text}: expected numbers and ranges, such as 0-7,12")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < devices:
            raise InputError("--devices", f"{part.strip()}: expected some of 0 to {devices - 1}")
        listed.update(range(first, last + 1))
    return tuple(sorted(listed))


def report(simulated: SimulatedPlan) -> dict[str, object]:
    """The content of the JSON output, in seconds and bytes."""
    use, memory, estimates = simulated.busiest, simulated.memory, simulated.plan.estimates
    return {
        "model": simulated.plan.model_name,
        "machine": simulated.machine.name,
        "devices": simulated.machine.devices,
        "optimizer": simulated.plan.training.optimizer,
        "precision": simulated.plan.training.precision,
        "recomputed_operators": len(simulated.plan.recompute),
        "step_seconds": simulated.step_seconds,
        "phases": dict(simulated.phases),
        "pipeline": None if simulated.pipeline is None else _stages(simulated.pipeline),
        "busiest_device": {
            "device": use.device,
            "computing": use.computing,
            "communication_hidden": use.hidden,
            "communication_exposed": use.exposed,
            "idle": _idle(simulated),
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
    """A pipeline as JSON, in seconds. ``forward``, ``backward`` and ``weights`` (the pass for
    weights) are of one micro-batch. ``once`` is the work that is done once a step."""
    return {
        "schedule": run.pipeline.schedule,
        "micro_batches": run.pipeline.micro_batches,
        "interleave": run.pipeline.interleave,
        "stages": [
            {
                "forward": stage.forward,
                "backward": stage.backward,
                "weights": stage.weights,
                "once": stage.before + stage.after,
                "waiting": run.waiting(number),
            }
            for number, stage in enumerate(run.seconds)
        ],
    }


def _idle(simulated: SimulatedPlan) -> float:
    """Seconds for which the busiest device has nothing to do."""
    return max(simulated.step_seconds - simulated.busiest.busy, 0.0)


PHASES = {
    "forward": "forward",
    "backward": "backward",
    "sync": "exchange of gradients after it",
    "update": "update",
    "waiting": "waiting for other stages",
}
"""What is printed of phases."""


def _phase_rows(simulated: SimulatedPlan) -> list[tuple[str, float]]:
    """The phases by name; of a pipeline, those of the stage that decides how long a step takes."""
    names = [PHASES[name] for name in simulated.phases]
    if (run := simulated.pipeline) is not None:
        why = "the slowest" if run.pipeline.schedule == "2bw" else "the last to end"
        first, *rest = names
        names = [f"stage {run.last}, {why}: {first}", *(f"    {name}" for name in rest)]
    return list(zip(names, simulated.phases.values(), strict=True))


def _print(simulated: SimulatedPlan, trace: Path | None) -> None:
    use, memory, run = simulated.busiest, simulated.memory, simulated.pipeline
    console = PlainConsole()
    pipeline = pipeline_text(simulated.plan)
    title = f"{simulated.plan.model_name} on {simulated.machine.devices} x {simulated.machine.name}"
    table = Table(title=f"{title}, {pipeline}" if pipeline else title)
    for heading in ("what", "ms", "part"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for name, seconds in (
        *_phase_rows(simulated),
        ("step", simulated.step_seconds),
        (f"device {use.device}, the busiest: computing", use.computing),
        ("    communication, hidden", use.hidden),
        ("    communication, exposed", use.exposed),
        ("    idle", _idle(simulated)),
    ):
        part = seconds / simulated.step_seconds if simulated.step_seconds else 0.0
        table.add_row(name, f"{seconds * 1e3:.3f}", f"{part:.1%}")
    console.print(table)
    if run is not None:
        console.print(_stage_table(run))
    kinds = ("parameters", "gradients", "optimizer", "activations")
    shares = ", ".join(f"{kind} {_size(getattr(memory, kind))}" for kind in kinds)
    console.print(
        f"at most {_size(memory.total)}, on device {memory.device}: {shares}", soft_wrap=True
    )
    estimates = simulated.plan.estimates
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
            f"{times} {(stage.backward + stage.weights) * 1e3:.3f}",
            f"{once * 1e3:.3f}",
            f"{run.waiting(number) * 1e3:.3f}",
        )
    return table


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.2f} MB"

"""Options that several commands take, each declared once: its type and its help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Operators = Annotated[
    Path | None, typer.Option(help="A Python file that declares further operators.")
]
Rules = Annotated[Path | None, typer.Option(help="Rule library; by default the generated one.")]
Machine = Annotated[str, typer.Option(help="A preset, or a machine file.")]
PlanMachine = Annotated[
    str | None,
    typer.Option(
        help="Machine of the plan, a preset or a file; by default the preset that it names."
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(help="Number of nodes; by default as many as the plan's devices take."),
]
Profile = Annotated[
    Path | None,
    typer.Option(help="Measurements by unity profile; they replace the efficiency curves."),
]
Precision = Annotated[
    str | None,
    typer.Option(
        help="Number format: fp32, tf32, bf16, fp16 or fp64. By default bf16 where all devices are"
        " GPUs that have it, else fp32."
    ),
]
PlanPrecision = Annotated[
    str | None,
    typer.Option(
        help="Number format: fp32, tf32, bf16, fp16 or fp64; by default that of the plan. bf16 and"
        " fp16 keep float32 weights."
    ),
]
Batch = Annotated[
    int | None, typer.Option(help="Global batch; by default it grows with the devices.")
]
SearchSeconds = Annotated[float, typer.Option(min=0.0, help="Seconds for a search, at most.")]
Timeline = Annotated[
    Path | None, typer.Option(help="Write the timeline of a step for Perfetto or Chrome's viewer.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes; by default all cores.")]
Seconds = Annotated[
    int,
    typer.Option(
        min=1, help="Processor time for one rule or certificate; with more it is unknown."
    ),
]
Memory = Annotated[int, typer.Option(min=64, help="Memory for the same, in MiB.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
AsJsonLines = Annotated[
    bool, typer.Option("--json", help="Print one JSON object for each, a line each.")
]

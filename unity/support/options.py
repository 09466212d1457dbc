"""Options that several commands share. Each is declared once, with its type and help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Operators = Annotated[Path | None, typer.Option(help="A Python file with operators of your own.")]
Rules = Annotated[Path | None, typer.Option(help="Rule library. Default: the installed one.")]
Machine = Annotated[str, typer.Option(help="A preset or a machine file.")]
PlanMachine = Annotated[
    str | None,
    typer.Option(
        help="Machine of the plan, a preset or a file. Default: the preset that the plan names."
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(help="Number of nodes. Default: as many as the plan's devices need."),
]
Profile = Annotated[
    Path | None,
    typer.Option(help="Measurements from unity profile; they replace the machine's other rates."),
]
Precision = Annotated[
    str | None,
    typer.Option(
        help="Number format: fp32, tf32, bf16, fp16 or fp64. Default: bf16 if all devices are GPUs"
        " that have it, else fp32."
    ),
]
PlanPrecision = Annotated[
    str | None,
    typer.Option(
        help="Number format: fp32, tf32, bf16, fp16 or fp64. Default: that of the plan. bf16 and"
        " fp16 keep float32 weights."
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(help="Global batch. Default: the batch of a device times the number of devices."),
]
SearchSeconds = Annotated[float, typer.Option(min=0.0, help="Time limit of a search, in seconds.")]
Timeline = Annotated[
    Path | None,
    typer.Option(help="Write the timeline of a step to this file, for ui.perfetto.dev."),
]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="Number of processes. Default: one for each core.")
]
Seconds = Annotated[
    int,
    typer.Option(min=1, help="Limit of processor time for one rule or certificate, in seconds."),
]
Memory = Annotated[int, typer.Option(min=64, help="Limit of memory for the same, in MiB.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print a line of JSON for each result.")]

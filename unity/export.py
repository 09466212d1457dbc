"""Options of `unity export`, which writes the weights of a checkpoint as a plain state dict.

python -m unity.export checkpoints -o weights.pt
python -m unity.export checkpoints/step-00000100 --model my_model.py:make_model -o weights.pt
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from unity.support.cli import app_of, run_app
from unity.support.options import AsJson


@dataclass(frozen=True)
class Options:
    """Write the weights of CHECKPOINT as a state dict, under the names of the module."""

    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint, or a folder of checkpoints, of which the newest is used."
        ),
    ]
    out: Annotated[Path, typer.Option("-o", "--out", help="The file to write.")] = Path(
        "weights.pt"
    )
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of the checkpoint: a name of the zoo, or FILE.py:FUNCTION. Entries of its"
            " state dict that are not trained, such as buffers, are added with initial values."
        ),
    ] = None
    as_json: AsJson = False


app = app_of(Options, "unity.commands.export")

if __name__ == "__main__":
    run_app(app, "export")

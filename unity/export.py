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
    """Write the weights of CHECKPOINT under the names that they have in the module."""

    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint, or a folder of them, whose newest is taken.")
    ]
    out: Annotated[Path, typer.Option("-o", "--out", help="The file to write.")] = Path(
        "weights.pt"
    )
    model: Annotated[
        str | None,
        typer.Option(
            help="A name of the zoo, or FILE.py:FUNCTION. The module is made, and what its state"
            " dict has beside trained weights, such as buffers, is added with its initial values."
        ),
    ] = None
    as_json: AsJson = False


app = app_of(Options, "unity.commands.export")

if __name__ == "__main__":
    run_app(app, "export")

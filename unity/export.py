"""`unity export`: the weights of a checkpoint as a plain state dict.

python -m unity.export checkpoints -o weights.pt
python -m unity.export checkpoints/step-00000100 --model my_model.py:make_model -o weights.pt
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pcg.errors import InputError
from pcg.files import check_writable
from pcg.models import make_module
from unity.support.cli import new_app, run_app, say

if TYPE_CHECKING:
    from torch import Tensor

app = new_app()


@app.command()
def export(
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint, or a folder of them, whose newest is taken.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The file to write.")] = Path(
        "weights.pt"
    ),
    model: Annotated[
        str | None,
        typer.Option(
            help="A name of the zoo, or FILE.py:FUNCTION: make the module, and add what its state"
            " dict has beside trained weights, such as buffers, with the values that it has there."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write the weights of CHECKPOINT under the names that they have in the module."""
    # Here because --help can do without torch.
    from runtime.checkpoints.checkpoint import newest_manifest
    from runtime.train.plain import state_dict, write_state_dict

    check_writable(out)
    kept = newest_manifest(checkpoint)
    state = state_dict(kept)
    added: list[str] = []
    if model is not None:
        state, added = _completed(state, model, kept.manifest.seed, str(kept.path))
    write_state_dict(state, out)
    step, count = kept.manifest.updates, len(state)
    if as_json:
        content = {
            "checkpoint": str(kept.path),
            "model": kept.manifest.model,
            "step": step,
            "tensors": count,
            "untrained": added,
        }
        say(json.dumps(content, indent=1))
        return
    say(f"{out}: {count} tensors of {kept.manifest.model} after step {step}")
    if added:
        say(f"as the module has them at first: {', '.join(added)}")


def _completed(
    state: dict[str, Tensor], model: str, seed: int, where: str
) -> tuple[dict[str, Tensor], list[str]]:
    """The state dict of the model's module, as a seed makes it, with the weights put in, and the
    names of the rest."""
    # Here for the same reason as above. What was not trained has to be what the run began with.
    from runtime.train.initial import seeded

    with seeded(seed) as again:
        whole = make_module(model, again).state_dict()
    for name, tensor in state.items():
        if name not in whole or whole[name].shape != tensor.shape:
            problem = f"has {name} of shape {list(tensor.shape)}, which {model} has not"
            raise InputError(where, problem)
    complete = {**whole, **state}
    return complete, [name for name in complete if name not in state]


if __name__ == "__main__":
    run_app(app, "export")

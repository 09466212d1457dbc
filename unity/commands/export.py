"""Writes the weights of a checkpoint as a state dict, under the names of the module."""

from __future__ import annotations

from torch import Tensor

from pcg.errors import InputError
from pcg.files import check_writable
from pcg.models import make_module
from runtime.checkpoints.checkpoint import newest_manifest
from runtime.train.initial import seeded
from runtime.train.plain import state_dict, write_state_dict
from unity.export import Options
from unity.support.cli import say, say_json


def run(options: Options) -> None:
    """Write a state dict. Raises InputError for a wrong checkpoint, or one of another model."""
    check_writable(options.out)
    kept = newest_manifest(options.checkpoint)
    state, manifest = state_dict(kept), kept.manifest
    added: list[str] = []
    if options.model is not None:
        state, added = _completed(state, options.model, manifest.seed, str(kept.path))
    write_state_dict(state, options.out)
    if options.as_json:
        say_json(
            {
                "checkpoint": str(kept.path),
                "model": manifest.model,
                "step": manifest.updates,
                "tensors": len(state),
                "untrained": added,
            }
        )
        return
    say(f"{options.out}: {len(state)} tensors of {manifest.model} after step {manifest.updates}")
    if added:
        say(f"with their initial values: {', '.join(added)}")


def _completed(
    state: dict[str, Tensor], model: str, seed: int, where: str
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the state dict of the model's module with the weights put in, and the names of the
    other entries. These have the initial values of the seed."""
    # Entries that are not trained have to be those that the run began with.
    with seeded(seed) as again:
        whole = make_module(model, again).state_dict()
    for name, tensor in state.items():
        if name not in whole or whole[name].shape != tensor.shape:
            problem = f"has {name} of shape {list(tensor.shape)}, which {model} does not have"
            raise InputError(where, problem)
    complete = {**whole, **state}
    return complete, [name for name in complete if name not in state]

"""The model zoo: names, what they build, and the batch of one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pcg.errors import InputError
from pcg.graph import Graph
from pcg.models.mlp import mlp


@dataclass(frozen=True)
class Model:
    """A model of the zoo. ``build`` takes the global batch and returns the training graph, whose
    first output is the loss."""

    name: str
    summary: str
    batch_per_device: int
    build: Callable[[int], Graph]


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model(
            "mlp",
            "16 dense layers of 8192 (Unity, section 6)",
            256,
            lambda batch: mlp(batch, (8192,) * 17),
        ),
        Model(
            "mlp-tiny",
            "4 dense layers of 512, for tests and local runs",
            128,
            lambda batch: mlp(batch, (512,) * 5, prediction=True),
        ),
        Model(
            "mlp-mnist",
            "the two layers 784-512-10 of the Unity paper's worked example (section 1)",
            32,
            lambda batch: mlp(batch, (784, 512, 10)),
        ),
    )
}


def build_model(name: str, batch: int | None, devices: int) -> Graph:
    """The graph of a model of the zoo. ``batch`` is global; by default it grows with devices.

    Raises InputError for a name that is not in the zoo or a batch below 1.
    """
    if name not in MODELS:
        raise InputError(f"model {name}", f"unknown, expected one of {', '.join(MODELS)}")
    if batch is not None and batch < 1:
        raise InputError("batch", f"expected 1 or more, got {batch}")
    model = MODELS[name]
    return model.build(model.batch_per_device * devices if batch is None else batch)

"""The zoo: the models that are known by name. Their modules are loaded on demand.

``pcg.models`` makes graphs of them, and of a user's own model.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pcg.plan.training import Optimizer


@dataclass(frozen=True)
class Model:
    """A model of the zoo. ``file`` is the module of ``pcg.models`` that makes it: its function
    ``make`` takes the name and a batch, and returns a torch module and example inputs."""

    name: str
    summary: str
    batch_per_device: int
    file: str
    optimizer: Optimizer = "sgd"
    """The optimizer that the paper uses for it."""

    def make(self, batch: int) -> tuple[Any, tuple[Any, ...]]:
        """Return the torch module, and example inputs with a global batch."""
        # Loaded here because torch takes seconds, and a list of the models does not need it.
        return import_module(f"pcg.models.{self.file}").make(self.name, batch)


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("mlp", "16 dense layers of 8192 (Unity, section 6)", 256, "mlp"),
        Model("mlp-tiny", "4 dense layers of 512, for tests and local runs", 128, "mlp"),
        Model(
            "mlp-mnist",
            "the two layers 784-512-10 of the Unity paper's worked example (section 1)",
            32,
            "mlp",
        ),
        Model("resnext50", "ResNeXt-50 32x4d on 224x224 images", 64, "resnext"),
        Model("resnext50-tiny", "one block a stage, on 64x64", 8, "resnext"),
        Model("inception-v3", "Inception-v3 without auxiliary head, on 299x299", 64, "inception"),
        Model("inception-v3-tiny", "an eighth of the channels, on 75x75", 8, "inception"),
        Model("bert-large", "24 layers of 1024, sequences of 512", 4, "bert", "adam"),
        Model("bert-large-tiny", "2 layers of 96, sequences of 24", 8, "bert", "adam"),
        Model("dlrm", "8 tables of a million rows, dense layers of 1024", 1024, "recommend"),
        Model("dlrm-tiny", "4 tables of 480 rows, dense layers of 48", 48, "recommend"),
        Model("xdl", "4 tables of a million rows, dense layers of 256", 1024, "recommend"),
        Model("xdl-tiny", "4 tables of 480 rows, dense layers of 48", 48, "recommend"),
        Model("candle-uno", "five towers of 8 dense layers of 4192", 256, "candle"),
        Model("candle-uno-tiny", "five towers of 2 dense layers of 48", 48, "candle"),
    )
}


def default_optimizer(name: str) -> Optimizer:
    """Return the optimizer of a model of the zoo, or plain SGD for any other name."""
    return MODELS[name].optimizer if name in MODELS else "sgd"

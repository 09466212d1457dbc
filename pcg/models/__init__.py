"""The models that can be planned: those of the zoo by name, and a user's own from a file.

Each is a PyTorch module that returns its training loss, captured as a graph (``pcg.capture``). It
is built on the meta device: parameters have shapes and no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pcg.capture import Captured, capture
from pcg.errors import InputError
from pcg.graph.graph import Graph
from pcg.lazy import torch
from pcg.models.file import from_file, module_of
from pcg.plan.training import Optimizer

if TYPE_CHECKING:
    from torch.nn import Module


@dataclass(frozen=True)
class Model:
    """A model of the zoo. ``file`` is the module of ``pcg.models`` that makes it: its function
    ``make`` takes the name and a batch, and returns a torch module and example inputs."""

    name: str
    summary: str
    batch_per_device: int
    file: str
    optimizer: Optimizer = "sgd"
    """The one that the paper trains it by."""

    def make(self, batch: int) -> tuple[Any, tuple[Any, ...]]:
        """The torch module, and inputs of a global batch."""
        # Here because torch takes seconds to load, and a list of the models needs none.
        return import_module(f"pcg.models.{self.file}").make(self.name, batch)


MAX_BATCH = 1 << 30
"""Samples; with more, the numbers of elements of what a model computes leave 64 bits."""

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
    """The optimizer of a model of the zoo; plain SGD for others."""
    return MODELS[name].optimizer if name in MODELS else "sgd"


def build_model(name: str, batch: int | None, devices: int, norm_groups: int = 1) -> Graph:
    """The training graph of a model, whose first output is the loss. ``name``, ``batch`` and
    ``norm_groups`` are as in ``capture_model``."""
    return capture_model(name, batch, devices, norm_groups).graph


def capture_model(name: str, batch: int | None, devices: int, norm_groups: int = 1) -> Captured:
    """A model as a graph, with the parameters that its weights are.

    ``name`` is one of the zoo, or ``FILE.py:FUNCTION`` with a function that returns a module and
    example inputs. ``batch`` is global; by default it grows with the devices. ``norm_groups`` is as
    in ``capture``. Raises InputError for a name that is neither, a function that fails or returns
    something else, a batch below 1 or above ``MAX_BATCH``, and a module that cannot be captured.
    """
    if batch is not None and batch < 1:
        raise InputError("batch", f"expected 1 or more, got {batch}")
    if batch is not None and batch > MAX_BATCH:
        raise InputError("batch", f"expected at most {MAX_BATCH}, got {batch}")
    if ".py" in name:
        return capture(*from_file(name, batch, devices), name, norm_groups)
    if name not in MODELS:
        known = ", ".join(MODELS)
        raise InputError(f"model {name}", f"unknown, expected FILE.py:FUNCTION or one of {known}")
    model = MODELS[name]
    samples = model.batch_per_device * devices if batch is None else batch
    return _of_zoo(name, samples, norm_groups)


def make_module(name: str, begin: Callable[[], object] = lambda: None) -> Module:
    """The module of a model, on the CPU. ``name`` is as in ``capture_model``; ``begin`` is called
    right before the module is made, such as to seed what it draws."""
    if ".py" in name:
        return module_of(name, begin)
    if name not in MODELS:
        known = ", ".join(MODELS)
        raise InputError(f"model {name}", f"unknown, expected FILE.py:FUNCTION or one of {known}")
    begin()
    return MODELS[name].make(1)[0]


@lru_cache(maxsize=16)
def _of_zoo(name: str, batch: int, norm_groups: int) -> Captured:
    with torch.device("meta"):
        module, inputs = MODELS[name].make(batch)
    return capture(module, inputs, f"model {name}", norm_groups)

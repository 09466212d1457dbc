"""The models that can be planned: those of the zoo by name, and a user's own from a file.

Each model is a PyTorch module that returns its training loss, captured as a graph
(``pcg.capture``). It is built on the meta device: parameters have shapes, but take no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from pcg.capture import Captured, capture
from pcg.errors import InputError
from pcg.graph.graph import Graph
from pcg.lazy import torch
from pcg.models.file import from_file, module_of
from pcg.zoo import MODELS

if TYPE_CHECKING:
    from torch.nn import Module

MAX_BATCH = 1 << 30
"""The most samples of a batch. With more, numbers of elements could exceed 64 bits."""


def build_model(name: str, batch: int | None, devices: int, norm_groups: int = 1) -> Graph:
    """Return the training graph of a model, whose first output is the loss. ``name``, ``batch`` and
    ``norm_groups`` are as in ``capture_model``."""
    return capture_model(name, batch, devices, norm_groups).graph


def capture_model(name: str, batch: int | None, devices: int, norm_groups: int = 1) -> Captured:
    """Return a model as a graph, with the parameters that its weights represent.

    ``name`` is a model of the zoo, or ``FILE.py:FUNCTION`` with a function that returns a module
    and example inputs. ``batch`` is global. By default it grows with the devices. ``norm_groups``
    is as in ``capture``. Raises InputError for any other name, a function that fails or returns
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
    """Return the module of a model, on the CPU. ``name`` is as in ``capture_model``. ``begin`` is
    called right before the module is made, for example to set the seed of its parameters."""
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

"""A user's own model, given as ``path/to/file.py:make_model``.

The function takes no arguments. It returns a torch module, whose output is its training loss, and a
tuple of example inputs. The first dimension of the first input is the batch of one device.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pcg.capture.running.refusals import refuse_hooks
from pcg.errors import InputError
from pcg.files import read_text
from pcg.lazy import torch
from pcg.ops.user import line_at_fault, run_file

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

EXPECTED = "expected FILE.py:FUNCTION"


def from_file(name: str, batch: int | None, devices: int) -> tuple[Module, tuple[Any, ...]]:
    """Return the module on the meta device, and inputs with the global batch. By default this is
    the example batch times the number of devices.

    All tensors among the inputs with the batch as first dimension are resized. Raises InputError,
    with the file and if possible the line, for any problem of the file.
    """
    path, colon, function = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise InputError(f"model {name}", EXPECTED)
    module, inputs = _run_function(Path(path), function)
    first = next(iter(_tensors(inputs)), None)
    if first is None or not first.dim():
        raise InputError(name, "example inputs have no batch, expected a tensor with a dimension")
    # Before the module is moved, which may replace its parameters.
    refuse_hooks(module, name)
    batch_of_example = first.shape[0]
    wanted = batch_of_example * devices if batch is None else batch
    try:
        return module.to("meta"), tuple(_resized(part, batch_of_example, wanted) for part in inputs)
    except (RuntimeError, NotImplementedError) as error:
        raise InputError(name, f"{type(error).__name__}: {error}") from error


def module_of(name: str, begin: Callable[[], object] = lambda: None) -> Module:
    """Return the module that the function makes, with the values of its parameters and buffers.
    ``begin`` is called right before the function."""
    return module_and_inputs(name, begin)[0]


def module_and_inputs(
    name: str, begin: Callable[[], object] = lambda: None
) -> tuple[Module, tuple[Any, ...]]:
    """Return the module, as ``module_of`` does, and its example inputs."""
    path, _, function = name.rpartition(":")
    return _run_function(Path(path), function, "cpu", begin)


def _run_function(
    path: Path,
    function: str,
    device: str = "meta",
    begin: Callable[[], object] = lambda: None,
) -> tuple[Module, tuple[Any, ...]]:
    """Return module and example inputs; by default on the meta device, without memory."""
    read_text(path, "a Python file that makes a model")
    where = f"{path}:{function}"
    with torch.device(device):
        make = getattr(run_file(path, "user_model"), function, None)
        if not callable(make):
            raise InputError(where, "no such function")
        begin()
        try:
            returned: Any = make()
        except (Exception, SystemExit) as error:
            problem = f"{function} raised {type(error).__name__}: {error}"
            raise InputError(line_at_fault(path, error), problem) from error
    match returned:
        case (module, tuple() | list() as inputs) if isinstance(module, torch.nn.Module):
            return module, tuple(inputs)
        case _:
            given = type(returned).__name__
            problem = f"returned {given}, expected a torch module and a tuple of example inputs"
            raise InputError(where, problem)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return _tensors(list(value.values()))
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def _resized(value: Any, old: int, new: int) -> Any:
    """Return inputs on the meta device, with batch ``old`` replaced by ``new``."""
    if isinstance(value, torch.Tensor):
        shape = list(value.shape)
        if shape and shape[0] == old:
            shape[0] = new
        return torch.empty(shape, dtype=value.dtype, device="meta")
    if isinstance(value, dict):
        return {key: _resized(part, old, new) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_resized(part, old, new) for part in value)
    return value

"""Note gradient hooks and autograd functions of a module during export, which then loses them.

torch.export runs the module's ``forward`` and keeps what tensors become. A hook, or the backward of
a ``torch.autograd.Function``, leaves no trace. So the few functions of torch by which a module can
say such a thing are watched while it runs: hooks are refused; ``inference_mode`` turns gradients
off as ``no_grad`` does, which programs know of; a checkpoint runs its function as it is; and what
a ``Function`` computes is kept, to be checked against its backward (``functions``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pcg.capture.running.autograd_functions import Use, run_forward
from pcg.capture.running.python_random import watched_random
from pcg.errors import InputError
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch.nn import Module

_FOLDER = str(Path(__file__).parent)
LOST = "is lost when the module is captured"


@dataclass
class ModuleWatch:
    """What a module did: the functions that it applied, with the user's lines."""

    where: str
    uses: list[tuple[str, Use]] = field(default_factory=list[tuple[str, Use]])


@contextmanager
def watched(module: Module, where: str) -> Generator[ModuleWatch]:
    """Watch what a module does. A hook raises InputError with the line that registers it, and so
    does a module that chooses in its ``forward`` which parameters are trained."""
    watch = ModuleWatch(where)
    checkpoint = import_module("torch.utils.checkpoint").CheckpointFunction

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is checkpoint:
            return _checkpointed(*args)
        if cls.__module__.partition(".")[0] == "torch":
            return own.__func__(cls, *args, **kwargs)
        use = Use(cls, args, kwargs)
        watch.uses.append((_line(where), use.described()))
        return run_forward(use)

    trained = {name: tensor.requires_grad for name, tensor in module.named_parameters()}

    def check_trained(*_: object) -> None:
        for name, tensor in module.named_parameters():
            if trained.get(name) != tensor.requires_grad:
                problem = f"forward changes requires_grad of parameter {name}, expected it as it is"
                raise InputError(where, f"{problem} when the module is made")

    own: Any = torch.autograd.Function.__dict__["apply"]
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.autograd.Function, "apply", classmethod(apply)))
        for owner, name, problem in _unfollowed():
            refusing = _refusing(problem, where, getattr(owner, name))
            stack.enter_context(patch.object(owner, name, refusing))
        stack.enter_context(watched_random(lambda: _line(where)))
        for owner, name, watching in (*_modes(), *_uniform_numbers()):
            stack.enter_context(patch.object(owner, name, watching))
        stack.callback(module.register_forward_hook(check_trained).remove)
        stack.enter_context(_plain_buffers(module))
        yield watch


def _unfollowed() -> Iterator[tuple[Any, str, str]]:
    """What a module may call, and no program tells: whose attribute it is, its name, and what is
    wrong with it."""
    for owner, hook in (
        (torch.Tensor, "register_hook"),
        (torch.Tensor, "register_post_accumulate_grad_hook"),
        (torch.autograd.graph, "register_multi_grad_hook"),
    ):
        yield owner, hook, f"a hook by {hook} {LOST}"
    inner = "takes gradients within forward, which no graph can follow"
    yield torch.autograd, "grad", f"torch.autograd.grad {inner}"
    yield torch.autograd, "backward", f"torch.autograd.backward {inner}"
    yield torch.Tensor, "backward", f"backward {inner}"
    sized = "has sizes that depend on values, which no graph can follow, expected padded rows"
    packing = import_module("torch.nn.utils.rnn")
    yield packing, "pack_padded_sequence", f"a packed sequence {sized}"
    yield packing, "pack_sequence", f"a packed sequence {sized}"


def _modes() -> Iterator[tuple[Any, str, Any]]:
    """What programs know by another name, or tensors without elements not at all: whose attribute
    it is, its name, and what it is meanwhile."""
    yield torch.inference_mode, "__enter__", _turn_off
    yield torch.inference_mode, "__exit__", _turn_back
    yield torch.Tensor, "data", _data_of()
    yield torch.autocast, "__init__", _autocast_of(torch.autocast)
    # Distributions ask whether what they are given is valid, and raise an error where it is not.
    yield import_module("torch.distributions").Distribution, "_validate_args", False
    losses = torch.nn.functional
    yield losses, "gaussian_nll_loss", _without_check(losses.gaussian_nll_loss)
    # The module itself: what is called torch here only stands for it until it is imported.
    yield import_module("torch"), "tensor", _number_of(torch.tensor)


def _without_check(own: Callable[..., Any]) -> Callable[..., Any]:
    """A loss of torch's that raises an error where any of some numbers is negative, without that:
    torch runs it as one function, whose choices no mode sees."""

    def loss(*args: Any, **kwargs: Any) -> Any:
        with patch.object(import_module("torch"), "any", return_value=False):
            return own(*args, **kwargs)

    return loss


def _data_of() -> property:
    """``data`` as ``detach``, of which programs know, for what torch's own code does not ask."""
    own: Any = torch.Tensor.data

    def data(tensor: Any) -> Any:
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        if caller is not None and "/torch/" in caller.f_code.co_filename:
            return own.__get__(tensor)
        return tensor.detach()

    return property(data, own.__set__, own.__delete__)


def _uniform_numbers() -> Iterator[tuple[Any, str, Any]]:
    """A number of ``torch.rand`` is at least 0 and below 1. So a choice by it whether to leave out
    a layer is none where the probability is 0, as that of many models is; other choices have no
    program."""
    make, less = torch.rand, torch.Tensor.__lt__
    drawn: list[Any] = []

    def rand(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        if not made.dim():
            drawn.append(made)
        return made

    def __lt__(self: Any, other: Any) -> Any:
        is_known = isinstance(other, (int, float)) and not 0.0 < other < 1.0
        if is_known and any(self is one for one in drawn):
            return other >= 1.0
        return less(self, other)

    yield import_module("torch"), "rand", rand
    yield torch.Tensor, "__lt__", __lt__


def refuse_hooks(module: Module, where: str) -> None:
    """Raise InputError for a module with hooks that see or change gradients. Those of the way
    forward are a part of what is captured."""
    common: Any = torch.nn.modules.module
    if common._global_backward_hooks or common._global_backward_pre_hooks:
        raise InputError(where, f"a backward hook of all modules {LOST}")
    parts: list[tuple[str, Any]] = list(module.named_modules())
    for name, part in parts:
        if part._backward_hooks or part._backward_pre_hooks:
            kind = type(part).__name__
            raise InputError(where, f"a backward hook of {name or 'the module'} ({kind}) {LOST}")
    for name, parameter in module.named_parameters(remove_duplicate=False):
        hooks: Any = parameter
        if hooks._backward_hooks or hooks._post_accumulate_grad_hooks:
            raise InputError(where, f"a hook of parameter {name} {LOST}")


@contextmanager
def _plain_buffers(module: Module) -> Generator[None]:
    """Buffers that a module has made of parameters are plain tensors meanwhile: torch takes such a
    one for a parameter too, and then has two of a name."""
    parts: list[Any] = list(module.modules())
    given = [
        (part, name, buffer)
        for part in parts
        for name, buffer in part._buffers.items()
        if isinstance(buffer, torch.nn.Parameter)
    ]
    for part, name, buffer in given:
        part._buffers[name] = buffer.detach()
    try:
        yield
    finally:
        for part, name, buffer in given:
            part._buffers[name] = buffer


def _refusing(problem: str, where: str, own: Callable[..., Any]) -> Any:
    """A function that refuses its caller; torch's code has ``own``."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        if caller is not None and "/torch/" in caller.f_code.co_filename:
            return own(*args, **kwargs)
        raise InputError(_line(where), problem)

    return refuse


def _checkpointed(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    """What a reentrant checkpoint computes. Torch gives no gradients where no operand has any."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if any(tensor.requires_grad for tensor in tensors):
        return function(*args)
    with torch.no_grad():
        return function(*args)


def _autocast_of(cls: Any) -> Callable[..., None]:
    """Autocast knows no tensors without elements, on which a module is captured as on a CPU."""
    begin = cls.__init__

    def __init__(mode: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(mode, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    return __init__


def _number_of(make: Callable[..., Any]) -> Callable[..., Any]:
    """A tensor of one number keeps the number, also where all others are without elements."""

    def tensor(data: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(data, (bool, int, float)) and "meta" in str(kwargs.get("device")):
            kwargs = {**kwargs, "device": "cpu"}
        return make(data, *args, **kwargs)

    return tensor


def _turn_off(mode: Any) -> None:
    mode.unity_before = torch.is_grad_enabled()
    torch.set_grad_enabled(not mode.mode)


def _turn_back(mode: Any, *error: object) -> None:
    torch.set_grad_enabled(mode.unity_before)


def _line(where: str) -> str:
    """The user's line that is running."""
    frame: Any = inspect.currentframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if not any(part in file for part in ("/torch/", _FOLDER, "/contextlib", "/unittest/")):
            return f"{file}: line {frame.f_lineno}"
        frame = frame.f_back
    return where

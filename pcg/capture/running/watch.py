"""Note gradient hooks and autograd functions of a module during export, which then loses them.

torch.export runs the module's ``forward`` and records its tensors. A hook, or the backward of a
``torch.autograd.Function``, leaves no trace in the program. So the functions of torch that register
these are replaced while the module runs. Hooks are refused. ``inference_mode`` turns gradients off
as ``no_grad`` does, which programs record. A checkpoint runs its function directly. A call of a
``Function`` is recorded, and its backward is checked later (``autograd_functions``). Autocast is
turned off, since the precision of a plan decides the number formats, and its place is recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pcg.capture.running.attributes import same_after_forward
from pcg.capture.running.autograd_functions import Use, run_forward, run_straight_through
from pcg.capture.running.python_random import watched_random
from pcg.capture.running.refusals import LOST
from pcg.errors import InputError
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch.nn import Module

_FOLDER = str(Path(__file__).parent)
AUTOCAST = "autocast has no effect in a plan, whose --precision decides the number formats"
ACROSS_CHANNELS = (
    "CrossMapLRN2d has a backward that is not the derivative of its forward, "
    "expected LocalResponseNorm"
)


@dataclass
class ModuleWatch:
    """What a module did, with the user's lines: the autograd functions that it applied, and the
    places where it turned autocast on."""

    where: str
    uses: list[tuple[str, Use]] = field(default_factory=list[tuple[str, Use]])
    autocasts: list[str] = field(default_factory=list[str])

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each place with autocast."""
        return tuple(f"{place}: {AUTOCAST}" for place in dict.fromkeys(self.autocasts))


@contextmanager
def watched(module: Module, where: str, straight: Collection[Any] = ()) -> Generator[ModuleWatch]:
    """Watch a module within this context. The autograd functions in ``straight`` are run straight
    through.

    Raises InputError for a hook, with the line that registers it, and for a ``forward`` that
    changes which parameters the module has, or which are trained, or the mode of a part.
    """
    watch = ModuleWatch(where)

    apply = classmethod(_apply_of(watch, straight))
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.autograd.Function, "apply", apply))
        for owner, name, problem in _unfollowed():
            refusing = _refusing(problem, where, getattr(owner, name))
            stack.enter_context(patch.object(owner, name, refusing))
        stack.enter_context(watched_random(lambda: _line(where)))
        enter = _enter_of(torch.autocast, lambda: watch.autocasts.append(_line(where)))
        stack.enter_context(patch.object(torch.autocast, "__enter__", enter))
        stack.enter_context(patch.object(torch.Tensor, "grad", _grad_of(where)))
        for owner, name, watching in (*_modes(), *_uniform_numbers()):
            stack.enter_context(patch.object(owner, name, watching))
        stack.enter_context(same_after_forward(module, where))
        stack.enter_context(_plain_buffers(module))
        yield watch


def _apply_of(watch: ModuleWatch, straight: Collection[Any]) -> Callable[..., Any]:
    """Return an ``apply`` of autograd functions that notes those of the user, and runs them by
    torch's own operations."""
    own: Any = torch.autograd.Function.__dict__["apply"]
    checkpoint = import_module("torch.utils.checkpoint").CheckpointFunction

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is checkpoint:
            return _checkpointed(*args)
        if cls is import_module("torch.nn.modules._functions").CrossMapLRN2d:
            raise InputError(_line(watch.where), ACROSS_CHANNELS)
        if cls.__module__.partition(".")[0] == "torch":
            return own.__get__(None, cls)(*args, **kwargs)
        use = Use(cls, args, kwargs)
        watch.uses.append((_line(watch.where), use.described()))
        return run_straight_through(use) if cls in straight else run_forward(use)

    return apply


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
    functions: Any = import_module("torch.func")
    for name in ("grad", "grad_and_value", "vjp", "jvp", "jacrev", "jacfwd", "hessian"):
        yield functions, name, f"torch.func.{name} {inner}"
    yield torch.autograd, "backward", f"torch.autograd.backward {inner}"
    yield torch.Tensor, "backward", f"backward {inner}"
    seeded = "sets the state of random numbers, which a plan draws from its own seed"
    torch_module: Any = import_module("torch")
    for name in ("manual_seed", "seed", "set_rng_state"):
        yield torch_module, name, f"torch.{name} {seeded}"
    sized = "has sizes that depend on values, which no graph can follow, expected padded rows"
    packing = import_module("torch.nn.utils.rnn")
    yield packing, "pack_padded_sequence", f"a packed sequence {sized}"
    yield packing, "pack_sequence", f"a packed sequence {sized}"


def _modes() -> Iterator[tuple[Any, str, Any]]:
    """Yield replacements of functions that programs or tensors without elements do not support.

    Each is an owner, the name of its attribute, and the value of the attribute meanwhile.
    """
    yield torch.inference_mode, "__enter__", _turn_off
    yield torch.inference_mode, "__exit__", _turn_back
    yield torch.Tensor, "data", _data_of()
    yield torch.autocast, "__init__", _autocast_of(torch.autocast)
    # Distributions check whether their arguments are valid, which is a branch on values.
    yield import_module("torch.distributions").Distribution, "_validate_args", False
    losses = torch.nn.functional
    yield losses, "gaussian_nll_loss", _without_check(losses.gaussian_nll_loss)
    # The real module: ``torch`` here is a stand-in until torch is imported.
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


def _grad_of(where: str) -> property:
    """Return a ``grad`` that refuses its caller. It is None in each export, and not in training."""
    own: Any = torch.Tensor.grad
    problem = "reads a gradient of an earlier backward pass, which no graph has"
    return property(_refusing(problem, where, own.__get__), own.__set__, own.__delete__)


def _uniform_numbers() -> Iterator[tuple[Any, str, Any]]:
    """Yield replacements by which a comparison of one random number with 0 or 1 has an answer.

    A number of ``torch.rand`` is at least 0 and below 1. So whether a layer is dropped is known if
    its probability is 0, as in many models. Other comparisons stay without an answer.
    """
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


@contextmanager
def _plain_buffers(module: Module) -> Generator[None]:
    """Make buffers that are ``Parameter`` objects plain tensors within this context. Torch would
    count each of them as a parameter too, and then has two tensors of one name."""
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
        # Modes of this folder pass on what torch's code calls.
        while frame is not None and frame.f_code.co_filename.startswith(_FOLDER):
            frame = frame.f_back
        if frame is not None and "/torch/" in frame.f_code.co_filename:
            return own(*args, **kwargs)
        raise InputError(_line(where), problem)

    return refuse


def _checkpointed(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    """Run the function of a reentrant checkpoint. As in torch, its results have gradients only if
    one of its operands has."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if any(tensor.requires_grad for tensor in tensors):
        return function(*args)
    with torch.no_grad():
        return function(*args)


def _autocast_of(cls: Any) -> Callable[..., None]:
    """Return an ``__init__`` of autocast that takes the CPU for the meta device, which it does not
    know."""
    begin = cls.__init__

    def __init__(mode: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(mode, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    return __init__


def _enter_of(cls: Any, note: Callable[[], None]) -> Callable[..., Any]:
    """Return an ``__enter__`` of autocast that turns it off. ``note`` is called if it was on."""
    begin = cls.__enter__

    def __enter__(mode: Any) -> Any:
        enabled = mode._enabled
        if enabled:
            note()
        mode._enabled = False
        try:
            return begin(mode)
        finally:
            mode._enabled = enabled

    return __enter__


def _number_of(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``torch.tensor`` that keeps the value of a single number even on the meta device."""

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
    """Return the user's line that is running, or ``where`` if there is none."""
    frame: Any = inspect.currentframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if not any(part in file for part in ("/torch/", _FOLDER, "/contextlib", "/unittest/")):
            return f"{file}: line {frame.f_lineno}"
        frame = frame.f_back
    return where

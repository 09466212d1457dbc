"""Check that the backward of a ``torch.autograd.Function`` is the derivative of its forward.

A graph differentiates operators itself, so it can take a ``Function`` only if its backward computes
the derivative of its forward, as that of a function written to save memory does. Method: both
gradients are computed in float64 and compared, for each use of the function, on small and large
random operands of its shapes. Random output gradients from 1e-3 to 1e3 reveal a backward that clips
or rounds. Integer operands are drawn from 0 and 1, as masks are; if the function does not accept
these, only zeros are tried. The check can find differences, but does not prove that there are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pcg.errors import InputError, one_line
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

MOST = 1 << 24
"""The most elements that the operands of a checked use may have together."""
NEAR = 1e-6
"""Tolerance, relative to the largest element."""
OPERANDS, GRADIENTS = (0.3, 1.0, 30.0), (1e-3, 1.0, 1e3)
EXPECTED = "expected the derivative of its forward, or other gradients written with detach()"


@dataclass(frozen=True)
class Shaped:
    """Shape and number format of a tensor without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Use:
    """One call of an autograd function with its arguments."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def described(self) -> Use:
        """Return this use with ``Shaped`` in the place of tensors."""
        args = tuple(_shaped(arg) for arg in self.args)
        return Use(self.function, args, {k: _shaped(arg) for k, arg in self.kwargs.items()})


class _Context:
    """The context of a forward that runs by itself, without a backward."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (True,) * count
        self.saved_tensors: tuple[Any, ...] = ()
        self.constant: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.constant = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        """Has no effect, since there is no backward."""

    def set_materialize_grads(self, value: bool) -> None:
        """Has no effect, since there is no backward."""


def run_forward(use: Use) -> Any:
    """Run a function's forward so that torch differentiates it by its operations.

    Results that the function marks as non-differentiable are detached.
    """
    function, context = use.function, _Context(len(use.args))
    own = function.setup_context is not torch.autograd.Function.setup_context
    if own:
        results = function.forward(*use.args, **use.kwargs)
        function.setup_context(context, use.args, results)
    else:
        results = function.forward(context, *use.args, **use.kwargs)
    constant = {id(tensor) for tensor in context.constant}
    if isinstance(results, (list, tuple)):
        return tuple(part.detach() if id(part) in constant else part for part in results)
    return results.detach() if id(results) in constant else results


def check_use(use: Use, where: str) -> None:
    """Check that a function's backward agrees with the derivative of its forward.

    Raises InputError if they differ, if either cannot be run, or if the operands are too large.
    """
    name = f"autograd function {use.function.__name__}"
    shapes = [part for part in (*use.args, *use.kwargs.values()) if isinstance(part, Shaped)]
    if sum(torch.Size(part.shape).numel() for part in shapes) > MOST:
        problem = f"has operands of more than {MOST} elements, too many to check its backward with"
        raise InputError(where, f"{name} {problem}")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.enable_grad():
        for size in OPERANDS:
            try:
                agree = _agrees(use, size, 1) and _agree_on_masks(use, size)
            except Exception as error:
                problem = f"its backward cannot be checked: {type(error).__name__}: {error}"
                raise InputError(where, one_line(f"{name}: {problem}")) from error
            if not agree:
                raise InputError(where, f"{name} has a backward of its own, {EXPECTED}")


def _agree_on_masks(use: Use, size: float) -> bool:
    """Compare on integers 0 and 1. True if the function fails: 1 may be no valid index for it."""
    try:
        return _agrees(use, size, 2)
    except Exception:
        return True


def _agrees(use: Use, size: float, below: int) -> bool:
    """Compare on operands of scale ``size``, with integers drawn below ``below``."""
    torch.manual_seed(0)
    operands = [_drawn(arg, size, below) for arg in use.args]
    named = {key: _drawn(arg, size, below) for key, arg in use.kwargs.items()}
    leaves = [x for x in (*operands, *named.values()) if _is_leaf(x)]
    torch.manual_seed(1)
    own = _tensors(use.function.apply(*_copies(operands), **named))
    torch.manual_seed(1)
    plain = _tensors(run_forward(Use(use.function, tuple(_copies(operands)), named)))
    if len(own) != len(plain) or not all(_near(a, b) for a, b in zip(own, plain, strict=True)):
        return False
    for scale in GRADIENTS:
        given = [torch.randn_like(x) * scale for x in own if x.is_floating_point()]
        pairs = zip(_back(own, leaves, given), _back(plain, leaves, given), strict=True)
        if not all(_near(a, b) for a, b in pairs):
            return False
    return True


def _back(results: Sequence[Tensor], leaves: Sequence[Tensor], given: Sequence[Tensor]) -> Any:
    """Return the gradients of ``leaves`` for the output gradients ``given``, zeros where unused."""
    real = [x for x in results if x.is_floating_point()]
    known = [(x, g) for x, g in zip(real, given, strict=True) if x.requires_grad]
    if not known or not leaves:
        return [torch.zeros_like(leaf) for leaf in leaves]
    gradients = torch.autograd.grad(
        [x for x, _ in known],
        leaves,
        [g for _, g in known],
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return list(gradients)


def _near(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    one, other = one.detach().double(), other.detach().double()
    finite = other[other.isfinite()]
    size = max(1e-30, finite.abs().max().item()) if finite.numel() else 1.0
    return torch.allclose(one, other, rtol=NEAR, atol=NEAR * size, equal_nan=True)


def _copies(operands: Sequence[Any]) -> list[Any]:
    """Return non-leaf copies, so that torch can differentiate a function that works in place."""
    return [x * 1.0 if _is_leaf(x) else x for x in operands]


def _shaped(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return Shaped(tuple(arg.shape), arg.dtype)
    if isinstance(arg, (list, tuple)):
        return type(arg)(_shaped(part) for part in arg)
    return arg


def _drawn(arg: Any, size: float, below: int) -> Any:
    if isinstance(arg, (list, tuple)):
        return type(arg)(_drawn(part, size, below) for part in arg)
    if not isinstance(arg, Shaped):
        return arg
    if not arg.dtype.is_floating_point:
        return torch.randint(below, arg.shape).to(arg.dtype)
    return (torch.randn(arg.shape, dtype=torch.float64) * size).requires_grad_()


def _is_leaf(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _tensors(results: Any) -> list[Tensor]:
    parts = results if isinstance(results, (list, tuple)) else (results,)
    return [part for part in parts if isinstance(part, torch.Tensor)]

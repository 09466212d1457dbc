"""Run a ``torch.autograd.Function`` so that a graph has its gradients, and check that it has.

Problem: a graph differentiates operators itself, so a ``Function`` has to be written by others.
Method: there are two forms.

- The forward alone, if the backward is its derivative, as in a function written to save memory.
- *Straight through*, if the backward multiplies each element of the gradient by a number: that of a
  straight-through estimator, or one that reverses or scales gradients. With ``m`` the backward of
  ones, ``f(x).detach() + m.detach() * (x - x.detach())`` has the value of the forward and the
  gradients of the backward.

The gradients of a form and of the function are computed in float64 and compared, for each use of
the function, on small and large random operands of its shapes. Random output gradients from 1e-3 to
1e3 reveal a backward that clips or rounds. Integer operands are drawn from 0 and 1, as masks are;
if the function does not accept these, only zeros are tried. The check can find differences, but
does not prove that there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


Form = Callable[[Use], Any]
"""A function that runs a use by torch's own operations."""


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
    results, context = _with_context(use)
    constant = {id(tensor) for tensor in context.constant}
    if isinstance(results, (list, tuple)):
        return tuple(part.detach() if id(part) in constant else part for part in results)
    return results.detach() if id(results) in constant else results


def run_straight_through(use: Use) -> Any:
    """Run a function so that torch multiplies gradients as the function's backward does.

    Raises TypeError for a function with several results, and for one whose operands have other
    shapes than its result.
    """
    with torch.no_grad():
        result, context = _with_context(use)
        if not isinstance(result, torch.Tensor):
            raise TypeError("returns several tensors")
        slopes = use.function.backward(context, torch.ones_like(result))
    made = result.detach()
    for arg, slope in zip(use.args, slopes if isinstance(slopes, tuple) else [slopes], strict=True):
        if slope is None or not _is_leaf(arg):
            continue
        if not slope.shape == arg.shape == result.shape:
            raise TypeError("its operands have other shapes than its result")
        made = made + slope.detach() * (arg - arg.detach())
    return made


def _with_context(use: Use) -> tuple[Any, _Context]:
    """Return the results of a function's forward, and the context that its backward reads."""
    function, context = use.function, _Context(len(use.args))
    if function.setup_context is not torch.autograd.Function.setup_context:
        results = function.forward(*use.args, **use.kwargs)
        function.setup_context(context, use.args, results)
    else:
        results = function.forward(context, *use.args, **use.kwargs)
    return results, context


def is_derivative(use: Use, where: str, *, is_straight: bool) -> bool:
    """Whether a function's backward is the derivative of its forward. False if it is not, and the
    function can be run straight through. ``is_straight``: another use of it was run so, and this
    use has to be too.

    Raises InputError if neither form has its gradients, if it cannot be run, or if the operands are
    too large.
    """
    name = f"autograd function {use.function.__name__}"
    shapes = [part for part in (*use.args, *use.kwargs.values()) if isinstance(part, Shaped)]
    if sum(torch.Size(part.shape).numel() for part in shapes) > MOST:
        problem = f"has operands of more than {MOST} elements, too many to check its backward with"
        raise InputError(where, f"{name} {problem}")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.enable_grad():
        try:
            if not is_straight and all(_agrees(use, run_forward, size) for size in OPERANDS):
                return True
        except Exception as error:
            problem = f"its backward cannot be checked: {type(error).__name__}: {error}"
            raise InputError(where, one_line(f"{name}: {problem}")) from error
        try:
            if all(_agrees(use, run_straight_through, size) for size in OPERANDS):
                return False
        except Exception as error:
            reason = f" ({one_line(str(error))})" if isinstance(error, TypeError) else ""
            raise InputError(
                where, f"{name} has a backward of its own{reason}, {EXPECTED}"
            ) from error
    raise InputError(where, f"{name} has a backward of its own, {EXPECTED}")


def _agrees(use: Use, form: Form, size: float) -> bool:
    """Compare on operands of scale ``size``. Integers are zeros, then 0 and 1."""
    if not _agrees_below(use, form, size, 1):
        return False
    try:
        return _agrees_below(use, form, size, 2)
    except Exception:
        return True  # 1 may be no valid index for the function


def _agrees_below(use: Use, form: Form, size: float, below: int) -> bool:
    """Compare on operands of scale ``size``, with integers drawn below ``below``."""
    torch.manual_seed(0)
    operands = [_drawn(arg, size, below) for arg in use.args]
    named = {key: _drawn(arg, size, below) for key, arg in use.kwargs.items()}
    leaves = [x for x in (*operands, *named.values()) if _is_leaf(x)]
    torch.manual_seed(1)
    own = _tensors(use.function.apply(*_copies(operands), **named))
    torch.manual_seed(1)
    plain = _tensors(form(Use(use.function, tuple(_copies(operands)), named)))
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

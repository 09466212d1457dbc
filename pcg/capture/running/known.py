"""Track the values of constants while a module is exported, for branches that depend on them.

Problem: torch exports a module on tensors without values, so ``if positions[0] > 0`` cannot be
followed, even if ``positions`` is ``torch.arange(12)``. Method: each tensor computed from sizes and
numbers alone has a twin with values. Conversions to a number or a truth value are answered from the
twin. A selection by a known mask is replaced by one by the mask's positions, since their number is
known. Anything computed from inputs, parameters, buffers or random numbers is unknown. A change in
place by an unknown value discards all known values. Checks that only raise an error are taken to
pass (``checks``). Exact otherwise. Complexity: linear in the elements of constants; those with more
than ``MOST`` elements are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from inspect import currentframe
from types import FrameType
from typing import Any

from pcg.capture.running.checks import Checks
from pcg.lazy import torch

MOST = 1 << 20
"""The most elements of a tensor whose values are kept."""
UNSET = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "resize_")
"""Functions whose results have undefined values."""
LIKE = ("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full", "new_tensor")
"""Functions that do not read the values of their first operand."""

SIZED = ("nonzero", "argwhere")
"""Functions whose results have sizes that depend on values. ``where`` with one argument is
another."""


@contextmanager
def known_constants(checks: Checks) -> Generator[None]:
    """Answer questions about the values of constants within this context, and those of checks."""
    # The class is made here because its base loads torch.
    base: Any = import_module("torch.overrides").TorchFunctionMode
    with type("KnownConstants", (_Known, base), {})(checks):
        yield


class _Known:
    """A mode for torch's functions. ``values`` holds the values of known tensors, by tensor."""

    def __init__(self, checks: Checks) -> None:
        super().__init__()
        self._checks = checks
        self.values: Any = import_module("torch.utils.weak").WeakTensorKeyDictionary()
        self.places: dict[Any, tuple[Any, list[Any]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__getitem__":
            args = (args[0], self._by_places(args[1]))
        elif name == "masked_select" and len(args) == 2:
            func, args = self._selected(func, *args)
        result = _Unknown if name in UNSET else self._found(func, name, args, given)
        if result is _Unknown:
            if _changes(name, given):
                self.values.clear()
            if name == "__bool__" and (passes := self._checks.answer(_asker())) is not None:
                return passes
            return func(*args, **given)
        if not _holds_tensor(result) and not _changes(name, given):
            return result
        if name in SIZED or (name == "where" and len(args) == 1):
            made = tuple(map(_again, result)) if isinstance(result, tuple) else _again(result)
        else:
            made = func(*args, **given)
        self._note(made, result)
        return made

    def _selected(self, func: Any, source: Any, mask: Any) -> tuple[Any, Any]:
        """Return a selection by a mask as one by positions, if the mask's values are known."""
        if self.values.get(mask) is None or source.shape != mask.shape:
            return func, (source, mask)
        return torch.Tensor.__getitem__, (source, self._by_places(mask))

    def _by_places(self, index: Any) -> Any:
        """Return an index with the positions of true elements in the place of each mask.

        A program cannot know how many elements a mask selects. It can know that two selections are
        of one mask.
        """
        parts = index if isinstance(index, tuple) else (index,)
        made: list[Any] = []
        for part in parts:
            value = self.values.get(part) if isinstance(part, torch.Tensor) else None
            if value is None and _is_mask(part):
                made += self._places_of(part)
                continue
            if value is None or not _is_mask(value):
                made.append(part)
                continue
            made += map(_again, _run(_places, [value], {}))
        return tuple(made) if len(made) > 1 or isinstance(index, tuple) else made[0]

    def _places_of(self, mask: Any) -> list[Any]:
        """Return the positions of a mask's true elements, the same tensors for each use of a mask,
        so that torch knows that two selections by it have equal sizes."""
        memory = mask.untyped_storage()._cdata, mask.storage_offset()
        key = memory, tuple(mask.shape), mask.stride(), mask._version
        if key not in self.places:
            # With the mask, so that no other tensor gets its memory.
            self.places[key] = mask, list(mask.nonzero().unbind(1))
        return self.places[key][1]

    def _found(self, func: Any, name: str, args: Any, given: Any) -> Any:
        """Return a function's result with values, or ``_Unknown``."""
        reals = [self._real(name, at, arg) for at, arg in enumerate(args)]
        named = {key: self._real(name, key, arg) for key, arg in given.items()}
        if any(value is _Unknown for value in (*reals, *named.values())):
            return _Unknown
        return _run(func, reals, named)

    def _real(self, name: str, at: object, arg: Any) -> Any:
        """Return an argument with its values, on the CPU, or ``_Unknown``."""
        if isinstance(arg, torch.Tensor):
            if name in LIKE and at == 0:
                return _blank(arg)
            return self.values.get(arg, _Unknown)
        if isinstance(arg, (list, tuple)):
            parts = [self._real("", at, part) for part in arg]
            return _Unknown if any(p is _Unknown for p in parts) else _like(arg, parts)
        if isinstance(arg, torch.SymInt | torch.SymFloat | torch.SymBool):
            return _Unknown
        return "cpu" if at == "device" and arg is not None else arg

    def _note(self, made: Any, result: Any) -> None:
        if isinstance(result, torch.Tensor) and isinstance(made, torch.Tensor):
            if result.numel() <= MOST and result.shape == made.shape:
                self.values[made] = result
        elif isinstance(result, (list, tuple)) and isinstance(made, (list, tuple)):
            for one, value in zip(made, result, strict=False):
                self._note(one, value)


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool and value.dim() > 0


class _Unknown:
    """Stands for a value that is not known."""


def _asker() -> FrameType | None:
    """The frame that asks torch for a truth."""
    frame = currentframe()
    # Torch's modes are asked before the function itself.
    while frame is not None and (
        frame.f_code.co_filename == __file__ or frame.f_code.co_name == "__torch_function__"
    ):
        frame = frame.f_back
    return frame


def _run(func: Callable[..., Any], args: list[Any], given: dict[str, Any]) -> Any:
    """Return a function's result outside the export.

    ``_Unknown`` if the function draws random numbers or raises an error; the export then raises it.
    """
    modes: Any = import_module("torch.utils._python_dispatch")
    with modes._disable_current_modes():
        before = torch.get_rng_state()
        try:
            result = func(*args, **given)
        except Exception:
            return _Unknown
        if not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            return _Unknown
    return result


def _places(mask: Any) -> list[Any]:
    """Return the positions of a mask's true elements, one tensor for each dimension."""
    return [place.clone() for place in mask.nonzero().unbind(1)]


def _again(value: Any) -> Any:
    """Return a constant of the exported program with these values."""
    modes: Any = import_module("torch.utils._python_dispatch")
    with modes._disable_current_modes():
        numbers = value.flatten().tolist()
    return torch.tensor(numbers, dtype=value.dtype).reshape(tuple(value.shape))


def _blank(tensor: Any) -> Any:
    modes: Any = import_module("torch.utils._python_dispatch")
    with modes._disable_current_modes():
        return torch.empty(tuple(tensor.shape), dtype=tensor.dtype)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensor, value))
    return isinstance(value, torch.Tensor)


def _like(arg: Any, parts: list[Any]) -> Any:
    return type(arg)(parts) if type(arg) in (list, tuple) else tuple(parts)


def _changes(name: str, given: dict[str, Any]) -> bool:
    """Whether a function of this name may change an operand in place."""
    is_plain = name.endswith("_") and not name.endswith("__")
    is_own = name.startswith("__i") and name not in ("__int__", "__index__", "__invert__")
    return is_plain or is_own or name in ("__setitem__", "__set__") or "out" in given

"""Run a module in double precision, with given random numbers in place of torch's.

Problem. A module is compared with its graph, in which random numbers are inputs
(``pcg.capture.aten.random``). So both need the same random numbers.

Method. A dispatch mode intercepts all of torch's functions that draw random numbers. Below autograd
few such functions are left. Each call returns the value that the graph computes from its next input
of normal numbers, by the same formulas in torch. An unknown function, or a call that the graph does
not have, raises an error, and the two are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pcg.capture.aten.random import BELOW_ONE

Arguments = Mapping[str, Any]
"""The arguments of a call by name, defaults included."""


def _uniform(z: Tensor) -> Tensor:
    return torch.special.ndtr(z).clamp(max=BELOW_ONE)


def _bernoulli(z: Tensor, arguments: Arguments) -> Tensor:
    share = arguments["p"] if "p" in arguments else arguments["self"]
    if isinstance(share, Tensor):
        return _uniform(z) < share
    return below(z, share).bool()


def below(z: Tensor, share: float) -> Tensor:
    """The mask that follows from normal numbers. On average a fraction ``share`` of it are ones."""
    return (z < NormalDist().inv_cdf(share)).double()


def _between(z: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * _uniform(z)


def _integers(z: Tensor, arguments: Arguments) -> Tensor:
    low = arguments.get("low", 0)
    return low + ((arguments["high"] - low) * _uniform(z)).floor()


def _exponential(z: Tensor) -> Tensor:
    return -torch.log1p(-_uniform(z))


KNOWN: Mapping[str, Callable[[Tensor, Arguments], Tensor]] = {
    "rand": lambda z, arguments: _uniform(z),
    "rand_like": lambda z, arguments: _uniform(z),
    "randn": lambda z, arguments: z,
    "randn_like": lambda z, arguments: z,
    "normal": lambda z, arguments: arguments["mean"] + arguments["std"] * z,
    "bernoulli": _bernoulli,
    "uniform": lambda z, arguments: _between(z, arguments["from"], arguments["to"]),
    "exponential": lambda z, arguments: _exponential(z) / arguments["lambd"],
    "randint": _integers,
    "randint_like": _integers,
    "randperm": lambda z, arguments: z.argsort(),
}
"""The known functions by name, without the underscore of an in-place function."""
RECTIFIED, MULTINOMIAL = "rrelu_with_noise", "multinomial"


def _wide(arg: Any) -> Any:
    """An argument, with float64 in place of float32. A module may ask for float32 by name, but a
    graph has a single format for all real numbers."""
    return torch.float64 if arg is torch.float32 else arg


class OtherDraws(ValueError):
    """A module draws random numbers that its graph does not have."""


class Replay(TorchDispatchMode):
    """A mode in which torch's functions return random numbers from a list: the normal numbers of
    each call, in order. None stands for a call whose result is not used. Without a list, all normal
    numbers are 0. Raises OtherDraws if the calls do not fit the list, and ValueError for an unknown
    function."""

    def __init__(self, normals: Sequence[Tensor | None] | None) -> None:
        super().__init__()
        self._normals = normals
        self.shapes: list[tuple[int, ...]] = []
        """The shapes of the calls so far."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args = tuple(_wide(arg) for arg in args)
        kwargs = {key: _wide(arg) for key, arg in (kwargs or {}).items()}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        schema = func._schema
        arguments = {argument.name: argument.default_value for argument in schema.arguments}
        arguments |= dict(zip(arguments, args, strict=False)) | kwargs
        name = schema.name.partition("::")[2]
        if arguments.get("dropout_p") == 0.0:
            return func(*args, **kwargs)
        if name.rstrip("_") == RECTIFIED and arguments["training"]:
            return self._rectified(arguments)
        if name == MULTINOMIAL:
            return self._multinomial(arguments)
        draw = KNOWN.get(name.rstrip("_"))
        if draw is None or not isinstance(arguments.get("mean", 0.0), float):
            raise ValueError(f"{name} draws random numbers that are not known")
        if name.endswith("_"):
            operand: Tensor = arguments["self"]
            return operand.copy_(draw(self._next(operand.shape), arguments))
        # Called only for the shape of its result. That it advances the generator does no harm.
        result: Tensor = func(*args, **kwargs)
        drawn = draw(self._next(result.shape), arguments)
        return drawn.double() if result.is_floating_point() else drawn.to(result.dtype)

    def _rectified(self, arguments: Arguments) -> Tensor:
        x, noise = arguments["self"], arguments["noise"]
        slopes = _between(self._next(x.shape), arguments["lower"], arguments["upper"])
        noise.copy_(torch.where(x <= 0, slopes, 1.0))
        return x * noise

    def _multinomial(self, arguments: Arguments) -> Tensor:
        weights, count = arguments["self"], arguments["num_samples"]
        again = arguments["replacement"] and count > 1
        if again:
            weights = weights.unsqueeze(-2).expand(*weights.shape[:-1], count, weights.shape[-1])
        chances = weights / _exponential(self._next(weights.shape))
        if again:
            return chances.argmax(-1)
        return chances.argsort(-1, descending=True)[..., :count]

    def _next(self, shape: Sequence[int]) -> Tensor:
        """The normal numbers of the next call, which must have this shape."""
        number = len(self.shapes)
        self.shapes.append(tuple(shape))
        if self._normals is None:
            return torch.zeros(shape, dtype=torch.float64)
        if number >= len(self._normals):
            raise OtherDraws("it draws more random numbers than its graph")
        normal = self._normals[number]
        if normal is None:
            return torch.zeros(shape, dtype=torch.float64)
        if tuple(normal.shape) != tuple(shape):
            raise OtherDraws("it draws other random numbers than its graph")
        return normal

    def check(self) -> None:
        """Raise OtherDraws if the list has more entries than there were calls."""
        if self._normals is not None and len(self.shapes) < len(self._normals):
            raise OtherDraws("it draws fewer random numbers than its graph")


def aligned(
    normals: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]
) -> list[Tensor | None] | None:
    """Assign normal numbers to the calls of a module, of which some have results that no output
    needs (None in the result). ``shapes``: those of all calls. None if there is no assignment, or
    more than one.

    Counts the ways to find the shapes of ``normals`` as a subsequence of ``shapes``, by dynamic
    programming. O(normals * calls).
    """
    sought = [tuple(normal.shape) for normal in normals]
    ways = [1, *(0 for _ in sought)]
    for shape in shapes:
        for length in range(len(sought), 0, -1):
            if sought[length - 1] == shape:
                ways[length] += ways[length - 1]
    if ways[-1] != 1:
        return None
    assigned: list[Tensor | None] = []
    for shape in shapes:
        number = sum(normal is not None for normal in assigned)
        is_next = number < len(sought) and sought[number] == shape
        assigned.append(normals[number] if is_next else None)
    return assigned

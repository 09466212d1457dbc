"""Run a module in double precision, with given random numbers in the place of torch's.

Problem: a module is to be compared with its graph, whose random numbers are inputs
(``pcg.capture.aten.random``). Method: as the module runs, each of torch's functions that draws is
met below autograd, where a few are left of all that modules call, and gives what the normal numbers
of the next input make of it, by the same formulas in torch. A function that is not known, or a call
where the graph has none, ends the comparison: nothing is said then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pcg.capture.aten.random import BELOW_ONE

Given = Mapping[str, Any]
"""The arguments of a call by their names, defaults included."""


def _uniform(z: Tensor) -> Tensor:
    return torch.special.ndtr(z).clamp(max=BELOW_ONE)


def _chosen(z: Tensor, given: Given) -> Tensor:
    share = given["p"] if "p" in given else given["self"]
    if isinstance(share, Tensor):
        return _uniform(z) < share
    return below(z, share).bool()


def below(z: Tensor, share: float) -> Tensor:
    """The mask that normal numbers stand for: ones for a share of them on average."""
    return (z < NormalDist().inv_cdf(share)).double()


def _between(z: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * _uniform(z)


def _integers(z: Tensor, given: Given) -> Tensor:
    low = given.get("low", 0)
    return low + ((given["high"] - low) * _uniform(z)).floor()


def _exponential(z: Tensor) -> Tensor:
    return -torch.log1p(-_uniform(z))


KNOWN: Mapping[str, Callable[[Tensor, Given], Tensor]] = {
    "rand": lambda z, given: _uniform(z),
    "rand_like": lambda z, given: _uniform(z),
    "randn": lambda z, given: z,
    "randn_like": lambda z, given: z,
    "normal": lambda z, given: given["mean"] + given["std"] * z,
    "bernoulli": _chosen,
    "uniform": lambda z, given: _between(z, given["from"], given["to"]),
    "exponential": lambda z, given: _exponential(z) / given["lambd"],
    "randint": _integers,
    "randint_like": _integers,
    "randperm": lambda z, given: z.argsort(),
}
"""By the name of the function, without the mark of one that changes its operand."""
RECTIFIED, CHOSEN = "rrelu_with_noise", "multinomial"


def _wide(arg: Any) -> Any:
    """Double precision where a module asks for float32 by name, as for its angles: a graph has one
    format for all real numbers."""
    return torch.float64 if arg is torch.float32 else arg


class OtherDraws(ValueError):
    """A module draws other random numbers than its graph."""


class Replay(TorchDispatchMode):
    """Random numbers from a list: the normal ones of each call, in order; None for a call whose
    numbers nobody needs. Raises OtherDraws where the module draws others. Without a list, all are
    0."""

    def __init__(self, normals: Sequence[Tensor | None] | None) -> None:
        super().__init__()
        self._normals = normals
        self.shapes: list[tuple[int, ...]] = []
        """Of what was drawn."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args = tuple(_wide(arg) for arg in args)
        kwargs = {key: _wide(arg) for key, arg in (kwargs or {}).items()}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        schema = func._schema
        given = {argument.name: argument.default_value for argument in schema.arguments}
        given |= dict(zip(given, args, strict=False)) | kwargs
        name = schema.name.partition("::")[2]
        if given.get("dropout_p") == 0.0:
            return func(*args, **kwargs)
        if name.rstrip("_") == RECTIFIED and given["training"]:
            return self._rectified(given)
        if name == CHOSEN:
            return self._chosen(given)
        make = KNOWN.get(name.rstrip("_"))
        if make is None or not isinstance(given.get("mean", 0.0), float):
            raise ValueError(f"{name} draws random numbers that are not known")
        if name.endswith("_"):
            changed: Tensor = given["self"]
            return changed.copy_(make(self._next(changed.shape), given))
        # The generator goes on, which nobody asks for; what counts is the shape of the result.
        drawn: Tensor = func(*args, **kwargs)
        made = make(self._next(drawn.shape), given)
        return made.double() if drawn.is_floating_point() else made.to(drawn.dtype)

    def _rectified(self, given: Given) -> Tensor:
        x, noise = given["self"], given["noise"]
        slopes = _between(self._next(x.shape), given["lower"], given["upper"])
        noise.copy_(torch.where(x <= 0, slopes, 1.0))
        return x * noise

    def _chosen(self, given: Given) -> Tensor:
        weights, count = given["self"], given["num_samples"]
        if given["replacement"] and count > 1:
            weights = weights.unsqueeze(-2).expand(*weights.shape[:-1], count, weights.shape[-1])
        chances = weights / _exponential(self._next(weights.shape))
        if given["replacement"] and count > 1:
            return chances.argmax(-1)
        return chances.argsort(-1, descending=True)[..., :count]

    def _next(self, shape: Sequence[int]) -> Tensor:
        place = len(self.shapes)
        self.shapes.append(tuple(shape))
        if self._normals is None:
            return torch.zeros(shape, dtype=torch.float64)
        if place >= len(self._normals):
            raise OtherDraws("it draws more random numbers than its graph")
        normal = self._normals[place]
        if normal is None:
            return torch.zeros(shape, dtype=torch.float64)
        if tuple(normal.shape) != tuple(shape):
            raise OtherDraws("it draws other random numbers than its graph")
        return normal

    def check(self) -> None:
        """Raise OtherDraws where fewer were drawn than there are."""
        if self._normals is not None and len(self.shapes) < len(self._normals):
            raise OtherDraws("it draws fewer random numbers than its graph")


def aligned(
    normals: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]
) -> list[Tensor | None] | None:
    """The normal numbers for each call, by the shapes of all that are drawn, of which some are not
    needed. None where there is no way to say which, or more than one.

    Counts the ways to find the former shapes among the latter, in order; quadratic.
    """
    wanted = [tuple(normal.shape) for normal in normals]
    ways = [1, *(0 for _ in wanted)]
    for shape in shapes:
        for at in range(len(wanted), 0, -1):
            if wanted[at - 1] == shape:
                ways[at] += ways[at - 1]
    if ways[-1] != 1:
        return None
    drawn: list[Tensor | None] = []
    for shape in shapes:
        place = sum(normal is not None for normal in drawn)
        is_next = place < len(wanted) and wanted[place] == shape
        drawn.append(normals[place] if is_next else None)
    return drawn

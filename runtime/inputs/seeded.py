"""Draw weights and data from a seed, the same on any plan.

Every element is a hash of its global index under a key made of the seed and the tensor's name, so
a rank makes the region that it holds and nothing else, and any plan, like the run on one process
that it is checked against, starts from the same values. The hash is the finalizer of SplitMix64 on
a Weyl sequence (Steele, Lea and Flood, OOPSLA 2014, figure 19); normal values follow by the
transformation of Box and Muller from its two halves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pcg.graph.graph import Leaf
from pcg.placement.region import Region, elements, extent, starts_of, whole_region
from runtime.inputs.masks import drawn_mask, signed

_WEYL = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
CHUNK = 1 << 18
"""Elements that are made at a time, so that what is only used on the way stays small."""

Words = NDArray[np.uint64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LeafRegion:
    """A region of a leaf, by the leaf's name, as a rank holds or reads one."""

    leaf: str
    region: Region


class InputSource(Protocol):
    """What gives the inputs of each step."""

    @property
    def seed(self) -> int:
        """Of what is drawn."""
        ...

    @property
    def counts(self) -> bool:
        """Whether to read it is a part of training, and so of the time of a step."""
        ...

    @property
    def constants(self) -> Collection[str]:
        """The inputs of which it gives the same in every step."""
        ...

    def piece(self, leaf: Leaf, region: Region, step: int) -> Tensor:
        """A region of an input in a step, from 0; of any number format."""
        ...


@dataclass(frozen=True)
class Synthetic:
    """Random values that depend on the seed, the input's name and the step."""

    seed: int

    @property
    def counts(self) -> bool:
        """No: it stands for data that is there."""
        return False

    @property
    def constants(self) -> Collection[str]:
        return ()

    def piece(self, leaf: Leaf, region: Region, step: int) -> Tensor:
        return input_batch(leaf, self.seed, step, region)


def initial_weight(
    leaf: Leaf, seed: int, region: Region | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """A region of a weight, by default all: normal values scaled by 1/sqrt(fan-in), the second to
    last dimension (Kaiming)."""
    shape = leaf.shape
    fan_in = shape[-2] if len(shape) > 1 else 1
    scale = fan_in**-0.5
    return _filled(shape, region, f"{seed}/{leaf.name}", lambda w: normal(w) * scale, dtype)


def input_batch(
    leaf: Leaf,
    seed: int,
    step: int,
    region: Region | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """A region of the data of a step, by default all: normal values, whole numbers in
    [0, below) as floats, or ones and zeros; other values in every step."""
    name, below = _step_name(leaf, seed, step), leaf.below
    if leaf.share is not None:
        wanted = whole_region(leaf.shape) if region is None else region
        key = torch.tensor(mask_key(leaf, seed, step))
        return drawn_mask(leaf, starts_of(wanted), extent(wanted), key).to(dtype)
    if below is None:
        return _filled(leaf.shape, region, name, normal, dtype)
    return _filled(leaf.shape, region, name, lambda words: whole_numbers(words, below), dtype)


def mask_key(leaf: Leaf, seed: int, step: int) -> int:
    """What a mask is drawn with in a step; see ``drawn_mask``."""
    return signed(_key(_step_name(leaf, seed, step)))


def _step_name(leaf: Leaf, seed: int, step: int) -> str:
    return f"{seed}/{leaf.name}/{step}"


def _key(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def normal(words: Words) -> Floats:
    """Standard normal numbers from random words, one of each."""
    # The first half lies in (0, 1], for it goes into a logarithm.
    radius = ((words >> _HALF).astype(np.float64) + 1.0) * 2.0**-32
    angle = (words & _LOW).astype(np.float64) * (2.0 * np.pi * 2.0**-32)
    return np.sqrt(-2.0 * np.log(radius)) * np.cos(angle)


def whole_numbers(words: Words, below: int) -> Floats:
    """Whole numbers in [0, below) from random words, for bounds far below 2^32."""
    return (((words >> _HALF) * np.uint64(below)) >> _HALF).astype(np.float64)


def random_words(key: int, index: Words) -> Words:
    """A random 64-bit word for each index, other ones under another key."""
    z = np.uint64(key) + (index + np.uint64(1)) * _WEYL
    z = (z ^ (z >> np.uint64(30))) * _MIX[0]
    z = (z ^ (z >> np.uint64(27))) * _MIX[1]
    return z ^ (z >> np.uint64(31))


def _filled(
    shape: tuple[int, ...],
    region: Region | None,
    name: str,
    made: Callable[[Words], Floats],
    dtype: torch.dtype,
) -> Tensor:
    region = whole_region(shape) if region is None else region
    key = _key(name)
    filled = torch.empty(extent(region), dtype=dtype)
    flat = filled.view(-1)
    for start, index in _indices(shape, region):
        values = torch.from_numpy(made(random_words(key, index)))
        flat[start : start + len(index)] = values
    return filled


def _indices(shape: tuple[int, ...], region: Region) -> Iterator[tuple[int, Words]]:
    """The flat global indices of a region's elements in order, a chunk at a time, each with the
    number of its first element within the region."""
    lengths = extent(region)
    for first in range(0, elements(region), CHUNK):
        left = np.arange(first, min(first + CHUNK, elements(region)), dtype=np.uint64)
        index, stride = np.zeros_like(left), 1
        for size, (start, _), length in zip(
            reversed(shape), reversed(region), reversed(lengths), strict=True
        ):
            left, digit = np.divmod(left, np.uint64(length))
            index += (digit + np.uint64(start)) * np.uint64(stride)
            stride *= size
        yield first, index

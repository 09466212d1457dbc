"""Draw weights and data from a seed, the same on any plan.

Each element is a hash of its global index, under a key from the seed and the tensor's name. So a
rank computes only the region that it holds. All plans, and the run on one process to which they are
compared, start from the same values. The hash is the finalizer of SplitMix64 on a Weyl sequence
(Steele, Lea and Flood, OOPSLA 2014, figure 19). Normal values are computed from its two halves by
the Box-Muller transform.
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
"""The elements that are computed at a time, so that intermediate arrays stay small."""

Words = NDArray[np.uint64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LeafRegion:
    """A region of a leaf that a rank holds or reads. ``leaf``: the leaf's name."""

    leaf: str
    region: Region


class InputSource(Protocol):
    """A source of the inputs of each step."""

    @property
    def seed(self) -> int:
        """The seed of random inputs, such as dropout masks."""
        ...

    @property
    def counts(self) -> bool:
        """Whether the time to read inputs counts as a part of the step."""
        ...

    @property
    def constants(self) -> Collection[str]:
        """The names of the inputs that are the same in every step."""
        ...

    def piece(self, leaf: Leaf, region: Region, step: int) -> Tensor:
        """A region of an input in a step, in any number format. Steps are counted from 0."""
        ...


@dataclass(frozen=True)
class Synthetic:
    """Random values that depend on the seed, the input's name and the step."""

    seed: int

    @property
    def counts(self) -> bool:
        """False: synthetic data stands for data that is in memory already."""
        return False

    @property
    def constants(self) -> Collection[str]:
        return ()

    def piece(self, leaf: Leaf, region: Region, step: int) -> Tensor:
        return input_batch(leaf, self.seed, step, region)


def initial_weight(
    leaf: Leaf, seed: int, region: Region | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """A region of an initial weight, by default the whole weight: normal values times
    1/sqrt(fan-in) (Kaiming). The fan-in is the second to last dimension."""
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
    """A region of an input in a step, by default the whole input: normal values, integers in
    [0, below) as floats, or a mask of ones and zeros. Each step has other values."""
    name, below = _step_name(leaf, seed, step), leaf.below
    if leaf.share is not None:
        mask_region = whole_region(leaf.shape) if region is None else region
        key = torch.tensor(mask_key(leaf, seed, step))
        return drawn_mask(leaf, starts_of(mask_region), extent(mask_region), key).to(dtype)
    if below is None:
        return _filled(leaf.shape, region, name, normal, dtype)
    return _filled(leaf.shape, region, name, lambda words: whole_numbers(words, below), dtype)


def mask_key(leaf: Leaf, seed: int, step: int) -> int:
    """The key from which a mask is drawn in a step; see ``drawn_mask``."""
    return signed(_key(_step_name(leaf, seed, step)))


def _step_name(leaf: Leaf, seed: int, step: int) -> str:
    return f"{seed}/{leaf.name}/{step}"


def _key(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def normal(words: Words) -> Floats:
    """Standard normal numbers, one per random word."""
    # The first half is mapped to (0, 1], because its logarithm is taken.
    radius = ((words >> _HALF).astype(np.float64) + 1.0) * 2.0**-32
    angle = (words & _LOW).astype(np.float64) * (2.0 * np.pi * 2.0**-32)
    return np.sqrt(-2.0 * np.log(radius)) * np.cos(angle)


def whole_numbers(words: Words, below: int) -> Floats:
    """Integers in [0, below), one per random word. Nearly uniform if ``below`` is far below
    2^32."""
    return (((words >> _HALF) * np.uint64(below)) >> _HALF).astype(np.float64)


def random_words(key: int, index: Words) -> Words:
    """A random 64-bit word for each index. Another key gives other words."""
    z = np.uint64(key) + (index + np.uint64(1)) * _WEYL
    z = (z ^ (z >> np.uint64(30))) * _MIX[0]
    z = (z ^ (z >> np.uint64(27))) * _MIX[1]
    return z ^ (z >> np.uint64(31))


def _filled(
    shape: tuple[int, ...],
    region: Region | None,
    name: str,
    distribution: Callable[[Words], Floats],
    dtype: torch.dtype,
) -> Tensor:
    """A region of a tensor with random values. ``distribution`` maps random words to values."""
    region = whole_region(shape) if region is None else region
    key = _key(name)
    filled = torch.empty(extent(region), dtype=dtype)
    flat = filled.view(-1)
    for start, index in _indices(shape, region):
        values = torch.from_numpy(distribution(random_words(key, index)))
        flat[start : start + len(index)] = values
    return filled


def _indices(shape: tuple[int, ...], region: Region) -> Iterator[tuple[int, Words]]:
    """The flat global indices of a region's elements in order, in chunks. Each chunk comes with the
    number of its first element within the region."""
    lengths = extent(region)
    for first in range(0, elements(region), CHUNK):
        quotient = np.arange(first, min(first + CHUNK, elements(region)), dtype=np.uint64)
        index, stride = np.zeros_like(quotient), 1
        for size, (start, _), length in zip(
            reversed(shape), reversed(region), reversed(lengths), strict=True
        ):
            quotient, digit = np.divmod(quotient, np.uint64(length))
            index += (digit + np.uint64(start)) * np.uint64(stride)
            stride *= size
        yield first, index

"""Inputs that a user's training loop passes: the whole batch, or on each rank its own samples.

Rank r of R has the r-th of R equal parts of the batch, as with a DistributedSampler. If each rank
reads only its own part, nothing is communicated. Otherwise all parts are gathered on all ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pcg.errors import InputError
from pcg.graph.graph import DRAWN, Leaf
from pcg.placement.region import Region, as_slices
from runtime.inputs.seeded import LeafRegion, Synthetic
from runtime.inputs.tensor_checks import fitting
from runtime.job.job import AgreedError
from runtime.world.collectives import World


@dataclass
class PassedInputs:
    """The inputs of the current step, an ``InputSource``."""

    world: World
    leaves: Mapping[str, Leaf]
    """The inputs of the graph that the loop passes, by name."""
    read: tuple[LeafRegion, ...]
    """The regions of these inputs that this rank reads."""
    kept: dict[LeafRegion, Tensor]
    """The blocks of frozen parameters and buffers that this rank reads."""
    drawn: Synthetic
    """The source of random inputs, such as dropout masks."""
    _given: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """The inputs of the step, by name."""
    _first: dict[str, int] = field(default_factory=dict[str, int])
    """The number of the first sample in ``_given``, by input."""
    _agreed: dict[frozenset[str], bool] = field(default_factory=dict[frozenset[str], bool])
    """For each set of inputs of which ranks pass their own parts: whether the parts are gathered.
    All ranks have agreed on it the first time."""

    @property
    def seed(self) -> int:
        return self.drawn.seed

    @property
    def counts(self) -> bool:
        """False: the inputs are in memory already."""
        return False

    @property
    def constants(self) -> Collection[str]:
        return {piece.leaf for piece in self.kept}

    def piece(self, leaf: Leaf, region: Region, step: int) -> Tensor:
        """As ``runtime.inputs.seeded.InputSource.piece``."""
        if leaf.name.startswith(DRAWN):
            return self.drawn.piece(leaf, region, step)
        if (constant := self.kept.get(LeafRegion(leaf.name, region))) is not None:
            return constant
        if first := self._first[leaf.name]:
            (begin, end), *others = region
            region = ((begin - first, end - first), *others)
        return self._given[leaf.name][as_slices(region)]

    def give(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the inputs of a step, by name. All ranks call together. Raises InputError for inputs
        that do not fit the plan."""
        fit, parts = self._fitting(tensors)
        gathers = self._gathers(frozenset(parts))
        ranks = self.world.size
        for name, value in fit.items():
            is_part = name in parts
            if is_part and gathers:
                value = self._together(value)
            self._given[name] = value
            rows = self.leaves[name].shape[0] // ranks if is_part and not gathers else 0
            self._first[name] = rows * self.world.rank

    def takes(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether inputs fit the plan, as far as this rank can tell."""
        try:
            self._fitting(tensors)
        except InputError:
            return False
        return True

    def _fitting(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], set[str]]:
        """The inputs in the form that the program reads, and the names of those that have only this
        rank's samples. Raises InputError for an input that does not fit."""
        ranks = self.world.size
        parts: set[str] = set()
        fit: dict[str, Tensor] = {}
        for name, leaf in self.leaves.items():
            tensor, whole = tensors[name], leaf.shape
            part = (whole[0] // ranks, *whole[1:]) if whole and whole[0] % ranks == 0 else None
            if part is not None and tuple(tensor.shape) == part != whole:
                parts.add(name)
            elif tuple(tensor.shape) != whole:
                note = f", or {list(part)} of this rank's samples" if part and part != whole else ""
                problem = f"expected shape {list(whole)} of the batch{note}"
                raise InputError(f"input {name}", f"{problem}, got {list(tensor.shape)}")
            fit[name] = fitting(leaf, tensor.detach(), tuple(tensor.shape), f"input {name}")
        return fit, parts

    def forget(self) -> None:
        """Drop the inputs of a step."""
        self._given.clear()

    def _gathers(self, parts: frozenset[str]) -> bool:
        """Whether any rank reads samples of another rank. ``parts``: the inputs of which each rank
        has only its own samples. Raises AgreedError if these differ between ranks."""
        if parts not in self._agreed:
            by_rank = self.world.gather((parts, self._is_apart(parts)))
            if any(of_rank != parts for of_rank, _ in by_rank):
                problem = "some ranks give the whole batch, and others their samples"
                raise AgreedError("inputs", f"{problem}, expected the same of all")
            self._agreed[parts] = not all(apart for _, apart in by_rank)
        return self._agreed[parts]

    def _is_apart(self, parts: Iterable[str]) -> bool:
        """Whether this rank reads only its own samples of some inputs."""
        rank, ranks = self.world.rank, self.world.size
        for piece in self.read:
            if piece.leaf in parts:
                rows = self.leaves[piece.leaf].shape[0] // ranks
                begin, end = piece.region[0]
                if begin < rank * rows or end > (rank + 1) * rows:
                    return False
        return True

    def _together(self, part: Tensor) -> Tensor:
        """Gather the whole batch from all ranks' parts."""
        values = part.to(self.world.device)
        flat = (values.to(torch.uint8) if values.dtype == torch.bool else values).reshape(-1)
        everyone = tuple(range(self.world.size))
        whole = self.world.all_gather(flat, everyone)
        return whole.view(part.shape[0] * self.world.size, *part.shape[1:])

"""Inputs of a program that a user's own loop gives: the whole batch, or each rank its samples.

Rank r of R has the r-th of R equal parts of the batch, as with a DistributedSampler. Where all
that each rank reads lies in its own part, nothing is communicated; else all parts go to all ranks.
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
class Fed:
    """The inputs of the step under way. ``leaves``: all inputs of the graph that are given, by
    name; ``read``: what this rank reads; ``kept``: pieces of what is the module's own."""

    world: World
    leaves: Mapping[str, Leaf]
    read: tuple[LeafRegion, ...]
    kept: Mapping[LeafRegion, Tensor]
    drawn: Synthetic
    _given: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    _first: dict[str, int] = field(default_factory=dict[str, int])
    """Of each input, the first sample that is here."""
    _agreed: dict[frozenset[str], bool] = field(default_factory=dict[frozenset[str], bool])
    """By the inputs of which each rank gives its part, as all ranks agreed when they first did:
    whether parts are brought together."""

    @property
    def seed(self) -> int:
        return self.drawn.seed

    @property
    def counts(self) -> bool:
        """No: it is at hand."""
        return False

    @property
    def constants(self) -> Collection[str]:
        return {piece.leaf for piece in self.kept}

    def piece(self, leaf: Leaf, region: Region, step: int) -> Tensor:
        """As ``runtime.inputs.seeded.InputSource`` says."""
        if leaf.name.startswith(DRAWN):
            return self.drawn.piece(leaf, region, step)
        if (known := self.kept.get(LeafRegion(leaf.name, region))) is not None:
            return known
        if first := self._first[leaf.name]:
            (begin, end), *others = region
            region = ((begin - first, end - first), *others)
        return self._given[leaf.name][as_slices(region)]

    def give(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the inputs of a step; all ranks call together. Raises InputError for what does not
        fit the plan."""
        fit, parts = self._fitting(tensors)
        gathers = self._gathers(frozenset(parts))
        ranks = self.world.size
        for name, given in fit.items():
            is_part = name in parts
            if is_part and gathers:
                given = self._together(given)
            self._given[name] = given
            rows = self.leaves[name].shape[0] // ranks if is_part and not gathers else 0
            self._first[name] = rows * self.world.rank

    def takes(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether inputs fit the plan, by what this rank knows."""
        try:
            self._fitting(tensors)
        except InputError:
            return False
        return True

    def _fitting(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], set[str]]:
        """Inputs as the program reads them, and those that are this rank's samples alone."""
        ranks = self.world.size
        parts: set[str] = set()
        fit: dict[str, Tensor] = {}
        for name, leaf in self.leaves.items():
            given, whole = tensors[name], leaf.shape
            own = (whole[0] // ranks, *whole[1:]) if whole and whole[0] % ranks == 0 else None
            if own is not None and tuple(given.shape) == own != whole:
                parts.add(name)
            elif tuple(given.shape) != whole:
                mine = f", or {list(own)} of this rank's samples" if own and own != whole else ""
                problem = f"expected shape {list(whole)} of the batch{mine}"
                raise InputError(f"input {name}", f"{problem}, got {list(given.shape)}")
            fit[name] = fitting(leaf, given.detach(), tuple(given.shape), f"input {name}")
        return fit, parts

    def forget(self) -> None:
        """Let go of the inputs of a step."""
        self._given.clear()

    def _gathers(self, parts: frozenset[str]) -> bool:
        """Whether some rank reads samples of another, where these inputs are given in parts."""
        if parts not in self._agreed:
            every = self.world.gather((parts, self._is_apart(parts)))
            if any(other != parts for other, _ in every):
                problem = "some ranks give the whole batch, and others their samples"
                raise AgreedError("inputs", f"{problem}, expected the same of all")
            self._agreed[parts] = not all(apart for _, apart in every)
        return self._agreed[parts]

    def _is_apart(self, parts: Iterable[str]) -> bool:
        """Whether all that this rank reads of some inputs is of its own samples."""
        rank, ranks = self.world.rank, self.world.size
        for piece in self.read:
            if piece.leaf in parts:
                rows = self.leaves[piece.leaf].shape[0] // ranks
                begin, end = piece.region[0]
                if begin < rank * rows or end > (rank + 1) * rows:
                    return False
        return True

    def _together(self, part: Tensor) -> Tensor:
        """The whole batch from all ranks' parts."""
        own = part.to(self.world.device)
        flat = (own.to(torch.uint8) if own.dtype == torch.bool else own).reshape(-1)
        everyone = tuple(range(self.world.size))
        whole = self.world.all_gather(flat, everyone)
        return whole.view(part.shape[0] * self.world.size, *part.shape[1:])

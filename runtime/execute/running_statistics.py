"""Update the running statistics of batch norms from the parts that all ranks hold.

If the plan runs a batch norm as one operator, its kernel computes the mean and variance anyway. If
the plan decomposes it, an operator of its own computes those of the normalized tensor. Each rank
has the statistics of its own block. Once per pass, an all_reduce combines the parts of all ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from runtime.checkpoints.shards import Shard
from runtime.program.running import NormStatistics
from runtime.world.collectives import World


class RunningStatistics:
    """The running statistics of a module, on every rank. All ranks call its methods together.

    The statistics of all batch norms are concatenated in one tensor, and so are the contributions
    of each pass. So many batch norms take hardly longer than one.
    """

    def __init__(
        self, statistics: Sequence[NormStatistics], world: World, dtype: torch.dtype
    ) -> None:
        self._world = world
        self._everyone = tuple(range(world.size))
        firsts = {r.record.mean[0]: r for r in reversed(statistics)}
        sizes = {name: r.shape[1] for name, r in reversed(firsts.items())}
        self._ranges = dict(zip(sizes, _ranges(sizes.values()), strict=True))
        # Torch's initial values: mean 0, variance 1, no batches.
        self._means = torch.zeros(sum(sizes.values()), dtype=dtype, device=world.device)
        self._variances = torch.ones_like(self._means)
        self.names: dict[str, tuple[str, ...]] = {}
        """All names of each tensor in the module, by the first name."""
        self.tensors: dict[str, Tensor] = {}
        """The tensors by their first name."""
        for name, span in self._ranges.items():
            record = firsts[name].record
            for names, whole in ((record.mean, self._means), (record.variance, self._variances)):
                self.names[names[0]] = names
                self.tensors[names[0]] = whole[span.start : span.stop]
            if record.count:
                self.names[record.count[0]] = record.count
                self.tensors[record.count[0]] = torch.zeros((), dtype=torch.int64)
        self.lost = tuple(r.record.mean[0] for r in statistics if not r.is_known)
        """The running means that never change, because the plan does not compute the normalized
        tensor."""
        self._known = tuple(r for r in statistics if r.is_known)
        if self._known:
            world.prepare((self._everyone,))
            self._lay_out()

    def _lay_out(self) -> None:
        """Compute the indices of each part in the concatenated tensors, once for all passes."""
        known, device = self._known, self._world.device
        columns = _ranges(running.shape[1] for running in known)
        self._counts = _column([(prod(r.shape) // r.shape[1], r.shape[1]) for r in known], device)
        pieces = [(r.piece, c) for r, c in zip(known, columns, strict=True) if r.piece is not None]
        spans = [(c.start + p.channels[0], c.start + p.channels[1]) for p, c in pieces]
        self._registers = tuple(p.registers for p, _ in pieces)
        self._places = _indices([range(*span) for span in spans], device)
        counts = [
            (p.count, last - first) for (p, _), (first, last) in zip(pieces, spans, strict=True)
        ]
        self._own_counts = _column(counts, device)
        # A batch norm that the module uses several times takes the batches one after the other.
        uses = Counter[str]()
        turns: dict[int, list[int]] = {}
        for number, running in enumerate(known):
            name = running.record.mean[0]
            turns.setdefault(uses[name], []).append(number)
            uses[name] += 1
        self._turns = [
            (
                _indices([columns[i] for i in turn], device),
                _indices([self._ranges[known[i].record.mean[0]] for i in turn], device),
                _column([(known[i].record.momentum, known[i].shape[1]) for i in turn], device),
            )
            for turn in turns.values()
        ]

    def update(self, registers: Mapping[str, Tensor]) -> None:
        """Update the statistics with a batch, after a pass. ``registers``: those of the pass."""
        if not self._known:
            return
        means, squares, distances = self._together(registers)
        mean = means / self._counts
        squared_distances = distances + squares - self._counts * mean.square()
        variance = squared_distances / (self._counts - 1).clamp(min=1)
        for columns, indices, momentum in self._turns:
            for whole, new in ((self._means, mean), (self._variances, variance)):
                old = whole[indices].double()
                whole[indices] = old.lerp(new[columns], momentum).to(whole.dtype)
        for running in self._known:
            for name in running.record.count[:1]:
                self.tensors[name] += 1

    def _together(self, registers: Mapping[str, Tensor]) -> Iterable[Tensor]:
        """For each channel, three sums over the parts of all ranks: count times mean, count times
        squared mean, and the squared distances from the part's mean."""
        shape, double = (3, len(self._counts)), torch.float64
        sums = torch.zeros(shape, dtype=double, device=self._world.device)
        if self._registers:
            mean = torch.cat([registers[name] for name, _ in self._registers]).to(double)
            variance = torch.cat([registers[name] for _, name in self._registers]).to(double)
            count = self._own_counts
            distances = torch.where(count > 1, variance * (count - 1), 0.0)
            sums[:, self._places] = torch.stack([count * mean, count * mean.square(), distances])
        self._world.start_all_reduce(sums, self._everyone)()
        return sums

    def shards(self) -> Iterator[tuple[str, Shard]]:
        """The statistics by their name in the module, as shards for a checkpoint."""
        for name, tensor in self.tensors.items():
            shape, first = tuple(tensor.shape), self._world.rank == 0
            yield name, Shard(f"model.{name}", shape, (0,) * len(shape), tensor, first)

    def fill(self, state: Mapping[str, Tensor]) -> None:
        """Set the statistics from a state dict, as far as it has them."""
        for first, names in self.names.items():
            tensor = self.tensors[first]
            saved = next((state[name] for name in names if name in state), None)
            if saved is not None and saved.shape == tensor.shape:
                tensor.copy_(saved)


def _ranges(sizes: Iterable[int]) -> list[range]:
    """The index ranges of parts of these sizes in their concatenation."""
    ranges: list[range] = []
    start = 0
    for size in sizes:
        ranges.append(range(start, start + size))
        start += size
    return ranges


def _indices(spans: Iterable[range], device: torch.device) -> Tensor:
    return torch.tensor([i for span in spans for i in span], dtype=torch.int64, device=device)


def _column(values: Iterable[tuple[float, int]], device: torch.device) -> Tensor:
    """Pairs (number, channels) as a vector, in which each number is repeated for its channels."""
    repeated = [value for value, size in values for _ in range(size)]
    return torch.tensor(repeated, dtype=torch.float64, device=device)

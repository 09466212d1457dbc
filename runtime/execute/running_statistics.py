"""Update the running statistics of batch norms from the parts that all ranks hold.

Where a plan runs a batch norm as one operator, its kernel has found the mean and variance anyway;
where it takes one apart, those of the tensor that is normed are taken once more. Each rank knows
its own piece's; once a pass, all ranks put them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from runtime.checkpoints.shards import Shard
from runtime.program.running import Running
from runtime.world.collectives import World


class RunningStatistics:
    """The running statistics of a module, on every rank. All ranks call together.

    They lie side by side in one tensor, and so does what each pass adds, so that many batch norms
    take hardly longer than one.
    """

    def __init__(self, kept: Sequence[Running], world: World, dtype: torch.dtype) -> None:
        self._world = world
        self._everyone = tuple(range(world.size))
        firsts = {r.record.mean[0]: r for r in reversed(kept)}
        sizes = {name: r.shape[1] for name, r in reversed(firsts.items())}
        self._own = dict(zip(sizes, _ranges(sizes.values()), strict=True))
        # As torch begins: mean 0, variance 1, no batches.
        self._means = torch.zeros(sum(sizes.values()), dtype=dtype, device=world.device)
        self._variances = torch.ones_like(self._means)
        self.names: dict[str, tuple[str, ...]] = {}
        """All names of each tensor in the module, by the first."""
        self.tensors: dict[str, Tensor] = {}
        """By the first name."""
        for name, own in self._own.items():
            record = firsts[name].record
            for names, whole in ((record.mean, self._means), (record.variance, self._variances)):
                self.names[names[0]] = names
                self.tensors[names[0]] = whole[own.start : own.stop]
            if record.count:
                self.names[record.count[0]] = record.count
                self.tensors[record.count[0]] = torch.zeros((), dtype=torch.int64)
        self.lost = tuple(r.record.mean[0] for r in kept if not r.is_known)
        """Running means that stay as they are: the plan does not compute what they are of."""
        self._known = tuple(r for r in kept if r.is_known)
        if self._known:
            world.prepare((self._everyone,))
            self._lay_out()

    def _lay_out(self) -> None:
        """Where what a pass adds lies, once for all passes."""
        known, device = self._known, self._world.device
        columns = _ranges(running.shape[1] for running in known)
        self._counts = _column([(prod(r.shape) // r.shape[1], r.shape[1]) for r in known], device)
        pieces = [(r.piece, c) for r, c in zip(known, columns, strict=True) if r.piece is not None]
        spans = [(c.start + p.channels[0], c.start + p.channels[1]) for p, c in pieces]
        self._registers = tuple(p.registers for p, _ in pieces)
        self._places = _indices([range(*span) for span in spans], device)
        own = [(p.count, stop - start) for (p, _), (start, stop) in zip(pieces, spans, strict=True)]
        self._own_counts = _column(own, device)
        # A batch norm that is used again takes its batches one after the other.
        uses = Counter[str]()
        turns: dict[int, list[int]] = {}
        for number, running in enumerate(known):
            name = running.record.mean[0]
            turns.setdefault(uses[name], []).append(number)
            uses[name] += 1
        self._turns = [
            (
                _indices([columns[i] for i in turn], device),
                _indices([self._own[known[i].record.mean[0]] for i in turn], device),
                _column([(known[i].record.momentum, known[i].shape[1]) for i in turn], device),
            )
            for turn in turns.values()
        ]

    def update(self, registers: Mapping[str, Tensor]) -> None:
        """Take one more batch in, after a pass that made these registers."""
        if not self._known:
            return
        means, squares, distances = self._together(registers)
        mean = means / self._counts
        left = distances + squares - self._counts * mean.square()
        variance = left / (self._counts - 1).clamp(min=1)
        for columns, own, momentum in self._turns:
            for whole, new in ((self._means, mean), (self._variances, variance)):
                old = whole[own].double()
                whole[own] = old.lerp(new[columns], momentum).to(whole.dtype)
        for running in self._known:
            for name in running.record.count[:1]:
                self.tensors[name] += 1

    def _together(self, registers: Mapping[str, Tensor]) -> Iterable[Tensor]:
        """Of each channel, the sums over all pieces of count times mean, count times squared mean,
        and squared distances from the piece's mean."""
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
        """By name in the module, as parts of a checkpoint."""
        for name, tensor in self.tensors.items():
            shape, first = tuple(tensor.shape), self._world.rank == 0
            yield name, Shard(f"model.{name}", shape, (0,) * len(shape), tensor, first)

    def fill(self, state: Mapping[str, Tensor]) -> None:
        """Begin with what a state dict has of them."""
        for first, names in self.names.items():
            tensor = self.tensors[first]
            given = next((state[name] for name in names if name in state), None)
            if given is not None and given.shape == tensor.shape:
                tensor.copy_(given)


def _ranges(sizes: Iterable[int]) -> list[range]:
    """Places of parts of these sizes, one after the other."""
    ranges: list[range] = []
    start = 0
    for size in sizes:
        ranges.append(range(start, start + size))
        start += size
    return ranges


def _indices(spans: Iterable[range], device: torch.device) -> Tensor:
    return torch.tensor([i for span in spans for i in span], dtype=torch.int64, device=device)


def _column(values: Iterable[tuple[float, int]], device: torch.device) -> Tensor:
    """Numbers, each repeated for as many channels."""
    repeated = [value for value, size in values for _ in range(size)]
    return torch.tensor(repeated, dtype=torch.float64, device=device)

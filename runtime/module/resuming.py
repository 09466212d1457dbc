"""Checkpoints of a module's shards and of their optimizer states.

They have the format of ``unity run``, by torch.distributed.checkpoint: each rank writes its own
shards, under the module's names and with global offsets, so that another plan or another number of
ranks can resume from them. A checkpoint is complete or does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from runtime.checkpoints import checkpoint
from runtime.checkpoints.checkpoint import Manifest
from runtime.checkpoints.contents import TensorFile
from runtime.checkpoints.shards import Shard, apart
from runtime.job.job import AgreedError
from runtime.job.recipe import Recipe
from runtime.module.engine import RankEngine

MODEL, OPTIMIZER = "model.", "optimizer."


@dataclass(frozen=True)
class ModuleCheckpoints:
    """Saves and loads checkpoints of a module. ``shards``: this rank's parameters, by leaf.
    ``kept``: the tensors of the module that are not trained, by name."""

    engine: RankEngine
    shards: Mapping[str, Parameter]
    kept: dict[str, Tensor]

    def save(self, folder: Path, optimizer: Optimizer | None, step: int, keep: int) -> Path:
        """Write a checkpoint after ``step`` steps and return its path. All ranks call together.
        Raises CheckpointError on all ranks if one cannot write."""
        engine = self.engine
        running = (shard for _, shard in engine.executor.running.shards())
        shards = [*self.shards_of(optimizer), *self._others(), *running]
        plan = engine.plan
        names = [parts for leaf in engine.leaves for parts in plan.naming.parameter(leaf).parts]
        names += [(name,) for name in self.kept]
        names += list(engine.executor.running.names.values())
        manifest = Manifest(
            model=plan.model_name,
            graph=plan.model.digest,
            updates=step,
            batches=engine.number,
            seed=engine.seed,
            recipe=Recipe(),
            parameters={first: tuple(others) for first, *others in names},
        )
        return checkpoint.save(engine.world, folder, shards, manifest, keep)

    @torch.no_grad()
    def load(self, folder: Path, optimizer: Optimizer | None) -> int:
        """Load the newest undamaged checkpoint. Return the number of steps after which it was
        written, 0 if there is none. All ranks call together. Raises AgreedError for a checkpoint of
        another module, and if all are damaged."""
        engine = self.engine
        newest = checkpoint.find(engine.world, folder, lambda text: None)
        if newest is None:
            return 0
        if newest.manifest.graph != engine.plan.model.digest:
            problem = f"is of {newest.manifest.model} with another graph than the plan's model"
            raise AgreedError(str(newest.path), problem)
        contents = newest.contents()
        # New tensors, so that those of the original module do not change.
        saved = {n: t for n, t in self.kept.items() if MODEL + n in contents}
        self.kept.update({n: torch.empty_like(t, device="cpu") for n, t in saved.items()})
        self._make_states(contents, optimizer)
        others = (shard for shard in self._others() if shard.name in contents)
        running = (shard for _, shard in engine.executor.running.shards())
        shards = [*self.shards_of(optimizer), *others, *running]
        checkpoint.load(engine.world, newest, shards)
        for leaf, name in engine.naming.buffers.items():
            if name in saved:
                engine.load(leaf, self.kept[name])
        engine.number = newest.manifest.batches or 0
        return newest.manifest.updates

    def shards_of(self, optimizer: Optimizer | None) -> Iterator[Shard]:
        """This rank's shards of weights and of their optimizer states."""
        yield from self._weights()
        yield from self._states(optimizer)

    def _weights(self) -> Iterator[Shard]:
        for leaf, parameter in self._held():
            yield from self._apart(leaf, MODEL + "{}", parameter.data)

    def _others(self) -> Iterator[Shard]:
        first = self.engine.world.rank == 0
        for name, tensor in self.kept.items():
            if not tensor.is_meta:
                shape = tuple(tensor.shape)
                yield Shard(MODEL + name, shape, (0,) * len(shape), tensor, first)

    def _states(self, optimizer: Optimizer | None) -> Iterator[Shard]:
        """The optimizer states: tensors of a shard's shape, and single numbers. The latter are the
        same for all shards of a weight; the rank with the first shard writes them."""
        if optimizer is None:
            return
        for leaf, parameter in self._held():
            for state, value in optimizer.state.get(parameter, {}).items():
                if not isinstance(value, Tensor):
                    continue
                name = f"{OPTIMIZER}{self._name(leaf)}.{state}"
                if value.shape == parameter.shape and parameter.dim():
                    yield from self._apart(leaf, f"{OPTIMIZER}{{}}.{state}", value)
                elif not value.dim():
                    starts = [start for start, _ in self.engine.weights[leaf].region]
                    yield Shard(name, (), (), value, self.engine.counts(leaf) and not any(starts))

    def _make_states(self, contents: Mapping[str, TensorFile], optimizer: Optimizer | None) -> None:
        """Create optimizer states as zeros, for a checkpoint to fill."""
        if optimizer is None:
            return
        for leaf, parameter in self._held():
            prefix = f"{OPTIMIZER}{self._name(leaf)}."
            for name, saved in contents.items():
                state = name.removeprefix(prefix)
                if not name.startswith(prefix) or "." in state:
                    continue
                optimizer.state[parameter][state] = (
                    torch.zeros_like(parameter.data)
                    if saved.shape
                    else torch.zeros((), dtype=saved.torch_dtype)
                )

    def _held(self) -> Iterator[tuple[str, Parameter]]:
        """The weights of which this rank stores a block, with their parameters."""
        for leaf, parameter in self.shards.items():
            if leaf in self.engine.weights:
                yield leaf, parameter

    def _name(self, leaf: str) -> str:
        """The name of a weight's first parameter."""
        return self.engine.naming.parameter(leaf).in_module[0]

    def _apart(self, leaf: str, key: str, tensor: Tensor) -> Iterator[Shard]:
        """The shards of the module's parameters in a tensor of a weight's shard."""
        weight, parameter = self.engine.weights[leaf], self.engine.naming.parameter(leaf)
        offsets = parameter.reoriented([start for start, _ in weight.region])
        shape = parameter.reoriented(weight.leaf.shape)
        return apart(Shard("", shape, offsets, tensor, self.engine.counts(leaf)), key, parameter)

"""Train a public model by a plan on several processes, and by torch alone, from the same start.

Both have the same weights, batches and random numbers, in double precision. The random numbers of
dropout are the plan's. The module is given these in place of torch's own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from support.public.calls import PublicModel
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

import unity
from pcg.capture import Captured, capture
from pcg.graph.graph import Leaf
from pcg.placement.region import as_slices
from pcg.plan.plan import Plan
from runtime.execute.precision import in_float64
from runtime.inputs.seeded import input_batch
from runtime.module.calls import ForwardSignature, ModuleCall, call_of
from runtime.train.grouped import grouped_in_double
from runtime.train.replay import OtherDraws, Replay, aligned
from unity.api.losses import LossSource, returned_loss, with_loss

STEPS, RANKS, SEED = 3, 4, 0
TIMES = 4
"""The whole batch is this many times the batch of the example."""
OPTIMIZERS: Mapping[str, Callable[[Iterable[Tensor]], Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, lr=0.05, momentum=0.9),
    # A gradient that is 0 except for rounding, like that of a bias before a softmax, has to stay
    # small.
    "adam": lambda parameters: Adam(parameters, lr=0.01, eps=1e-4),
}
TIMEOUT = timedelta(seconds=120)
"""Long, because other work may slow the computer down. Only a run that hangs takes it."""


@dataclass(frozen=True)
class Subject:
    """A model in double precision, its example call, and its graph for a whole batch."""

    module: nn.Module
    call: ModuleCall
    captured: Captured

    def loss(self, module: nn.Module, step: int) -> Callable[[], Any]:
        """A function that runs the forward pass on the batch of a step."""
        bound, _ = self.call.with_tensors(tuple(batch_of(self.call, step).values()))
        return lambda: module(*bound.args, **bound.kwargs)


def subject_of(public: PublicModel) -> Subject:
    """Capture a public model."""
    module, given = copy.deepcopy(public.module).double(), public.inputs
    args, kwargs = ((), given) if isinstance(given, Mapping) else (given, {})
    call = call_of(ForwardSignature.of(module), args, kwargs)
    inputs = tuple(batch_of(call, 0).values())
    with in_float64():
        return Subject(module, call, capture(with_loss(module, call, LossSource(None)), inputs))


def batch_of(call: ModuleCall, step: int) -> dict[str, Tensor]:
    """The whole batch of a step. Real numbers are drawn. Other numbers are those of the example,
    and masks are those of its samples."""
    generator = torch.Generator().manual_seed(step)
    own = next(iter(call.tensors.values())).shape[0]

    def drawn(name: str, example: Tensor) -> Tensor:
        first, *others = example.shape
        shape = (first * TIMES if first == own else first, *others)
        if example.is_floating_point():
            return torch.randn(shape, dtype=torch.float64, generator=generator)
        if name.endswith("_mask"):
            # A mask of ones after zeros keeps this form.
            return example[torch.randint(first, shape[:1], generator=generator)]
        places = torch.randint(example.numel(), shape, generator=generator)
        return example.flatten()[places]

    return {name: drawn(name, example) for name, example in call.tensors.items()}


@dataclass(frozen=True)
class Piece:
    """A rank's part of a tensor of the module: its place, in the module's order of dimensions."""

    name: str
    region: tuple[tuple[int, int], ...]
    values: Tensor


@dataclass(frozen=True)
class Trained:
    """The results of training. ``gradients``: by step, of all ranks. ``state``: the state of the
    module."""

    losses: list[float]
    gradients: list[list[Piece]]
    state: dict[str, Tensor]


def _normals(leaf: Leaf, step: int) -> Tensor:
    """The normal numbers that stand for the drawn ones of an input in a step: for the ones of a
    mask a number below all others, and for its zeros one above."""
    drawn = input_batch(leaf, SEED, step)
    return drawn if leaf.share is None else torch.where(drawn != 0, -torch.inf, torch.inf).double()


def eagerly(subject: Subject, optimizer: str) -> Trained:
    """Train by torch alone."""
    module, made = copy.deepcopy(subject.module), subject.captured
    leaves = {node.leaf.name: node.leaf for node in made.graph.leaves}

    def forward(step: int) -> Tensor:
        normals = [_normals(leaves[name], step) for name in made.draws]
        loss = subject.loss(module, step)
        with in_float64():
            return returned_loss(_replayed(module, loss, normals))

    experts = {name for weight in made.weights for name in weight.stacked}

    def pieces() -> list[Piece]:
        for name, parameter in module.named_parameters():
            if name in experts and parameter.grad is None:
                # An expert that no word reached has a part of the gradient of its stack.
                parameter.grad = torch.zeros_like(parameter)
        given = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
        whole = {n: tuple((0, size) for size in grad.shape) for n, grad in given.items()}
        return [Piece(n, whole[n], grad.clone()) for n, grad in given.items()]

    with grouped_in_double():
        return _trained(module, forward, pieces, optimizer)


def _trained(
    module: nn.Module,
    forward: Callable[[int], Tensor],
    pieces: Callable[[], list[Piece]],
    optimizer: str,
) -> Trained:
    """Train in a plain loop."""
    update = OPTIMIZERS[optimizer](module.parameters())
    losses: list[float] = []
    by_rank: list[list[Piece]] = []
    for step in range(STEPS):
        loss = forward(step)
        loss.backward()
        losses.append(loss.item())
        by_rank.append(pieces())
        update.step()
        update.zero_grad()
    return Trained(losses, by_rank, dict(module.state_dict()))


def _replayed(module: nn.Module, loss: Callable[[], Any], normals: list[Tensor]) -> Any:
    """The output of a module with these random numbers, with its buffers updated once."""
    before = [buffer.clone() for buffer in module.buffers()]
    try:
        with Replay(normals) as draws:
            returned = loss()
            draws.check()
        return returned
    except OtherDraws:
        # Some are drawn that no output needs.
        with Replay(None) as draws, torch.no_grad():
            loss()
    for buffer, value in zip(module.buffers(), before, strict=True):
        buffer.data.copy_(value)
    needed = aligned(normals, draws.shapes)
    assert needed is not None, "which random numbers are needed is not clear"
    with Replay(needed):
        return loss()


def by_plan(subject: Subject, plan: Plan, optimizer: str) -> list[Trained]:
    """Train by a plan on as many processes; results by rank. Raises AssertionError if one fails."""
    context = get_context("fork")
    with TemporaryDirectory() as folder:
        work = (subject, plan, optimizer, Path(folder))
        ranks = range(plan.machine.devices)
        processes = [context.Process(target=_rank_main, args=(r, *work)) for r in ranks]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        failed = [rank for rank in ranks if processes[rank].exitcode]
        assert not failed, f"ranks {failed} failed"
        return [_read(Path(folder) / f"{rank}.pt") for rank in ranks]


def _rank_main(rank: int, subject: Subject, plan: Plan, optimizer: str, folder: Path) -> None:
    torch.set_num_threads(1)
    store, size = (folder / "store").as_uri(), plan.machine.devices
    dist.init_process_group("gloo", store, TIMEOUT, size, rank)
    own = on_rank(subject, plan, optimizer)
    pieces = [[(p.name, p.region, p.values) for p in step] for step in own.gradients]
    torch.save((own.losses, pieces, own.state), folder / f"{rank}.pt")
    dist.destroy_process_group()


def _read(path: Path) -> Trained:
    losses, steps, state = torch.load(path, weights_only=True)
    return Trained(losses, [[Piece(*piece) for piece in step] for step in steps], state)


def on_rank(subject: Subject, plan: Plan, optimizer: str) -> Trained:
    """Train by a plan as one rank of the default process group."""
    model = unity.parallelize(subject.module, plan, seed=SEED)
    own = model._own  # pyright: ignore[reportPrivateUsage]

    def pieces() -> list[Piece]:
        held: list[Piece] = []
        for place in own.places:
            gradient = place.parameter.grad
            weight = own.engine.weights.get(place.leaf)
            if gradient is None or weight is None:
                continue
            record = own.engine.naming.parameter(place.leaf)
            region = tuple(weight.region)
            if record.transposed:
                region = (*region[:-2], *region[-2:][::-1])
            if not record.stacked:
                held.append(Piece(place.name, region, gradient.clone()))
                continue
            names = record.stacked[slice(*region[0])]
            parts = zip(names, gradient.clone(), strict=True)
            held += [Piece(name, region[1:], part) for name, part in parts]
        return held

    def forward(step: int) -> Tensor:
        return returned_loss(subject.loss(model, step)())

    return _trained(model, forward, pieces, optimizer)


def difference(ranks: list[Trained], alone: Trained) -> float:
    """The largest difference of losses, gradients and weights, relative to the largest loss,
    gradient of the step and weight. Raises AssertionError if a gradient is missing, or if integers
    of the state differ, such as the number of batches that a batch norm has counted."""
    distances: list[float] = []
    for step, whole in enumerate(alone.gradients):
        by_name = {piece.name: piece.values for piece in whole}
        size = max(g.abs().max().item() for g in by_name.values() if g.numel())
        seen = dict.fromkeys(by_name, 0)
        for piece in (piece for rank in ranks for piece in rank.gradients[step]):
            own = by_name[piece.name][as_slices(piece.region)]
            distances.append(_largest(piece.values - own) / size)
            seen[piece.name] += piece.values.numel()
        missing = [n for n, count in seen.items() if count < by_name[n].numel()]
        assert not any(by_name[n].any() for n in missing), f"no gradients of {missing}"
        distances += [abs(r.losses[step] / alone.losses[step] - 1) for r in ranks]
    numbers = {n: t for n, t in alone.state.items() if t.is_floating_point()}
    size = max(_largest(tensor) for tensor in numbers.values())
    for rank in ranks:
        assert list(rank.state) == list(alone.state)
        distances += [_largest(rank.state[n] - tensor) / size for n, tensor in numbers.items()]
        others = alone.state.keys() - numbers.keys()
        unequal = [n for n in others if not torch.equal(rank.state[n], alone.state[n])]
        assert not unequal, f"{unequal} differ"
    # Python's max would drop a NaN.
    return torch.tensor(distances).max().item()


def _largest(tensor: Tensor) -> float:
    return tensor.abs().max().item() if tensor.numel() else 0.0

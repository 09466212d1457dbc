"""Measure operators and links under the conditions of training, for the cost model.

Several operators one after the other are timed forward and backward together, as autograd runs
them. The time is divided by the number of their kernels. All ranks measure at the same time,
because they share cores and memory in training, too. Each result is the median of several repeats,
with the distance between the quartiles.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from statistics import median, quantiles
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import gelu

from pcg.device import DeviceKind, DType
from pcg.language.functions import FUNCTIONS
from pcg.machine import Pattern
from pcg.plan.profile import LEAST_POINTS
from pcg.readings.kind import WorkKind
from runtime.execute.precision import DTYPES, allow_tf32
from runtime.program.program import Group
from runtime.train.worker import share_cores
from runtime.world.collectives import World, open_world

REPEATS = 9
BATCH_SECONDS = 20e-3
"""Seconds of a repeat, which makes as many calls as fit. They are more than the time slice of a
core, so that the effect of processes which share cores is measured."""
LONGEST = 0.005
"""Seconds of a kernel above which no larger sizes are measured."""
ROW = 8
"""The number of operators one after the other."""
BYTES = tuple(4**k for k in range(3, 13))
"""The bytes that a device sends in a call: 64 bytes to 16 MiB."""


@dataclass(frozen=True)
class Timing:
    """The time of a kernel or a communication of some size: the median and the distance between the
    quartiles, in seconds. ``size``: operations of a contraction or a function, else bytes."""

    size: float
    seconds: float
    spread: float


@dataclass(frozen=True)
class RankMeasurements:
    """All measurements of a rank."""

    device: str
    operators: Mapping[tuple[WorkKind, DType], tuple[Timing, ...]]
    """The timings of operators, by kind of work and number format."""
    links: tuple[tuple[LinkTimings, ...], ...]
    """The timings of links, by level of the machine, the innermost first. Empty for a level that
    has less than two units."""


@dataclass(frozen=True)
class LinkTimings:
    """The timings of a kind of communication among ``devices`` devices. The size of a message is
    its bytes. The size of a collective is the bytes that each device has in the end."""

    of: Pattern
    devices: int
    timings: tuple[Timing, ...]


def measure(
    kind: DeviceKind, dtypes: Sequence[DType], units: Sequence[int], timeout: float
) -> RankMeasurements | None:
    """Measure as one of the ranks that torchrun started, or as a single process. Return the result
    on rank 0, None on other ranks.

    ``units``: the number of devices in a unit of each level, from one device to the whole machine.
    """
    share_cores()
    with open_world(kind, timeout) as world:
        operators: dict[tuple[WorkKind, DType], tuple[Timing, ...]] = {
            (name, dtype): tuple(series)
            for dtype in dtypes
            for name, series in _operators(world, dtype)
        }
        links = tuple(tuple(_link(world, inner, outer)) for inner, outer in pairwise(units))
        name = _device_name(world)
    return RankMeasurements(name, operators, links) if world.rank == 0 else None


def _device_name(world: World) -> str:
    if world.device.type == "cuda":
        return torch.cuda.get_device_name(world.device)
    threads = torch.get_num_threads()
    return f"{platform.machine()}, {threads} threads of {world.size} processes, torch"


def _ignore_gradient(weight: Tensor) -> None:
    """A gradient hook that does nothing."""


Calls = Callable[[], object]
"""Runs some kernels."""
Case = Callable[["_Tensors", int], tuple[float, int, Calls]]
"""From a length to the size of a kernel, the number of kernels, and a function that runs them."""


@dataclass(frozen=True)
class _Tensors:
    """Creates tensors of a number format on a device."""

    dtype: torch.dtype
    device: torch.device

    def of(self, *shape: int, grad: bool = False) -> Tensor:
        values = torch.full(shape, 1 / shape[-1], dtype=self.dtype, device=self.device)
        return values.requires_grad_(grad)


def _contraction(tensors: _Tensors, n: int) -> tuple[float, int, Calls]:
    weights = [tensors.of(n, n, grad=True) for _ in range(ROW + 1)]
    gradient = tensors.of(n, n)
    return (
        2.0 * n**3,
        3 * ROW,
        lambda: torch.autograd.grad(reduce(torch.matmul, weights), weights, gradient),
    )


def _pointwise(tensors: _Tensors, n: int) -> tuple[float, int, Calls]:
    # Forward reads one tensor and writes one; backward reads two and writes one.
    x, gradient = tensors.of(n, grad=True), tensors.of(n)

    def call() -> object:
        y = reduce(lambda y, _: y.relu(), range(ROW), x)
        return torch.autograd.grad(y, x, gradient)

    return 2.5 * n * x.element_size(), 2 * ROW, call


def _reduction(tensors: _Tensors, n: int) -> tuple[float, int, Calls]:
    x = tensors.of(-(-n // 64), 64, grad=True)
    moved = float((x.numel() + len(x)) * x.element_size())
    return moved, ROW, lambda: [x.sum(dim=1) for _ in range(ROW)]


def _function(tensors: _Tensors, n: int) -> tuple[float, int, Calls]:
    x = tensors.of(n)
    return float(FUNCTIONS["gelu"].flops * n), ROW, lambda: [gelu(x) for _ in range(ROW)]


def _update(tensors: _Tensors, n: int) -> tuple[float, int, Calls]:
    # As in a training step: autograd calls a hook for each gradient, then the optimizer updates.
    weights, gradients = [tensors.of(n, grad=True) for _ in range(ROW)], [tensors.of(n)] * ROW
    optimizer = torch.optim.SGD(weights, lr=0.0)
    for weight in weights:
        weight.register_post_accumulate_grad_hook(_ignore_gradient)

    def call() -> object:
        torch.autograd.backward(weights, gradients)
        optimizer.step()
        return optimizer.zero_grad()

    # The update reads a weight and its gradient, and writes the weight.
    return float(3 * weights[0].element_size() * n), ROW, call


SIDES = [2**k for k in range(3, 14)]
LENGTHS = [4**k for k in range(3, 14)]
CASES: tuple[tuple[WorkKind, Case, Sequence[int]], ...] = (
    ("contraction", _contraction, SIDES),
    ("pointwise", _pointwise, LENGTHS),
    ("reduction", _reduction, LENGTHS),
    ("function", _function, LENGTHS),
    ("update", _update, LENGTHS),
)
"""The measured case of each kind of work, and its lengths."""


def _operators(world: World, dtype: DType) -> Iterator[tuple[WorkKind, list[Timing]]]:
    tensors = _Tensors(DTYPES[dtype], world.device)
    allow_tf32(allowed=dtype == "tf32")
    for kind, case, lengths in CASES:
        yield kind, list(_series(world, partial(case, tensors), lengths))


def _series(
    world: World, case: Callable[[int], tuple[float, int, Calls]], lengths: Sequence[int]
) -> Iterator[Timing]:
    """The timings of a kind of operator, up to a size above ``LONGEST`` seconds, but for at least
    ``LEAST_POINTS`` sizes, because the cost model interpolates between them."""
    for number, length in enumerate(lengths, 1):
        size, kernels, call = case(length)
        samples = _samples(world, call)
        yield _timing(size, [seconds / kernels for seconds in samples])
        # All ranks have to stop at the same size.
        if max(world.gather(median(samples))) > LONGEST * kernels and number >= LEAST_POINTS:
            return


def _link(world: World, inner: int, outer: int) -> Iterator[LinkTimings]:
    """The timings of a level's links. One device of each unit takes part: in messages between pairs
    of them, and in collectives over all of them. ``inner``, ``outer``: devices in a unit, and in
    the unit of the next level."""
    group = tuple(range(0, min(outer, world.size), inner))
    if len(group) < 2:
        return
    world.prepare([group])
    patterns: tuple[Pattern, ...] = ("message", "all_gather", "all_reduce")
    for of in patterns:
        parts = 1 if of == "message" else len(group)
        timings: list[Timing] = []
        for size in BYTES:
            times, call = _communication(world, group, of, size // 4)
            samples = [seconds / times for seconds in _samples(world, call)]
            timings.append(_timing(float(size * parts), samples))
        yield LinkTimings(of, max(parts, 2), tuple(timings))


def _communication(world: World, group: Group, of: Pattern, count: int) -> tuple[int, Calls]:
    """A function that communicates ``count`` numbers per device, and how many communications a call
    of it makes."""
    if of == "message":
        return 1, _exchange(world, group, count)
    part = torch.ones(count, device=world.device)
    whole = torch.ones(count * len(group), device=world.device)
    if world.rank not in group:
        return 1, _nothing
    if of == "all_reduce":
        return 1, lambda: world.all_reduce(whole, group)

    def there_and_back() -> None:
        world.all_gather(part, group)
        world.reduce_scatter(whole, group)

    return 2, there_and_back


def _nothing() -> None:
    """Do nothing on a device that takes no part."""


def _exchange(world: World, group: Group, count: int) -> Calls:
    """A function that exchanges messages of ``count`` numbers, both ways at the same time, between
    all pairs of a group. So no device of a pair is idle while the other one is measured."""
    pairs = list(zip(group[::2], group[1::2], strict=False))
    peers = dict([*pairs, *((second, first) for first, second in pairs)])
    values = torch.ones(count, device=world.device)
    if (peer := peers.get(world.rank)) is None:
        return _nothing

    def call() -> None:
        world.exchange({peer: values}, {peer: count}, values.dtype)
        world.settle()

    return call


def _samples(world: World, call: Calls) -> list[float]:
    """Repeated measurements of the seconds of a call. All ranks begin together and make the same
    number of calls."""
    for _ in range(2):
        call()
    once = max(world.gather(_seconds(world, call, 1)))
    times = max(1, min(10_000, int(BATCH_SECONDS / max(once, 1e-9))))
    repeats = REPEATS if once < 10 * BATCH_SECONDS else 3
    world.total(0.0)
    return [_seconds(world, call, times) for _ in range(repeats)]


def _seconds(world: World, call: Calls, times: int) -> float:
    world.synchronize()
    begin = perf_counter()
    for _ in range(times):
        call()
    world.synchronize()
    return (perf_counter() - begin) / times


def _timing(size: float, samples: Sequence[float]) -> Timing:
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return Timing(size, median(samples), high - low)

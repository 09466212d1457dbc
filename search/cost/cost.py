"""The cost model: seconds of computations and transfers on a machine.

The time of a task follows from its arithmetic and memory traffic (``search.cost.efficiency``), on
the slowest of its devices. A message of b bytes takes alpha + b / beta seconds. The times of
all_reduce and other collectives are in ``search.cost.collectives``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pcg.device import Device
from pcg.graph.graph import Node, Signature
from pcg.machine import Hop, Machine
from pcg.memo import Memo, remembered
from pcg.placement.backward import gradients
from pcg.placement.layout import Layout
from pcg.placement.schedule import Reshard, Schedule
from pcg.placement.transfer import Groups, Transfer
from pcg.placement.view import MachineView
from pcg.plan.training import Training
from pcg.readings.kernel_use import KernelUse
from pcg.readings.kernels import unfused_use
from pcg.readings.kind import WorkKind, work_of
from pcg.readings.late import has_separate_gradients
from pcg.readings.work import work
from search.cost.collectives import Lines, all_reduce, bucketed, ring, seconds
from search.cost.efficiency import Speed, standard
from search.cost.messages import Messages


@dataclass(frozen=True, eq=False)
class Duration:
    """How long groups of devices are busy together. A group starts when its last member can
    start."""

    groups: NDArray[np.intp]
    """The devices of each group, [groups, members]. No device is in two groups."""
    seconds: NDArray[np.float64]
    """[groups]: the seconds of each group."""

    @cached_property
    def longest(self) -> float:
        """Seconds until all are done, if all groups start together."""
        return float(self.seconds.max(initial=0.0))

    @cached_property
    def devices(self) -> frozenset[int]:
        """All devices that are busy."""
        return frozenset(self.groups.ravel().tolist())

    @cached_property
    def members(self) -> tuple[tuple[tuple[int, ...], float], ...]:
        """Each group with its seconds."""
        return tuple(zip(map(tuple, self.groups.tolist()), self.seconds.tolist(), strict=True))

    @cached_property
    def shortest(self) -> float:
        """The seconds of the group that is busy for the shortest time."""
        return min(self.seconds.tolist(), default=0.0)  # most have one group

    @cached_property
    def even(self) -> int:
        """The number of devices if all are busy equally long, else 0."""
        same = len(self.seconds) and (self.seconds == self.seconds[0]).all()
        return self.groups.size if same else 0


NOTHING = Duration(np.zeros((0, 0), np.intp), np.zeros(0))
"""No device is busy."""


def _duration(groups: Iterable[tuple[int, ...]], seconds: Iterable[float]) -> Duration:
    devices = np.array(tuple(groups), np.intp)
    return Duration(devices, np.array(tuple(seconds), np.float64)) if devices.size else NOTHING


class GradientExchange(NamedTuple):
    """The exchange of the gradient of a weight's shard: its bytes, and the groups of devices among
    which such gradients are added up."""

    block: int
    groups: Groups


@dataclass(frozen=True, eq=False)
class _GroupLines:
    """The lines of collectives in a group: of one pass along a ring, and of an all_reduce."""

    ring: Lines
    all_reduce: Lines


SGD = Training()
"""Plain SGD in float32."""
_OnDevices = tuple[Signature, frozenset[int], MachineView, KernelUse]


class CostModel:
    """The costs of one way to train on one machine. Results are kept for later questions."""

    def __init__(
        self,
        machine: Machine,
        training: Training = SGD,
        speed: Speed | None = None,
        *,
        overlaps: bool = True,
    ) -> None:
        """``speed``: the speed of devices, by default by the efficiency curves that come with
        Unity. ``overlaps``: whether communication overlaps with computation."""
        self.machine = machine
        self.training = training
        self.overlaps = overlaps
        self.itemsize = training.formats.narrow
        """Bytes of an element of operators' results and of tensors that are moved."""
        self.itemsizes = training.formats.narrow, training.formats.wide
        self.speed: Speed = standard() if speed is None else speed
        self.messages = Messages(machine, self.itemsize)
        self._tasks = Memo[tuple[Signature, frozenset[int], KernelUse, int], tuple[float, float]]()
        self._streams = Memo[tuple[int, int, WorkKind], float]()
        self._computations = Memo[_OnDevices, tuple[Duration, Duration]]()

    def compute_seconds(
        self,
        node: Node,
        needs: frozenset[int],
        view: MachineView | None = None,
        use: KernelUse | None = None,
    ) -> tuple[float, float]:
        """Seconds of each task of an operator, forward and backward, on the slowest device of a
        view; without a view, of the machine.

        ``needs``: the positions of the operands whose gradients are needed; ``use``: the part of
        the operator that is a kernel, by default as for the operator on its own.
        """
        use = unfused_use(node) if use is None else use
        kinds = self.machine.kinds
        if view is not None and len(kinds) > 1:
            kinds = self.machine.kinds_of(view.devices)
        each = [self._on(node, needs, use, kind) for kind in kinds]
        return max(forward for forward, _ in each), max(backward for _, backward in each)

    def _on(
        self, node: Node, needs: frozenset[int], use: KernelUse, device: Device
    ) -> tuple[float, float]:
        key = node.signature, needs, use, id(device)
        return self._tasks.get(key, lambda: self._task_seconds(node, needs, use, device))

    def _task_seconds(
        self, node: Node, needs: frozenset[int], use: KernelUse, device: Device
    ) -> tuple[float, float]:
        done, kind = work(node, needs, *self.itemsizes, use), work_of(node)
        forward = self.kernel_seconds(
            kind, device, done.flops_forward, done.bytes_forward, done.kernels_forward
        )
        backward = self.kernel_seconds(
            kind, device, done.flops_backward, done.bytes_backward, done.kernels_backward
        )
        slope = self.kernel_seconds(
            "pointwise", device, done.flops_slope, done.bytes_slope, done.kernels_slope
        )
        return float(forward), float(backward + slope)

    def kernel_seconds(
        self, kind: WorkKind, device: Device, flops: ArrayLike, moved: ArrayLike, kernels: int
    ) -> NDArray[np.float64]:
        """Seconds in which a device does ``flops`` operations, and reads and writes ``moved``
        bytes, in ``kernels`` kernels of equal size. ``flops`` and ``moved``: arrays of one shape,
        or numbers. With 0 kernels: the seconds that the bytes add to a kernel of another
        operator."""
        moved, dtype = np.asarray(moved, np.float64), self.training.formats.products
        if not kernels:
            launch = self.speed.seconds(kind, device, dtype, 0, 0)
            return np.where(
                moved > 0, self.speed.seconds(kind, device, dtype, 0, moved) - launch, 0.0
            )
        each = np.asarray(flops) / kernels, moved / kernels
        return kernels * self.speed.seconds(kind, device, dtype, *each)

    def computation(
        self,
        node: Node,
        needs: frozenset[int],
        view: MachineView,
        use: KernelUse | None = None,
    ) -> tuple[Duration, Duration]:
        """The durations of an operator on the devices of a view, forward and backward. ``needs``
        and ``use``: as in ``compute_seconds``."""
        use = unfused_use(node) if use is None else use
        key = node.signature, needs, view, use
        return self._computations.get(key, lambda: self._computation(node, needs, view, use))

    def _computation(
        self, node: Node, needs: frozenset[int], view: MachineView, use: KernelUse
    ) -> tuple[Duration, Duration]:
        forward, backward = self.compute_seconds(node, needs, view, use)
        devices = [view.devices]
        return _duration(devices, [forward]), _duration(devices, [backward])

    def late(
        self, node: Node, needs: frozenset[int], use: KernelUse, backward: Duration
    ) -> Duration:
        """The part of an operator's backward pass that computes the gradient of its weight, if that
        may come last (``pcg.readings.late``): half, as its two products are taken to be equally
        long. NOTHING for operators that are compiled together."""
        together = use.backward_fused or not needs.isdisjoint(use.as_is) or self.training.compiled
        parts = not together and has_separate_gradients(node, needs)
        return self._half(backward) if parts else NOTHING

    @remembered
    def _half(self, whole: Duration) -> Duration:
        return Duration(whole.groups, whole.seconds / 2)

    def with_sums(self, back: Duration, made: Iterable[Layout], parts: Iterable[int]) -> Duration:
        """The backward pass of a step, with the sums of the gradients of its results added.
        ``made``: the layouts of the results; ``parts``: how many gradients come from the readers of
        each. One addition reads two gradients and writes one."""
        return self._with_sums(back, tuple(made), tuple(parts))

    @remembered
    def _with_sums(
        self, back: Duration, made: tuple[Layout, ...], parts: tuple[int, ...]
    ) -> Duration:
        more = self.sums(made, parts) if back is not NOTHING else 0.0
        return Duration(back.groups, back.seconds + more) if more else back

    def sums(self, made: Iterable[Layout], parts: Iterable[int]) -> float:
        """Seconds in which a device adds up the ``parts`` gradients of tensors of these layouts."""
        more = 0.0
        for layout, count in zip(made, parts, strict=True):
            if count > 1:
                more += (count - 1) * self.adding(prod(layout.type.block), layout.devices)
        return more

    def adding(self, elements: int, devices: Iterable[int]) -> float:
        """Seconds until each of some devices has added one gradient to another one."""
        moved = 3 * elements * self.itemsize
        different = devices if len(self.machine.kinds) > 1 else (0,)
        return max(self._streamed(device, moved) for device in different)

    def _streamed(self, device: int, moved: int, work: WorkKind = "pointwise") -> float:
        """Seconds in which a device reads and writes ``moved`` bytes of its memory."""
        kinds = self.machine.kinds
        kind = kinds[0] if len(kinds) == 1 else self.machine.device_at(device)
        key = id(kind), moved, work
        return self._streams.get(key, lambda: float(self.kernel_seconds(work, kind, 0, moved, 1)))

    def forward_movement(self, transfer: Transfer) -> Duration:
        """The devices that take part in a transfer forward, and how long. A slice of a tensor that
        a device has is a view, which takes no time."""
        return self._copies(transfer)[0] if transfer.kind == "local" else self.movement(transfer)

    @remembered
    def movement(self, transfer: Transfer) -> Duration:
        """The devices that take part in the adjoint of a transfer, and how long. The transfer
        itself is the same forward, except for views (``forward_movement``)."""
        groups = transfer.groups or ()
        before, after = (
            prod(layout.type.block) * self.itemsize for layout in (transfer.source, transfer.target)
        )
        match transfer.kind:
            case "none":
                return NOTHING
            case "all_reduce":
                return _duration(groups, (self._all_reduce(group, before) for group in groups))
            case "all_gather":
                return _duration(groups, (self._ring(group, after) for group in groups))
            case "reduce_scatter":
                return _duration(groups, (self._ring(group, before) for group in groups))
            case "local":
                return self._copies(transfer)[1]
            case "messages":
                busy = self.messages.busy(transfer)
                devices = tuple(np.flatnonzero(busy).tolist())
                return _duration([devices], [float(busy.max())])

    @remembered
    def _lines(self, group: tuple[int, ...]) -> _GroupLines:
        return self._lines_over(self.machine.hops(group))

    @remembered
    def _lines_over(self, hops: tuple[Hop, ...]) -> _GroupLines:
        """One object for all groups that communicate over the same levels."""
        return _GroupLines(ring(hops), all_reduce(hops))

    def _ring(self, group: tuple[int, ...], volume: int) -> float:
        """Seconds of an all_gather or reduce_scatter. ``volume``: bytes on a device that has the
        whole tensor."""
        return self._ring_seconds(self._lines(group), volume)

    @remembered
    def _ring_seconds(self, lines: _GroupLines, volume: int) -> float:
        return float(seconds(lines.ring, volume))

    def _all_reduce(self, group: tuple[int, ...], block: int) -> float:
        """Seconds of an all_reduce of ``block`` bytes on every device of a group."""
        return self._all_reduce_seconds(self._lines(group), block)

    @remembered
    def _all_reduce_seconds(self, lines: _GroupLines, block: int) -> float:
        return float(seconds(lines.all_reduce, block))

    @remembered
    def _part(self, lines: _GroupLines, block: int, together: int | None) -> float:
        """Seconds of a gradient's part of the all_reduce of a bucket."""
        if together is None:
            return float(bucketed(lines.all_reduce, block))
        return self._all_reduce_seconds(lines, together) * block / together

    @remembered
    def _copies(self, transfer: Transfer) -> tuple[Duration, Duration]:
        """Every device copies the part that it keeps within its own memory: forward, where a slice
        is a view, and back."""
        flows = transfer.flows
        devices, which, counts = np.unique(flows.targets, return_inverse=True, return_counts=True)
        moved = np.bincount(which, 2 * flows.elements * self.itemsize)
        seconds = [self._streamed(*item) for item in zip(devices.tolist(), moved, strict=True)]
        back = _duration([(device,) for device in devices.tolist()], seconds)
        is_view = counts.max(initial=0) == 1
        return Duration(back.groups, np.zeros(len(back.groups))) if is_view else back, back

    @remembered
    def gradient_exchange(self, home: Layout) -> GradientExchange:
        """The exchange of a weight's gradient."""
        groups = tuple(group for group in home.holders.values() if len(group) > 1)
        return GradientExchange(prod(home.type.block) * self.training.formats.wide, groups)

    @remembered
    def weight(self, home: Layout, together: int | None = None) -> tuple[Duration, Duration]:
        """The all_reduce of a weight's gradient over the holders of each shard, and its update.

        ``together``: bytes of all gradients in the bucket of this one, of whose all_reduce it takes
        its part; by default those of a bucket that others fill up. An update reads the shard, its
        gradient and the optimizer states, and writes the shard and the states.
        """
        block, groups = self.gradient_exchange(home)
        parts = [self._part(self._lines(group), block, together) for group in groups]
        moved = prod(home.type.block) * self.training.update_bytes
        updates = (self._streamed(device, moved, "update") for device in home.devices)
        own = ((device,) for device in home.devices)
        return _duration(groups, parts), _duration(own, updates)


def communication_elements(schedule: Schedule) -> int:
    """Elements that cross between devices in one training step, as the Unity paper counts them.

    Each element that is sent counts once, forward, backward and in the exchange of weights'
    gradients (section 1: 2 (c_in h + h c_out) for data parallelism on two devices). Scalars such as
    the loss are left out.
    """
    passed = gradients(schedule)
    total = 0
    for step, needs in zip(schedule.steps, passed.steps, strict=True):
        if isinstance(step, Reshard) and step.source.value.type.rank:
            total += step.transfer.elements * (1 if needs is None else 2)
    for node in passed.weights:
        home = schedule.homes[node]
        holders = home.holders.values()
        total += sum(2 * (len(group) - 1) for group in holders) * prod(home.type.block)
    return total

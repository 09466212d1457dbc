"""Communicate between the ranks of a run through torch.distributed, if there are several."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pcg.device import DeviceKind
from pcg.errors import InputError, UnityError
from runtime.program.program import Group, PassName
from runtime.world.blame import Pulse
from runtime.world.error_names import words
from runtime.world.loopback import stay_on_this_computer
from runtime.world.network import FlatName, Handle, Network, PendingCommunication
from runtime.world.orphans import end_undisturbed
from runtime.world.rendezvous import own_store, pulse_store
from runtime.world.status import TRY_AGAIN

T = TypeVar("T")
MARK = "unity: "
"""The prefix of communications in a profile."""
PHASE = "unity phase: "
"""The prefix of the entries in a profile that mark the beginning of a forward or backward pass."""

CHANNELS = ("forward", "backward", "total")
"""Uses of communication that each have a group of all ranks, so that none waits for another:
messages forward, messages backward, and sums of numbers, which ranks begin at different times."""


class CommunicationError(UnityError):
    """Another rank could not be reached in time: most often because it has ended."""

    exit_status = TRY_AGAIN
    is_told = False
    """Whether another rank reports the cause, so that this one need not."""


@dataclass(frozen=True)
class _Sent:
    """Messages under way, and the tensors that must stay unchanged until these have been sent."""

    works: Sequence[PendingCommunication]
    tensors: tuple[Tensor, ...]
    what: str
    batch: int
    part: int


Meanwhile = Callable[[], None]
"""Work that is done while communication is under way."""


def _idle() -> None:
    """Do nothing: there is no work, or nothing to wait for."""


@dataclass
class World:
    """The ranks of a run, seen from one of them, and the device on which it computes."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    network: Network = field(default_factory=Network)
    _groups: dict[Group, Handle] = field(default_factory=dict[Group, Handle])
    """Every group that the ranks have created. Unusable if this rank is no member."""
    _channels: dict[str, Handle] = field(default_factory=dict[str, Handle])
    """The group of each of ``CHANNELS``. The default group is used for a channel without one."""
    _pending: list[_Sent] = field(default_factory=list[_Sent])
    marks: bool = False
    """Whether communications are named for torch's profiler."""
    step: int = 0
    """The training step under way, from 1, for error messages; 0 before the first."""
    batch: int = 0
    """The batch to which messages belong. The next batch may begin before this one has ended."""
    part: int = 0
    """The slice to which messages belong, counted from the first slice of the first batch."""
    asked_to_stop: bool = False
    """Whether this rank was asked to stop. The next ``total`` tells the other ranks."""
    stops: bool = False
    """Whether any rank was asked to stop. All ranks agree since the last ``total``."""
    doing: str = "starting"
    """What this rank is doing, for the messages of ranks that wait for it."""
    waits: bool = False
    """Whether this rank waits for other ranks."""
    since: float = field(default_factory=monotonic)
    """When ``doing`` began, in seconds of ``time.monotonic``."""
    alarm: Tensor | float = 0.0
    """Above 0 if this rank has found a value that is not finite. The next ``total`` tells the other
    ranks. A tensor stays on the device until then, so that nothing waits for it."""
    alarmed: bool = False
    """Whether any rank has raised an alarm. All ranks agree since the last ``total``. The code that
    handles the alarm resets this field."""

    def prepare(self, groups: Iterable[Group], channels: Mapping[str, Group] | None = None) -> None:
        """Create the process groups that do not exist yet. ``channels``: further groups, by name,
        which are used for messages only.

        All ranks have to call this with the same groups in the same order, because creating a
        group is itself a collective of all ranks.
        """
        everyone = tuple(range(self.size))
        for group in groups:
            if group not in self._groups and len(group) > 1:
                with self.reporting(f"creating the group {group}"):
                    has_all = group == everyone
                    handle = self.network.everyone if has_all else self.network.group(group)
                    self._groups[group] = handle
        all_channels = {**dict.fromkeys(CHANNELS, everyone), **(channels or {})}
        for channel, ranks in all_channels.items() if self.size > 1 else ():
            if channel not in self._channels:
                with self.reporting(f"creating the group of {channel}"):
                    self._channels[channel] = self.network.group(ranks)

    def apart(self) -> World:
        """A world of the same ranks, for a second thread of each. All ranks call together."""
        if self.size == 1:
            return World()
        with self.reporting("creating the group of checkpoints"):
            return World(self.rank, self.size, network=self.network.apart(self.size))

    def all_reduce(self, values: Tensor, group: Group, meanwhile: Meanwhile = _idle) -> Tensor:
        """The sum of the members' tensors. ``group`` has been prepared and holds this rank.
        ``meanwhile`` is called while the communication is under way, here as below."""
        total = values.clone(memory_format=torch.contiguous_format)
        wait = self.start_all_reduce(total, group)
        meanwhile()
        wait()
        return total

    def start_all_reduce(self, values: Tensor, group: Group) -> Callable[[], None]:
        """Begin to replace a contiguous tensor by the sum of the members' tensors. Return a
        function that waits until the sum is there."""
        if len(group) == 1:
            return _idle
        what = f"all_reduce over {group}"
        with self.reporting(what):
            work = self.network.all_reduce(values, self._groups[group])
        return lambda: self._wait(work, what)

    def all_gather(self, values: Tensor, group: Group, meanwhile: Meanwhile = _idle) -> Tensor:
        """The concatenation of the members' flat tensors, which all have the same length."""
        gathered = values.new_empty(len(group) * len(values))
        return self._collective("all_gather", gathered, values, group, meanwhile)

    def reduce_scatter(self, values: Tensor, group: Group, meanwhile: Meanwhile = _idle) -> Tensor:
        """This rank's part of the sum of the members' flat tensors. The sum is cut in as many equal
        parts as the group has members."""
        part = values.new_empty(len(values) // len(group))
        return self._collective("reduce_scatter", part, values, group, meanwhile)

    def all_to_all(self, values: Tensor, group: Group, meanwhile: Meanwhile = _idle) -> Tensor:
        """Cut each member's flat tensor in as many equal parts as the group has members, and send
        the n-th part to the n-th member. Return the concatenation of the parts received."""
        result = torch.empty_like(values)
        return self._collective("all_to_all", result, values, group, meanwhile)

    def exchange(
        self,
        outgoing: Mapping[int, Tensor],
        incoming: Mapping[int, int],
        dtype: torch.dtype,
        channel: str = "forward",
        meanwhile: Meanwhile = _idle,
    ) -> dict[int, Tensor]:
        """Send flat tensors and receive flat tensors. Return those received, by rank.

        ``outgoing``: the tensor for each receiving rank. ``incoming``: the number of elements from
        each sending rank. All operations are posted before the rank waits for any. A rank that
        only sends does not wait at all (``settle`` does). So no order of ranks can deadlock.
        """
        received = {
            peer: torch.empty(length, dtype=dtype, device=self.device)
            for peer, length in sorted(incoming.items())
        }
        sent = {peer: values.contiguous() for peer, values in sorted(outgoing.items())}
        posted: list[_Sent] = []
        if sent or received:
            what = f"messages with {sorted({*outgoing, *incoming})}"
            with self.reporting(what):
                works = self.network.messages(sent, received, self._channels.get(channel))
            posted.append(_Sent(works, tuple(sent.values()), what, self.batch, self.part))
        meanwhile()
        if received:
            self._settle(posted)
        else:
            self._pending += posted
        return received

    def settle(self) -> None:
        """Wait until the messages of this batch and of earlier ones have been sent. Until then
        their tensors must not be changed."""
        self._settle(sent for sent in self._pending if sent.batch <= self.batch)
        self._pending = [sent for sent in self._pending if sent.batch > self.batch]

    def synchronize(self) -> None:
        """Wait until the device has done all work that was submitted to it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def begin(self, phase: PassName) -> None:
        """Mark the beginning of a pass in the profile, if torch's profiler records."""
        if self.marks:
            with torch.profiler.record_function(f"{PHASE}{phase}"):
                pass

    @property
    def held(self) -> int:
        """The number of tensors that are kept until they have been sent."""
        return sum(len(sent.tensors) for sent in self._pending)

    def settle_parts(self, last: int) -> None:
        """Wait until the messages of all slices up to ``last`` have been sent. gloo reports that a
        message has been sent only when it is asked to wait for it."""
        self._settle(sent for sent in self._pending if sent.part <= last)
        self._pending = [sent for sent in self._pending if sent.part > last]

    def total(self, value: float) -> float:
        """The sum of a number over all ranks, in double precision."""
        return self.start_total(value)()

    def start_total(self, value: Tensor | float) -> Callable[[], float]:
        """Begin to add up a number over all ranks. Return a function that waits for the sum."""
        # Tensors are filled on the device: to copy numbers from the host would wait for the device.
        numbers = torch.zeros(3, dtype=torch.float64, device=self.device)
        for place, number in enumerate((value, float(self.asked_to_stop), self.alarm)):
            numbers[place] += number
        what, work = "all_reduce of a number, such as the loss", None
        if self.size > 1:
            with self.reporting(what):
                work = self.network.all_reduce(numbers, self._channels.get("total"))

        def total() -> float:
            self._wait(work, what)
            value_sum, stop_sum, alarm_sum = numbers.tolist()
            self.stops |= stop_sum > 0
            self.alarmed |= alarm_sum > 0
            return value_sum

        return total

    def gather(self, value: T, what: str = "all_gather of notes") -> list[T]:
        """The values of all ranks, in the order of ranks. A value has to be picklable. ``what``:
        the name of this communication in an error message."""
        if self.size == 1:
            return [value]
        with self.reporting(what):
            return self.network.notes(value, self.size)

    @contextmanager
    def reporting(self, what: str) -> Generator[None]:
        """Name the rank, the step and the communication (``what``) in the error if it fails."""
        where = f"rank {self.rank}" + (f": step {self.step}" if self.step else "")
        before = self.doing
        self.doing, self.waits, self.since = what, True, monotonic()
        with _marked(where, what) if self.marks else _reported(where, what):
            yield
        # Not after a failure: then the heartbeat goes on to name the failed communication.
        self.doing, self.waits, self.since = before, False, monotonic()

    @contextmanager
    def busy(self, what: str) -> Generator[None]:
        """Announce that this rank does work of its own, which may take long."""
        before = self.doing, self.waits
        self.doing, self.waits, self.since = what, False, monotonic()
        yield
        (self.doing, self.waits), self.since = before, monotonic()

    def _collective(
        self, name: FlatName, result: Tensor, values: Tensor, group: Group, meanwhile: Meanwhile
    ) -> Tensor:
        what, own = f"{name} over {group}", values.contiguous()
        with self.reporting(what):
            work = self.network.collective(name, result, own, self._groups[group])
        meanwhile()
        self._wait(work, what)
        return result

    def _settle(self, messages: Iterable[_Sent]) -> None:
        for message in messages:
            for work in message.works:
                self._wait(work, message.what)

    def _wait(self, work: PendingCommunication | None, what: str) -> None:
        if work is not None:
            with self.reporting(what):
                work.wait()


@contextmanager
def _marked(where: str, what: str) -> Generator[None]:
    """Mark a communication in the profile, and name it in the error if it fails."""
    with torch.profiler.record_function(f"{MARK}{what}"), _reported(where, what):
        yield


@contextmanager
def _reported(where: str, what: str) -> Generator[None]:
    """Name the rank, the step and the communication in the error if it fails."""
    try:
        yield
    except RuntimeError as error:
        raise CommunicationError(f"{where}: {what}: {_reason(error)}") from error


def _reason(error: RuntimeError) -> str:
    """The first line of an error, without gloo's source position and advice."""
    first = next(iter(str(error).strip().splitlines()), "failed")
    return re.sub(r"\[/\S+:\d+\] ", "", first).partition(". This is typically")[0]


def environment() -> tuple[int, int] | None:
    """(rank, number of ranks) of a process that torchrun started; None for any other process.
    Raises InputError if torchrun's environment variables hold unusable values."""
    values = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")]
    if None in values:
        return None
    try:
        rank, size = int(values[0] or ""), int(values[1] or "")
    except ValueError:
        problem = f"RANK={values[0]} WORLD_SIZE={values[1]}, expected numbers"
        raise InputError("environment", problem) from None
    if not 0 <= rank < size:
        raise InputError("environment", f"RANK={rank}, expected less than WORLD_SIZE={size}")
    return rank, size


@contextmanager
def open_world(kind: DeviceKind, timeout: float) -> Generator[World]:
    """Join the ranks that torchrun started. Without torchrun this is a world of a single rank.
    ``timeout``: the seconds that each communication may take. Raises InputError as ``own_device``.
    """
    rank, size = environment() or (0, 1)
    device = own_device(kind)
    if size == 1:
        yield World(rank, size, device)
        return
    limit = timedelta(seconds=timeout)
    stay_on_this_computer()
    with _reported(f"rank {rank}", "meeting the other ranks"):
        store = own_store(rank, size, limit)
        # With a device NCCL connects all ranks at once; point-to-point messages rely on that.
        dist.init_process_group(
            "nccl" if kind == "gpu" else "gloo",
            timeout=limit,
            device_id=device if kind == "gpu" else None,
            store=store,
            rank=rank,
            world_size=size,
        )
        pulse_of = pulse_store(store, limit)
    world = World(rank, size, device, network=Network(limit))
    try:
        with _blaming(world, pulse_of):
            yield world
    finally:
        dist.destroy_process_group()


@contextmanager
def _blaming(world: World, store: Any) -> Generator[None]:
    """Write heartbeats. If communication fails, name the rank to blame in the error."""
    pulse = Pulse(store, world)
    try:
        yield
    except CommunicationError as error:
        end_undisturbed()
        verdict = pulse.verdict()
        observed = f" ({error})" if verdict.text else str(error)
        explained = CommunicationError(f"{verdict.text}{observed}")
        explained.is_told = not verdict.speaks
        raise explained from error
    except BaseException as error:
        pulse.leave(words(error))
        raise
    pulse.leave()


def own_device(kind: DeviceKind) -> torch.device:
    """The device of this process: the CPU, or the GPU of its local rank. Raises InputError if that
    GPU is missing."""
    if kind == "cpu":
        return torch.device("cpu")
    local, present = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= present:
        raise InputError("machine", f"the plan needs GPU {local}, this computer has {present}")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)

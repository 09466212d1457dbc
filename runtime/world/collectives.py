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
"""What names of communication begin with in a profile."""
PHASE = "unity phase: "
"""What marks in a profile begin with that a pass begins, forward or backward."""

CHANNELS = ("forward", "backward", "total")
"""What has a group of all ranks to itself, so that none of it waits for another: messages one way
and the other, and numbers that are added up, which some ranks ask for long before others."""


class CommunicationError(UnityError):
    """Another rank could not be reached in time: most often because it has ended."""

    exit_status = TRY_AGAIN
    is_told = False
    """Whether another rank says what has happened."""


@dataclass(frozen=True)
class _Sent:
    """Messages under way, and the tensors that have to stay until they have left."""

    works: Sequence[PendingCommunication]
    tensors: tuple[Tensor, ...]
    what: str
    batch: int
    part: int


Meanwhile = Callable[[], None]
"""What is done while communication is under way."""


def _done() -> None:
    """Nothing to do, or to wait for."""


@dataclass
class World:
    """The ranks of a run, seen from one of them, and the device on which it computes."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    network: Network = field(default_factory=Network)
    _groups: dict[Group, Handle] = field(default_factory=dict[Group, Handle])
    """Every group that has been created, by all ranks; of no use where this one is no member."""
    _channels: dict[str, Handle] = field(default_factory=dict[str, Handle])
    """A group for each of ``CHANNELS``; until they are created, the default one."""
    _pending: list[_Sent] = field(default_factory=list[_Sent])
    marks: bool = False
    """Whether communication is named for torch's profiler."""
    step: int = 0
    """The training step under way, from 1, for messages; 0 before the first."""
    batch: int = 0
    """The batch that messages belong to: the next one may begin before this one has ended."""
    part: int = 0
    """The slice that messages belong to, counted from the first one of the first batch."""
    asked_to_stop: bool = False
    """Whether this rank was told to stop: it tells the others with the next ``total``."""
    stops: bool = False
    """Whether any rank was told to, as all of them know since the last ``total``."""
    doing: str = "starting"
    """What this rank does, for others to know that wait for it in vain."""
    waits: bool = False
    """Whether that is to wait for others."""
    since: float = field(default_factory=monotonic)
    """When that began."""
    alarm: Tensor | float = 0.0
    """Above 0 where this rank has met what is not finite: it tells with the next ``total``. A
    tensor on the device, so that nothing waits for it before."""
    alarmed: bool = False
    """Whether any rank has, as all of them know since the last ``total``; for who acts on it to
    take back."""

    def prepare(self, groups: Iterable[Group], channels: Mapping[str, Group] | None = None) -> None:
        """Create the process groups that do not exist yet. ``channels``: further ones for messages
        alone, by name.

        All ranks have to call this with the same groups in the same order: creating a group is
        itself a collective of all of them.
        """
        everyone = tuple(range(self.size))
        for group in groups:
            if group not in self._groups and len(group) > 1:
                with self.reporting(f"creating the group {group}"):
                    whole = group == everyone
                    made = self.network.everyone if whole else self.network.group(group)
                    self._groups[group] = made
        every = {**dict.fromkeys(CHANNELS, everyone), **(channels or {})}
        for channel, ranks in every.items() if self.size > 1 else ():
            if channel not in self._channels:
                with self.reporting(f"creating the group of {channel}"):
                    self._channels[channel] = self.network.group(ranks)

    def apart(self) -> World:
        """A world of the same ranks for a second thread of each. All have to call together."""
        if self.size == 1:
            return World()
        with self.reporting("creating the group of checkpoints"):
            return World(self.rank, self.size, network=self.network.apart(self.size))

    def all_reduce(self, values: Tensor, group: Group, meanwhile: Meanwhile = _done) -> Tensor:
        """The sum of the members' tensors. ``group`` has been prepared and holds this rank;
        ``meanwhile``: done while this is under way, here as below."""
        total = values.clone(memory_format=torch.contiguous_format)
        wait = self.start_all_reduce(total, group)
        meanwhile()
        wait()
        return total

    def start_all_reduce(self, values: Tensor, group: Group) -> Callable[[], None]:
        """Begin to replace a contiguous tensor by the sum of the members'; what is returned waits
        for that."""
        if len(group) == 1:
            return _done
        what = f"all_reduce over {group}"
        with self.reporting(what):
            work = self.network.all_reduce(values, self._groups[group])
        return lambda: self._wait(work, what)

    def all_gather(self, values: Tensor, group: Group, meanwhile: Meanwhile = _done) -> Tensor:
        """The members' flat tensors, all of one length, one after the other."""
        gathered = values.new_empty(len(group) * len(values))
        return self._collective("all_gather", gathered, values, group, meanwhile)

    def reduce_scatter(self, values: Tensor, group: Group, meanwhile: Meanwhile = _done) -> Tensor:
        """This rank's part of the sum of the members' flat tensors, cut in as many as there are
        members."""
        part = values.new_empty(len(values) // len(group))
        return self._collective("reduce_scatter", part, values, group, meanwhile)

    def all_to_all(self, values: Tensor, group: Group, meanwhile: Meanwhile = _done) -> Tensor:
        """Of flat tensors that are cut in as many parts as there are members, the part that each
        member has for this rank, one after the other."""
        result = torch.empty_like(values)
        return self._collective("all_to_all", result, values, group, meanwhile)

    def exchange(
        self,
        outgoing: Mapping[int, Tensor],
        incoming: Mapping[int, int],
        dtype: torch.dtype,
        channel: str = "forward",
        meanwhile: Meanwhile = _done,
    ) -> dict[int, Tensor]:
        """Send a flat tensor to some ranks and receive flat tensors of given lengths from some.

        All operations are posted before any is waited for, and a rank that only sends does not
        wait at all (``settle`` does), so no order of ranks can deadlock.
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
        """Wait until the messages of this batch and those before have left. Until then what they
        hold must not be changed."""
        self._settle(sent for sent in self._pending if sent.batch <= self.batch)
        self._pending = [sent for sent in self._pending if sent.batch > self.batch]

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def begin(self, phase: PassName) -> None:
        """Mark the beginning of a pass for torch's profiler, while it records."""
        if self.marks:
            with torch.profiler.record_function(f"{PHASE}{phase}"):
                pass

    @property
    def held(self) -> int:
        """How many messages are kept until they have left."""
        return sum(len(sent.tensors) for sent in self._pending)

    def settle_parts(self, last: int) -> None:
        """Wait until messages of the slices up to one have left. gloo tells of those that it has
        sent only where it is asked to wait."""
        self._settle(sent for sent in self._pending if sent.part <= last)
        self._pending = [sent for sent in self._pending if sent.part > last]

    def total(self, value: float) -> float:
        """The sum of a number over all ranks, in double precision."""
        return self.start_total(value)()

    def start_total(self, value: Tensor | float) -> Callable[[], float]:
        """Begin to add a number up over all ranks; what is returned waits for the sum."""
        given = (value, float(self.asked_to_stop), self.alarm)
        parts = [torch.as_tensor(v, dtype=torch.float64, device=self.device) for v in given]
        numbers = torch.stack(parts)
        what, work = "all_reduce of a number, such as the loss", None
        if self.size > 1:
            with self.reporting(what):
                work = self.network.all_reduce(numbers, self._channels.get("total"))

        def total() -> float:
            self._wait(work, what)
            summed, asked, alarm = numbers.tolist()
            self.stops |= asked > 0
            self.alarmed |= alarm > 0
            return summed

        return total

    def gather(self, value: T, what: str = "all_gather of notes") -> list[T]:
        """Every rank's value, which has to be one that can be pickled. ``what``: its name in an
        error."""
        if self.size == 1:
            return [value]
        with self.reporting(what):
            return self.network.notes(value, self.size)

    @contextmanager
    def reporting(self, what: str) -> Generator[None]:
        """Name rank, step and what was under way where communication fails."""
        where = f"rank {self.rank}" + (f": step {self.step}" if self.step else "")
        before = self.doing
        self.doing, self.waits, self.since = what, True, monotonic()
        with _marked(where, what) if self.marks else _reported(where, what):
            yield
        # Not where it has failed: then this is what it was doing.
        self.doing, self.waits, self.since = before, False, monotonic()

    @contextmanager
    def busy(self, what: str) -> Generator[None]:
        """Say that this rank does something of its own, which may take long."""
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
    """Mark a communication for the profiler, and name it where it fails."""
    with torch.profiler.record_function(f"{MARK}{what}"), _reported(where, what):
        yield


@contextmanager
def _reported(where: str, what: str) -> Generator[None]:
    """Name the rank, the step and the communication of a failure."""
    try:
        yield
    except RuntimeError as error:
        raise CommunicationError(f"{where}: {what}: {_reason(error)}") from error


def _reason(error: RuntimeError) -> str:
    """The first line, without the place in gloo's source and its advice."""
    first = next(iter(str(error).strip().splitlines()), "failed")
    return re.sub(r"\[/\S+:\d+\] ", "", first).partition(". This is typically")[0]


def environment() -> tuple[int, int] | None:
    """(rank, number of ranks) when started by torchrun, else None.

    Raises InputError when torchrun's variables are there and make no sense.
    """
    given = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")]
    if None in given:
        return None
    try:
        rank, size = int(given[0] or ""), int(given[1] or "")
    except ValueError:
        problem = f"RANK={given[0]} WORLD_SIZE={given[1]}, expected numbers"
        raise InputError("environment", problem) from None
    if not 0 <= rank < size:
        raise InputError("environment", f"RANK={rank}, expected less than WORLD_SIZE={size}")
    return rank, size


@contextmanager
def open_world(kind: DeviceKind, timeout: float) -> Generator[World]:
    """Join the ranks that torchrun started; without it, a world of one.

    ``timeout`` in seconds holds for each communication. Raises InputError for a missing GPU.
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
    """Show that this rank lives; where it loses touch with others, say who is to blame."""
    pulse = Pulse(store, world)
    try:
        yield
    except CommunicationError as error:
        end_undisturbed()
        verdict = pulse.verdict()
        met = f" ({error})" if verdict.text else str(error)
        blamed = CommunicationError(f"{verdict.text}{met}")
        blamed.is_told = not verdict.speaks
        raise blamed from error
    except BaseException as error:
        pulse.leave(words(error))
        raise
    pulse.leave()


def own_device(kind: DeviceKind) -> torch.device:
    """The device of this process among those of its computer. Raises InputError for a GPU that is
    missing."""
    if kind == "cpu":
        return torch.device("cpu")
    local, present = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= present:
        raise InputError("machine", f"the plan needs GPU {local}, this computer has {present}")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)

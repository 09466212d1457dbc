"""The machine model: devices in nested levels, read from a TOML file.

A machine's devices are numbered 0 to N - 1, row-major with the innermost level fastest. With nodes
of 2 sockets of 3 devices, device 7 is the second device of the second node. All devices of a node
are alike. From some node on, nodes may have devices of another kind.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from pcg.device import Device, Latency, Positive
from pcg.errors import InputError
from pcg.files import FileModel, Name, read_toml

MAX_DEVICES = 1 << 20
"""Machines with more devices are refused: a typo in a file should not exhaust memory."""

Pattern: TypeAlias = Literal["message", "all_gather", "all_reduce"]
"""A pattern of communication over a link. A reduce_scatter is an all_gather backwards."""


_PRESETS = Path(__file__).with_name("machines")


class OtherDevice(Device):
    """A device of another kind, which the nodes from ``first_node`` on have."""

    first_node: Annotated[int, Field(ge=1, le=MAX_DEVICES)]
    """The first node of this kind, counted from 0. It extends to the next such table."""


class Rate(FileModel):
    """The time of one step of a collective that runs as a ring."""

    latency: Latency
    """Seconds of a step, whatever the size."""
    bandwidth: Positive
    """Bytes a second that a device sends in a step, counted as in ``Level.bandwidth``."""


def _listed(value: object) -> object:
    """Return a single rate, which files may have, as a list of one."""
    return (value,) if isinstance(value, (dict, Rate)) else value


Rates: TypeAlias = Annotated[
    tuple[Rate, ...], BeforeValidator(_listed), Field(strict=False, min_length=1, max_length=16)
]
"""Alternative rates, the fastest of which holds for each size: small messages take another
algorithm than large ones."""


class Level(FileModel):
    """A level of the hierarchy: units of the level below, or devices, and links between them."""

    name: Annotated[Name, Field(min_length=1)]
    count: Annotated[int, Field(ge=1, le=MAX_DEVICES)]
    """The number of inner units in one unit of this level."""
    latency: Latency
    """Seconds that a message between two inner units takes, whatever its size."""
    bandwidth: Positive
    """Bytes a second, each way, of one port between an inner unit and this level."""
    ports: Annotated[int, Field(ge=1, le=MAX_DEVICES)] | None = None
    """The number of ports of each inner unit onto this level, shared by its devices. By default one
    for each device."""
    all_gather: Rates | None = None
    """Measured rates of all_gather and reduce_scatter over this level. By default they follow from
    ``latency`` and ``bandwidth``."""
    all_reduce: Rates | None = None
    """Measured rates of all_reduce over this level, whatever algorithm it uses."""

    def rates(self, of: Pattern) -> tuple[Rate, ...]:
        """Return the alternative rates of a step of a collective, or of a message."""
        known = self.all_gather if of == "all_gather" else self.all_reduce
        if of == "message" or known is None:
            return (Rate(latency=self.latency, bandwidth=self.bandwidth),)
        return known


@dataclass(frozen=True)
class Link:
    """A link between devices."""

    latency: float
    """Seconds that a message takes, whatever its size."""
    bandwidth: float
    """Bytes a second, each way. Infinite within one device, where nothing moves."""


@dataclass(frozen=True)
class Hop:
    """Communication of a group over one level of a machine. In every unit of the level, ``units``
    inner units have members of the group."""

    units: int
    link: Link
    """The link of an inner unit. ``bandwidth`` is the share of the unit's ports that the group's
    members have together, in bytes a second."""
    gathering: tuple[Link, ...] = ()
    """The alternative links of a step of an all_gather or reduce_scatter, if these were measured.
    The fastest one holds for each size."""
    reducing: tuple[Link, ...] = ()
    """The same for a step of an all_reduce as a ring, if it was measured."""


WITHIN_DEVICE = Link(latency=0.0, bandwidth=math.inf)


class Machine(FileModel):
    """A machine: its devices, and its levels from the innermost to the cluster of nodes."""

    schema_version: Literal[1]
    name: Annotated[Name, Field(min_length=1)]
    device: Device
    others: tuple[OtherDevice, ...] = Field(alias="other_device", default=(), max_length=1024)
    """Further kinds of devices, in ascending order of their first nodes."""
    levels: tuple[Level, ...] = Field(alias="level", max_length=16)
    """The levels, innermost first. The last one is the cluster, whose units are the nodes."""
    device_limit: Annotated[int, Field(ge=1, le=MAX_DEVICES)] | None = None
    """If given, only the first devices up to this number take part."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.levels) < 2:
            raise ValueError(
                f"level: expected at least two tables, a node and the cluster of nodes, "
                f"got {len(self.levels)}"
            )
        names = Counter(level.name for level in self.levels)
        for name, times in names.items():
            if times > 1:
                raise ValueError(f'level: expected distinct names, got "{name}" {times} times')
        if self._capacity > MAX_DEVICES:
            raise ValueError(f"level: expected at most {MAX_DEVICES} devices, got {self._capacity}")
        if self.device_limit is not None and self.device_limit >= self._capacity:
            raise ValueError(
                f"device_limit: expected less than the {self._capacity} devices of the levels, "
                f"got {self.device_limit}"
            )
        self._check_kinds()
        return self

    def _check_kinds(self) -> None:
        last = 0
        for i, other in enumerate(self.others):
            if not last < other.first_node < self.nodes:
                raise ValueError(
                    f"other_device[{i}].first_node: expected {last + 1} to {self.nodes - 1}, for "
                    f"there are {self.nodes} nodes, got {other.first_node}"
                )
            last = other.first_node

    @property
    def devices(self) -> int:
        """The number of devices that take part."""
        return self._capacity if self.device_limit is None else self.device_limit

    @property
    def nodes(self) -> int:
        """The number of nodes, which are the units of the outermost level, the cluster."""
        return self.levels[-1].count

    @property
    def devices_per_node(self) -> int:
        """The number of devices of a full node."""
        return self._unit(len(self.levels) - 1)

    def device_at(self, device: int) -> Device:
        """Return the device with a number. Raises InputError if there is none."""
        return self.kinds_of((device,))[0]

    def kinds_of(self, devices: Iterable[int]) -> tuple[Device, ...]:
        """Return the kinds of some devices, in the order of their nodes.

        Raises InputError for a device that the machine lacks.
        """
        members = self._members(devices)
        if not self.others:
            return (self.device,)
        starts = [other.first_node for other in self.others]
        places = {bisect_right(starts, member // self.devices_per_node) for member in members}
        return tuple(self.kinds[place] for place in sorted(places))

    @property
    def kinds(self) -> tuple[Device, ...]:
        """The kinds of all devices, in the order of their nodes."""
        return (self.device, *self.others)

    def memory_limit(self, devices: Iterable[int] | None = None) -> int:
        """Return the bytes for tensors on each of some devices, or of all: the least of any kind
        among them."""
        if devices is None or not self.others:
            return min(kind.usable_bytes for kind in self.kinds)
        return min(kind.usable_bytes for kind in self.kinds_of(devices))

    def with_memory(self, usable: int) -> Machine:
        """Return this machine with ``usable`` bytes for tensors on each device."""

        def with_usable(kind: Device) -> dict[str, int]:
            return {"memory_bytes": usable + kind.reserved_bytes}

        device = self.device.model_copy(update=with_usable(self.device))
        others = tuple(other.model_copy(update=with_usable(other)) for other in self.others)
        return self.model_copy(update={"device": device, "others": others})

    @property
    def units(self) -> tuple[int, ...]:
        """The number of devices of one inner unit of each level: a device, ..., a node."""
        return tuple(self._unit(i) for i in range(len(self.levels)))

    def with_nodes(self, nodes: int) -> Machine:
        """Return this machine with a number of full nodes. Raises InputError if it is out of range.

        Nodes beyond those of the file have the kind of its last node.
        """
        if nodes < 1:
            raise InputError(self.name, f"expected 1 node or more, got {nodes}")
        if nodes * self.devices_per_node > MAX_DEVICES:
            raise InputError(self.name, f"expected at most {MAX_DEVICES} devices ({nodes} nodes)")
        cluster = self.levels[-1].model_copy(update={"count": nodes})
        return self._with((*self.levels[:-1], cluster), None)

    def with_devices(self, devices: int) -> Machine:
        """Return the part of this machine that consists of its first `devices` devices.

        Levels shrink to what is left of them, so equal parts are equal machines. For example, the
        first six devices of a cluster with six devices a node are one node. Raises InputError if
        the machine has fewer devices.
        """
        if not 1 <= devices <= self.devices:
            problem = f"expected 1 to {self.devices} devices, got {devices}"
            hint = " (more nodes hold more devices)" if devices > self.devices else ""
            raise InputError(self.name, problem + hint)
        levels = tuple(
            level.model_copy(update={"count": min(level.count, -(-devices // self._unit(i)))})
            for i, level in enumerate(self.levels)
        )
        is_full = math.prod(level.count for level in levels) == devices
        return self._with(levels, None if is_full else devices)

    def link(self, a: int, b: int) -> Link:
        """Return the link between devices `a` and `b` while all others use the same pattern."""
        return self.group_link((a, b))

    def group_link(self, devices: Iterable[int]) -> Link:
        """Return the slowest link on a ring through the group.

        The ring leaves a unit once, however many of the group's devices the unit holds. The unit's
        other devices are assumed to be in groups of the same form, which share its ports. So a
        group with m of a unit's n devices gets m/n of the bandwidth of all the unit's ports. For
        m = 1 this is one device's share. A group of one has `WITHIN_DEVICE`. Raises InputError for
        a device that the machine lacks.
        """
        return self._slowest(self._crossed(self._members(devices)), "message")[0]

    def hops(self, devices: Iterable[int]) -> tuple[Hop, ...]:
        """Return the levels over which a group communicates, innermost first.

        The product of their ``units`` is the size of the group. Links are shared as in
        `group_link`. A group is irregular if it has more members in one unit than in another. It
        has a single hop over its slowest link. A group of one has no hops. Raises InputError for a
        device that the machine lacks.
        """
        members = self._members(devices)
        crossed = tuple(self._crossed(members))
        hops: list[Hop] = []
        for i, ports in crossed:
            inner, outer = self._held(members, i), self._held(members, i + 1)
            if len(set(outer.values())) > 1 or len(inner) % len(outer):
                return (self._hop(len(members), crossed),)
            hops.append(self._hop(len(inner) // len(outer), ((i, ports),)))
        return tuple(hops)

    def _hop(self, units: int, crossed: Sequence[tuple[int, float]]) -> Hop:
        gathers = any(self.levels[i].all_gather for i, _ in crossed)
        reduces = all(self.levels[i].all_reduce for i, _ in crossed)
        return Hop(
            units,
            self._slowest(crossed, "message")[0],
            self._slowest(crossed, "all_gather") if gathers else (),
            self._slowest(crossed, "all_reduce") if reduces else (),
        )

    def _slowest(self, crossed: Iterable[tuple[int, float]], of: Pattern) -> tuple[Link, ...]:
        """Return the slowest link of some levels, for each combination of alternative rates."""
        alternatives = [[(rate, p) for rate in self.levels[i].rates(of)] for i, p in crossed]
        if not alternatives:
            return (WITHIN_DEVICE,)
        return tuple(
            Link(
                max(rate.latency for rate, _ in chosen),
                min(rate.bandwidth * ports for rate, ports in chosen),
            )
            for chosen in product(*alternatives)
        )

    def _crossed(self, members: frozenset[int]) -> Iterator[tuple[int, float]]:
        """Yield the levels at which members meet, each with the number of ports that the group
        has, which may be a fraction."""
        for i, level in enumerate(self.levels):
            held = self._held(members, i)
            if len(held) == 1:
                break
            if len(held) == len(self._held(members, i + 1)):
                continue  # no two members meet at this level
            unit = self._unit(i)
            ports = unit if level.ports is None else level.ports
            yield i, ports * min(held.values()) / unit

    def meeting_levels(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return, for each pair, the number of the innermost level with a unit that holds both
        devices. Two different devices communicate over its links."""
        units = np.array([self._unit(i + 1) for i in range(len(self.levels))])
        return (a[:, None] // units == b[:, None] // units).argmax(axis=1)

    def hash(self) -> str:
        """Return the SHA-256 of the machine's content, in hexadecimal. It is equal on every run."""
        fields = self.model_dump(mode="json", exclude=None if self.others else {"others"})
        for device in (fields["device"], *fields.get("others", ())):
            for name, usual in (("efficiency", []), ("slowdown", 1.0), ("reserved_bytes", 0)):
                if device[name] == usual:
                    del device[name]
        for level in fields["levels"]:
            for name in ("all_gather", "all_reduce"):
                if level[name] is None:
                    del level[name]
                elif len(level[name]) == 1:
                    level[name] = level[name][0]
        content = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def _capacity(self) -> int:
        """The number of devices that the levels hold."""
        return self._unit(len(self.levels))

    def _unit(self, level: int) -> int:
        """Return the number of devices of one inner unit of a level, one for level 0."""
        return math.prod(inner.count for inner in self.levels[:level])

    def _held(self, members: frozenset[int], level: int) -> Counter[int]:
        """Return how many members each inner unit of a level holds, without empty units."""
        unit = self._unit(level)
        return Counter(device // unit for device in members)

    def _members(self, devices: Iterable[int]) -> frozenset[int]:
        members = frozenset(devices)
        if not members:
            raise InputError(self.name, "expected a group of devices, got none")
        last = self.devices - 1
        if outside := [device for device in members if not 0 <= device <= last]:
            problem = f"expected devices 0 to {last}, got {min(outside)}"
            raise InputError(self.name, problem)
        return members

    def _with(self, levels: tuple[Level, ...], limit: int | None) -> Machine:
        return Machine(
            schema_version=self.schema_version,
            name=self.name,
            device=self.device,
            other_device=tuple(o for o in self.others if o.first_node < levels[-1].count),
            level=levels,
            device_limit=limit,
        )


def preset_names() -> tuple[str, ...]:
    """Return the names of the machines that come with Unity, sorted."""
    return tuple(sorted(path.stem for path in _PRESETS.glob("*.toml")))


def load_machine(name_or_path: str | Path) -> Machine:
    """Return a preset by its name, or the machine in a file whose name ends in ".toml".

    Raises InputError for an unknown preset and for a file that is missing or wrong.
    """
    if Path(name_or_path).suffix == ".toml":
        return read_toml(name_or_path, Machine)
    name = str(name_or_path)
    if name not in preset_names():
        known = ", ".join(preset_names())
        raise InputError(
            name or "machine", f"no such machine (expected one of {known}, or a file named *.toml)"
        )
    return read_toml(_PRESETS / f"{name}.toml", Machine)

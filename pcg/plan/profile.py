"""profile.json: what operators and links took on a device, measured."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from pcg.device import DType
from pcg.errors import InputError
from pcg.files import FileModel, Name, read_json
from pcg.machine import MAX_DEVICES, Level, Machine, Pattern, Positive, Rate
from pcg.readings.kind import WorkKind


class Point(FileModel):
    """One measurement."""

    size: Positive
    """Floating-point operations of a contraction or function, bytes read and written of any other
    operator, bytes of a message."""
    seconds: Positive
    """The median, with the launch."""
    spread: Annotated[float, Field(ge=0, le=1e24)]
    """Between the quartiles, in seconds."""


LEAST_POINTS = 2
"""Through fewer goes no line."""
Points = Annotated[tuple[Point, ...], Field(min_length=LEAST_POINTS, max_length=4096)]


def _check_sizes(where: str, points: Points) -> None:
    for i, (before, after) in enumerate(pairwise(points), 1):
        if after.size <= before.size:
            raise ValueError(
                f"{where}.points[{i}].size: expected more than {before.size:g}, got {after.size:g}"
            )


class OperatorSeries(FileModel):
    """Operators of one kind and number format, by ascending size."""

    kind: WorkKind
    dtype: DType
    points: Points


class LinkSeries(FileModel):
    """Communication between devices, one of each unit of a level, while no others talk: what one
    port has. Messages go both ways at the same time, between pairs of the devices. By ascending
    bytes: of a message, or of the tensor that every device of a collective has in the end."""

    level: Name
    of: Pattern = "message"
    devices: Annotated[int, Field(ge=2, le=MAX_DEVICES)] = 2
    """How many take part."""
    points: Points

    @property
    def steps(self) -> int:
        """The steps of it as a ring, in which a device sends its part of the bytes; a message is
        one step, of all of them."""
        if self.of == "message":
            return 1
        return (self.devices - 1) * (2 if self.of == "all_reduce" else 1)

    @property
    def parts(self) -> int:
        """In how many parts the bytes go."""
        return 1 if self.of == "message" else self.devices


class Profile(FileModel):
    """Measurements on one device of a machine; what is not measured is left to the cost model."""

    schema_version: Literal[1]
    machine: Name
    device: Name
    """The device's own name, for people."""
    operators: tuple[OperatorSeries, ...]
    links: tuple[LinkSeries, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for i, series in enumerate(self.operators):
            _check_sizes(f"operators[{i}]", series.points)
        for i, link in enumerate(self.links):
            _check_sizes(f"links[{i}]", link.points)
        kinds = Counter(f"operators: {s.kind} in {s.dtype}" for s in self.operators)
        levels = Counter(f"links: {s.of} over {s.level}" for s in self.links)
        for what, times in (*kinds.items(), *levels.items()):
            if times > 1:
                raise ValueError(f"{what}: expected once, got {times} times")
        return self

    def series(self, kind: WorkKind, dtype: DType) -> tuple[Point, ...] | None:
        """The measurements of a kind in a number format, if there are any."""
        measured = (s.points for s in self.operators if (s.kind, s.dtype) == (kind, dtype))
        return next(measured, None)


def load_profile(path: str | Path, machine: Machine) -> tuple[Profile, Machine]:
    """Read a profile of a machine; and the machine with the latencies and bandwidths of its links
    as they were measured.

    Raises InputError for a file that is wrong, of another machine, or names a level that the
    machine lacks.
    """
    profile = read_json(path, Profile)
    if profile.machine != machine.name:
        raise InputError(f"{path}: machine", f"expected {machine.name}, got {profile.machine}")
    names = [level.name for level in machine.levels]
    for i, link in enumerate(profile.links):
        if link.level not in names:
            known = ", ".join(names)
            raise InputError(
                f"{path}: links[{i}].level", f"expected one of {known}, got {link.level}"
            )
    levels = tuple(_measured(level, profile.links, path) for level in machine.levels)
    return profile, machine.model_copy(update={"levels": levels})


def _measured(level: Level, links: tuple[LinkSeries, ...], path: str | Path) -> Level:
    """A level with what was measured of it."""
    rates: dict[str, object] = {}
    for link in (link for link in links if link.level == level.name):
        rate = link_rate(link, path)
        rates |= dict(rate) if link.of == "message" else {link.of: (rate,)}
    return level.model_copy(update=rates)


def link_rate(link: LinkSeries, path: str | Path) -> Rate:
    """Latency and bandwidth of a step: the least squares of relative errors of what the cost model
    makes of them, steps (latency + size / parts / bandwidth)."""
    sizes = np.array([point.size for point in link.points]) / link.parts
    seconds = np.array([point.seconds for point in link.points]) / link.steps
    terms = np.stack([1 / seconds, sizes / seconds], axis=1)
    (latency, per_byte), *_ = np.linalg.lstsq(terms, np.ones(len(sizes)), rcond=None)
    if latency < 0:
        latency, per_byte = 0.0, terms[:, 1].sum() / (terms[:, 1] ** 2).sum()
    if per_byte <= 0:
        where = f"{path}: links: {link.of} over {link.level}"
        raise InputError(where, "more bytes do not take longer")
    return Rate(latency=float(latency), bandwidth=float(1 / per_byte))

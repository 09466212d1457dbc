"""profile.json: what operators and links took on a device, measured."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from pcg.errors import InputError
from pcg.files import FileModel, read_json
from pcg.kind import Kind
from pcg.machine import DType, Machine, Positive


class Point(FileModel):
    """One measurement."""

    size: Positive
    """Floating-point operations of a contraction, bytes read and written of any other operator,
    bytes of a message."""
    seconds: Positive
    """The median, with the launch."""
    spread: Annotated[float, Field(ge=0)]
    """Between the quartiles, in seconds."""


Points = Annotated[tuple[Point, ...], Field(min_length=2)]


def _check_sizes(where: str, points: Points) -> None:
    for i, (before, after) in enumerate(pairwise(points), 1):
        if after.size <= before.size:
            raise ValueError(
                f"{where}.points[{i}].size: expected more than {before.size:g}, got {after.size:g}"
            )


class OperatorSeries(FileModel):
    """Operators of one kind and number format, by ascending size."""

    kind: Kind
    dtype: DType
    points: Points


class LinkSeries(FileModel):
    """Messages between two devices in different units of a level, by ascending bytes, while no
    others talk: what one port has."""

    level: str
    points: Points


class Profile(FileModel):
    """Measurements on one device of a machine; what is not measured is left to the cost model."""

    schema_version: Literal[1]
    machine: str
    device: str
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
        levels = Counter(f"links: {s.level}" for s in self.links)
        for what, times in (*kinds.items(), *levels.items()):
            if times > 1:
                raise ValueError(f"{what}: expected once, got {times} times")
        return self

    def series(self, kind: Kind, dtype: DType) -> tuple[Point, ...] | None:
        """The measurements of a kind in a number format, if there are any."""
        found = (s.points for s in self.operators if (s.kind, s.dtype) == (kind, dtype))
        return next(found, None)


def load_profile(path: str | Path, machine: Machine) -> tuple[Profile, Machine]:
    """Read a profile of a machine; and the machine with the latencies and bandwidths of its links
    as they were measured.

    Raises InputError for a file that is wrong, of another machine, or names a level that the
    machine lacks.
    """
    profile = read_json(path, Profile)
    if profile.machine != machine.name:
        raise InputError(f"{path}: machine", f"expected {machine.name}, got {profile.machine}")
    measured = {link.level: i for i, link in enumerate(profile.links)}
    names = [level.name for level in machine.levels]
    for name in measured:
        if name not in names:
            known = ", ".join(names)
            where = f"{path}: links[{measured[name]}].level"
            raise InputError(where, f"expected one of {known}, got {name}")
    levels = tuple(
        level.model_copy(update=link_line(profile.links[measured[level.name]], path))
        if level.name in measured
        else level
        for level in machine.levels
    )
    return profile, machine.model_copy(update={"levels": levels})


def link_line(link: LinkSeries, path: str | Path) -> dict[str, float]:
    """Latency and bandwidth: the least squares of relative errors of latency + size / bandwidth."""
    sizes = np.array([point.size for point in link.points])
    seconds = np.array([point.seconds for point in link.points])
    terms = np.stack([1 / seconds, sizes / seconds], axis=1)
    (latency, per_byte), *_ = np.linalg.lstsq(terms, np.ones(len(sizes)), rcond=None)
    if latency < 0:
        latency, per_byte = 0.0, terms[:, 1].sum() / (terms[:, 1] ** 2).sum()
    if per_byte <= 0:
        raise InputError(f"{path}: links: {link.level}", "more bytes do not take longer")
    return {"latency": float(latency), "bandwidth": float(1 / per_byte)}

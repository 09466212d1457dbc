"""The options that state a plan by hand."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationError

from pcg.errors import InputError, one_of
from pcg.files import FileModel

Count = Annotated[int, Field(ge=1, le=1 << 20)]

RecomputeKind = Literal["none", "selective", "full", "alternate"]

WHERE = "--degrees"


def _hyphens(name: str) -> str:
    return name.replace("_", "-")


class HandDegrees(FileModel):
    """The numbers of devices for each kind of parallelism. The devices of a machine that are left
    are for data parallelism."""

    model_config = ConfigDict(strict=False, alias_generator=_hyphens, populate_by_name=True)

    tensor: Count = 1
    """Devices that share each product, within a node as far as possible: columns of one product,
    rows of the next."""
    pipeline: Count = 1
    """Stages, each with the same number of repeated blocks."""
    interleave: Count = 1
    """Chunks of the model on each stage."""
    micro_batches: Count = 1
    """Slices of the batch. Their gradients add up."""
    schedule: Literal["1f1b", "zb-h1"] = "1f1b"
    """The order of slices in a pipeline."""
    recompute: RecomputeKind = "none"
    """*selective*: the operators between the products of attention; *full*: all operators within
    repeated blocks; *alternate*: as *full*, but attention and every second product are kept."""
    sequence: bool = False
    """Whether operators that tensor parallelism leaves whole are cut along the sequence, among the
    same devices."""
    sharded: bool = False
    """Whether weights are fully sharded among the devices of data parallelism."""

    def data(self, devices: int) -> int:
        """The degree of data parallelism on a number of devices. Raises InputError if the other
        degrees don't divide it."""
        data, rest = divmod(devices, self.tensor * self.pipeline)
        if rest:
            problem = f"tensor {self.tensor} x pipeline {self.pipeline}"
            raise InputError(WHERE, f"{problem}, expected a divisor of {devices} devices")
        return data

    def check_schedule(self) -> None:
        """Raise InputError if the pipeline cannot have its schedule."""
        if self.schedule == "1f1b":
            return
        if self.pipeline == 1:
            raise InputError(
                WHERE, f"schedule={self.schedule}, expected pipeline=2 or more with it"
            )
        if self.interleave > 1:
            problem = f"schedule={self.schedule} with interleave={self.interleave}"
            raise InputError(WHERE, f"{problem}, expected one of the two")


def parse_degrees(text: str) -> HandDegrees:
    """Parse degrees such as ``tensor=8,pipeline=4,micro-batches=16,sequence``. A word without a
    value sets a flag. Raises InputError."""
    known = {_hyphens(name): name for name in HandDegrees.model_fields}
    given: dict[str, str | bool] = {}
    for part in filter(None, (word.strip() for word in text.split(","))):
        word, equals, value = part.partition("=")
        one_of(WHERE, word, known)
        if word in given:
            raise InputError(WHERE, f"{word} is given twice")
        given[word] = value if equals else True
    flags = [word for word, value in given.items() if value is True]
    for word in flags:
        if HandDegrees.model_fields[known[word]].annotation is not bool:
            raise InputError(WHERE, f"{word}, expected {word}=VALUE")
    try:
        return HandDegrees.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        problem = f"{place}={first['input']}: {first['msg'][:1].lower()}{first['msg'][1:]}"
        raise InputError(WHERE, problem) from None

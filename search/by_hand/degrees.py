"""How a plan by hand is stated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias, get_args

from pcg.errors import InputError, one_of

Recomputed: TypeAlias = Literal["none", "selective", "full"]

FLAG = ("sequence", "sharded")
"""What is said by name alone."""


@dataclass(frozen=True)
class Degrees:
    """Over how many devices a model goes in each way; what is left of a machine's devices is for
    data parallelism."""

    tensor: int = 1
    """Devices that share each product, within a node as far as it goes: columns of one, rows of the
    next."""
    pipeline: int = 1
    """Stages, of as many repeated blocks each."""
    interleave: int = 1
    """Chunks of the model on each stage."""
    micro_batches: int = 1
    """Slices of the batch, whose gradients add up."""
    recompute: Recomputed = "none"
    """*selective*: what is between the products of attention; *full*: all within repeated
    blocks."""
    sequence: bool = False
    """Whether what tensor parallelism leaves whole is cut along the sequence among the same
    devices."""
    sharded: bool = False
    """Whether weights are fully sharded among the devices of data parallelism."""

    def data(self, devices: int) -> int:
        """The devices that each have samples of their own. Raises InputError where there is no
        such number."""
        data, rest = divmod(devices, self.tensor * self.pipeline)
        if rest:
            problem = f"tensor {self.tensor} x pipeline {self.pipeline}"
            raise InputError("--degrees", f"{problem}, expected a divisor of {devices} devices")
        return data


def parse_degrees(text: str) -> Degrees:
    """Degrees of a text such as ``tensor=8,pipeline=4,micro-batches=16,sequence``. Raises
    InputError."""
    names = {field.name.replace("_", "-"): field.name for field in fields(Degrees)}
    given: dict[str, object] = {}
    for part in filter(None, (word.strip() for word in text.split(","))):
        word, _, value = part.partition("=")
        name = names[one_of("--degrees", word, names)]
        if name in given:
            raise InputError("--degrees", f"{word} twice")
        given[name] = _value(word, name, value)
    return Degrees(**_typed(given))


def _value(word: str, name: str, value: str) -> object:
    if name in FLAG:
        if value:
            raise InputError("--degrees", f"{word}={value}, expected {word} alone")
        return True
    if name == "recompute":
        return one_of("--degrees: recompute", value, dict.fromkeys(get_args(Recomputed)))
    if not value.isdecimal() or not 1 <= int(value) <= 1 << 20:
        raise InputError("--degrees", f"{word}={value}, expected a whole number from 1")
    return int(value)


def _typed(given: Mapping[str, object]) -> Mapping[str, object]:
    return given

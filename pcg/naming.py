"""What the leaves of a model's graph are called in the module that it was captured from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pcg.files import FileModel, Name

DRAWN = "drawn__"
"""How inputs are called that are no part of any data, but drawn in every step, as for dropout."""


class ParameterFile(FileModel):
    """A parameter of the module."""

    names: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)]
    """As in the module's ``state_dict``; several for a parameter that is used in several places."""
    transposed: bool = False
    """Whether the graph's weight is its transpose."""


class NamingFile(FileModel):
    """Leaves without an entry are called as in the graph."""

    parameters: dict[Name, ParameterFile] = Field(default_factory=dict[str, ParameterFile])
    """By weight."""
    inputs: tuple[Name | None, ...] = Field(strict=False, default=())
    """The inputs that the module's arguments feed, in order; None for one that is not needed."""
    buffers: dict[Name, Name] = Field(default_factory=dict[str, str])
    """By input: the buffer, or constant of the module, that feeds it."""

    def parameter(self, weight: str) -> ParameterFile:
        """The parameter that a weight is."""
        return self.parameters.get(weight) or ParameterFile(names=(weight,))

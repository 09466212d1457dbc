"""Record how the module names the leaves of the graph that was captured from it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pcg.files import FileModel, Name
from pcg.graph.graph import Graph

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


def batch_of(model: Graph, naming: NamingFile) -> int:
    """The samples of a step: the first dimension of the first input that is fed with data, not with
    a parameter that is not trained or a buffer; 0 without one."""
    inputs = {node.leaf.name: node.leaf for node in model.leaves if node.leaf.kind == "input"}
    kept = naming.parameters.keys() | naming.buffers.keys()
    fed = [name for name in naming.inputs if name is not None]
    order = fed or [name for name in inputs if name not in kept]
    shapes = (leaf.type.shape for name in order if (leaf := inputs.get(name)) and leaf.type)
    return next((shape[0] for shape in shapes if shape), 0)

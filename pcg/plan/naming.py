"""Records of the module's names for the leaves of the graph captured from it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from pcg.files import FileModel, GrownFileModel, Name
from pcg.graph.graph import Graph
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


class ParameterFile(GrownFileModel):
    """A parameter of the module, or several that are one weight in the graph."""

    ADDED = frozenset({"stacked"})

    names: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)]
    """The names in the module's ``state_dict``, several for a parameter used in several places. For
    stacked parameters, their one common name."""
    transposed: bool = False
    """Whether the graph's weight is the transpose: its last two dimensions are swapped."""
    stacked: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    """The parameters that the weight holds one after another along its first dimension, such as the
    same matrix of all experts."""

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        """The parameters of the module, each with all of its names."""
        return tuple((name,) for name in self.stacked) or (self.names,)

    @property
    def in_module(self) -> tuple[str, ...]:
        """All names in the module."""
        return self.stacked or self.names

    def missing_from(self, known: Collection[str]) -> str | None:
        """Return the first parameter of which no name is in ``known``, or None."""
        return next((names[0] for names in self.parts if not any(n in known for n in names)), None)

    def weight(self, state: Mapping[str, Tensor]) -> Tensor:
        """Return the weight, given the module's tensors by name. It is a view if possible."""
        tensors = [state[next(name for name in names if name in state)] for names in self.parts]
        tensor = torch.stack(tensors) if self.stacked else tensors[0]
        return tensor.mT if self.transposed else tensor

    def tensors(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the module's tensors under all of their names, as views of the weight."""
        tensor = weight.mT if self.transposed else weight
        if self.stacked:
            return dict(zip(self.stacked, tensor.unbind(), strict=True))
        return dict.fromkeys(self.names, tensor)

    def misfit(
        self, shape: Sequence[int], state: Mapping[str, Tensor]
    ) -> tuple[str, list[int], list[int]] | None:
        """Return the first tensor of the module that does not fit a weight of this shape: its name,
        its shape, and the expected shape. None if all fit."""
        wanted = self.reoriented(shape)[1:] if self.stacked else self.reoriented(shape)
        for names in self.parts:
            name = next(name for name in names if name in state)
            if tuple(state[name].shape) != wanted:
                return name, list(state[name].shape), list(wanted)
        return None

    def reoriented(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Convert a shape, or a position of a piece, from the weight to the module or back. Parts
        stay stacked."""
        return swapped_last(shape) if self.transposed else tuple(shape)


def swapped_last(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape with its last two entries swapped, if there are two."""
    return (*shape[:-2], *shape[-2:][::-1])


class StateFile(FileModel):
    """A buffer of the module that every step changes."""

    names: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)]
    """Its names in the module, several for a buffer that is used in several places."""
    output: Annotated[int, Field(ge=1)]
    """The number of the graph's output that is its new value."""


class NamingFile(GrownFileModel):
    """The names of leaves in the module. A leaf without an entry has its name in the graph."""

    ADDED = frozenset({"states"})

    parameters: dict[Name, ParameterFile] = Field(default_factory=dict[str, ParameterFile])
    """Parameters by the name of the weight."""
    inputs: tuple[Name | None, ...] = Field(strict=False, default=())
    """The inputs that the module's arguments feed, in order. None for one that is not needed."""
    buffers: dict[Name, Name] = Field(default_factory=dict[str, str])
    """By input, the buffer or constant of the module that feeds it."""

    states: Annotated[tuple[StateFile, ...], Field(strict=False)] = ()
    """The buffers that every step changes."""

    def parameter(self, weight: str) -> ParameterFile:
        """Return the parameter of a weight."""
        return self.parameters.get(weight) or ParameterFile(names=(weight,))

    def problems(self, model: Graph) -> Iterator[tuple[str, str]]:
        """Yield the problems of this record for a graph, each with the entry's name."""
        for number, state in enumerate(self.states):
            if state.output >= len(model.outputs):
                yield f"states[{number}]", f"the graph has no output {state.output}"
        for leaf in (node.leaf for node in model.leaves):
            known = self.parameters.get(leaf.name)
            if known is None or not known.stacked:
                continue
            if leaf.shape[:1] != (len(known.stacked),):
                yield (
                    leaf.name,
                    f"{len(known.stacked)} stacked parameters for a weight of {list(leaf.shape)}",
                )
            if len({*known.stacked, *known.names}) != len(known.stacked) + 1:
                yield leaf.name, "expected distinct names of stacked parameters and of the stack"
            if known.transposed and len(leaf.shape) != 3:
                yield leaf.name, f"transposed matrices need 3 dimensions, got {list(leaf.shape)}"


def batch_of(model: Graph, naming: NamingFile) -> int:
    """Return the number of samples of a step: the first dimension of the first input that is fed
    with data. Inputs fed with buffers or frozen parameters do not count. 0 if there is none."""
    inputs = {node.leaf.name: node.leaf for node in model.leaves if node.leaf.kind == "input"}
    not_data = naming.parameters.keys() | naming.buffers.keys()
    fed = [name for name in naming.inputs if name is not None]
    order = fed or [name for name in inputs if name not in not_data]
    shapes = (leaf.type.shape for name in order if (leaf := inputs.get(name)) and leaf.type)
    return next((shape[0] for shape in shapes if shape), 0)

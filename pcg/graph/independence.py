"""Descriptions of the dimensions along which a torch function is the same for each slice.

An entry of the table (``pcg.graph.independent``) proposes axes from the arguments of a call, by
torch's documentation of the function: which dimension of which argument corresponds to which
dimension of the results. A proposal is accepted only if all these dimensions have one size, so that
nothing is broadcast there. If an operand stands for several arguments, the axis has to be the same
dimension in all of them. For each entry, tests compare values and gradients of blocks with those of
the whole.

An argument that is a number or a list is the same for all blocks, unless the entry says that it is
the size of an axis. Functions that take sizes in other ways, as ``view`` takes a shape, are not in
the table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pcg.graph.slicewise import MOST_AXES, SharedIndex
from pcg.graph.torch_calls import Format


@dataclass(frozen=True)
class OperandSlot:
    """A tensor among the arguments, by the number of its operand."""

    number: int


@dataclass(frozen=True)
class Proposal:
    """A proposed axis: its dimension in each argument that has it, by name, and in the results.

    For an argument that is a list of tensors there is a dimension for each. A single number for the
    results holds for all of them.
    """

    arguments: Mapping[str, int | Sequence[int | None]]
    results: int | Sequence[int]


@dataclass(frozen=True)
class CallFormats:
    """The arguments of a call, and the formats of its operands and results."""

    values: Mapping[str, Any]
    reads: Sequence[Format]
    writes: Sequence[Format]

    @cached_property
    def first(self) -> str:
        """The name of the first argument that is a tensor."""
        return next(
            (name for name, value in self.values.items() if isinstance(value, OperandSlot)), ""
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an argument, () if it is no tensor."""
        value = self.values.get(name)
        return self.reads[value.number].shape if isinstance(value, OperandSlot) else ()

    def rank(self, name: str) -> int:
        return len(self.shape(name))

    def have_its_rank(self, names: Sequence[str]) -> bool:
        """Return whether all tensors among these arguments have the rank of the first tensor."""
        tensors = (name for name in names if isinstance(self.values.get(name), OperandSlot))
        return all(self.rank(name) == self.rank(self.first) for name in tensors)

    def dims(self, name: str) -> frozenset[int] | None:
        """Return the dimensions of the first tensor that an argument names, one or several.

        None if it names none, which means all dimensions to torch.
        """
        value, rank = self.values.get(name), self.rank(self.first)
        listed = value if isinstance(value, list) else [value]
        dims = [dim for dim in listed if isinstance(dim, int) and not isinstance(dim, bool)]
        if not dims or len(dims) < len(listed) or not all(-rank <= dim < rank for dim in dims):
            return None
        return frozenset(dim % rank for dim in dims)


class Independence(ABC):
    """An entry of the table: along which dimensions the slices of a function are independent."""

    counts: tuple[tuple[str, str, int], ...] = ()
    """Arguments that are the size of a dimension of another argument: the names of both, and the
    dimension."""

    @abstractmethod
    def proposals(self, given: CallFormats) -> Iterator[Proposal]:
        """Yield the indices that may be axes."""


@dataclass(frozen=True)
class Along(Independence):
    """A function that works along the dimensions that an argument names, and is the same for each
    slice along all others.

    ``dim``: the name of that argument. ``alike``: arguments with the dimensions of the first
    tensor; the others are shared by all slices. ``always``: the dimensions that the function works
    along, if no argument names them. ``reduces``: whether these are missing in the results, unless
    ``keepdim`` is given. ``index``: an argument that chooses elements along them, each by itself.
    """

    dim: str = "dim"
    alike: tuple[str, ...] = ()
    always: tuple[int, ...] = ()
    reduces: bool = False
    index: str = ""

    def proposals(self, given: CallFormats) -> Iterator[Proposal]:
        if not given.have_its_rank(self.alike):
            return
        rank = given.rank(given.first)
        worked = frozenset(dim % rank for dim in self.always if -rank <= dim < rank)
        if not self.always:
            named = given.dims(self.dim)
            if named is None:
                return
            worked = named
        gone = worked if self.reduces and not given.values.get("keepdim") else frozenset[int]()
        for dim in sorted(frozenset(range(rank)) - worked):
            result = dim - sum(other < dim for other in gone)
            yield Proposal(dict.fromkeys((given.first, *self.alike), dim), result)
        if self.index:
            for dim in worked:
                yield Proposal({self.index: dim if given.have_its_rank((self.index,)) else 0}, dim)


@dataclass(frozen=True)
class Leading(Independence):
    """A function that works on the last dimensions, and is the same for each slice along others.

    ``last``: the number of these dimensions, or the name of a list with ``each`` elements for each
    of them. ``alike``: further arguments that have all dimensions before the last ones.
    """

    last: int | str
    alike: tuple[str, ...] = ()
    each: int = 1

    def proposals(self, given: CallFormats) -> Iterator[Proposal]:
        last = self.last
        if isinstance(last, str):
            listed = given.values.get(last)
            if not isinstance(listed, list):
                return
            last = -(-len(listed) // self.each)
        if not given.have_its_rank(self.alike):
            return
        for dim in range(given.rank(given.first) - last):
            yield Proposal(dict.fromkeys((given.first, *self.alike), dim), dim)


@dataclass(frozen=True)
class Stated(Independence):
    """A function with fixed axes, for a first tensor of rank ``rank`` if that is given."""

    indices: tuple[Proposal, ...]
    rank: int | None = None
    counts: tuple[tuple[str, str, int], ...] = ()

    def proposals(self, given: CallFormats) -> Iterator[Proposal]:
        if self.rank is None or given.rank(given.first) == self.rank:
            yield from self.indices


@dataclass(frozen=True)
class Made(Independence):
    """A function whose axes a Python function computes from the arguments."""

    make: Callable[[CallFormats], Iterator[Proposal]]

    def proposals(self, given: CallFormats) -> Iterator[Proposal]:
        yield from self.make(given)


def proposed_axes(entry: Independence, given: CallFormats) -> tuple[SharedIndex, ...]:
    """Return the proposals of an entry that are axes of this call."""
    axes: list[SharedIndex] = []
    for proposal in entry.proposals(given):
        axis = _axis(proposal, given)
        if axis is not None and not any(_overlap(axis, other) for other in axes):
            axes.append(axis)
    return tuple(axes[:MOST_AXES])


def _axis(proposal: Proposal, given: CallFormats) -> SharedIndex | None:
    """Return the axis that a proposal describes, or None if it is no axis of this call."""
    dims: dict[int, int | None] = {}
    for name, value in given.values.items():
        for slot, dim in _places(value, proposal.arguments.get(name)):
            if dims.setdefault(slot.number, dim) != dim:
                return None
    results = proposal.results
    ends = [results] * len(given.writes) if isinstance(results, int) else list(results)
    operands = tuple(dims.get(number) for number in range(len(given.reads)))
    if len(ends) != len(given.writes) or all(dim is None for dim in operands):
        return None
    sizes = {
        tensor.shape[dim] if 0 <= dim < len(tensor.shape) else None
        for tensor, dim in zip((*given.reads, *given.writes), (*operands, *ends), strict=True)
        if dim is not None
    }
    return SharedIndex(operands, tuple(ends)) if len(sizes) == 1 and None not in sizes else None


def _places(
    value: Any, dims: int | Sequence[int | None] | None
) -> Iterator[tuple[OperandSlot, int | None]]:
    """Yield the operands in an argument, with the dimension of an index in each."""
    if isinstance(value, OperandSlot):
        yield value, dims if isinstance(dims, int) else None
    elif isinstance(value, list):
        listed = [dims] * len(value) if dims is None or isinstance(dims, int) else dims
        for part, dim in zip(value, listed, strict=True):
            if isinstance(part, OperandSlot):
                yield part, dim


def _overlap(one: SharedIndex, other: SharedIndex) -> bool:
    """Return whether two axes are the same dimension of any operand or result."""
    pairs = zip((*one.operands, *one.results), (*other.operands, *other.results), strict=True)
    return any(a == b is not None for a, b in pairs)

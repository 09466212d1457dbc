"""Name the tensors of a call by the parameters of ``forward`` to which they are passed.

A plan is made from one call. Later calls may pass tensors by position or by keyword, and entries of
dictionaries in any order. So tensors are identified by name: ``input_ids``, or ``batch_pixels`` for
the entry ``pixels`` of a dictionary that is passed as ``batch``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.utils import _pytree as trees

from pcg.errors import InputError

TARGET = "loss_target"
"""The name of a positional argument that only the loss reads."""


@dataclass(frozen=True)
class ModuleCall:
    """The arguments of a call of a module."""

    signature: inspect.Signature
    arguments: Mapping[str, Any]
    """The arguments of ``forward``, by parameter."""
    targets: Mapping[str, Any]
    """The arguments that only the loss reads, by name."""
    tensors: Mapping[str, Tensor]
    """All tensors in both, by name."""

    def with_tensors(self, tensors: Sequence[Tensor]) -> tuple[inspect.BoundArguments, Any]:
        """The arguments and the targets, with their tensors replaced by ``tensors``, in order."""
        leaves, spec = trees.tree_flatten((dict(self.arguments), dict(self.targets)))
        replacements = iter(tensors)
        filled = [next(replacements) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        arguments, targets = trees.tree_unflatten(filled, spec)
        return _bound(self.signature, arguments), targets


@dataclass(frozen=True)
class ForwardSignature:
    """The interface of a module: the name of its class, and the signature of ``forward``."""

    name: str
    signature: inspect.Signature

    @classmethod
    def of(cls, module: Module) -> ForwardSignature:
        return cls(type(module).__name__, inspect.signature(module.forward))

    def takes(self, name: str) -> bool:
        """Whether ``forward`` takes a keyword argument of this name."""
        parameters = self.signature.parameters
        return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@dataclass
class TensorCalls:
    """The tensors of calls whose arguments are tensors alone, by leaf of a graph.

    Which argument belongs to a leaf depends on the form of such a call: the number of positional
    arguments and the names of the others. So the arguments are matched once for each form.
    """

    _indices: dict[tuple[int, tuple[str, ...]], dict[str, int]] = field(
        default_factory=dict[tuple[int, tuple[str, ...]], dict[str, int]]
    )
    """For each form: the index of a leaf's argument, by leaf."""

    def tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Tensor] | None:
        """The tensors of a call, by leaf. None for a form that ``add`` was not called with."""
        indices, values = self._indices.get((len(args), tuple(kwargs))), (*args, *kwargs.values())
        if indices is None or not all(isinstance(value, Tensor) for value in values):
            return None
        return {leaf: values[index] for leaf, index in indices.items()}

    def add(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> None:
        """Keep which arguments of a call are its ``tensors``, by leaf. Does nothing for other
        arguments than tensors, or if one tensor is passed twice."""
        values = (*args, *kwargs.values())
        index_of = {id(value): index for index, value in enumerate(values)}
        if len(index_of) == len(values) and all(isinstance(value, Tensor) for value in values):
            indices = {leaf: index_of[id(tensor)] for leaf, tensor in tensors.items()}
            self._indices[len(args), tuple(kwargs)] = indices


def call_of(
    face: ForwardSignature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    has_target: bool = False,
) -> ModuleCall:
    """A call of a module. ``has_target``: whether some arguments are for the loss only: those of
    ``kwargs`` that ``forward`` does not take or, if there are none, the last of ``args``. Raises
    InputError for arguments that do not fit."""
    signature = face.signature
    positional, named, targets = list(args), dict(kwargs), dict[str, Any]()
    if has_target:
        targets = {name: named.pop(name) for name in list(named) if not face.takes(name)}
        if positional and not targets:
            targets[TARGET] = positional.pop()
    try:
        bound = signature.bind(*positional, **named)
    except TypeError as error:
        raise InputError("inputs", f"do not fit forward of {face.name}: {error}") from error
    arguments = dict(bound.arguments)
    return ModuleCall(signature, arguments, targets, _tensors(signature, arguments, targets))


def _bound(signature: inspect.Signature, arguments: Mapping[str, Any]) -> inspect.BoundArguments:
    bound = signature.bind_partial()
    bound.arguments.update(arguments)
    return bound


def _tensors(
    signature: inspect.Signature, arguments: Mapping[str, Any], targets: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The tensors of a call, by names that are Python identifiers, each different."""
    named: dict[str, Tensor] = {}
    for part, kinds in ((arguments, signature.parameters), (targets, dict[str, Any]())):
        for path, leaf in trees.tree_flatten_with_path(dict(part))[0]:
            if not isinstance(leaf, Tensor):
                continue
            keys = [_word(key) for key in path]
            parameter = kinds.get(keys[0])
            if parameter is not None and parameter.kind is parameter.VAR_KEYWORD:
                keys = keys[1:]
            name = fresh = _identifier("_".join(keys))
            number = 1
            while fresh in named:
                number += 1
                fresh = f"{name}_{number}"
            named[fresh] = leaf
    return named


def _word(key: Any) -> str:
    """A step of a path into a tree: the key, index or attribute."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _identifier(name: str) -> str:
    plain = re.sub(r"\W", "_", name)
    return plain if plain.isidentifier() and not iskeyword(plain) else f"_{plain}"


def matched(leaves: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """For each leaf of a graph: the name of its tensor in a call. It is the leaf's name, without
    the number that the leaf has if a weight of the graph has the same name. Names without a leaf
    and leaves without a name are left out."""
    stems = {leaf: leaf for leaf in leaves if leaf in names}
    for leaf in leaves:
        stem = re.sub(r"_\d+$", "", leaf)
        if leaf not in stems and stem in names and stem not in stems.values():
            stems[leaf] = stem
    return stems

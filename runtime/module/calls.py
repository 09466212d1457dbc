"""Name the tensors of a call by the parameters of ``forward`` that they are given for.

A plan is made from one call and followed by others: positional or by keyword, with entries of
dictionaries in any order. So tensors are told apart by name: ``input_ids``, or ``batch_pixels`` for
an entry of the dictionary that is given for ``batch``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.utils import _pytree as trees

from pcg.errors import InputError

TARGET = "loss_target"
"""What the tensor is called that is for the loss alone, where it is given by position."""


@dataclass(frozen=True)
class ModuleCall:
    """A call of a module, taken apart. ``arguments``: by parameter of ``forward``; ``targets``:
    what is for the loss alone, by name; ``tensors``: all tensors of both."""

    signature: inspect.Signature
    arguments: Mapping[str, Any]
    targets: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def with_tensors(self, tensors: Sequence[Tensor]) -> tuple[inspect.BoundArguments, Any]:
        """The arguments, and what is for the loss, with other tensors in the places of these."""
        leaves, spec = trees.tree_flatten((dict(self.arguments), dict(self.targets)))
        following = iter(tensors)
        filled = [next(following) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        arguments, targets = trees.tree_unflatten(filled, spec)
        return _bound(self.signature, arguments), targets


@dataclass(frozen=True)
class Face:
    """What is known of a module that is called: what it is called itself, and what it takes."""

    name: str
    signature: inspect.Signature

    @classmethod
    def of(cls, module: Module) -> Face:
        return cls(type(module).__name__, inspect.signature(module.forward))

    def takes(self, name: str) -> bool:
        """Whether ``forward`` takes what is given under a name."""
        known = self.signature.parameters
        return name in known or any(p.kind is p.VAR_KEYWORD for p in known.values())


def call_of(
    face: Face, args: Sequence[Any], kwargs: Mapping[str, Any], *, has_target: bool = False
) -> ModuleCall:
    """A call of a module. ``has_target``: whether the last of ``args``, and what of ``kwargs``
    ``forward`` does not take, is for the loss. Raises InputError for arguments that do not fit."""
    signature = face.signature
    given, named, targets = list(args), dict(kwargs), dict[str, Any]()
    if has_target:
        targets = {name: named.pop(name) for name in list(named) if not face.takes(name)}
        if given and not targets:
            targets[TARGET] = given.pop()
    try:
        bound = signature.bind(*given, **named)
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
    """By a leaf of a graph, which of the names of a call's tensors it is: the same, or with a
    number where a weight of the graph has the same name. Names without a leaf are left out, and so
    are leaves without a name."""
    stems = {leaf: leaf for leaf in leaves if leaf in names}
    for leaf in leaves:
        stem = re.sub(r"_\d+$", "", leaf)
        if leaf not in stems and stem in names and stem not in stems.values():
            stems[leaf] = stem
    return stems

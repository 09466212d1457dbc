"""Make the leaves of a captured graph from a module's parameters and inputs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pcg.capture.aten.reindexing import MOVES
from pcg.capture.aten.shapes import swapped
from pcg.capture.id_ranges import places_below
from pcg.capture.regions import place_of
from pcg.capture.stacks import common_name, stacks, turns_matrices
from pcg.capture.states import MOST
from pcg.errors import InputError
from pcg.graph.graph import Value, leaf
from pcg.lazy import torch
from pcg.plan.naming import ParameterFile, swapped_last

if TYPE_CHECKING:
    from torch import Tensor, fx
    from torch.export import ExportGraphSignature
    from torch.nn import Module

INDEXED: Mapping[str, tuple[int, int, int]] = {
    "aten.embedding.default": (1, 0, 0),
    "aten.cross_entropy_loss.default": (1, 0, 1),
}
"""Operators that read integers as indices: the argument with the indices, the argument that they
index, and the dimension of that argument."""
SAME_ELEMENTS = MOVES.keys() | {
    *("aten.clone.default", "aten.copy.default", "aten.constant_pad_nd.default"),
    "aten.pad.default",
    *("aten.masked_fill.Scalar", "aten.where.self"),
    *("aten.slice_scatter.default", "aten.select_scatter.default"),
}
"""Operators whose results hold elements of their operands, and possibly a constant."""


@dataclass(frozen=True)
class CapturedWeight:
    """A weight of the graph, and the parameter of the module that feeds it."""

    leaf: str
    parameter: str
    """Fully qualified, as in the module's ``state_dict``."""
    transposed: bool
    """Whether the graph stores the transpose. Torch's linear layers hold [out, in]; the graph
    stores [in, out]."""
    aliases: tuple[str, ...] = ()
    """Further names of the parameter, if the module uses it in several places."""
    stacked: tuple[str, ...] = ()
    """The parameters of which the weight is a stack, if any (``pcg.capture.stacks``). Then
    ``parameter`` is their common name."""

    def of(self, parameter: Tensor) -> Tensor:
        """Return the weight given the parameter, or the parameter given the weight."""
        return parameter.mT if self.transposed else parameter

    @property
    def record(self) -> ParameterFile:
        """The record of the weight in the plan file."""
        names = (self.parameter, *self.aliases)
        return ParameterFile(names=names, transposed=self.transposed, stacked=self.stacked)


class Leaves:
    """The graph's leaves for the placeholders of a program. Only placeholders that the outputs need
    get a leaf."""

    def __init__(
        self,
        module: Module,
        signature: ExportGraphSignature,
        live: set[fx.Node],
        frozen: set[fx.Node],
        examples: Mapping[str, Tensor],
        where: str,
    ) -> None:
        """Prepare the leaves of the nodes in ``live``.

        ``frozen`` are parameters that no update changes; in the graph they are buffers.
        ``examples`` are the tensors with which the module was exported, by placeholder name.
        """
        self._where = where
        self._live = live
        self._examples = examples
        self._changed = frozenset(signature.buffers_to_mutate.values())
        self._bounds = _bounds(live)
        self._shared = _shared(module)
        self._parameters = {name: first for first, names in self._shared.items() for name in names}
        self._order = list(module.state_dict(keep_vars=True))
        frozen_names = {node.name for node in frozen}
        given = signature.inputs_to_parameters
        self._parameter_of = {n: p for n, p in given.items() if n not in frozen_names}
        self._buffer_of = {
            **{n: self._parameters[p] for n, p in given.items() if n in frozen_names},
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        self._constants = signature.inputs_to_lifted_tensor_constants
        self._named = {"", *named_tensors(module)}
        self._made: dict[str, tuple[Value, CapturedWeight]] = {}
        self._stacks = stacks(live, self._single(), self._shared)
        self._parts = {part for node in self._stacks for part in node.all_input_nodes}
        self._names: set[str] = {"return"}
        self.buffers: dict[str, str] = {}
        self.inputs: dict[object, str] = {}

    @property
    def weights(self) -> tuple[CapturedWeight, ...]:
        weights = [weight for _, weight in self._made.values()]
        return tuple(sorted(weights, key=lambda w: self._order.index(w.record.in_module[0])))

    def is_part(self, node: fx.Node) -> bool:
        """Whether a placeholder is read only as a part of a stack."""
        return node in self._parts

    def stack(self, node: fx.Node) -> Value | None:
        """Return the weight that represents a stack of parameters, or None for any other call."""
        parts = self._stacks.get(node)
        if parts is None:
            return None
        together = self._together(parts)
        if together not in self._made:
            shape = tuple(node.meta["val"].shape)
            turned = len(shape) == 3 and turns_matrices(node, self._live)
            name = self._fresh(together)
            value = leaf("weight", name, swapped_last(shape) if turned else shape)
            value = swapped(value, 1, 2) if turned else value
            self._made[together] = value, CapturedWeight(name, together, turned, stacked=parts)
        return self._made[together][0]

    def _together(self, parts: tuple[str, ...]) -> str:
        """Return the common name of parameters: a star replaces the steps in which they differ."""
        common = common_name(parts)
        taken = {w.parameter: w.stacked for _, w in self._made.values()}
        fresh, number = common, 1
        while taken.get(fresh, parts) != parts or fresh in self._parameters:
            number += 1
            fresh = f"{common}.{number}"
        return fresh

    def _single(self) -> dict[str, str]:
        """Return the trained parameters that have only one placeholder, by that placeholder."""
        names = {n: self._parameters[p] for n, p in self._parameter_of.items()}
        count = Counter(names.values())
        return {n: p for n, p in names.items() if count[p] == 1}

    def value(self, node: fx.Node) -> Value:
        """Return the graph's value of a placeholder. Raises InputError if it cannot have one."""
        if node.name in self._parameter_of and not node.meta["val"].is_complex():
            return self._parameter(node, self._parameters[self._parameter_of[node.name]])
        tensor = node.meta["val"]
        if not isinstance(tensor, torch.Tensor):
            place = next((place_of(user, self._where) for user in node.users), self._where)
            raise InputError(place, f"reads an object that is {_kind(tensor)}, expected a tensor")
        if self._constants.get(node.name, "") not in self._named:
            problem = f"a constant of {tensor.numel():,} numbers, which is no buffer of the module"
            raise InputError(self._where, f"{problem}: register_buffer would make it one")
        if tensor.is_complex():
            problem = (
                "holds complex numbers, expected their parts, as torch.view_as_real gives them"
            )
            raise InputError(self._where, f"{self._buffer_of.get(node.name, node.name)} {problem}")
        origin = self._buffer_of.get(node.name)
        name = self._fresh(origin or node.name)
        if origin is not None:
            self.buffers[name] = origin
        else:
            self.inputs[node.name] = name
        least, below = self._range(node, tensor)
        return leaf("input", name, tuple(tensor.shape), below=below, least=least)

    def _parameter(self, node: fx.Node, qualified: str) -> Value:
        if qualified not in self._made:
            shape = tuple(node.meta["val"].shape)
            turned = len(shape) == 2 and self._is_turned(node)
            name, aliases = self._fresh(qualified), tuple(self._shared[qualified][1:])
            value = leaf("weight", name, shape[::-1] if turned else shape)
            value = swapped(value, 0, 1) if turned else value
            self._made[qualified] = (value, CapturedWeight(name, qualified, turned, aliases))
        return self._made[qualified][0]

    def _is_turned(self, node: fx.Node) -> bool:
        """Whether all nodes that read a matrix read its transpose."""
        users = [user for user in node.users if user in self._live]
        return all(_transposes(user, node) for user in users)

    def _range(self, node: fx.Node, tensor: Tensor) -> tuple[int, int | None]:
        """Return the least value of a placeholder's integers, and the bound that they stay below.

        The bound comes from the operators that read the integers and from the example. It is None
        for real numbers.
        """
        if tensor.dtype == torch.bool:
            return 0, 2
        if tensor.is_floating_point():
            return 0, None
        if self._buffer_of.get(node.name) in self._changed:
            return 0, MOST
        example, places = self._examples.get(node.name), places_below(node, self._live)
        if example is None or example.is_meta or not example.numel():
            return 0, self._bounds.get(node, places or 2)
        least, seen = min(0, int(example.min())), int(example.max()) + 1
        return least, self._bounds.get(node, max(places or 2, seen))

    def _fresh(self, name: str) -> str:
        """Return a name that a graph can print and no other leaf has."""
        plain = re.sub(r"\W", "_", name)
        plain = plain if plain.isidentifier() else f"_{plain}"
        fresh, number = plain, 1
        while fresh in self._names:
            number += 1
            fresh = f"{plain}_{number}"
        self._names.add(fresh)
        return fresh


def _kind(value: Any) -> str:
    """What an input is that is no tensor."""
    name = str(getattr(value, "class_fqn", type(value).__name__))
    return "a generator of random numbers" if name.endswith("Generator") else f"a {name}"


def named_tensors(module: Module) -> set[str]:
    """Return the names of a module's tensors that are attributes, not parameters or buffers."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, torch.Tensor)
    }


def _shared(module: Module) -> dict[str, list[str]]:
    """Return all names of each parameter, by its first name."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {aliases[0]: aliases for aliases in names.values()}


def _transposes(user: fx.Node, matrix: fx.Node) -> bool:
    match str(user.target):
        case "aten.linear.default":
            return user.args[1] is matrix and user.args[0] is not matrix
        case "aten.t.default" | "aten.transpose.int":
            return True
        case "aten.permute.default":
            return bool(user.args[1] == [1, 0])  # it may be a symbol, says torch 2.14
        case _:
            return False


def _bounds(live: set[fx.Node]) -> dict[fx.Node, int]:
    """Return the bounds that integers stay below, by the operators that read them as indices."""
    bounds: dict[fx.Node, int] = {}
    pending: list[tuple[fx.Node, int]] = []
    for node in live:
        if str(node.target) in INDEXED:
            index, other, dim = INDEXED[str(node.target)]
            ids: Any = node.args[index]
            numbered: Any = node.args[other]
            pending.append((ids, numbered.meta["val"].shape[dim]))
    while pending:
        node, size = pending.pop()
        bounds[node] = min(size, bounds.get(node, size))
        if str(node.target) in SAME_ELEMENTS or "getitem" in str(node.target):
            pending += [(source, bounds[node]) for source in node.all_input_nodes]
    return bounds

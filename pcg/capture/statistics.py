"""Find the running statistics that the batch norms of a captured module keep."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pcg.errors import InputError
from pcg.lazy import torch
from pcg.plan.statistics import RunningFile

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportGraphSignature
    from torch.nn import Module

NORMS = frozenset({"aten.batch_norm.default", "aten._native_batch_norm_legit_functional.default"})
"""Torch's batch norms that may keep running statistics."""
COUNT = "num_batches_tracked"


def check_momentum(module: Module, where: str) -> None:
    """Raise InputError for a batch norm that averages over all batches seen so far. Torch cannot
    export it."""
    for name, part in module.named_modules():
        is_norm = isinstance(part, torch.nn.modules.batchnorm._NormBase)  # pyright: ignore[reportPrivateUsage]
        if is_norm and part.training and part.track_running_stats and part.momentum is None:
            problem = f"{name or 'it'}: batch norm with momentum=None, expected a number"
            raise InputError(where, problem)


def running_statistics(
    module: Module,
    signature: ExportGraphSignature,
    nodes: Iterable[fx.Node],
    given: Callable[[fx.Node], Mapping[str, Any]],
    name: Callable[[fx.Node], str],
) -> tuple[RunningFile, ...]:
    """Return the running statistics of the batch norms in training among ``nodes``, in order.

    ``given`` returns the arguments of a call, and ``name`` the graph's name of a node's result.
    """
    buffers = _Buffers(module, signature)
    records: list[RunningFile] = []
    for node in nodes:
        if str(node.target) not in NORMS:
            continue
        arguments = given(node)
        kept = [arguments["running_mean"], arguments["running_var"]]
        if not arguments["training"] or None in kept:
            continue
        mean, variance = (buffers.names(kept_node) for kept_node in kept)
        if mean and variance:
            records.append(
                RunningFile(
                    value=name(arguments["input"]),
                    mean=mean,
                    variance=variance,
                    count=buffers.beside(mean[0]),
                    momentum=arguments["momentum"],
                )
            )
    return tuple(records)


class _Buffers:
    """The buffers of a module that are in its ``state_dict``, and their names there."""

    def __init__(self, module: Module, signature: ExportGraphSignature) -> None:
        self._of = signature.inputs_to_buffers
        saved = module.state_dict(keep_vars=True)
        self._tensors = {
            name: tensor
            for name, tensor in module.named_buffers(remove_duplicate=False)
            if name in saved
        }

    def names(self, node: fx.Node) -> tuple[str, ...]:
        """Return the names of the buffer that a node is, or that an earlier batch norm updated."""
        while node.op == "call_function":
            if node.target is not operator.getitem:
                return ()
            source: Any = node.args[0]
            # Results 3 and 4 of a batch norm are the new values of its arguments 3 and 4.
            node = source.args[node.args[1]]
        return self._all(self._of.get(node.name, ""))

    def beside(self, mean: str) -> tuple[str, ...]:
        """Return the names of the batch counter beside a running mean, if the module has one."""
        return self._all(f"{mean.rpartition('.')[0]}.{COUNT}".removeprefix("."))

    def _all(self, name: str) -> tuple[str, ...]:
        buffer = self._tensors.get(name)
        if buffer is None:
            return ()
        return tuple(other for other, tensor in self._tensors.items() if tensor is buffer)

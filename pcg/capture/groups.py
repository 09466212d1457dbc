"""Replace batch norms by batch norms over groups of samples, as data parallelism computes them.

With G groups, each batch norm takes its statistics over each of G equal groups of consecutive
samples. A module under DistributedDataParallel on G devices computes the same. It is another
function than the module on the whole batch. In the graph it is the operator ``ghost_batch_norm``,
which needs no communication if the batch is cut into a number of pieces that divides G.

This holds only if the first dimension of the norm's operand is the samples in order, or begins with
them as its outermost digits. ``check_samples`` follows the samples from the inputs by the types of
operators: it cuts the batch into G pieces, and each norm has to receive this cut in dimension 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final, Literal

from pcg.errors import InputError, OperatorError
from pcg.graph.graph import Graph, Node, Value, apply
from pcg.graph.opaque import Opaque
from pcg.ops.norms import batch_norm, ghost_batch_norm
from pcg.types.infer import infer
from pcg.types.tensor import ParallelTensor

OPAQUE = "batch_norm"
"""A part of the names of torch's batch norms."""

_Mixed = Literal["mixed"]
_Samples = int | _Mixed | None
"""The dimension of a value whose outermost digits are the samples; ``MIXED`` if the value depends
on the samples in another way; None if it does not depend on them."""
MIXED: Final = "mixed"


def in_groups(norm: Value, groups: int, where: str) -> Value:
    """Return a batch norm with statistics over groups, and any other value as it is.

    Raises InputError if the number of groups does not divide the number of samples.
    """
    node = norm.node
    if groups == 1 or node.is_leaf or node.operator_call.operator != batch_norm:
        return norm
    rows = node.inputs[0].type.shape[0]
    if rows % groups:
        problem = f"a batch norm of {rows} samples cannot take them in {groups} equal groups"
        raise InputError(where, f"{problem}; statistics of the whole batch are another choice")
    call = ghost_batch_norm(groups=groups, eps=node.operator_call.values["eps"])
    return apply(call, *node.inputs)


def check_samples(graph: Graph, inputs: Collection[str], groups: int, where: str) -> None:
    """Raise InputError for a batch norm whose groups would not be groups of samples.

    ``inputs`` are the inputs of the graph whose first dimension is the samples.
    """
    known: dict[Value, _Samples] = {}
    for node in graph.nodes:
        if node.is_leaf:
            known[node.value()] = 0 if node.leaf.name in inputs else None
            continue
        operator = node.operator_call.operator
        if isinstance(operator, Opaque) and OPAQUE in operator.target:
            problem = f"{operator.target} has no equation, so that it cannot take groups of samples"
            raise InputError(where, problem)
        read: list[_Samples] = [known[value] for value in node.inputs]
        if _is_ghost(node) and read[0] != 0:
            problem = "whose first dimension is not known to be the samples in order"
            what = f"a batch norm of {node.inputs[0].type}, {problem}"
            raise InputError(where, f"{what}: it cannot take them in {groups} groups")
        for port, made in enumerate(_made(node, read, groups)):
            known[node.value(port)] = made


def _is_ghost(node: Node) -> bool:
    return not node.is_leaf and node.operator_call.operator == ghost_batch_norm


def _made(node: Node, read: Sequence[_Samples], groups: int) -> list[_Samples]:
    """Return the sample dimensions of an operator's results, given those of its operands."""
    count = len(node.types)
    if all(one is None for one in read):
        return [None] * count
    mixed: list[_Samples] = [MIXED] * count
    if MIXED in read:
        return mixed
    dims = [one if isinstance(one, int) else None for one in read]
    return next(_cut(node, dims, groups), mixed)


def _cut(node: Node, read: list[int | None], groups: int) -> Iterator[list[_Samples]]:
    """Yield the results' sample dimensions for each way to cut the operator along the samples.

    Operands that do not depend on the samples may be cut as the operator wants it.
    """
    call, types = node.operator_call, [value.type for value in node.inputs]
    for axis in call.typing(tuple(x.rank for x in types)).axes:
        if any(at is not None and at != dim for at, dim in zip(read, axis.operands, strict=True)):
            continue
        try:
            operands = zip(types, axis.operands, strict=True)
            infer(call, [_divided(x, dim, groups) for x, dim in operands])
        except OperatorError:
            continue
        yield [MIXED if dim is None else dim for dim in axis.outputs]


def _divided(whole: ParallelTensor, dim: int | None, degree: int) -> ParallelTensor:
    """Return a tensor cut along ``dim``, or copied if ``dim`` is None."""
    degrees = whole.degrees
    if dim is None:
        return replace(whole, degrees=replace(degrees, copies=degree))
    dims = tuple(degree if i == dim else 1 for i in range(whole.rank))
    return replace(whole, degrees=replace(degrees, dims=dims))

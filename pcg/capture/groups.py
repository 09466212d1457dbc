"""Replace batch norms by ones over groups of samples, as data parallelism computes them.

A model in G groups takes the statistics of each batch norm over each of G equal groups of samples,
one after the other in the batch: what a module computes under DistributedDataParallel on G devices,
and another function than the module's on the whole batch. In the graph it is the operator
``ghost_batch_norm``, which a cut of the batch into a divisor of G pieces leaves alone.

That holds only where the first dimension of what is normed is the samples in their order, from the
outermost digit on. ``check_samples`` follows them from the inputs by the operators' own types: it
cuts the batch into G pieces, and each norm has to be met by that cut.
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
"""What is in the names of torch's batch norms."""

_Mixed = Literal["mixed"]
_Samples = int | _Mixed | None
"""The dimension of a value that is the samples, outermost; or that it depends on them otherwise,
or not at all."""
MIXED: Final = "mixed"


def in_groups(norm: Value, groups: int, where: str) -> Value:
    """A batch norm by the statistics of groups; other values as they are. Raises InputError for a
    number of groups that does not divide what is normed."""
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
    """Raise InputError for a batch norm whose groups would not be groups of samples. ``inputs``:
    those of the graph whose first dimension is the samples."""
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
    """What the results of an operator have of the samples. ``read``: what its operands have."""
    count = len(node.types)
    if all(one is None for one in read):
        return [None] * count
    mixed: list[_Samples] = [MIXED] * count
    if MIXED in read:
        return mixed
    dims = [one if isinstance(one, int) else None for one in read]
    return next(_cut(node, dims, groups), mixed)


def _cut(node: Node, read: list[int | None], groups: int) -> Iterator[list[_Samples]]:
    """The ways to cut an operator along the samples. What does not depend on them may be cut as
    each way wants it."""
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
    """A tensor cut along a dimension, or else copied."""
    degrees = whole.degrees
    if dim is None:
        return replace(whole, degrees=replace(degrees, copies=degree))
    dims = tuple(degree if i == dim else 1 for i in range(whole.rank))
    return replace(whole, degrees=replace(degrees, dims=dims))

"""Constants of a program, as operators without operands.

Problem: models compute masks and positions from sizes alone, by many different operators. Kept as
they are, each device would compute all of them, and attention would not be known to be causal.
Method: values that depend on no input and no parameter are computed once, and the tensor is
recognised by its elements. First the dimensions along which it repeats are set aside. The rest may
be one number, an arithmetic progression, or a matrix of two numbers with one or two diagonals as
the border. A tensor of few elements is listed. Others stay the calls that they are. Exact: the
operators give the same numbers. Complexity: linear in the elements of a tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pcg.capture.aten.pointwise import full, scaled
from pcg.capture.aten.shapes import joined, narrowed, reshaped
from pcg.capture.fallback import draws
from pcg.capture.regions import place_of
from pcg.errors import InputError
from pcg.graph.graph import Value, apply
from pcg.graph.torch_calls import returns_memory
from pcg.lazy import torch
from pcg.ops import algebra
from pcg.ops.constants import lower_triangle, ones1, position_ids
from pcg.ops.elementwise import log, shift
from pcg.ops.reindexing import expand

if TYPE_CHECKING:
    from torch import Tensor, fx
    from torch.export import ExportedProgram

MOST_BYTES = 1 << 31
"""The most bytes of a tensor that is computed, other than a view: 2 GiB."""
MOST_LISTED = 64
"""The most elements of a tensor that is listed, number by number."""


def constants(
    program: ExportedProgram, named: Container[str], where: str
) -> Mapping[fx.Node, Value]:
    """Return the graph values of the constants that a program reads, by their nodes.

    A node is included if it depends on constants alone and a node that is no constant reads it. If
    its tensor has no known form, the nodes from which it is computed are tried instead. A tensor
    with a name in ``named`` is an attribute of the module and no constant, since its values may be
    others next time. Raises InputError if torch cannot compute a constant.
    """
    graph, computed = program.graph, _held(program, named)
    fixed = _calculable(graph, computed)
    made: dict[fx.Node, Value] = {}
    pending = [n for n in graph.nodes if n in fixed and not fixed.issuperset(n.users)]
    seen = set(pending)
    # Each layer reads the one mask through a view of its own. ``computed`` keeps all tensors alive,
    # so no two of them share an address.
    told: dict[Any, Value | None] = {}
    while pending:
        node = pending.pop()
        tensor = _computed(node, computed, where)
        value = _told(tensor, told) if isinstance(tensor, torch.Tensor) else None
        if value is not None:
            made[node] = value
            continue
        sources = [source for source in node.all_input_nodes if source not in seen]
        seen.update(sources)
        pending += sources
    return made


def _told(tensor: torch.Tensor, told: dict[Any, Value | None]) -> Value | None:
    """Return the graph value of a tensor, computed once for all equal views of the same memory."""
    view = tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_neg()
    place = tensor.data_ptr(), *view
    if place not in told:
        told[place] = _value(tensor)
    return told[place]


def _held(program: ExportedProgram, named: Container[str]) -> dict[fx.Node, Any]:
    """Return the constants that the module's code makes, such as ``torch.tensor(1.0)``, by node."""
    names = program.graph_signature.inputs_to_lifted_tensor_constants
    return {
        node: value.detach()
        for node in program.graph.nodes
        if node.op == "placeholder"
        and (name := names.get(node.name, "")) not in named
        and isinstance(value := program.constants.get(name), torch.Tensor)
        and not value.is_meta
    }


def _calculable(graph: fx.Graph, held: Iterable[fx.Node]) -> set[fx.Node]:
    """Return ``held`` and all calls that depend on them alone, draw nothing and change nothing."""
    fixed = set(held)
    for node in graph.nodes:
        if node.op != "call_function" or not fixed.issuperset(node.all_input_nodes):
            continue
        if node.target is not operator.getitem and not _is_function(node):
            continue
        value = node.meta.get("val")
        results = value if isinstance(value, (list, tuple)) else [value]
        sizes = [part.numel() * part.itemsize for part in results if isinstance(part, torch.Tensor)]
        # A mask that is expanded to a batch takes no more memory than that of one sample.
        fits = _is_expanded(node) or (sizes and max(sizes) <= MOST_BYTES)
        if fits and not node.is_impure():
            fixed.add(node)
    return fixed


def _is_expanded(node: fx.Node) -> bool:
    """Whether a call repeats a tensor in a view."""
    return getattr(node.target, "_opname", None) == "expand"


def _is_function(node: fx.Node) -> bool:
    """Whether a call is of a torch function whose result depends on its operands alone."""
    target: Any = node.target
    return hasattr(target, "_opname") and not returns_memory(target._opname) and not draws(node)


def _computed(node: fx.Node, known: dict[fx.Node, Any], where: str) -> Any:
    """Return a node's value, and add it and all that it depends on to ``known``."""
    pending = [node]
    while pending:
        last = pending[-1]
        if last in known:
            pending.pop()
            continue
        missing = [source for source in last.all_input_nodes if source not in known]
        if missing:
            pending += missing
            continue
        args, kwargs = torch.fx.map_arg((last.args, last.kwargs), known.__getitem__)
        here = {"device": "cpu"} if "device" in kwargs else {}
        target: Any = last.target
        try:
            known[last] = target(*args, **{**kwargs, **here})
        except (RuntimeError, IndexError) as error:
            problem = f"{target} of constants cannot be computed: {error}"
            raise InputError(place_of(last, where), problem) from error
    return known[node]


def _value(tensor: Tensor) -> Value | None:
    """Return a graph value equal to a tensor, or None if the tensor has no known form."""
    shape = tuple(tensor.shape)
    if not tensor.numel() or tensor.is_complex():
        return None
    core = tensor  # in its own number format: a mask takes an eighth of the memory of float64
    for dim in range(tensor.dim()):
        first = core.narrow(dim, 0, 1)
        if not core.stride(dim) or bool((core == first).all()):
            core = first
    sizes = [size for size in core.shape if size != 1]
    made = _core(core.reshape(sizes).double())
    if made is None:
        return None
    for axis, size in enumerate(shape):
        if core.shape[axis] == 1:
            made = apply(expand(axis=axis, size=size), made)
    return made


def _core(tensor: Tensor) -> Value | None:
    """Return a graph value equal to a float64 tensor that repeats along no dimension, or None."""
    if not bool(tensor.isfinite().all()):
        return _with_infinity(tensor)
    match tensor.dim():
        case 0:
            return full(float(tensor))
        case 1:
            made = _progression(tensor)
        case 2:
            made = _diagonals(tensor)
        case _:
            made = None
    return _listed(tensor) if made is None and tensor.numel() <= MOST_LISTED else made


def _with_infinity(tensor: Tensor) -> Value | None:
    """Return the value of a tensor of numbers and minus infinity, such as an additive mask.

    It is the logarithm of a 0/1 mask, plus the numbers. Numbers and plus infinity are the negative.
    """
    is_number = tensor.isfinite()
    if bool((is_number | (tensor == float("inf"))).all()):
        negative = _with_infinity(-tensor)
        return None if negative is None else scaled(negative, -1.0)
    if not bool((is_number | (tensor == float("-inf"))).all()):
        return None
    numbers = torch.where(is_number, tensor, 0.0)
    chosen = _value(is_number)
    if chosen is None:
        return None
    infinite = apply(log(), chosen)
    if not bool(numbers.any()):
        return infinite
    finite = _value(numbers)
    return None if finite is None else apply(algebra.add(), infinite, finite)


def _listed(tensor: Tensor) -> Value:
    """Return the value of a tensor as a concatenation of its elements."""
    ones = apply(ones1(size0=1))
    numbers = [scaled(ones, float(number)) for number in tensor.flatten()]
    return reshaped(joined(numbers, 0), tuple(tensor.shape))


def _progression(tensor: Tensor) -> Value | None:
    first, step = float(tensor[0]), float(tensor[1] - tensor[0])
    count = torch.arange(len(tensor), dtype=torch.float64)
    if not bool((tensor == first + step * count).all()):
        return None
    return _moved(scaled(apply(position_ids(size=len(tensor))), step), first)


def _moved(value: Value, offset: float) -> Value:
    return apply(shift(offset=offset), value) if offset else value


def _diagonals(tensor: Tensor) -> Value | None:
    """Return the value of a matrix of two numbers, one of which fills a band of diagonals."""
    low, high = float(tensor.min()), float(tensor.max())
    rows, columns = tensor.shape
    for inner, outer in ((high, low), (low, high)):
        is_inner = tensor == inner
        if not bool((is_inner | (tensor == outer)).all()):
            return None
        bounds = _band(is_inner)
        if bounds is None:
            continue
        first, last = bounds
        band = _below(rows, columns, last)
        if first > 1 - rows:
            band = apply(algebra.add(), band, scaled(_below(rows, columns, first - 1), -1.0))
        return _moved(scaled(band, inner - outer), outer)
    return None


def _band(inside: Tensor) -> tuple[int, int] | None:
    """Return the first and last diagonal of a band of true elements, or None if it is no band."""
    rows, columns = inside.shape
    diagonal = torch.arange(columns) - torch.arange(rows).unsqueeze(1)
    here = diagonal[inside]
    first, last = int(here.min()), int(here.max())
    if not torch.equal(inside, (diagonal >= first) & (diagonal <= last)):
        return None
    return first, last


def _below(rows: int, columns: int, last: int) -> Value:
    """Return a matrix with ones where column - row <= last, and zeros elsewhere."""
    if last >= 0:
        return narrowed(apply(lower_triangle(rows=rows + last, columns=columns)), 0, last, rows)
    wide = apply(lower_triangle(rows=rows, columns=columns - last))
    return narrowed(wide, 1, -last, columns)


def is_causal(mask: Value, queries: int, keys: int) -> bool:
    """Whether a mask shows each query the keys up to its own position, and no others."""
    while mask.node.name == "expand" and mask.rank > 2:
        mask = mask.node.inputs[0]
    return queries == keys and mask.node.call == lower_triangle(rows=queries, columns=keys)

"""Constants of a program, as operators without operands.

Problem: models compute masks and positions from nothing but sizes, by whatever operators come to
mind; kept as they are, each device would compute all of it, and attention would not be known to be
causal. Method: what depends on no input and no parameter is computed once, and the tensor is told
by what it is: dimensions along which it repeats, then one number, numbers that grow by a constant
step, or two numbers divided by one or two diagonals of a matrix; a few are listed. Others stay
what they are.
Exact: the operators that are made give the same numbers. Linear in the elements of a tensor.
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
"""Of a tensor that is computed: 2 GiB."""
MOST_LISTED = 64
"""Numbers of a tensor that has no other description."""


def constants(
    program: ExportedProgram, named: Container[str], where: str
) -> Mapping[fx.Node, Value]:
    """What the program's other nodes read of those that depend on nothing but constants. A tensor
    whose name is among ``named`` is none: the module has it, and may have another one next time.
    Raises InputError for one that torch cannot compute, which it only sees now.

    Where a tensor is of no kind that is known, those that it is computed from are asked for.
    """
    graph, computed = program.graph, _held(program, named)
    fixed = _calculable(graph, computed)
    made: dict[fx.Node, Value] = {}
    pending = [n for n in graph.nodes if n in fixed and not fixed.issuperset(n.users)]
    seen = set(pending)
    # Each layer looks at the one mask through a view of its own. What is computed is kept, so no
    # other tensor comes to lie there.
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
    """The value of a tensor, found once for all that lie in the same place."""
    view = tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_neg()
    place = tensor.data_ptr(), *view
    if place not in told:
        told[place] = _value(tensor)
    return told[place]


def _held(program: ExportedProgram, named: Container[str]) -> dict[fx.Node, Any]:
    """Constants that the module's code makes, such as ``torch.tensor(1.0)``, by placeholder."""
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
    """What is held, and calls that depend on nothing else, draw nothing and change nothing."""
    fixed = set(held)
    for node in graph.nodes:
        if node.op != "call_function" or not fixed.issuperset(node.all_input_nodes):
            continue
        if node.target is not operator.getitem and not _is_function(node):
            continue
        value = node.meta.get("val")
        results = value if isinstance(value, (list, tuple)) else [value]
        sizes = [part.numel() * part.itemsize for part in results if isinstance(part, torch.Tensor)]
        if sizes and max(sizes) <= MOST_BYTES and not node.is_impure():
            fixed.add(node)
    return fixed


def _is_function(node: fx.Node) -> bool:
    """Whether a call is of one of torch's functions, whose result follows from its operands."""
    target: Any = node.target
    return hasattr(target, "_opname") and not returns_memory(target._opname) and not draws(node)


def _computed(node: fx.Node, known: dict[fx.Node, Any], where: str) -> Any:
    """A node's value, and with it those of all that it depends on."""
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
    """Operators that make a tensor; None where it is of no kind that is known."""
    shape = tuple(tensor.shape)
    if not tensor.numel() or tensor.is_complex():
        return None
    core = tensor  # in its own format: a mask takes an eighth of numbers
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
    """The same for a tensor that repeats along no dimension."""
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
    """Of numbers and minus infinity, as masks are that are added to scores: the logarithms of 0
    and 1, and the numbers."""
    is_number = tensor.isfinite()
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
    """Each number by itself."""
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
    """A matrix of two numbers: one on and below a diagonal, or between two, the other elsewhere."""
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
    """The diagonals, first and last, between which a matrix is true; None if it is no such one."""
    rows, columns = inside.shape
    diagonal = torch.arange(columns) - torch.arange(rows).unsqueeze(1)
    here = diagonal[inside]
    first, last = int(here.min()), int(here.max())
    if not torch.equal(inside, (diagonal >= first) & (diagonal <= last)):
        return None
    return first, last


def _below(rows: int, columns: int, last: int) -> Value:
    """Ones up to a diagonal: where column - row <= last."""
    if last >= 0:
        return narrowed(apply(lower_triangle(rows=rows + last, columns=columns)), 0, last, rows)
    wide = apply(lower_triangle(rows=rows, columns=columns - last))
    return narrowed(wide, 1, -last, columns)


def is_causal(mask: Value, queries: int, keys: int) -> bool:
    """Whether a mask lets each query see the keys up to its own place, and no others."""
    while mask.node.name == "expand" and mask.rank > 2:
        mask = mask.node.inputs[0]
    return queries == keys and mask.node.call == lower_triangle(rows=queries, columns=keys)

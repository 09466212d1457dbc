"""Torch functions without an index equation: element-wise ones, batched ones, and opaque ones.

Each is declared in the text of a graph that uses it, by a name that ends with the SHA-256 of the
declaration:

    elementwise hardtanh_default_1c0d... = aten.hardtanh.default(x0, 0.0, 6.0) : float32 -> float32
    batched cumsum_default_3f2a... = aten.cumsum.default(x0, 1) : [8, 16] float32
        -> [8, 16] float32 along 0 -> 0
    opaque sort_default_77b0... = aten.sort.default(x0) : [16] float32 -> [16] float32, [16] int64
An element-wise function is one that torch marks as pointwise. It is cut by the rules about all
element-wise operators (``pcg.ops.stand_ins``). Its operands have the shape of its result. A batched
function is the same for each slice of its operands along some dimensions, which a table of torch's
functions lists (``pcg.graph.independent``). It is cut along these, by rules about all functions of
the same form (``pcg.graph.slicewise``). Nothing is known about an opaque function, so it is never
cut: none of its indices is an axis, and no partial sum passes.

The equation of each gives shapes, and the elements that it reads and writes, from which its cost
follows. It does not give values: reference evaluation refuses it, and no rule names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Node
from pcg.graph.independent import independent, sizes_among_arguments
from pcg.graph.slicewise import SharedIndex, SliceForm, form_of, parse_axes, sliced_equation
from pcg.graph.torch_calls import (
    Format,
    TorchCall,
    check_call,
    is_pointwise,
    parse_call,
    try_call,
)
from pcg.lazy import torch
from pcg.types.operator import Kernel, Operator

if TYPE_CHECKING:
    from torch import Tensor

    from pcg.types.task import KernelTask

MOST_OPERANDS = 3
"""The most operands of an element-wise function. Rules exist for up to this number."""
MAX_RANK = 64
"""The most dimensions of a torch tensor."""
DECLARATION = re.compile(r"(opaque|batched|elementwise) (\w+) = (.+)")
ALONG = " along "
TENSOR = re.compile(r"\[([\d, ]*)\] (\w+)")


@dataclass(frozen=True)
class TensorType(Format):
    """A shape and torch's name of a number format, printable."""

    def __str__(self) -> str:
        return f"{list(self.shape)} {self.dtype}"

    @property
    def is_real(self) -> bool:
        """Whether its numbers are floating-point numbers."""
        return "float" in self.dtype


@dataclass(frozen=True, eq=False)
class TorchFunction(Operator):
    """A torch function of tensors. ``function`` is a call of it on ``x0``, ``x1``, ..."""

    keyword: ClassVar[str]
    """The first word of a declaration."""

    function: str = ""
    reads: tuple[TensorType, ...] = ()
    writes: tuple[TensorType, ...] = ()

    @property
    def target(self) -> str:
        """Torch's name of the function, such as ``aten.topk.default``."""
        return self.function.partition("(")[0]

    @property
    def declaration(self) -> str:
        """The line that declares the function in the text of a graph."""
        reads, writes = (", ".join(map(self.printed, t)) for t in (self.reads, self.writes))
        return f"{self.keyword} {self.name} = {self.function} : {reads} -> {writes}"

    def printed(self, tensor: TensorType) -> str:
        """Return the text of an operand or a result in the declaration."""
        return str(tensor)

    def check_results(self) -> None:
        """Raise ValueError if the function returns something else than it declares."""
        try_call(parse_call(self.function), self.reads, self.writes)


@dataclass(frozen=True, eq=False)
class Opaque(TorchFunction):
    """A torch function of whole tensors, which is never cut."""

    keyword = "opaque"


@dataclass(frozen=True, eq=False)
class Elementwise(TorchFunction):
    """A torch function of the elements at one position, of tensors of any one shape."""

    keyword = "elementwise"

    def printed(self, tensor: TensorType) -> str:
        return tensor.dtype


@dataclass(frozen=True, eq=False)
class Batched(TorchFunction):
    """A torch function that is the same for each slice along its axes.

    The axes may have any size. ``reads`` and ``writes`` have the sizes of the whole tensors.
    """

    keyword = "batched"
    axes: tuple[SharedIndex, ...] = ()

    @property
    def declaration(self) -> str:
        return f"{super().declaration}{ALONG}{'; '.join(map(str, self.axes))}"

    @cached_property
    def form(self) -> SliceForm:
        """The form that rules use for all functions with such axes."""
        return form_of(_shapes(self.reads), _shapes(self.writes), self.axes)


def opaque(function: str, reads: Sequence[TensorType], writes: Sequence[TensorType]) -> Opaque:
    """Return the operator of a function such as ``aten.topk.default(x0, 2)``, for operands and
    results of these types.

    Raises ValueError unless ``function`` is a call of torch's own that only computes such results
    (``pcg.graph.torch_calls``).
    """
    call = parse_call(function)
    check_call(call, reads, writes)
    return Opaque(
        _name(call, function, reads, writes),
        _equation(reads, writes),
        kernel=_kernel(call, tuple(reads), tuple(writes)),
        function=function,
        reads=tuple(reads),
        writes=tuple(writes),
    )


def batched(
    function: str,
    reads: Sequence[TensorType],
    writes: Sequence[TensorType],
    axes: Sequence[SharedIndex] | None = None,
) -> Batched:
    """Return the operator of a function such as ``aten.cumsum.default(x0, 1)``, cut along ``axes``.

    By default these are all axes along which its slices are known to be independent. Raises
    ValueError as ``opaque`` does, and for axes along which they are not.
    """
    call = parse_call(function)
    check_call(call, reads, writes)
    known = independent(call, reads, writes)
    chosen = known if axes is None else tuple(axes)
    if foreign := [str(axis) for axis in chosen if axis not in known]:
        raise ValueError(f"slices of {call.target} are not independent along {foreign[0]}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"{call.target} is declared along no axis, or along one twice")
    shapes = _shapes(reads), _shapes(writes)
    return Batched(
        _name(call, function, reads, writes, *map(str, chosen)),
        sliced_equation(*shapes, chosen),
        kernel=_batched_kernel(call, tuple(reads), tuple(writes), chosen),
        function=function,
        reads=tuple(reads),
        writes=tuple(writes),
        axes=chosen,
    )


def whole_or_batched(
    function: str, reads: Sequence[TensorType], writes: Sequence[TensorType]
) -> Opaque | Batched:
    """Return the operator of a function: batched if its slices are known to be independent, or else
    opaque. Raises ValueError as ``opaque`` does."""
    if independent(parse_call(function), reads, writes):
        return batched(function, reads, writes)
    return opaque(function, reads, writes)


def elementwise(function: str, reads: Sequence[str], write: str) -> Elementwise:
    """Return the operator of a function that torch marks as pointwise, such as
    ``aten.hardtanh.default(x0, 0.0, 6.0)``, for operands and a result of these number formats.

    Raises ValueError as ``opaque`` does, for a function that is not pointwise, and for more than
    ``MOST_OPERANDS`` operands.
    """
    call = parse_call(function)
    types = tuple(TensorType((), dtype) for dtype in reads)
    written = (TensorType((), write),)
    check_call(call, types, written)
    if not is_pointwise(call):
        raise ValueError(f"{call.target} is not element-wise")
    if not 1 <= len(reads) <= MOST_OPERANDS:
        raise ValueError(f"{len(reads)} operands, expected 1 to {MOST_OPERANDS}")
    operands = ", ".join(f"x{i}[i...]" for i in range(len(reads)))
    return Elementwise(
        _name(call, function, types, written),
        f"out[i...] = any{len(reads)}({operands})",
        kernel=_elementwise_kernel(call, types),
        function=function,
        reads=types,
        writes=written,
    )


def _name(
    call: TorchCall,
    function: str,
    reads: Sequence[TensorType],
    writes: Sequence[TensorType],
    *axes: str,
) -> str:
    spec = json.dumps([function, list(map(str, reads)), list(map(str, writes)), *axes])
    return f"{call.name}_{call.overload}_{sha256(spec.encode()).hexdigest()}"


def parse_declaration(line: str) -> TorchFunction | None:
    """Return the operator that a line of a graph's text declares, or None for any other line.

    Raises ValueError, with the reason, for a declaration that cannot be read.
    """
    match = DECLARATION.fullmatch(line)
    if match is None:
        return None
    keyword, name, rest = match.groups()
    rest, along, axes = rest.rpartition(ALONG) if keyword == "batched" else (rest, ALONG, "")
    if not along:
        raise ValueError(f"expected 'batched NAME = CALL : OPERANDS -> RESULTS{ALONG}AXES'")
    rest, arrow, writes = rest.rpartition("->")
    function, colon, reads = rest.rpartition(" : ")
    if not arrow or not colon:
        raise ValueError(f"expected '{keyword} NAME = CALL : OPERANDS -> RESULTS'")
    if keyword == "opaque":
        declared: TorchFunction = opaque(function, _types(reads), _types(writes))
    elif keyword == "batched":
        declared = batched(function, _types(reads), _types(writes), parse_axes(axes))
    else:
        declared = elementwise(function, reads.strip().split(", "), writes.strip())
    if declared.name != name:
        raise ValueError(f"{name[:40]} does not name this function, expected {declared.name}")
    return declared


def torch_functions(graph: Graph) -> tuple[TorchFunction, ...]:
    """Return the torch functions that a graph's text declares, each of them once."""
    operators = (node.operator_call.operator for node in graph.nodes if not node.is_leaf)
    return tuple(dict.fromkeys(o for o in operators if isinstance(o, TorchFunction)))


def opaque_nodes(graph: Graph) -> tuple[Node, ...]:
    """Return the nodes of a graph that are opaque, for lack of an equation."""
    nodes = graph.operators
    return tuple(node for node in nodes if isinstance(node.operator_call.operator, Opaque))


def refuse_opaque(operator: Operator) -> None:
    """Raise OperatorError for an operator whose equation does not give its values."""
    if isinstance(operator, TorchFunction):
        raise OperatorError(operator.name, "*", None, "has no equation to evaluate")


def _types(text: str) -> tuple[TensorType, ...]:
    if TENSOR.sub("", text).strip(", "):
        raise ValueError(f"expected SHAPE and FORMAT of tensors, got {text[:40]!r}")
    return tuple(TensorType(_shape(shape), dtype) for shape, dtype in TENSOR.findall(text))


def _shape(text: str) -> tuple[int, ...]:
    sizes = re.findall(r"\d+", text)
    if len(sizes) > MAX_RANK or any(len(size) > 18 for size in sizes):
        raise ValueError(f"expected at most {MAX_RANK} sizes of 18 digits, got [{text[:40]}]")
    return tuple(map(int, sizes))


def _equation(reads: Sequence[TensorType], writes: Sequence[TensorType]) -> str:
    """Return an equation that reads all elements of all operands, through an unknown function."""
    operands: list[str] = []
    terms: list[str] = []
    for i, read in enumerate(reads):
        names = [f"i{i}_{dim}" for dim in range(len(read.shape))]
        sizes = [f"{name} < {size}" for name, size in zip(names, read.shape, strict=True)]
        operands.append(f"x{i}[{', '.join(sizes)}]")
        read_all = f"x{i}[{', '.join(names)}]"
        terms.append(f"(sum {', '.join(names)}: {read_all})" if names else read_all)
    value = f"any1({' + '.join(terms) or '1'})"
    outputs: list[str] = []
    for o, written in enumerate(writes):
        sizes = [f"o{o}_{dim} < {size}" for dim, size in enumerate(written.shape)]
        outputs.append(f"out{o}[{', '.join(sizes)}] = {value}")
    operands_first = f"{', '.join(operands)} -> " if operands else ""
    return operands_first + "; ".join(outputs)


def _kernel(
    call: TorchCall, reads: tuple[TensorType, ...], writes: tuple[TensorType, ...]
) -> Kernel:
    """Return a kernel that calls the torch function. Blocks hold integers as real numbers."""

    def run(task: KernelTask, *blocks: Tensor) -> tuple[Tensor, ...]:
        results = _ran(call, reads, blocks, [written.shape for written in writes])
        number = blocks[0].dtype if blocks else torch.get_default_dtype()
        return tuple(tensor.to(number) for tensor in results)

    return run


def _batched_kernel(
    call: TorchCall,
    reads: tuple[TensorType, ...],
    writes: tuple[TensorType, ...],
    axes: Sequence[SharedIndex],
) -> Kernel:
    """Return a kernel that calls the torch function on blocks along the axes."""
    counted = sizes_among_arguments(call, reads)

    def run(task: KernelTask, *blocks: Tensor) -> tuple[Tensor, ...]:
        replaced = {name: blocks[operand].shape[dim] for name, (operand, dim) in counted.items()}
        shapes = [list(written.shape) for written in writes]
        for axis in axes:
            place = next((i, dim) for i, dim in enumerate(axis.operands) if dim is not None)
            for shape, dim in zip(shapes, axis.results, strict=True):
                shape[dim] = blocks[place[0]].shape[place[1]]
        results = _ran(call, reads, blocks, list(map(tuple, shapes)), replaced)
        return tuple(tensor.to(blocks[0].dtype) for tensor in results)

    return run


def _shapes(tensors: Sequence[TensorType]) -> list[tuple[int, ...]]:
    return [tensor.shape for tensor in tensors]


def _elementwise_kernel(call: TorchCall, reads: tuple[TensorType, ...]) -> Kernel:
    """Return a kernel for blocks of any one shape. The result has the format of the operands, or
    the one to which torch promotes several formats."""

    def run(task: KernelTask, *blocks: Tensor) -> Tensor:
        (result,) = _ran(call, reads, blocks, [tuple(blocks[0].shape)])
        return result.to(reduce(torch.promote_types, (block.dtype for block in blocks)))

    return run


def _ran(
    call: TorchCall,
    reads: Sequence[TensorType],
    blocks: Sequence[Tensor],
    shapes: Sequence[tuple[int, ...]],
    replaced: Mapping[str, int] | None = None,
) -> tuple[Tensor, ...]:
    """Return the results of a call.

    Raises OperatorError if it fails, or if its results are no real tensors of these shapes on the
    device of the blocks.
    """
    given = [_as(block, read.dtype) for block, read in zip(blocks, reads, strict=True)]
    try:
        results = call.run(given, replaced)
    except (RuntimeError, IndexError, TypeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            raise
        raise OperatorError(call.target, "*", None, f"does not run: {error}") from error
    if [tuple(tensor.shape) for tensor in results] != list(shapes):
        returned = ", ".join(str(list(tensor.shape)) for tensor in results)
        raise OperatorError(call.target, "*", None, f"returned tensors of shape {returned}")
    device = blocks[0].device if blocks else results[0].device
    if any(t.layout != torch.strided or t.device != device for t in results):
        raise OperatorError(call.target, "*", None, "returned a tensor of another device or layout")
    if any(tensor.is_complex() for tensor in results):
        raise OperatorError(call.target, "*", None, "returned complex numbers")
    return results


def _as(block: Tensor, dtype: str) -> Tensor:
    """Return a block in a declared format. Real numbers keep the format of the run."""
    wanted: Any = getattr(torch, dtype)
    return block if wanted.is_floating_point else block.to(wanted)

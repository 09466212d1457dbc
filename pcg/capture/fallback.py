"""Make operators of calls that have no entry in the table, by calls of torch's own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pcg.capture.aten.shapes import of_torch, spread
from pcg.capture.export import HINT
from pcg.errors import InputError, OperatorError
from pcg.graph.graph import Node, Value
from pcg.graph.opaque import MOST_OPERANDS, TensorType, whole_or_batched
from pcg.graph.torch_calls import NAMESPACE, RATES, dropout_of, is_pointwise, parse_call
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor, fx

PLACES = frozenset({"device", "layout", "pin_memory", "memory_format"})
"""Arguments about where and how a tensor is stored, which the plan decides."""

OF_MEMORY = frozenset(
    {
        *("aten.as_strided.default", "aten.as_strided_copy.default"),
        *("aten.as_strided_scatter.default",),
    }
)
"""Functions that read a tensor's layout in memory, which the plan decides too."""

NUMBER = "aten._local_scalar_dense.default"
"""What makes a number of Python of a tensor."""
BITS = "aten.view.dtype"
"""Reads the bits of a number in another number format."""
NAMES = {
    f"aten.__{side}shift__.{kind}": f"aten.bitwise_{name}_shift.{of}"
    for side, name in (("l", "left"), ("r", "right"))
    for kind, of in (("Scalar", "Tensor_Scalar"), ("Tensor", "Tensor"))
}
"""Functions that torch calls by the names of Python's operators, with their other names."""


def by_its_function(
    node: fx.Node, value: Callable[[fx.Node], Value], where: str
) -> Value | tuple[Value, ...]:
    """Return the results of a call without an equation: of an element-wise, batched or opaque
    operator. Raises InputError, with ``where``, for a function that draws random numbers (copies of
    a tensor have to be equal), reads a tensor's layout in memory, or is not torch's own."""
    target: Any = node.target
    if draws(node):
        raise InputError(where, f"{target} draws random numbers, which no plan can repeat")
    if str(target) in OF_MEMORY:
        problem = "reads memory beside or between the elements of its tensor"
        raise InputError(where, f"{target} {problem}, expected slices or contiguous()")
    if str(target) == BITS:
        problem = "reads the bits of numbers, which differ between number formats"
        raise InputError(where, f"{target} {problem}")
    _refuse_values(node, where)
    if target.namespace != NAMESPACE:
        raise InputError(where, f"{target} has no equation, and is no function of torch's own")
    operands = list(dict.fromkeys(node.all_input_nodes))
    args = [_text(arg, operands, where) for arg in node.args]
    kwargs = node.kwargs.items()
    args += [f"{k}={_text(arg, operands, where)}" for k, arg in kwargs if k not in PLACES]
    function = f"{NAMES.get(str(target), target)}({', '.join(args)})"
    try:
        is_one = isinstance(node.meta["val"], torch.Tensor)
        if is_one and is_pointwise(parse_call(function)) and 1 <= len(operands) <= MOST_OPERANDS:
            return _element_by_element(function, node, [(o, value(o)) for o in operands])
        reads = [_type(operand.meta["val"]) for operand in operands]
        call = whole_or_batched(function, reads, [_type(result) for result in _results(node)])
        made = Node(call(), tuple(value(operand) for operand in operands))
    except (ValueError, OperatorError) as error:
        raise InputError(
            where, f"{target} has no equation and cannot be kept whole: {error}"
        ) from None
    if not isinstance(node.meta["val"], (tuple, list)):
        return made.value()
    return tuple(made.value(port) for port in range(len(call.outputs)))


def _refuse_values(node: fx.Node, where: str) -> None:
    """Raise InputError for a call whose result, or the size of it, depends on a tensor's values."""
    if str(node.target) == NUMBER:
        problem = "takes a number out of a tensor, as item() and tolist() do"
        raise InputError(where, f"{problem}, which no graph can follow")
    if not all(_holds_elements(read.meta["val"]) for read in (*node.all_input_nodes, node)):
        problem = f"{node.target} reads or makes a tensor without elements"
        raise InputError(where, f"{problem}, which no graph can hold")
    if not all(isinstance(size, int) for size in _sizes(node)):
        problem = f"{node.target} returns a size that depends on values, which no graph can follow"
        raise InputError(where, f"{problem}{HINT}")


def _element_by_element(
    function: str, node: fx.Node, operands: list[tuple[fx.Node, Value]]
) -> Value:
    """Return an element-wise function of operands that are expanded to the shape of its result."""
    result = node.meta["val"]
    shape = tuple(result.shape)
    formats = [_name(operand.meta["val"].dtype) for operand, _ in operands]
    like = next((v for _, v in operands if v.type.shape == shape), None)
    values = [spread(v, shape, like) for _, v in operands]
    return of_torch(function, _name(result.dtype), *zip(values, formats, strict=True))


def draws(node: fx.Node) -> bool:
    """Whether the result of a call depends on random numbers."""
    target: Any = node.target
    if str(target) in RATES:
        return bool(dropout_of(str(target), node.args, node.kwargs))
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def _sizes(node: fx.Node) -> list[Any]:
    """Return all sizes of a call's results, and the results that are no tensors."""
    made = _results(node)
    return [n for r in made for n in (r.shape if isinstance(r, torch.Tensor) else [r])]


def _holds_elements(value: Any) -> bool:
    """Whether no tensor among a call's results is empty. A size that depends on values counts as
    some elements."""
    parts: list[Any] = list(value) if isinstance(value, (tuple, list)) else [value]
    shapes: list[Any] = [part.shape for part in parts if isinstance(part, torch.Tensor)]
    return not any(isinstance(size, int) and not size for shape in shapes for size in shape)


def _results(node: fx.Node) -> list[Any]:
    result = node.meta["val"]
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _type(tensor: Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), _name(tensor.dtype))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _text(arg: Any, operands: list[fx.Node], where: str) -> str:
    if isinstance(arg, torch.fx.Node):
        return f"x{operands.index(arg)}"
    if isinstance(arg, (list, tuple)):
        return f"[{', '.join(_text(part, operands, where) for part in arg)}]"
    if isinstance(arg, torch.dtype):
        return _name(arg)
    if arg is None or isinstance(arg, (bool, int, float, str)):
        return repr(arg)
    raise InputError(where, f"an argument of type {type(arg).__name__} cannot be captured")

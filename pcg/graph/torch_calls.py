"""Read calls of torch's functions from text, and refuse those that do more than compute.

A plan is data, so a call in it may do nothing but compute. Whether it does follows from the
function's schema and tags in torch, so there is no list of allowed or forbidden functions. An audit
also calls the function on tensors without elements, to compare its results with the declaration. A
run compares them again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

NAMESPACE = "aten"
"""The namespace of torch's own functions. A file that names another one is refused."""
FORMATS = frozenset(
    {
        *("float64", "float32", "bfloat16", "float16"),
        *("int64", "int32", "int16", "int8", "uint8", "bool"),
    }
)
"""The number formats of operands and results, by torch's names."""
UNMARKED = frozenset(
    {
        *("aten.detach.default", "aten._to_copy.default"),
        *("aten.hardswish.default", "aten.log_sigmoid.default"),
        "aten.leaky_relu.default",
    }
)
"""Pointwise functions that torch, or an older release of it, does not mark so. Some may return
their operand's memory."""
PARTS = frozenset(
    {
        *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        *(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)),
    }
)
"""Internal torch functions that documented functions are composed of, and that only compute."""
ATTENTION = "aten.scaled_dot_product_attention.default"
RATES = {
    ATTENTION: ("dropout_p", 4, 0.0),
    **{f"aten.{n}.input": ("dropout", 5, 1.0) for n in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}
"""Functions that torch marks as random, but that draw nothing without dropout: the name and the
position of the rate among their arguments, and its default."""
MAX_TEXT = 1 << 16
"""The most characters of a call."""
_LISTED = 1 << 12
"""The largest dimension of operands whose function returns a list of tensors."""

_WORDS = frozenset(
    {
        *("approximate", "rounding_mode", "reduce", "reduction", "side", "interpolation"),
        *("mode", "indexing", "equation", "norm"),
    }
)
"""String parameters that choose how to compute. Others name files or hold code."""
_WORD = re.compile(r"[A-Za-z_.,> -]{0,64}")
_REFUSED_TAGS = frozenset({"inplace", "inplace_view", "out", "maybe_aliasing_or_mutating"})
"""Names of torch's tags, of which older releases have some only."""


@dataclass(frozen=True)
class Format:
    """The shape of a tensor and torch's name of its number format."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class TorchCall:
    """A call of a torch function, parsed but not resolved."""

    name: str
    overload: str
    call: ast.Call

    @property
    def target(self) -> str:
        return f"{NAMESPACE}.{self.name}.{self.overload}"

    def arguments(self, operands: Sequence[Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments, with ``operands`` for x0, x1, ... Raises ValueError for an invalid
        argument."""
        given = [_argument(arg, operands) for arg in self.call.args]
        named = {key.arg or "**": _argument(key.value, operands) for key in self.call.keywords}
        return given, named

    def bound(self, operands: Sequence[Any]) -> dict[str, Any]:
        """Return all arguments by name, in the order of the schema, defaults included.

        ``operands`` stand for x0, x1, ... Raises ValueError for an invalid argument.
        """
        known = _resolved(self)._schema.arguments
        given, named = self.arguments(operands)
        values = dict(zip((a.name for a in known), given, strict=False)) | named
        return {a.name: values.get(a.name, a.default_value) for a in known}

    def run(
        self, operands: Sequence[Tensor], replaced: Mapping[str, Any] | None = None
    ) -> tuple[Tensor, ...]:
        """Return the results of the call. ``check_call`` has to have passed before, in this process
        or another. ``replaced`` are other values for some arguments, by name."""
        given, named = self.arguments(operands)
        if replaced:
            given, named = [], {**self.bound(operands), **replaced}
        return _results(_resolved(self)(*given, **named))


def parse_call(function: str) -> TorchCall:
    """Parse a call. Raises ValueError if the text is no call, or one of another namespace."""
    if len(function) > MAX_TEXT:
        raise ValueError(f"a call of {len(function)} characters, expected at most {MAX_TEXT}")
    try:
        call = ast.parse(function, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{function[:40]!r} is no call") from error
    match call:
        case ast.Call(ast.Attribute(ast.Attribute(ast.Name(space), name), overload)):
            if space == NAMESPACE:
                return TorchCall(name, overload, call)
        case _:
            pass
    raise ValueError(f"expected {NAMESPACE}.NAME.OVERLOAD(...), got {function[:40]!r}")


def check_call(call: TorchCall, reads: Sequence[Format], writes: Sequence[Format]) -> None:
    """Check that a call does nothing but compute tensors from others.

    Raises ValueError for a function that changes its operands, draws random numbers, or is no
    documented torch function, and for an argument that is a text, file, device or generator.
    """
    for tensor in (*reads, *writes):
        if tensor.dtype not in FORMATS:
            raise ValueError(f"unknown number format {tensor.dtype}")
    function = _resolved(call)
    _check_function(call, function)
    try:
        given, named = call.arguments([_bare(read) for read in reads])
    except RecursionError:
        raise ValueError("arguments are nested too deeply") from None
    _check_arguments(call, function, given, named)


def try_call(call: TorchCall, reads: Sequence[Format], writes: Sequence[Format]) -> None:
    """Check that a call that passed ``check_call`` returns the declared results. It is made on
    tensors without elements, which takes torch seconds to prepare the first time.

    Raises ValueError if the call fails, or if its results have other formats.
    """
    function = _resolved(call)
    given, named = call.arguments([_bare(read) for read in reads])
    _check_results(call, _tried(call, function, given, named, reads), writes)


def draws(call: TorchCall) -> bool:
    """Whether a call draws random numbers. Raises ValueError if torch has no such function."""
    function = _resolved(call)
    if call.target in RATES:
        rate = dropout_of(call.target, call.call.args, {k.arg: k.value for k in call.call.keywords})
        return (rate.value if isinstance(rate, ast.Constant) else rate) != 0
    return torch.Tag.nondeterministic_seeded in function.tags


def dropout_of(target: str, given: Sequence[Any], named: Mapping[Any, Any]) -> Any:
    """Return the dropout rate among the arguments of a function in ``RATES``."""
    name, place, left_out = RATES[target]
    return named.get(name, given[place] if len(given) > place else left_out)


def returns_memory(name: str) -> bool:
    """Whether a function of this name returns uninitialized memory."""
    return "empty" in name.split("_")


def is_pointwise(call: TorchCall) -> bool:
    """Whether torch marks the function as pointwise: each element of its result depends only on the
    operands' elements at the same position. Raises ValueError if torch has no such function."""
    return call.target in UNMARKED or torch.Tag.pointwise in _resolved(call).tags


def _resolved(call: TorchCall) -> Any:
    """Return torch's function. A name can only lead into torch's table of functions."""
    plain = re.compile(r"[A-Za-z]\w*|_[a-z]\w*")
    packet: Any = None
    if plain.fullmatch(call.name) and not call.name.endswith("__"):
        packet = getattr(torch.ops.aten, call.name, None)
    if not isinstance(packet, type(torch.ops.aten.add)):
        raise ValueError(f"torch has no function {call.target}")
    if call.overload not in packet.overloads():
        raise ValueError(f"torch has no function {call.target}")
    return getattr(packet, call.overload)


def _check_function(call: TorchCall, function: Any) -> None:
    schema, tags = function._schema, function.tags
    name = call.target
    parts = (*schema.arguments, *schema.returns)
    if schema.is_mutable or any(a.alias_info and a.alias_info.is_write for a in parts):
        raise ValueError(f"{name} changes its operands")
    if any(tag.name in _REFUSED_TAGS for tag in tags):
        raise ValueError(f"{name} may change its operands")
    if draws(call):
        raise ValueError(f"{name} draws random numbers")
    if returns_memory(call.name):
        raise ValueError(f"{name} returns uninitialized memory")
    own = call.name.startswith("_") or "backward" in call.name
    if own and torch.Tag.core not in tags and call.name not in PARTS:
        raise ValueError(f"{name} is an internal function of torch")
    # The schemas of these functions do not say that they change the statistics.
    if any(a.name.startswith("running_") for a in schema.arguments) and torch.Tag.core not in tags:
        raise ValueError(f"{name} may change running statistics")
    types = {str(result.type) for result in schema.returns}
    if not types or not types <= {"Tensor", "List[Tensor]"} or "..." in str(schema):
        raise ValueError(f"{name} returns something else than tensors")


def _check_arguments(
    call: TorchCall, function: Any, given: list[Any], named: dict[str, Any]
) -> None:
    known = function._schema.arguments
    positional = [argument for argument in known if not argument.kwarg_only]
    if len(given) > len(positional):
        raise ValueError(f"{len(given)} arguments of {call.target}, which takes {len(positional)}")
    bound = {argument.name: value for argument, value in zip(positional, given, strict=False)}
    for name in named:
        if name in bound or name not in {argument.name for argument in known}:
            raise ValueError(f"{call.target} takes no argument {name} there")
    bound |= named
    for argument in known:
        if argument.name not in bound:
            if not argument.has_default_value():
                raise ValueError(f"{call.target} needs an argument {argument.name}")
            continue
        kind, value = str(argument.real_type), bound[argument.name]
        if not _fits(kind, argument.name, value):
            raise ValueError(f"{call.target}: {argument.name} has a value that is not allowed")


def _fits(kind: str, name: str, value: Any) -> bool:
    """Whether a value has a schema's type, and the type is one that a computation may take."""
    if match := re.fullmatch(r"Optional\[(.*)\]", kind):
        return value is None or _fits(match[1], name, value)
    if match := re.fullmatch(r"List\[(.*)\]", kind):
        parts = value if isinstance(value, list) else [value]
        return all(_fits(match[1], name, part) for part in parts)
    check = _KINDS.get(kind)
    if kind == "str":
        return name in _WORDS and isinstance(value, str) and _WORD.fullmatch(value) is not None
    return check is not None and check(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


_KINDS: dict[str, Callable[[Any], bool]] = {
    # Torch makes a tensor of a number.
    "Tensor": lambda value: isinstance(value, (torch.Tensor, float, bool)) or _whole(value),
    "int": _whole,
    "float": lambda value: isinstance(value, float) or _whole(value),
    "bool": lambda value: isinstance(value, bool),
    "number": lambda value: isinstance(value, (float, bool)) or _whole(value),
    "ScalarType": lambda value: str(value).removeprefix("torch.") in FORMATS,
}


def _bare(read: Format) -> Tensor:
    """Return a tensor of a format on the meta device, without elements."""
    try:
        return torch.empty(read.shape, dtype=getattr(torch, read.dtype), device="meta")
    except (RuntimeError, OverflowError, TypeError) as error:
        raise ValueError(f"no tensor has the shape {list(read.shape)[:8]}") from error


def _tried(
    call: TorchCall,
    function: Any,
    given: list[Any],
    named: dict[str, Any],
    reads: Sequence[Format],
) -> tuple[Tensor, ...]:
    """Return the results of a call on tensors without elements."""
    known = {argument.name for argument in function._schema.arguments}
    is_listed = any(str(result.type) != "Tensor" for result in function._schema.returns)
    if is_listed and max((size for read in reads for size in read.shape), default=1) > _LISTED:
        raise ValueError(f"{call.target} of dimensions above {_LISTED}")
    if "device" in known:
        named = {**named, "device": "meta"}
    try:
        with torch.no_grad():
            return _results(function(*given, **named))
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0][:120]
        raise ValueError(f"{call.target} refuses these arguments: {reason}") from error


def _results(result: Any) -> tuple[Tensor, ...]:
    parts = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(
        t for part in parts for t in (part if isinstance(part, (tuple, list)) else (part,))
    )


def _check_results(call: TorchCall, results: Sequence[Tensor], writes: Sequence[Format]) -> None:
    formats = [Format(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in results]
    if any(t.layout != torch.strided or t.device.type != "meta" for t in results):
        raise ValueError(f"{call.target} returns tensors of another device or layout")
    if len(formats) != len(writes) or not all(map(_agree, formats, writes)):
        shown = ", ".join(f"{list(t.shape)} {t.dtype}" for t in formats[:4])
        raise ValueError(f"{call.target} returns {shown}")


def _agree(returned: Format, written: Format) -> bool:
    """Whether two formats agree. Real numbers have the format of the run."""
    if returned.shape != written.shape:
        return False
    return returned.dtype == written.dtype or all("float" in t.dtype for t in (returned, written))


def _argument(node: ast.expr, operands: Sequence[Tensor]) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
        case ast.UnaryOp(ast.USub(), ast.Name("inf")):
            return float("-inf")
        case ast.List(parts):
            return [_argument(part, operands) for part in parts]
        case ast.Name(name) if re.fullmatch(r"x\d{1,6}", name) and int(name[1:]) < len(operands):
            return operands[int(name[1:])]
        case ast.Name("inf" | "nan" as name):
            return float(name)
        case ast.Name(name) if name in FORMATS:
            return getattr(torch, name)
        case _:
            raise ValueError(f"unknown argument {ast.unparse(node)[:40]}")

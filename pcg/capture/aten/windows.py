"""Translate ATen convolutions and pools into graph operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pcg.capture.aten.call import AtenCall, Entry, Unsupported
from pcg.capture.aten.shapes import reshaped, shape_of
from pcg.graph.graph import Value, apply
from pcg.ops import windows
from pcg.ops.algebra import add
from pcg.ops.reindexing import expand_vector
from pcg.types.operator import Call, Operator


def _convolved(call: AtenCall) -> Value:
    """Return a convolution. One of one dimension is a convolution of images with one row."""
    x, kernel, bias = call.value("input"), call.value("weight"), call.maybe("bias")
    if x.rank != 3:
        return _conv2d(call)
    arguments = {**call.arguments, "input": _as_image(x), "weight": _as_image(kernel)}
    for name, other in (("stride", 1), ("padding", 0), ("dilation", 1)):
        arguments[name] = [other, *call.integers(name)]
    samples, channels, length = call.shape
    image = replace(
        call, arguments={**arguments, "bias": bias}, shapes=((samples, channels, 1, length),)
    )
    return reshaped(_conv2d(image), call.shape)


def _as_image(x: Value) -> Value:
    return reshaped(x, (*shape_of(x)[:2], 1, shape_of(x)[2]))


def _conv2d(call: AtenCall) -> Value:
    """Return a convolution of two dimensions. Raises Unsupported for a transposed one."""
    x, kernel, bias = call.value("input"), call.value("weight"), call.maybe("bias")
    if x.rank != 4 or call.arguments.get("transposed"):
        raise Unsupported("input")
    height, width = call.shape[2:]
    stride, padding, dilation = (call.pair(n) for n in ("stride", "padding", "dilation"))
    operator = _convolution(call.integer("groups"), shape_of(x)[1])
    operator_call = operator(
        height=height,
        width=width,
        stride_h=stride[0],
        stride_w=stride[1],
        dilation_h=dilation[0],
        dilation_w=dilation[1],
        top=padding[0],
        left=padding[1],
    )
    out = apply(operator_call, x, kernel)
    if bias is None:
        return out
    return apply(add(), out, apply(expand_vector(axis=1), out, bias))


def _convolution(groups: int, channels: int) -> Operator:
    if groups == 1:
        return windows.conv2d
    return windows.depthwise_conv2d if groups == channels else windows.grouped_conv2d


def _pool(
    call: AtenCall, operator: Operator, kernel: tuple[int, int], stride: tuple[int, int]
) -> Call:
    height, width = call.shape[2:]
    top, left = call.pair("padding") if "padding" in call.arguments else (0, 0)
    return operator(
        height=height,
        width=width,
        kernel_h=kernel[0],
        kernel_w=kernel[1],
        stride_h=stride[0],
        stride_w=stride[1],
        top=top,
        left=left,
    )


def _pooled(call: AtenCall, operator: Operator) -> Value:
    x, kernel = call.value("self"), call.pair("kernel_size")
    if x.rank != 4:
        raise Unsupported("self")
    stride = call.pair("stride") if call.arguments["stride"] else kernel
    return apply(_pool(call, operator, kernel, stride), x)


def _max_pool2d(call: AtenCall) -> Value:
    """Return a max pool. ``ceil_mode`` needs no care: a window beyond the end reads what is
    inside."""
    if call.pair("dilation") != (1, 1):
        raise Unsupported("dilation")
    return _pooled(call, windows.max_pool2d)


def _avg_pool2d(call: AtenCall) -> Value:
    # With ceil_mode, torch divides by yet another number at the end.
    call.expect(ceil_mode=False, divisor_override=None)
    inside = not call.arguments["count_include_pad"]
    return _pooled(call, windows.avg_pool2d_inside if inside else windows.avg_pool2d)


def _adaptive_avg_pool2d(call: AtenCall) -> Value:
    """Return an adaptive average pool if its output sizes divide its input sizes."""
    x = call.value("self")
    if x.rank != 4:
        raise Unsupported("self")
    rows, columns = shape_of(x)[2:]
    height, width = call.shape[2:]
    if rows % height or columns % width:
        raise Unsupported("output_size")
    kernel = (rows // height, columns // width)
    return apply(_pool(call, windows.avg_pool2d, kernel, kernel), x)


ENTRIES: Mapping[str, Entry] = {
    "aten.conv2d.default": _conv2d,
    "aten.convolution.default": _convolved,
    "aten.conv1d.default": _convolved,
    "aten.max_pool2d.default": _max_pool2d,
    "aten.avg_pool2d.default": _avg_pool2d,
    "aten.adaptive_avg_pool2d.default": _adaptive_avg_pool2d,
}

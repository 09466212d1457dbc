"""A small model of one image, for plans with more devices than samples."""

from __future__ import annotations

from pcg.machine import Machine, load_machine

_FIRST = "height=16, width=8, stride_h=1, stride_w=1, dilation_h=1, dilation_w=1, top=1, left=1"
_SECOND = "height=8, width=8, stride_h=2, stride_w=1, dilation_h=1, dilation_w=1, top=1, left=2"
ONE_IMAGE = f"""
x = input[1, 3, 16, 8]
k1 = weight[5, 3, 3, 3]
k2 = weight[3, 5, 3, 5]
y = conv2d(relu(conv2d(x, k1, {_FIRST})), k2, {_SECOND})
return mean_loss(multiply(y, y)), y
"""


def four_devices() -> Machine:
    """Four slow devices with fast links between them."""
    return load_machine("tests/data/two-devices.toml").with_nodes(2).with_devices(4)

"""Number formats by name, and the default format of a machine."""

from __future__ import annotations

from typing import get_args

import pytest

from pcg.errors import InputError
from pcg.machine import Machine, load_machine, preset_names
from pcg.plan.precision import FORMATS, OTHER_NAMES, Precision, default_precision, precision_of
from pcg.plan.training import Training


def test_names_are_ours_or_torchs():
    assert all(precision_of(name) == name for name in get_args(Precision))
    assert {precision_of(name) for name in OTHER_NAMES} == {"fp64", "fp32", "bf16", "fp16"}
    for name in ("", "fp8", "BF16", "double"):
        with pytest.raises(InputError, match="unknown, expected one of fp64, fp32, tf32, bf16"):
            precision_of(name)


def test_default_precision_is_bf16_where_devices_support_it():
    formats = {name: default_precision(load_machine(name)) for name in preset_names()}
    assert {name for name, precision in formats.items() if precision == "bf16"} == {
        "dgx-a100",
        "dgx-h100",
        "dgx-h200",
    }
    assert set(formats.values()) == {"fp32", "bf16"}


def test_a_machine_with_one_kind_of_device_without_bf16_has_float32():
    both = load_machine("dgx-a100").with_nodes(2).model_dump(by_alias=True)
    older = {**load_machine("summit").device.model_dump(), "first_node": 1}
    mixed = Machine.model_validate({**both, "other_device": (older,)})
    assert default_precision(mixed) == "fp32"


def test_mixed_precision_holds_18_bytes_a_weight_with_adam():
    """Master weights, gradients and Adam's two states in float32, and a narrow copy: 18 bytes."""
    assert Training("adam", "fp32").held_bytes == 16
    for precision in ("bf16", "fp16"):
        adam = Training("adam", precision)
        assert (adam.parameter_bytes, adam.held_bytes) == (6, 18)
        # Weight, gradient and states are read; weight, states and copy are written.
        assert adam.update_bytes == (4 + 4 + 8) + (4 + 8 + 2)
    assert not any(FORMATS[name].is_mixed for name in ("fp64", "fp32", "tf32"))

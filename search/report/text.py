"""Seconds, bytes and devices as text for people."""

from __future__ import annotations

from collections.abc import Sequence

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_NOTHING = 1e-12
"""Fewer seconds than these are a rounding error."""
_BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
MOST_RANGES = 4


def seconds_text(seconds: float) -> str:
    """Seconds with three digits, such as ``12.3 ms``."""
    for unit, name in _SECONDS:
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-6:.3g} us" if seconds >= _NOTHING else "0 s"


def bytes_text(count: int) -> str:
    """Bytes as text, such as ``1.25 GB``."""
    for unit, name in _BYTES:
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} bytes"


def on_devices(span: str) -> str:
    """A span of devices as text, such as ``on devices 0-3``."""
    return f"on device {span}" if span.isdecimal() else f"on devices {span}"


def ranges_text(devices: Sequence[int]) -> str:
    """Devices in ascending order as text, such as ``devices 0-3, 8``."""
    ranges: list[list[int]] = []
    for device in devices:
        if ranges and ranges[-1][1] + 1 == device:
            ranges[-1][1] = device
        else:
            ranges.append([device, device])
    words = [str(a) if a == b else f"{a}-{b}" for a, b in ranges]
    if len(words) > MOST_RANGES:
        return f"{len(devices)} devices: {', '.join(words[:MOST_RANGES])}, ..."
    return f"{'device' if len(devices) == 1 else 'devices'} {', '.join(words)}"

"""Malicious pickles: they would run code or exhaust memory, or are no pickles."""

from __future__ import annotations

import struct

RAN = "ran"
"""A file that only code from a checkpoint would make."""


def text(value: str) -> bytes:
    """The instruction that pushes a text onto the stack."""
    return b"\x8c" + bytes([len(value)]) + value.encode()


def named(module: str, name: str) -> bytes:
    """The instruction that loads a name with dots."""
    return text(module) + text(name) + b"\x93"


def proto(body: bytes) -> bytes:
    return b"\x80\x04" + body + b"."


RUN = text(f"touch {RAN}") + b"\x85R"
"""Instructions that call the function on the stack with a command."""
METADATA = "torch.distributed.checkpoint.metadata"
PICKLES = {
    "a function": proto(named("os", "system") + RUN),
    "a dotted name": proto(named(METADATA, "os.system") + RUN),
    "a dotted name of a class": proto(named(METADATA, "Metadata.__init__.__globals__") + b"0N"),
    "a dotted name of torch": proto(named("torch", "serialization.os.system") + RUN),
    "a dotted name as in protocol 2": b"\x80\x02c"
    + f"{METADATA}\nos.system\n".encode()
    + RUN
    + b".",
    "an old name": b"cposix\nsystem\n" + RUN + b".",
    "an instance": f"(S'touch {RAN}'\nios\nsystem\n.".encode(),
    "a class from the stack": proto(b"(" + named("os", "system") + text(f"touch {RAN}") + b"o"),
    "a state that is set": proto(
        named(METADATA, "Metadata")
        + b")\x81}"
        + text("__setstate__")
        + named("os", "system")
        + b"sb"
        + text(f"touch {RAN}")
        + b"b"
    ),
    "a constructor": proto(named("torch", "load") + text("copy") + b"\x85R"),
    "getattr": proto(named("builtins", "getattr") + b"N\x85R"),
    "a name by the memo": proto(
        text("os") + b"\x940" + text("system") + b"\x940h\x00h\x01\x93" + RUN
    ),
    "a name by a call": proto(named("torch", "Size") + b")R" + text("system") + b"\x93" + RUN),
    "a persistent id": proto(b"Pos.system\n"),
    "an extension": proto(b"\x82\x01"),
    "nested deeply": proto(b"]" * 100_000 + b"a" * 99_999),
    "an endless memo": proto(
        b"]\x94" + b"".join(b"(" + b"h\x00" * 9 + b"l\x940" for _ in range(50)) + b"h\x00"
    ),
    "a huge text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.",
    "a huge memo": b"\x80\x04N" + b"r\xff\xff\xff\x7f" + b".",
    "no pickle": b"\x00" * 64,
    "nothing": b"",
    "cut off": proto(named("torch", "Size"))[:-1],
}
"""Tables of contents in the form of DCP."""

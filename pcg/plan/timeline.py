"""Write timelines of devices, simulated or measured, for Chrome's trace viewer.

https://ui.perfetto.dev opens them. A node of the machine is a process, and each of the two streams
of a device is a thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pcg.files import write_text_atomic

COMPUTE, COMMUNICATE = range(2)
STREAMS = ("compute", "communicate")
"""The streams of a device, by number."""
TraceEvent = dict[str, str | int | float | dict[str, str]]
"""A trace event. ``ph`` is X for an event with a duration and M for a name. ``ts`` and ``dur`` are
in microseconds."""


def names(nodes: Mapping[int, int]) -> Iterator[TraceEvent]:
    """Yield the names of nodes and of devices' streams. ``nodes`` is the node of each device."""
    for node in sorted(set(nodes.values())):
        name = {"name": f"node {node}"}
        yield {"ph": "M", "name": "process_name", "pid": node, "tid": 0, "args": name}
    for device, node in nodes.items():
        for stream, label in enumerate(STREAMS):
            name = {"name": f"device {device}: {label}"}
            thread = _thread(device, stream)
            yield {"ph": "M", "name": "thread_name", "pid": node, "tid": thread, "args": name}


def rows(process: str, node: int, labels: Mapping[int, str]) -> Iterator[TraceEvent]:
    """Yield the names of rows that stand for no device. Their numbers must differ from those of all
    devices, and ``node`` from the numbers of all nodes. Rows use the first stream."""
    yield {"ph": "M", "name": "process_name", "pid": node, "tid": 0, "args": {"name": process}}
    for number, label in labels.items():
        thread = _thread(number, COMPUTE)
        name = {"name": label}
        yield {"ph": "M", "name": "thread_name", "pid": node, "tid": thread, "args": name}


def event(
    name: str, phase: str, device: int, node: int, stream: int, start: float, seconds: float
) -> TraceEvent:
    """Return the event of work on a stream, ``start`` seconds after the step began."""
    return {
        "ph": "X",
        "name": name,
        "cat": phase,
        "pid": node,
        "tid": _thread(device, stream),
        "ts": start * 1e6,
        "dur": seconds * 1e6,
        "args": {"phase": phase},
    }


def write_timeline(entries: Iterable[TraceEvent], path: Path) -> None:
    """Write a timeline, whole or not at all."""
    content = {"traceEvents": list(entries), "displayTimeUnit": "ms"}
    write_text_atomic(path, json.dumps(content) + "\n")


def _thread(device: int, stream: int) -> int:
    return device * len(STREAMS) + stream

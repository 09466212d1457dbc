"""The timeline of a step as a page draws it: a few devices, with short events merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from search.cost.events import Event
from search.cost.tasks import PHASES
from search.report.page.devices import Devices
from search.report.trace import Labels, SimulatedPlan

MOST_ROWS = 8
"""The most devices that are drawn."""
MOST_EVENTS = 12_000
"""The most events of the devices of a pipeline that are drawn: those of the first and the last
micro-batches."""
FINE = 3000
"""An event may be merged with its neighbours if it takes less than 1 / FINE of a step."""


@dataclass(frozen=True)
class _Bar:
    """A bar of the timeline: one event or several merged ones, in seconds."""

    stream: int
    phase: int
    start: float
    end: float
    name: str
    count: int = 1


def timeline(simulated: SimulatedPlan, devices: Devices) -> dict[str, object]:
    """The rows of the timeline: a device and its bars, each as ``[stream, phase, start and length
    in microseconds, number of its name]``."""
    rows = _rows(simulated, devices)
    names: dict[str, int] = {}
    drawn = [
        {
            "device": device,
            "bars": [
                [
                    bar.stream,
                    bar.phase,
                    round(bar.start * 1e6, 3),
                    round((bar.end - bar.start) * 1e6, 3),
                    names.setdefault(_text(bar), len(names)),
                ]
                for bar in _merged(_bars(simulated, device, rows), simulated.step_seconds / FINE)
            ],
        }
        for device in rows
    ]
    return {"rows": drawn, "names": list(names), "phases": list(PHASES)}


def _rows(simulated: SimulatedPlan, devices: Devices) -> Sequence[int]:
    """The devices that are drawn: the busiest, the fullest, the first of each stage, and devices of
    other classes."""
    firsts = [device_class.first for device_class in devices.classes]
    needed = [simulated.busiest.device, simulated.memory.device]
    if simulated.pipeline is not None:
        groups = simulated.pipeline.groups
        needed = [*range(0, groups.devices, groups.size), *needed]
    known = {devices.numbers[device]: device for device in reversed([*firsts, *needed])}
    chosen = dict.fromkeys([*(known[devices.numbers[d]] for d in needed), *known.values()])
    return sorted(list(chosen)[:MOST_ROWS])


def _bars(simulated: SimulatedPlan, device: int, rows: Sequence[int]) -> Iterator[_Bar]:
    label = Labels(simulated)
    events: Iterable[Event] = simulated.events(device)
    if (run := simulated.pipeline) is not None:
        events = run.events(device, run.shown_batches(rows, MOST_EVENTS))
    for event in sorted(events, key=lambda event: (event.task.stream, event.start)):
        if event.seconds:
            name = label.of(event.task, device)
            if event.batch is not None:
                name = f"{name}, micro-batch {event.batch}"
            yield _Bar(event.task.stream, event.task.phase, event.start, event.end, name)


def _merged(bars: Iterable[_Bar], fine: float) -> Iterator[_Bar]:
    """The bars, where neighbours too short to be seen apart are merged."""
    last: _Bar | None = None
    for bar in bars:
        if last is not None and _together(last, bar, fine):
            last = replace(last, end=bar.end, count=last.count + 1)
            continue
        if last is not None:
            yield last
        last = bar
    if last is not None:
        yield last


def _together(last: _Bar, bar: _Bar, fine: float) -> bool:
    alike = (last.stream, last.phase) == (bar.stream, bar.phase)
    return alike and bar.end - last.start < fine and bar.start - last.end < fine / 4


def _text(bar: _Bar) -> str:
    return bar.name if bar.count == 1 else f"{bar.name}, and {bar.count - 1} more"

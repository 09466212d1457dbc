"""Draws plots of a comparison with matplotlib, which is an extra."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from unity.support.comparison import Prediction, StepParts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which colour-blind readers can tell apart."""
_PARTS: Sequence[tuple[str, str, Callable[[StepParts], float]]] = (
    ("computing", COLOURS[0], lambda parts: parts.computing),
    ("exposed communication", COLOURS[1], lambda parts: parts.exposed),
    ("idle", "0.8", lambda parts: parts.idle),
)
"""The parts of a step, in the order in which they are drawn."""
_HIDDEN = COLOURS[4]
MARKERS = ("o", "s", "^", "D", "v", "P")


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def plot(model: str, machine: str, entries: Sequence[Prediction], stem: Path) -> tuple[Path, Path]:
    """Draw the throughput and search time of a model's planners by number of devices. Write SVG and
    PNG files whose names begin with ``stem``, and return their paths."""
    # Imported here because matplotlib is an extra and takes a second to load.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": model, "svg.fonttype": "none", "font.size": 10}):
        by_planner = {e.planner: [x for x in entries if x.planner == e.planner] for e in entries}
        missing = [p for p, own in by_planner.items() if not all(e.step_seconds for e in own)]
        heights = (3.0, 0.16 * len(missing), 1.4) if missing else (3.0, 1.4)
        figure = Figure(figsize=(6.4, 6.0), layout="constrained")
        above, *strip, below = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        _throughput(above, by_planner)
        for axes in strip:
            _missing(axes, by_planner, missing)
        _search(below, by_planner)
        above.set_title(f"{model} on {machine}")
        devices = sorted({entry.devices for entry in entries})
        below.set_xticks(devices, [str(n) for n in devices])
        below.set_xticks([], minor=True)
        paths = Path(f"{stem}.svg"), Path(f"{stem}.png")
        figure.savefig(paths[0], metadata={"Date": None})
        figure.savefig(paths[1], dpi=160)
    return paths


def plot_steps(
    model: str, machine: str, entries: Sequence[Prediction], stem: Path
) -> tuple[Path, Path] | None:
    """Draw where the step of each planner's plan of one model goes, a panel for each number of
    devices. Write SVG and PNG files as ``plot`` does, and return their paths. None if no plan
    fits."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    fitting = [entry for entry in entries if entry.parts is not None]
    counts = sorted({entry.devices for entry in fitting})
    if not counts:
        return None
    panels = [[entry for entry in fitting if entry.devices == count] for count in counts]
    with rc_context({"svg.hashsalt": model, "svg.fonttype": "none", "font.size": 10}):
        heights = [len(panel) + 1 for panel in panels]
        size = 6.4, 1.4 + 0.27 * sum(heights)
        figure = Figure(figsize=size, layout="constrained")
        rows = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
        for axes, panel in zip(rows[:, 0], panels, strict=True):
            _steps(axes, panel)
        figure.suptitle(f"{model} on {machine}: a step of the busiest device")
        rows[-1, 0].set_xlabel("predicted ms")
        handles, labels = rows[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8.5)
        paths = Path(f"{stem}-steps.svg"), Path(f"{stem}-steps.png")
        figure.savefig(paths[0], metadata={"Date": None})
        figure.savefig(paths[1], dpi=160)
    return paths


def _steps(axes: Axes, entries: Sequence[Prediction]) -> None:
    """A bar for each planner, of the parts that add up to its step; communication that is hidden
    lies below as a thin bar, as it takes no time of its own."""
    places = range(len(entries))
    parts = [entry.parts for entry in entries if entry.parts is not None]
    begins = [0.0] * len(parts)
    for label, colour, of_parts in _PARTS:
        widths = [1e3 * of_parts(part) for part in parts]
        axes.barh(places, widths, 0.6, left=begins, label=label, color=colour)
        begins = [begin + width for begin, width in zip(begins, widths, strict=True)]
    hidden = [1e3 * part.hidden for part in parts]
    below = [place + 0.38 for place in places]
    axes.barh(below, hidden, 0.14, label="hidden communication", color=_HIDDEN)
    axes.set_yticks(places, [entry.planner for entry in entries])
    axes.set_ylim(len(parts) - 0.4, -0.6)
    axes.set_xlim(0.0, 1.03 * max(max(begins), max(hidden)))
    devices = entries[0].devices
    axes.set_title(f"{devices} device{'s' * (devices != 1)}", loc="left", fontsize=9)
    axes.grid(visible=True, axis="x", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)


def _throughput(axes: Axes, by_planner: Mapping[str, Sequence[Prediction]]) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    for i, (planner, entries) in enumerate(by_planner.items()):
        fitting = [(e.devices, e.samples_per_second) for e in entries if e.samples_per_second]
        _line(
            axes, i, fitting, planner
        )  # even without points, because the legend serves both plots
    axes.set_xscale("log")
    if any(e.samples_per_second for entries in by_planner.values() for e in entries):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(loc="best", fontsize=8.5)
    axes.set_ylabel("predicted throughput (samples/s)")
    axes.grid(visible=True, which="both", color="0.9", linewidth=0.6)


def _missing(
    axes: Axes, by_planner: Mapping[str, Sequence[Prediction]], missing: Sequence[str]
) -> None:
    """A strip with a cross for every plan that does not fit."""
    number = {planner: i for i, planner in enumerate(by_planner)}
    for row, planner in enumerate(missing):
        devices = [e.devices for e in by_planner[planner] if e.step_seconds is None]
        colour = COLOURS[number[planner] % len(COLOURS)]
        axes.plot(devices, [row] * len(devices), linestyle="None", marker="x", color=colour)
    axes.set_ylim(len(missing) - 0.4, -0.6)
    axes.set_yticks(range(len(missing)), [f"{planner} does not fit" for planner in missing])
    axes.tick_params(axis="y", length=0, labelsize=7)


def _search(axes: Axes, by_planner: Mapping[str, Sequence[Prediction]]) -> None:
    for i, (planner, entries) in enumerate(by_planner.items()):
        _line(axes, i, [(e.devices, e.search_seconds) for e in entries], planner)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("devices")
    axes.set_ylabel("search (s)")
    axes.grid(visible=True, color="0.9", linewidth=0.6)


def _line(axes: Axes, number: int, points: Sequence[tuple[int, float]], label: str) -> None:
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        label=label,
        color=COLOURS[number % len(COLOURS)],
        marker=MARKERS[number % len(MARKERS)],
    )

"""The option ``--batch-norm``: the samples over which batch norms take their statistics.

``whole``: over the whole batch, as a module does on one device, and SyncBatchNorm on many.
``local``: over a group of samples for each device, as DistributedDataParallel does. A number: over
that many groups of samples. These are different functions, so a plan is of one of them. Every
planner can plan for any of them.
"""

from __future__ import annotations

from pcg.errors import InputError

WHOLE, LOCAL = "whole", "local"
HELP = (
    "Samples over which a batch norm takes statistics: whole (the batch), local (a group for each"
    " device, as under DistributedDataParallel), or a number of groups."
)
LOCAL_PLANNERS = ("data-parallel", "zero")
"""Planners of plans that usually run with local statistics, which are their default."""
MOST_GROUPS = 1 << 20


def norm_groups(given: str | None, planner: str, devices: int) -> int:
    """Return the number of groups of samples over which batch norms take their statistics.

    ``given``: the option; None for the planner's default. Raises InputError for a wrong option.
    """
    if given is None:
        given = LOCAL if planner in LOCAL_PLANNERS else WHOLE
    if given == WHOLE:
        return 1
    if given == LOCAL:
        return devices
    if given.isascii() and given.isdigit() and 0 < len(given) < 9 and 0 < int(given) <= MOST_GROUPS:
        return int(given)
    problem = f"expected {WHOLE}, {LOCAL} or a number of groups of samples, got {given!r}"
    raise InputError("--batch-norm", problem)


def groups_text(groups: int, batch: int) -> str:
    """The line about batch norms by groups, for the report of a plan."""
    return (
        f"batch norms take the statistics of each of {groups} groups of {batch // groups} samples;"
        " their running statistics are the first group's, as under DistributedDataParallel"
    )

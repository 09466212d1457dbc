"""The option ``--batch-norm``: over which samples batch norms take their statistics.

``whole``: over the whole batch, as a module does on one device, and SyncBatchNorm on many.
``local``: over each of as many groups of samples as there are devices, as DistributedDataParallel
does. These are different functions, so it is a choice: a plan is of one of them, and every planner
can be asked for either. A number asks for so many groups.
"""

from __future__ import annotations

from pcg.errors import InputError

WHOLE, LOCAL = "whole", "local"
HELP = (
    "Samples over which batch norms take statistics: whole (the batch), local (a group for each"
    " device, as under DistributedDataParallel), or a number of groups."
)
LOCAL_PLANNERS = ("data-parallel", "zero")
"""Planners of what others run with local statistics, and so do these unless told otherwise."""
MOST_GROUPS = 1 << 20


def norm_groups(given: str | None, planner: str, devices: int) -> int:
    """In how many groups of samples batch norms take their statistics. ``given``: the option, by
    default as the planner's kind is run. Raises InputError for an option that is none."""
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
    """What a plan says of its batch norms where they are in groups."""
    return (
        f"batch norms take the statistics of each of {groups} groups of {batch // groups} samples;"
        " what they keep is the first group's, as under DistributedDataParallel"
    )

"""Reads the profile of ``--profile``, for commands that price plans."""

from __future__ import annotations

from pathlib import Path

from pcg.machine import Machine
from pcg.plan.profile import load_profile
from search.cost.efficiency import MeasuredEfficiency, Speed, standard


def measured(machine: Machine, profile: Path | None) -> tuple[Machine, Speed | None]:
    """Return the machine with the links of a profile, and the speed of its devices by the profile.

    Without a profile, return the machine as it is, and None, which stands for Unity's own rates.
    Raises InputError for a profile that is wrong or of another machine.
    """
    if profile is None:
        return machine, None
    measurements, target = load_profile(profile, machine)
    return target, MeasuredEfficiency(measurements, target.device, standard())

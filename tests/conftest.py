"""Settings of hypothesis: enough examples to find faults, few enough to wait for."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes varies with what is drawn, and with the computer: no deadline.
settings.register_profile("unity", max_examples=30, deadline=None)
settings.load_profile("unity")

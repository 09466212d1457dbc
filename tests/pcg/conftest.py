"""Hypothesis settings for this folder: enough examples to find faults, few enough to wait for."""

from __future__ import annotations

from hypothesis import settings

# Evaluation time varies with the shapes drawn, and first calls read equations: no deadline.
settings.register_profile("pcg", max_examples=60, deadline=None)
settings.load_profile("pcg")

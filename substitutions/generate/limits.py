"""How far the generator goes unless it is told otherwise."""

from __future__ import annotations

from pcg.budget import Budget

MAX_OPS = 3
"""Operators a side in the algebraic enumeration."""
BUDGET = Budget(seconds=60)
"""For one candidate, which is tried in several forms."""

"""The default limits of the generator."""

from __future__ import annotations

from pcg.budget import Budget

MAX_OPS = 3
"""The most operators per side in the algebraic enumeration."""
BUDGET = Budget(seconds=60)
"""The budget of one candidate, for all forms in which it is tried."""

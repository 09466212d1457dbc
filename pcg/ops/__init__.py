"""The operators, one declaration each, and the table of their names."""

from __future__ import annotations

from pcg.ops import (
    algebra,
    attention,
    constants,
    elementwise,
    groups,
    layers,
    lookup,
    norms,
    parallel,
    reductions,
    reindexing,
    scatter,
    windows,
)
from pcg.ops.registry import Registry

_THEMES = (
    *(algebra, elementwise, reindexing, layers, norms, reductions),
    *(attention, lookup, scatter, windows, groups, constants, parallel),
)

OPERATORS = Registry([operator for theme in _THEMES for operator in theme.OPERATORS])
"""All known operators, including those that a user adds."""

BUILT_IN = OPERATORS.built_in
"""The operators that come with Unity."""

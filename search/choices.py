"""What a search can be asked for, by name: planners, modes and dimensions. Nothing is loaded for
it, so that the help of a command is there at once."""

from __future__ import annotations

from enum import StrEnum

THRESHOLD = 1.05
"""So many times as slow as the best a graph may be and still be rewritten: the paper's factor."""

OTHER_SYSTEMS = ("alpa", "automap", "flexflow", "gspmd", "tepdist")
"""Planners that choose as other systems do (``search.planners``)."""
PLANNER_NAMES = (
    "joint",
    "data-parallel",
    "zero",
    "expert",
    "megatron",
    "pipeline",
    "pipeline-2bw",
    *OTHER_SYSTEMS,
)
"""What plans may be made of: any strategy, those of others, a pipeline alone, or what another
system chooses."""


class Mode(StrEnum):
    """How algebra and parallelization go together."""

    JOINT = "joint"
    SEQUENTIAL = "sequential"
    ALGEBRA = "algebra"
    PARALLEL = "parallel"


class Recompute(StrEnum):
    """What may be recomputed in the backward pass: what helps a plan to fit, nothing, what is large
    and made without weights, or all but the boundaries of spans of operators."""

    AUTO = "auto"
    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class IndexRole(StrEnum):
    """What an index of an operator runs over."""

    DATA = "data"
    MODEL = "model"
    REDUCTION = "reduction"
    SPATIAL = "spatial"
    HEAD = "head"
    PIPELINE = "pipeline"

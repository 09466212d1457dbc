"""The names that a search can be asked for: planners, modes and index roles. This module imports
nothing slow, so that the help of a command appears at once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

THRESHOLD = 1.05
"""A graph is rewritten further if it is at most this many times as slow as the best one: the factor
of the Unity paper."""
REACH = 1
"""The default of ``RewriteSettings.reach``."""

OTHER_SYSTEMS = ("alpa", "automap", "flexflow", "gspmd", "tepdist")
"""The planners that choose as other systems do (``search.planners``)."""
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
"""The planners: any strategy (``joint``), the strategies of one family, pipelines alone, or the
choice of another system."""


@dataclass(frozen=True)
class RewriteSettings:
    """How far a search for rewrites goes. ``threshold``: a graph is rewritten further if it is at
    most so many times as slow as the best; ``reach``: the distance from a rewrite, in operators, up
    to which strategies are chosen anew when its gain is estimated."""

    threshold: float = THRESHOLD
    reach: int = REACH


USUAL_REWRITES = RewriteSettings()


class Mode(StrEnum):
    """How rewrites by algebra and parallelization are combined."""

    JOINT = "joint"
    SEQUENTIAL = "sequential"
    ALGEBRA = "algebra"
    PARALLEL = "parallel"


class Recompute(StrEnum):
    """Which tensors may be recomputed in the backward pass. ``AUTO``: as many as a plan needs to
    fit in memory. ``NONE``: no tensor. ``SELECTIVE``: large tensors that are computed without
    weights. ``FULL``: all but those at the boundaries of spans of operators."""

    AUTO = "auto"
    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class IndexRole(StrEnum):
    """The role of an index of an operator, such as an index over the samples."""

    DATA = "data"
    MODEL = "model"
    REDUCTION = "reduction"
    SPATIAL = "spatial"
    HEAD = "head"
    PIPELINE = "pipeline"

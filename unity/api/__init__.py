"""The Python API: it plans a module, and makes a module train by a plan."""

from __future__ import annotations

from runtime.module.module import ParallelModule
from unity.api.optimizing import optimize
from unity.api.parallelizing import parallelize
from unity.api.planned import PlannedModel, load_plan

__all__ = ["ParallelModule", "PlannedModel", "load_plan", "optimize", "parallelize"]

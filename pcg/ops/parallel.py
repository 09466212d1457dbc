"""Parallel operators, which change the type of a tensor and never its meaning."""

from __future__ import annotations

from pcg.types.operator import Operator

_UNCHANGED = "out[i...] = x[i...]"

partition = Operator("partition", _UNCHANGED, parallel="partition")
combine = Operator("combine", _UNCHANGED, parallel="combine")
replicate = Operator("replicate", _UNCHANGED, parallel="replicate")
reduce = Operator("reduce", _UNCHANGED, parallel="reduce")
pipeline = Operator("pipeline", _UNCHANGED, parallel="pipeline")
batch = Operator("batch", _UNCHANGED, parallel="batch")

join = Operator("join", "out[i...] = x[i...] + y[i...]", parallel="join", commutative=True)

OPERATORS = (partition, combine, replicate, reduce, pipeline, batch, join)

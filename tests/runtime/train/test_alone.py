"""Training on one process, with which other runs are compared."""

from __future__ import annotations

import torch

from pcg.plan.text import parse_graph
from runtime.inputs.seeded import Synthetic
from runtime.job.job import TrainingOptions
from runtime.job.recipe import Recipe
from runtime.train.check import train_alone


def test_constants_of_a_graph_are_in_double_precision():
    """torch refuses a product of float64 and float32."""
    graph = parse_graph("""
    x = input[3, 4]
    w = weight[4, 4]
    third = scale(identity_matrix(size=4), factor=0.3333333333333333)
    return sum_loss(matmul(matmul(x, third), w))
    """)
    options = TrainingOptions(steps=1, recipe=Recipe(rate=0.1), precision="fp64")
    source = Synthetic(0)
    weight = torch.ones(4, 4, dtype=torch.float64)
    outcome = train_alone(graph, options, source, torch.device("cpu"), initial={"w": weight})
    x = source.piece(graph.leaves[0].leaf, ((0, 3), (0, 4)), 0).double()
    expected = (x / 3.0).sum() * 4.0
    assert abs(outcome.losses[0] - expected.item()) < 1e-12

"""A small model whose training leaves checkpoints, on one device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from by_hand import make_plan

from pcg.naming import NamingFile, ParameterFile
from pcg.text import parse_graph
from runtime.collectives import World
from runtime.job import Checkpoints, Options
from runtime.lower import Lowering
from runtime.recipe import Recipe
from runtime.worker import run_plan

MODEL = """
x = input[8, 6]
w1 = weight[6, 5]
w2 = weight[5, 4]
y = matmul(relu(matmul(x, w1)), w2)
return mean_loss(multiply(y, y)), y
"""
RECIPES = {
    "sgd": Recipe(rate=0.1),
    "momentum": Recipe(rate=0.1, momentum=0.9, schedule="cosine", decay=10, warmup=2),
    "adam": Recipe(optimizer="adam", rate=0.1, clip=0.1, accumulate=2),
}
NAMING = NamingFile(
    parameters={
        "w1": ParameterFile(names=("first.weight", "tied.weight"), transposed=True),
        "w2": ParameterFile(names=("second",)),
    }
)


def plan_of(text):
    graph = parse_graph(text)
    return replace(make_plan(graph, graph, 1, {}), model_name="small", naming=NAMING)


def train(plan, folder, steps, recipe=RECIPES["adam"], every=2, keep=3, resume=False, **options):
    kept = Checkpoints(str(folder), every, keep, resume)
    given = Options(steps, recipe, "float64", checkpoints=kept, **options)
    report = run_plan(Lowering(plan), given, World(), lambda step: None)
    assert report is not None
    return report


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())

"""A small model whose training leaves checkpoints, on one device."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from support.plans.by_hand import make_plan

from pcg.errors import InputError
from pcg.plan.naming import NamingFile, ParameterFile
from pcg.plan.text import parse_graph
from runtime.checkpoints.checkpoint import MANIFEST, Manifest
from runtime.job.job import Checkpoints, TrainingOptions
from runtime.job.recipe import Recipe
from runtime.program.lower import Lowering
from runtime.train.worker import run_plan
from runtime.world.collectives import World

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
    given = TrainingOptions(steps, recipe, "fp64", checkpoints=kept, **options)
    report = run_plan(Lowering(plan), given, World(), lambda step: None)
    assert report is not None
    return report


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def sign(path: Path, **fields: Any) -> None:
    """Give a checkpoint a manifest that fits its files, as a forger would, with some fields
    changed."""
    content = json.loads((path / MANIFEST).read_text())
    content |= {
        "files": {
            file.name: {
                "bytes": file.stat().st_size,
                "digest": blake2b(file.read_bytes(), digest_size=16).hexdigest(),
            }
            for file in path.iterdir()
            if file.is_file() and file.name != MANIFEST
        },
        **fields,
        "digest": "",
    }
    with contextlib.suppress(
        ValidationError, InputError
    ):  # a file that is no manifest has no digest
        content["digest"] = Manifest.model_validate_json(json.dumps(content)).own_digest()
    (path / MANIFEST).write_text(json.dumps(content))

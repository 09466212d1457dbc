"""Forged plans, and the error with which each must be refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.borders import files, refused

from pcg.errors import InputError
from pcg.plan.plan import load_plan, part_hashes
from pcg.plan.schema import PlanFile
from pcg.plan.text import parse_graph
from unity.audit import app

MODEL = """
x = input[8, 6]
w1 = weight[6, 6]
w2 = weight[6, 4]
return mean_loss(matmul(relu(matmul(x, w1)), w2))
"""
GRAPH = """
x = input[8, 6]
w1 = weight[6, 6]
w2 = weight[6, 4]
p = matmul(partition(x, dim=0, degree=2), replicate(w1, degree=2))
return mean_loss(combine(matmul(relu(p), replicate(w2, degree=2)), dim=0, degree=2))
"""
Content = dict[str, Any]


def sign(content: Content) -> None:
    """Give a plan the hashes that a forger would compute."""
    try:
        model = content["model"]
        model["hash"] = parse_graph("\n".join(model["graph"])).digest
        content["hashes"] = part_hashes(PlanFile.model_validate_json(json.dumps(content)))
    except Exception:  # a file that is no plan has none
        return


def must_refuse(path: Path, status: int = 2) -> str:
    before = files(path.parent)
    line = refused(app, "audit", path, "--no-proofs", "--no-capture", "--no-machine", status=status)
    if status == 2:
        with pytest.raises(InputError):
            load_plan(path)
    assert files(path.parent) == before
    return line


def both(text: str) -> Callable[[Content], None]:
    """A change that replaces the model's graph and the plan's, without views."""

    def change(content: Content) -> None:
        content["model"]["graph"] = content["decisions"]["graph"] = text.splitlines()
        content["decisions"]["views"] = {}

    return change

"""Small plans by hand for `unity run`, and runs that have to be refused."""

from __future__ import annotations

import pytest
from support.plans.by_hand import make_plan

from pcg.plan.plan import save_plan
from pcg.plan.text import parse_graph
from unity.run import app
from unity.support.cli import run_app

MODEL = """
x = input[8, 12]
w1 = weight[12, 16]
w2 = weight[16, 8]
y = matmul(relu(matmul(x, w1)), w2)
return mean_loss(multiply(y, y)), y
"""

PARALLEL = """
x = input[8, 12]
w1 = weight[12, 16]
w2 = weight[16, 8]
h = {function}(matmul(replicate(x, degree={n}), partition(w1, dim=1, degree={n})))
y = reduce(matmul(h, partition(w2, dim=0, degree={n})), degree={n})
return mean_loss(multiply(y, y)), y
"""


def write_plan(folder, devices, function="relu"):
    text = PARALLEL.format(n=devices, function=function) if devices > 1 else MODEL
    return write_plan_of(folder, devices, MODEL, text)


def write_plan_of(folder, devices, model, text):
    path = folder / "plan.json"
    save_plan(make_plan(parse_graph(model), parse_graph(text), devices, {}), path)
    return path


def refused(capsys, *arguments):
    """The error line and the exit status of a command that fails in this process."""
    with pytest.raises(SystemExit) as caught:
        run_app(app, "run", [str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    return caught.value.code, captured.err.strip()

"""Plans that are wrong, and files that are no plans: refused in one line before anything runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.borders import refused
from support.cases import a_third
from support.plans.forged_plans import Content, both, must_refuse, sign

from unity.audit import app


def at(*keys: str | int, to: Any) -> Callable[[Content], None]:
    """A change of one field, given by its path."""

    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = to

    return change


def line(number: int, text: str, *, model: bool = False) -> Callable[[Content], None]:
    """A change of a line of the graph, or of the model's."""

    def change(content: Content) -> None:
        (content["model"] if model else content["decisions"])["graph"][number] = text

    return change


STEP = {"rule": "r", "at": ["t0"], "inputs": ["x"], "symbols": {"k": 2}}
RULE = {"rule": "r", "axes": [], "operators": [], "reversed": False, "text": "x == x"}


def step(**changes: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        content["decisions"]["derivation"] = [STEP | changes]
        content["decisions"]["rules"] = {"r": RULE}

    return change


def rule(**changes: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        content["decisions"]["derivation"] = [STEP]
        content["decisions"]["rules"] = {"r": RULE | changes}

    return change


def view(**changes: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        content["decisions"]["views"]["t5"] |= changes

    return change


NAN, INF = float("nan"), float("inf")
FIELDS: dict[str, Callable[[Content], None]] = {
    "an older version": at("schema_version", to=3),
    "a version to come": at("schema_version", to=5),
    "a version that is a text": at("schema_version", to="4"),
    "an unknown field": at("command", to="touch made"),
    "a name with control characters": at("model", "name", to="mlp\x1b]0;owned\x07"),
    "a name with a line break": at("model", "name", to="mlp\nplan.json: follows from mlp"),
    "a name that runs backwards": at("model", "name", to="mlp\u202e"),
    "a name of a megabyte": at("model", "name", to="m" * 1_000_000),
    "devices of 10^9": at("machine", "devices", to=10**9),
    "no devices": at("machine", "devices", to=0),
    "devices below 0": at("machine", "devices", to=-2),
    "devices of 10^30": at("machine", "devices", to=10**30),
    "half a device": at("machine", "devices", to=1.5),
    "another kind of device": at("machine", "kind", to="tpu"),
    "a time that is no number": at("estimates", "step_seconds", to=NAN),
    "a time without end": at("estimates", "step_seconds", to=INF),
    "a time below 0": at("estimates", "step_seconds", to=-1.0),
    "a time of 1e300": at("estimates", "one_device_seconds", to=1e300),
    "a memory of 10^400": at("estimates", "peak_memory_bytes", to=10**400),
    "elements below 0": at("estimates", "communication_elements", to=-1),
    "an axis of 10^30": line(0, f"x = input[{10**30}, 6]"),
    "a size of 0": line(0, "x = input[0, 6]"),
    "a size below 0": line(0, "x = input[-8, 6]"),
    "no size": line(0, "x = input[NaN, 6]"),
    "100,000 axes": line(0, f"x = input[{', '.join(['1'] * 100_000)}]"),
    "a degree that does not divide": line(0, "x = input[8/3, 6]"),
    "a degree of 0": line(0, "x = input[8/0, 6]"),
    "copies without end": line(0, "x = input[8, 6] copies=99999999999999999999"),
    "two leaves of a name": line(1, "x = weight[6, 6]"),
    "a name of another": line(1, "x.w1 = weight[6, 6]"),
    "a value that comes later": line(0, "x = relu(t7)"),
    "a value of its own": both("t0 = relu(t0)\nreturn t0"),
    "an unknown operator": line(3, "p = os.system(x)"),
    "calls nested deeply": line(3, f"p = {'relu(' * 3000}x{')' * 3000}"),
    "a product without end": line(
        3, f"p = partition(x, dim=0, degree={'*'.join(['a'] * 200_000)})"
    ),
    "a sum without end": line(3, f"p = partition(x, dim=0, degree={'+'.join('abcdef' * 30_000)})"),
    "a degree that is a symbol": line(3, "p = partition(x, dim=0, degree=|x.d0|)"),
    "a degree of 10^18": line(3, f"p = replicate(w1, degree={10**18})"),
    "a degree below 0": line(3, "p = replicate(w1, degree=-2)"),
    "a dimension that is not there": line(3, "p = partition(x, dim=7, degree=2)"),
    "no graph": at("decisions", "graph", to=[]),
    "a graph without an end": at("decisions", "graph", to=["x = input[8, 6]"]),
    "70,000 lines": at("decisions", "graph", to=["x = input[8, 6]"] * 70_000),
    "a line of a megabyte": line(3, "p = relu(x" + " " * 1_000_000 + ")"),
    "lines within a line": line(0, "x = input[8, 6]\nreturn x"),
    "another graph than the model's": line(0, "x = input[16, 6]"),
    "a model without a loss": both("x = input[8, 6]\nw = weight[6, 6]\nreturn matmul(x, w)"),
    "a loss without a weight": both("x = input[8, 6]\nreturn mean_loss(x)"),
    "a view of no operator": at(
        "decisions", "views", "t99", to={"start": 0, "shape": [1], "strides": [1]}
    ),
    "a view beyond the machine": view(start=5),
    "a view at 10^30": view(start=10**30),
    "a view before the machine": view(start=-1),
    "a view that lists a device twice": view(strides=[0, 0, 0]),
    "a view of another shape": view(shape=[7]),
    "a view of 2^20 by 2^20": view(shape=[1 << 20, 1 << 20], strides=[1, 1]),
    "a view of 100,000 axes": view(shape=[1] * 100_000, strides=[1] * 100_000),
    "a view with fewer strides": view(strides=[]),
    "a step by no rule": at("decisions", "derivation", to=[STEP]),
    "a rule that no step applies": at("decisions", "rules", "r", to=RULE),
    "a step with a symbol that is no number": step(symbols={"k": NAN}),
    "a step with a text for a symbol": step(symbols={"k": "u0+1"}),
    "a step at a control character": step(at=["t0\x1b[2J"]),
    "a rule of 100,000 axes": rule(axes=[100_000]),
    "a rule of axes below 0": rule(axes=[-1]),
    "a rule with many numbers of axes": rule(axes=[1] * 100_000),
    "a recomputed operator that is not there": at("decisions", "recompute", to=["t99"]),
    "a recomputed leaf": at("decisions", "recompute", to=["x"]),
    "an operator twice in the order": at("decisions", "order", to=["t2", "t2"]),
    "an order that lacks operators": at("decisions", "order", to=["t2"]),
    "an order of a leaf": at("decisions", "order", to=["x"]),
    "an order of an operator that is not there": at("decisions", "order", to=["t99"]),
    "a pipeline without stages": at(
        "decisions", "pipeline", to={"stages": 0, "micro_batches": 1, "schedule": "1f1b"}
    ),
    "a pipeline of 10^9 stages": at(
        "decisions", "pipeline", to={"stages": 10**9, "micro_batches": 1, "schedule": "1f1b"}
    ),
    "a pipeline without slices": at(
        "decisions", "pipeline", to={"stages": 2, "micro_batches": 4, "schedule": "1f1b"}
    ),
    "an optimizer that is none": at("decisions", "optimizer", to="os.system"),
    "a number format that is none": at("decisions", "precision", to="int8"),
    "statistics of nothing": at(
        "statistics", to=[{"value": "t99", "mean": ["m"], "variance": ["v"], "momentum": 0.1}]
    ),
    "a momentum above 1": at(
        "statistics", to=[{"value": "x", "mean": ["m"], "variance": ["v"], "momentum": 2.0}]
    ),
    "a parameter without names": at("naming", to={"parameters": {"w1": {"names": []}}}),
}


@pytest.mark.parametrize("name", a_third(FIELDS))
def test_wrong_plan_is_refused(plan_path, name):
    content = json.loads(plan_path.read_text())
    FIELDS[name](content)
    sign(content)
    plan_path.write_text(json.dumps(content))
    must_refuse(plan_path)


TEXTS: dict[str, str | bytes] = {
    "nothing": "",
    "no JSON": "{",
    "another file": "[]",
    "lists nested deeply": "[" * 100_000,
    "tables nested deeply": '{"a":' * 100_000,
    "a number of 100,000 digits": "9" * 100_000,
    "a number without end": '{"schema_version": 1e999}',
    "no number": '{"schema_version": NaN}',
    "minus infinity": '{"schema_version": -Infinity}',
    "a key twice": '{"schema_version": 4, "schema_version": 4}',
    "half a surrogate pair": '{"\\ud800": 4}',
    "other bytes": b"\xff\xfe{}",
    "a NUL": b'{"schema_version": 4\x00}',
    "a pickle": b"\x80\x04\x95cos\nsystem\n.",
}


@pytest.mark.parametrize("name", a_third(TEXTS))
def test_file_that_is_no_plan_is_refused(plan_path, name):
    text = TEXTS[name]
    plan_path.write_bytes(text if isinstance(text, bytes) else text.encode())
    must_refuse(plan_path)


def test_two_gigabytes_of_zeros(plan_path):
    with plan_path.open("wb") as file:
        file.truncate(2 << 30)
    assert "larger than 32 MiB" in refused(app, "audit", plan_path)


@pytest.mark.parametrize("place", ["/dev/zero", ".", "missing.json", "plan.json/x", "\0"])
def test_path_that_is_no_regular_file_is_refused(plan_path, place):
    refused(app, "audit", place)


def test_steps_in_a_circle(plan_path):
    """A value that depends on a later one: the audit refuses it."""
    content = json.loads(plan_path.read_text())
    step(at=["1.0"], inputs=["1.0"])(content)
    content["decisions"]["derivation"] *= 2
    sign(content)
    plan_path.write_text(json.dumps(content))
    must_refuse(plan_path, status=1)


def test_a_symbol_of_10_to_the_100(plan_path):
    content = json.loads(plan_path.read_text())
    step(symbols={"k": 10**100})(content)
    sign(content)
    plan_path.write_text(json.dumps(content))
    must_refuse(plan_path, status=1)


def test_plan_altered_without_its_hash_does_not_follow(plan_path):
    content = json.loads(plan_path.read_text())
    content["estimates"]["step_seconds"] = 1e-9
    plan_path.write_text(json.dumps(content))
    refusal = must_refuse(plan_path, status=1)
    assert "does not follow" in refusal

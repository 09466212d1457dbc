"""Rules of other systems as text, one operator after the other:

    CONCAT(-4, -5; AXIS=1) MATMUL(-1, t0; ACTI=0) SPLIT(t1; AXIS=1) -> t2.0, t2.1

``-4`` is an input, ``t0`` the first operator. Without ``->`` the last operator is the output.
"""

import json
import re

import pytest

from substitutions.importers.schema import read_foreign

OPERATOR = re.compile(r"(\w+)\(([^;()]*)(?:;([^()]*))?\)")


def _reference(text):
    op, _, port = text.strip().lstrip("t").partition(".")
    return {"_t": "Tensor", "opId": int(op), "tsId": int(port or 0)}


def _side(text):
    body, _, outputs = text.partition("->")
    operators = []
    for name, inputs, parameters in OPERATOR.findall(body):
        pairs = [pair.split("=") for pair in parameters.split(",") if pair.strip()]
        operators.append(
            {
                "_t": "Operator",
                "type": f"OP_{name}",
                "input": [_reference(i) for i in inputs.split(",") if i.strip()],
                "para": [
                    {"_t": "Parameter", "key": f"PM_{key.strip()}", "value": int(value)}
                    for key, value in pairs
                ],
            }
        )
    named = outputs.split(",") if outputs else [f"t{len(operators) - 1}"]
    return operators, [_reference(output) for output in named]


def _rule(left, right):
    (source, ours), (target, theirs) = _side(left), _side(right)
    mapped = [
        {
            "_t": "MapOutput",
            "srcOpId": a["opId"],
            "srcTsId": a["tsId"],
            "dstOpId": b["opId"],
            "dstTsId": b["tsId"],
        }
        for a, b in zip(ours, theirs, strict=True)
    ]
    return {
        "_t": "Rule",
        "name": f"{left} == {right}",
        "srcOp": source,
        "dstOp": target,
        "mappedOutput": mapped,
    }


@pytest.fixture
def as_json():
    """A rule of two sides in text, as the JSON of a file."""
    return _rule


@pytest.fixture
def write(tmp_path):
    """Write rules, given as JSON, and return the path."""

    def write_file(*rules):
        path = tmp_path / "rules.json"
        path.write_text(json.dumps({"_t": "RuleCollection", "rule": list(rules)}))
        return path

    return write_file


@pytest.fixture
def rule(write):
    """Read a rule of two sides in text."""

    def read(left, right):
        return read_foreign(write(_rule(left, right))).rules[0]

    return read

"""Certificates: each is accepted as written, and rejected after any change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.cases import a_third, each
from support.rules.rule_files import lines, parse

from pcg.errors import InputError
from pcg.ops import OPERATORS
from pcg.plan.text import parse_values
from pcg.types.operator import Operator
from verifier.certificate import SCRIPTS, certify, write
from verifier.decide import decide
from verifier.recheck import CertificateCheck, Rechecker, certificates
from verifier.solvers import SOLVERS
from verifier.trusted.proof import prove
from verifier.trusted.values import templates

RULE = (
    "x:2 w:2 y:2 | matmul(relu(x), concat(w, y, axis=1))"
    " == concat(matmul(relu(x), w), matmul(relu(x), y), axis=1)"
)
CUT = (
    "x:2 w:2 | matmul(x, w)"
    " == reduce(matmul(partition(x, dim=1, degree=k), partition(w, dim=0, degree=k)), degree=k)"
)
ASKING = "x:2 y:2 | split(concat(x, y, axis=0), axis=0, at=at).1 == y"
Content = dict[str, Any]


def certified(line: str, directory: Path, name: str = "rule") -> Path:
    left, right = parse(line)
    write(directory, [certify(name, left, right, decide(left, right))])
    (path,) = certificates(directory)
    return path


def check(path: Path) -> CertificateCheck:
    return Rechecker(path.parent, SOLVERS).check(path)


@each("line", lines("sound")[::12])
def test_certificates_are_accepted(line: str, tmp_path: Path):
    result = check(certified(line, tmp_path))
    assert result.accepted, result.reason
    assert result.conditions > 0


def _swap_sides(content: Content):
    content["left"], content["right"] = content["right"], content["left"]


def _other_rule(content: Content):
    content["right"] = content["left"].replace("relu", "gelu")


def _equation(content: Content):
    for operator in content["operators"]:
        operator["equation"] = operator["equation"].replace("sum k:", "sum k < 2:")


def _renamed_wrong(content: Content):
    """An operator under another name with another definition, and the same claim about it."""
    for operator in content["operators"]:
        if operator["name"] == "matmul":
            operator["name"] = "mine"
            operator["equation"] = operator["equation"].replace("* w[k, n]", "* w[k, n] * w[k, n]")
    for side in ("left", "right"):
        content[side] = content[side].replace("matmul", "mine")
    for theorem in content["theorems"]:
        theorem["operator"] = theorem["operator"].replace("matmul", "mine")


def _change_first_degree(content: Content):
    content["witness"]["degrees"]["k"] = 1


CHANGES: dict[str, tuple[str, Callable[[Content], object]]] = {
    "swapped sides": (RULE, _swap_sides),
    "another rule": (RULE, _other_rule),
    "a definition": (RULE, _equation),
    "a definition under another name": (RULE, _renamed_wrong),
    "a condition left out": (RULE, lambda c: c["conditions"].pop()),
    "all conditions left out": (RULE, lambda c: c.update(conditions=[])),
    "a condition twice": (RULE, lambda c: c["conditions"].append(c["conditions"][0])),
    "a step left out": (RULE, lambda c: c["steps"].pop()),
    "a step more": (RULE, lambda c: c["steps"].append("sorted")),
    "another step": (RULE, lambda c: c["steps"].__setitem__(0, "no such way")),
    "a theorem left out": (CUT, lambda c: c["theorems"].pop()),
    "the conditions of a theorem": (CUT, lambda c: c["theorems"][0].update(conditions=[])),
    "what it requires": (ASKING, lambda c: c.update(requires=[])),
    "more that it requires": (CUT, lambda c: c["requires"].append("|x.0| = 1")),
    "another typing": (CUT, lambda c: c.update(typings=[5, 0])),
    "the condition of types": (CUT, lambda c: c.update(types="0" * 24)),
    "the sizes of the witness": (CUT, lambda c: c["witness"].update(sizes={})),
    "the degrees of the witness": (CUT, _change_first_degree),
}


@pytest.mark.parametrize("change", a_third(CHANGES))
def test_a_changed_certificate_is_rejected(change: str, tmp_path: Path):
    line, tamper = CHANGES[change]
    path = certified(line, tmp_path)
    assert check(path).accepted
    content = json.loads(path.read_text())
    before = json.dumps(content)
    tamper(content)
    assert json.dumps(content) != before
    path.write_text(json.dumps(content))
    result = check(path)
    assert not result.accepted
    assert result.reason


def test_every_changed_script_is_rejected(tmp_path: Path):
    path = certified(CUT, tmp_path)
    scripts = sorted((tmp_path / SCRIPTS).iterdir())
    assert len(scripts) > 2
    for script in scripts:
        text = script.read_text()
        script.write_text(text.replace("(check-sat)", "(assert false)\n(check-sat)"))
        assert not check(path).accepted
        script.write_text(text)
    assert check(path).accepted


def test_a_missing_script_is_an_error_of_input(tmp_path: Path):
    path = certified(CUT, tmp_path)
    next((tmp_path / SCRIPTS).iterdir()).unlink()
    with pytest.raises(InputError, match="no such file"):
        check(path)


def test_certificate_that_a_solver_does_not_confirm_is_rejected(tmp_path: Path):
    path = certified(CUT, tmp_path)
    result = Rechecker(tmp_path, {"mine": lambda condition: "unknown"}).check(path)
    assert not result.accepted
    assert "mine says unknown" in result.reason


def test_check_of_a_certificate_never_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = certified(RULE, tmp_path)

    def searched(self: object, every: object) -> object:
        raise AssertionError("searched")

    monkeypatch.setattr("verifier.trusted.steps.SearchSteps.options", searched)
    assert check(path).accepted
    assert prove.SearchSteps.options is searched
    assert templates.NEW


def test_a_false_claim_cannot_be_certified(tmp_path: Path):
    """For any choices in the certificate, the conditions of a false claim have a solution."""
    path = certified("x:2 y:2 | add(x, y) == add(y, x)", tmp_path)
    content = json.loads(path.read_text())
    content["right"] = content["right"].replace("add(y, x)", "add(x, x)")
    path.write_text(json.dumps(content))
    assert not check(path).accepted


def test_a_user_s_operator_brings_its_definition(tmp_path: Path):
    cube = Operator("cube", "out[i...] = x[i...] * x[i...] * x[i...]")
    operators = {**OPERATORS} | {"cube": cube}
    sides = "cube(partition(x, dim=0, degree=k))", "partition(cube(x), dim=0, degree=k)"
    left, right = (parse_values(s, {"x": 2}, s, operators) for s in sides)
    write(tmp_path, [certify("own/rule: 1", left, right, decide(left, right))])
    (path,) = certificates(tmp_path)
    assert check(path).accepted


def test_a_directory_without_certificates(tmp_path: Path):
    assert certificates(tmp_path) == []

"""Certificates of an adversary: none is accepted, each is refused in one line, and none takes
long."""

from __future__ import annotations

import copy
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from functools import lru_cache
from pathlib import Path

import pytest
from support.cases import a_third
from support.rules.bad_certificates import (
    BAD,
    INJECTION,
)
from support.rules.forging import Forgery, believed, forge, forge_pair
from support.rules.rule_files import lines, parse

from pcg.errors import OperatorError, one_line
from pcg.language.poly import Poly
from pcg.types.operator import Operator
from unity.recheck import app
from unity.support.cli import run_app
from verifier.bundle import write_bundle
from verifier.certificate import CertificateFile, OperatorFile
from verifier.recheck import Rechecker
from verifier.solvers import SOLVERS
from verifier.trusted.errors import TooLarge, Undecided, Unproved, Unsolvable

CUT = "reduce(matmul(partition(x, dim=1, degree=k), partition(w, dim=0, degree=k)), degree=k)"
TRUE: dict[str, tuple[dict[str, int], str, str]] = {
    "cut": ({"x": 2, "w": 2}, "matmul(x, w)", CUT),
    "sum": ({"x": 2, "y": 2}, "add(x, y)", "add(y, x)"),
    "part": (
        {"x": 2},
        "slice(relu(x), axis=0, start=a, size=b)",
        "relu(slice(x, axis=0, start=a, size=b))",
    ),
    "scale": (
        {"x": 1},
        "scale(scale(x, factor=c), factor=d)",
        "scale(scale(x, factor=d), factor=c)",
    ),
    "asking": ({"x": 2, "y": 2}, "split(concat(x, y, axis=0), axis=0, at=at).1", "y"),
}


@lru_cache
def _made(name: str) -> Forgery:
    inputs, left, right = TRUE[name]
    return forge(inputs, left, right)


def made(name: str) -> Forgery:
    return copy.deepcopy(_made(name))


def recheck(folder: Path, *options: str) -> tuple[int, str]:
    """The exit status of the command and all its output, which is always plain text."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        run_app(app, "recheck", [str(folder), "--solver", "z3", "--jobs", "1", *options])
    printed = out.getvalue() + err.getvalue()
    assert all(one_line(line) == line.strip() for line in printed.splitlines()), printed
    assert "Traceback" not in printed
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed


@pytest.mark.parametrize("name", TRUE)
def test_true_certificate_is_accepted(name: str, tmp_path: Path):
    status, printed = recheck(made(name).write(tmp_path))
    assert status == 0, printed
    assert "proved: forged: " in printed


@pytest.mark.parametrize("case", a_third(BAD))
def test_wrong_certificate_is_refused(case: str, tmp_path: Path):
    name, change, problem = BAD[case]
    forged = made(name)
    change(forged.content)
    assert forged.content != made(name).content
    status, printed = recheck(forged.write(tmp_path))
    assert status in (1, 2), printed
    assert "proved: " not in printed
    assert problem in printed
    assert len(printed) < 2_000
    assert [p.name for p in tmp_path.rglob("*") if p.suffix not in (".json", ".smt2", "")] == []


def test_commands_are_not_run_by_solvers(tmp_path: Path):
    """The certificate is as complete as an adversary can make it: every script is there under its
    own name."""
    forged = forge({"x": 1}, "relu(x)", "x", equal=[(Poly.of("|x.0|"), Poly.of("~zz"))])
    forged.replace("|~zz|", f"|{INJECTION}|")
    forged.content["equal"] = [[[[["|x.0|"], 1]], [[[INJECTION], 1]]]]
    forged.content["witness"]["sizes"] = {INJECTION: 2}
    assert any(INJECTION in script for script in forged.scripts.values())
    status, printed = recheck(forged.write(tmp_path))
    assert status == 2
    assert "equal[0][1][0][0][0]" in printed


FALSE: dict[str, tuple[dict[str, int], str, str]] = {
    "relu is nothing": ({"x": 1}, "relu(x)", "x"),
    "a sum is a product": ({"x": 1, "y": 1}, "add(x, y)", "multiply(x, y)"),
    "products commute": ({"x": 2, "y": 2}, "matmul(x, y)", "matmul(y, x)"),
    "twice is once": ({"x": 2}, "scale(x, factor=2.0)", "x"),
    "another axis": ({"x": 2}, "softmax(x, axis=0)", "softmax(x, axis=1)"),
    "another start": (
        {"x": 1},
        "slice(x, axis=0, start=a, size=b)",
        "slice(x, axis=0, start=c, size=b)",
    ),
    "a start for a size": (
        {"x": 1},
        "pad(x, axis=0, before=a, size=b)",
        "pad(x, axis=0, before=0, size=b)",
    ),
    "not summed": (
        {"x": 2, "w": 2},
        "matmul(x, w)",
        "combine(matmul(partition(x, dim=0, degree=k), replicate(w, degree=k)), dim=1, degree=k)",
    ),
    "one of two": ({"x": 1, "y": 1}, "exp(add(x, y))", "multiply(exp(x), exp(x))"),
    "true of one row only": (
        {"x": 2},
        "softmax(x, axis=0)",
        "add(softmax(x, axis=0), scale(x, factor=0.5))",
    ),
}


@pytest.mark.parametrize("case", a_third(FALSE))
def test_false_rule_is_rejected_by_solvers_and_by_evaluation(case: str, tmp_path: Path):
    forged = forge(*FALSE[case])
    status, printed = recheck(forged.write(tmp_path))
    assert status == 1
    assert "rejected: " in printed
    assert _evaluated(forged)


def _evaluated(forged: Forgery) -> bool:
    """Whether evaluation rejects a certificate that solvers would accept."""
    file = CertificateFile.model_validate_json(json.dumps(forged.content))
    result = Rechecker(forged.scripts, {"believed": believed}).check_file(file)
    return not result.accepted


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.soak)])
def test_unsound_rules_are_rejected_whatever_solvers_say(step: int):
    """Two shapes alone suffice, except for the few rules that differ at a few numbers of many."""
    tried = missed = 0
    for line in lines("unsound")[::step]:
        try:
            forged = forge_pair(parse(line))
        except (Unproved, TooLarge, Unsolvable, Undecided, OperatorError, ValueError):
            continue
        tried += 1
        missed += not _evaluated(forged)
    assert tried > 60 / step
    assert missed <= max(1, tried // 20), f"{missed} of {tried}"


def mine(equation: str, *, commutative: bool = False) -> Operator:
    return Operator("mine", equation, commutative=commutative)


def test_theorems_are_those_of_a_definition(tmp_path: Path):
    """One operator may be cut, the other of the same name may not: its output reads all of x."""
    call = "mine(partition(x, dim=0, degree=k))", "partition(mine(x), dim=0, degree=k)"
    good = forge({"x": 1}, *call, label="a", operators=[mine("out[i...] = 2 * x[i...]")])
    other = mine("out[i...] = x[i...] + 1")
    bad = forge({"x": 1}, *call, label="b", operators=[other])
    assert recheck(good.write(tmp_path / "good"))[0] == 0
    # The theorems of the first definition under the name of the second, without its own.
    for key in ("theorems", "steps", "conditions", "types"):
        bad.content[key] = good.content[key]
    both_there = tmp_path / "both"
    good.write(both_there, "a")
    Forgery(bad.content, good.scripts | bad.scripts).write(both_there, "b")
    status, printed = recheck(both_there)
    assert status == 1
    assert "rejected: " in printed
    assert "b.json" in printed


def test_graphs_tell_definitions_of_one_name_apart(tmp_path: Path):
    """Free axes are found once for equal graphs, and these graphs are not equal."""
    run, plain = mine("out[i...] = 2 * x[i...]"), mine("out[i] = 2 * x[i]")
    call = "relu(mine(x))", "relu(mine(x))"
    free = forge({"x": 1}, *call, label="a", operators=[run])
    free.content["runs"] = [[["x", 0]]]
    fixed = forge({"x": 1}, *call, label="b", operators=[plain])
    fixed.content["runs"] = [[["x", 0]]]
    free.write(tmp_path, "a")
    status, printed = recheck(fixed.write(tmp_path, "b"))
    assert status == 1
    assert "1 certificates accepted, 1 rejected" in printed
    assert "b.json: has axes that may not be any number of axes" in printed


def test_operator_that_claims_to_commute_has_to_commute(tmp_path: Path):
    def commuting(o: Operator) -> OperatorFile:
        return OperatorFile.of(o).model_copy(update={"commutative": o.name == "mine"})

    sides = "relu(mine(x, y))", "relu(mine(x, y))"
    for number, (sign, status) in enumerate((("-", 1), ("+", 0))):
        own = mine(f"out[i...] = x[i...] {sign} y[i...]")
        forged = forge({"x": 1, "y": 1}, *sides, operators=[own], listed=commuting)
        folder = tmp_path / str(number)
        accepted, printed = recheck(forged.write(folder))
        assert accepted == status, printed
        assert ("is not shown to commute" in printed) == bool(status)


def test_an_operator_of_one_s_own_moves_no_data(tmp_path: Path):
    """Otherwise it would need no theorem, and would be computed on whole tensors."""
    own = Operator("mine", "out[i...] = 2 * x[i...]", parallel="partition")
    forged = forge({"x": 1}, "relu(x)", "relu(x)")
    forged.content["operators"].append(OperatorFile.of(own).model_dump(mode="json"))
    forged.content["right"] = forged.content["right"].replace(
        "t0 = relu(x)\n", "t0 = mine(x, dim=0, degree=2)\n"
    )
    status, printed = recheck(forged.write(tmp_path))
    assert status == 1
    assert "mine moves data" in printed


def test_a_folder_or_bundle_without_certificates_proves_nothing(tmp_path: Path):
    assert recheck(tmp_path)[0] == 1
    write_bundle(tmp_path / "c.jsonl.xz", [])
    status, printed = recheck(tmp_path / "c.jsonl.xz")
    assert status == 1
    assert "has no certificates, so nothing is proved" in printed
    assert recheck(tmp_path / "nowhere")[0] == 2


def test_two_certificates_of_one_label(tmp_path: Path):
    made("sum").write(tmp_path, "a")
    status, printed = recheck(made("cut").write(tmp_path, "b"))
    assert status == 1
    assert "another certificate has the same label" in printed


def test_proof_about_whole_tensors_only_is_reported_as_such(tmp_path: Path):
    forged = made("sum")
    forged.content.update(whole=True, types="", theorems=[], typings=[0, 0], requires=[])
    forged.content["witness"]["degrees"] = {}
    status, printed = recheck(forged.write(tmp_path))
    assert status == 1
    assert "(whole tensors only)" in printed
    assert "1 of 1 certificates are about whole tensors only" in printed


def test_printed_verdict_is_plain_text(tmp_path: Path):
    forged = made("cut")
    forged.content["rule"] = "[red]name[/red] :smile:\nproved: all"
    status, printed = recheck(forged.write(tmp_path))
    assert status == 0
    assert "[red]name[/red] :smile:" in printed
    (line,) = [line for line in printed.splitlines() if line.startswith("proved: ")]
    assert "matmul(x, w) == reduce(" in line
    forged.content["rule"] = "\x1b]0;owned\x07 \u202e name"
    for options in ((), ("--json",)):
        status, printed = recheck(forged.write(tmp_path), *options)
        assert status == 2
        assert "has the control character U+001B" in printed
        assert "owned" not in printed


def test_swapped_scripts_are_noticed(tmp_path: Path):
    forged = made("cut")
    names = sorted(forged.scripts)
    first, last = names[0], names[-1]
    forged.scripts[first], forged.scripts[last] = forged.scripts[last], forged.scripts[first]
    status, printed = recheck(forged.write(tmp_path))
    assert status == 1
    assert "is not the condition that it stands for" in printed


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_false_condition_is_found_by_each_solver(solver: str):
    forged = forge(*FALSE["products commute"])
    file = CertificateFile.model_validate_json(json.dumps(forged.content))
    result = Rechecker(forged.scripts, {solver: SOLVERS[solver]}).check_file(file)
    assert not result.accepted

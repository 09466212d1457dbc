"""Libraries of an adversary: each is refused in one line, or has no certificates that fit it."""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import lru_cache
from pathlib import Path

import pytest
from support.cases import a_third
from support.rules.few_rules import few
from support.rules.forging import Content, Forgery, believed, forge

from pcg.errors import one_line
from pcg.types.operator import Operator
from substitutions.audit.proofs import check_proofs
from substitutions.rules.certificates import library_certificates
from substitutions.rules.rule import parse_rule
from substitutions.rules.store import CERTIFICATES, RULES, LibraryFile
from unity.recheck import app
from unity.support.cli import run_app
from verifier.bundle import Bundle, bundle_text
from verifier.certificate import Certificate, CertificateFile, OperatorFile
from verifier.solvers import SOLVERS

Z3 = {"z3": SOLVERS["z3"]}


@lru_cache
def _certificates() -> tuple[Certificate, ...]:
    return tuple(library_certificates(_one(), 1))


def _one() -> LibraryFile:
    """A library with only the first of some rules, which is quick to check."""
    return few().model_copy(update={"rules": few().rules[:1]})


def _compressed(text: str) -> bytes:
    return lzma.compress(text.encode(), preset=0)


@lru_cache
def _bundle(*, made: bool) -> bytes:
    """The file of the certificates, or a file without any."""
    return _compressed(bundle_text(_certificates() if made else []))


def recheck(folder: Path, content: Content, *, made: bool = True) -> tuple[int, str]:
    """The exit status of the command and all its output, which is always plain text."""
    (folder / CERTIFICATES).write_bytes(_bundle(made=made))
    (folder / RULES).write_text(json.dumps(content))
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        run_app(app, "recheck", [str(folder), "--solver", "z3", "--jobs", "1"])
    printed = out.getvalue() + err.getvalue()
    assert all(one_line(line) == line.strip() for line in printed.splitlines()), printed
    assert "Traceback" not in printed
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed


def library() -> Content:
    return json.loads(_one().model_dump_json())


def rule(**fields: object) -> Callable[[Content], None]:
    return lambda content: content["rules"][0].update(fields)


def again(**fields: object) -> Callable[[Content], None]:
    return lambda content: content["rules"].append({**content["rules"][0], **fields})


OPAQUE = "opaque f = aten.relu.default(x0) : [2] float32 -> [2] float32"
BAD: dict[str, tuple[Callable[[Content], None], int]] = {
    "another rule under a name": (rule(right="matmul(y, matmul(x, z))", runs=[]), 1),
    "a rule under another name": (rule(name="r794b7f8e60"), 1),
    "a rule more": (again(name="new"), 1),
    "two rules of one name": (again(left="matmul(x, matmul(y, z))"), 1),
    "another operator": (rule(left="add(matmul(x, y), z)", runs=[]), 1),
    "an operator that there is not": (rule(left="evil(x)"), 2),
    "a torch function": (rule(left=OPAQUE), 2),
    "a torch function as a call": (rule(left="aten.from_file(x)"), 2),
    "sizes that are not equal": (rule(requires=["|x.0| = 1"], runs=[]), 1),
    "commands in what is required": (rule(requires=["|x.0| Int)(assert false)(exit) = 1"]), 2),
    "a size of nothing in what is required": (rule(requires=["|q.0| = 1"]), 2),
    "a symbol of nothing in what is required": (rule(requires=["q = 1"]), 2),
    "no equation in what is required": (rule(requires=["|x.0|"]), 2),
    "an axis that is not free": (rule(runs=[["x.1"]]), 2),
    "an axis of nothing": (rule(runs=[["q.0"]]), 2),
    "no axis": (rule(runs=[[]]), 2),
    "an input too few": (rule(inputs={"x": 2}), 2),
    "another rank": (rule(inputs={"x": 2, "y": 2, "z": 7}), 2),
    "a rank of 10**9": (rule(inputs={"x": 10**9, "y": 2, "z": 2}), 2),
    "a negative rank": (rule(inputs={"x": -1, "y": 2, "z": 2}), 2),
    "a thousand inputs": (rule(inputs={f"x{i}": 2 for i in range(1_000)}), 2),
    "a side of 100,000 letters": (rule(left="relu(" * 20_000), 2),
    "a side nested deeply": (rule(left="relu(" * 1_000 + "x" + ")" * 1_000), 2),
    "no side": (rule(left=""), 2),
    "a side more": (rule(left="x, y"), 2),
    "an escape character in a side": (rule(left="\x1b[2J(x)"), 2),
    "an escape character in a name": (rule(name="\x1b[2J"), 2),
    "an escape character in an input": (rule(inputs={"\x1b": 2}), 2),
    "no name": (rule(name=""), 2),
    "a name of 100,000 letters": (rule(name="r" * 100_000), 2),
    "a verdict of its own": (rule(verdict="believed"), 2),
    "a family of its own": (rule(family="\x1b[2J"), 2),
    "steps without end": (rule(derived=-1), 2),
    "an unknown field": (rule(trust=True), 2),
    "another version": (lambda content: content.update(schema_version=9), 2),
    "no rules": (lambda content: content.update(rules={}), 2),
}


@pytest.mark.parametrize("case", a_third(BAD))
def test_wrong_library_is_refused_in_one_line(case: str, tmp_path: Path):
    change, status = BAD[case]
    content = library()
    change(content)
    assert content != library()
    accepted, printed = recheck(tmp_path, content)
    assert accepted == status, printed
    last = printed.splitlines()[-1]
    assert last.startswith("unity: error: ")
    assert len(last) < 400


def test_a_library_without_certificates_is_not_proved(tmp_path: Path):
    status, printed = recheck(tmp_path, library(), made=False)
    assert status == 1
    assert "nothing is proved" in printed
    assert recheck(tmp_path, library())[0] == 0


def bundle(*forged: Forgery) -> Bundle:
    files = tuple(CertificateFile.model_validate_json(json.dumps(f.content)) for f in forged)
    return Bundle(files, {name: text for f in forged for name, text in f.scripts.items()})


def test_the_audit_takes_no_definition_for_another():
    """A rule of the library about add, and a certificate about another operator named add."""
    inputs, sides = {"x": 2, "y": 2}, ("add(x, y)", "multiply(x, y)")
    wrong = parse_rule("wrong", inputs, *sides)
    own = Operator("add", "out[i...] = x[i...] * y[i...]", commutative=True)

    def listed(operator: Operator) -> OperatorFile:
        return OperatorFile.of(own if operator.name == "add" else operator)

    forged = forge(inputs, *sides, label="wrong", operators=[own], listed=listed)
    (finding,) = check_proofs({"wrong": wrong}, bundle(forged), Z3).findings
    assert "defines add anew" in str(finding)


def test_the_audit_believes_no_solver_alone():
    inputs, sides = {"x": 2}, ("softmax(x, axis=0)", "softmax(x, axis=1)")
    forged = bundle(forge(inputs, *sides, label="wrong"))
    wrong = parse_rule("wrong", inputs, *sides)
    for solvers in (Z3, {"believed": believed}):
        (finding,) = check_proofs({"wrong": wrong}, forged, solvers).findings
        assert "its certificate is rejected" in str(finding)


@pytest.mark.parametrize("fields", [{"scripts": -1}, {"certificates": 10**18}, {"scripts": 10**18}])
def test_a_bundle_that_lies_about_its_length(fields: Content, tmp_path: Path):
    first, *rest = bundle_text(_certificates()).splitlines()
    lines = [json.dumps(json.loads(first) | fields), *rest]
    path = tmp_path / "c.jsonl.xz"
    path.write_bytes(_compressed("".join(f"{line}\n" for line in lines)))
    err = io.StringIO()
    with redirect_stderr(err), pytest.raises(SystemExit) as ended:
        run_app(app, "recheck", [str(path), "--solver", "z3", "--jobs", "1"])
    assert ended.value.code == 2
    assert len(err.getvalue().splitlines()) == 1

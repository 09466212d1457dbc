"""`unity verify`: rules of files are decided, and unreadable files are refused at once."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.graphs.operators import known_within
from support.paths import ROOT
from support.rules.foreign_rules import foreign_file, foreign_operator, foreign_rule

from pcg.fork import cores
from substitutions.rules.sources import MAX_FILE_BYTES
from unity.__main__ import main
from unity.recheck import app as recheck
from verifier.decide import Verdict

FIELDS = ("file", "rule", "verdict", "conditions", "degrees", "seconds", "counterexample", "reason")

TRUE = {"name": "twice", "inputs": {"x": 2}, "left": "relu(relu(x))", "right": "relu(x)"}
FALSE = {
    "name": "which axis?",
    "inputs": {"x": 2},
    "left": "softmax(x, axis=0)",
    "right": "softmax(x, axis=1)",
}
ILL_TYPED = {"name": "no axis", "inputs": {"x": 1}, "left": "softmax(x, axis=1)", "right": "x"}
VACUOUS = {
    "name": "nothing",
    "inputs": {"x": 2, "y": 2},
    "left": "add(x, y)",
    "right": "add(partition(x, dim=0, degree=k), y)",
}


@pytest.fixture(autouse=True)
def _restored():
    with known_within():
        yield


def written(path: Path, *rules: dict[str, Any], **more: Any) -> Path:
    path.write_text(json.dumps({"schema_version": 1, "rules": rules, **more}), "utf-8")
    return path


def verify(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    given = ["unity", "verify", "--jobs", "1", *map(str, arguments)]
    monkeypatch.setattr("sys.argv", given)
    with pytest.raises(SystemExit) as stop:
        main()
    assert isinstance(stop.value.code, int)
    return stop.value.code


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_proved_rules_end_with_status_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = written(tmp_path / "rules.json", TRUE)
    assert verify(monkeypatch, path, "--json") == 0
    (record,) = records(capsys.readouterr().out)
    assert tuple(record) == FIELDS
    assert 0 < record.pop("seconds") < 60
    assert record == {
        "file": str(path),
        "rule": "twice",
        "verdict": "proved",
        "conditions": [],
        "degrees": "all",
        "counterexample": None,
        "reason": "",
    }


def test_rules_that_are_not_proved_end_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = written(tmp_path / "rules.json", TRUE, FALSE, ILL_TYPED, VACUOUS)
    assert verify(monkeypatch, path, "--json") == 1
    printed = capsys.readouterr()
    told = records(printed.out)
    verdicts = [record["verdict"] for record in told]
    assert verdicts == [Verdict.PROVED, Verdict.REFUTED, Verdict.ILL_TYPED, Verdict.VACUOUS]
    assert [bool(record["reason"]) for record in told] == [False, True, True, True]
    assert [record["counterexample"] is None for record in told] == [True, False, True, True]
    assert printed.err == f"unity: error: {path}: 3 of 4 rules are not proved\n"


def test_conditions_are_those_of_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    rule = {
        "name": "conditional",
        "inputs": {"x": 1, "y": 1},
        "left": "split(concat(x, y, axis=0), axis=0, at=at).0",
        "right": "x",
    }
    assert verify(monkeypatch, written(tmp_path / "rules.json", rule), "--json") == 0
    (record,) = records(capsys.readouterr().out)
    assert record["conditions"] == ["at = |x.0|"]


def test_the_counterexample_is_a_program_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = written(tmp_path / "rules.json", FALSE)
    folder = tmp_path / "snippets"
    assert verify(monkeypatch, path, "--snippets", folder) == 1
    printed = capsys.readouterr().out
    (snippet,) = folder.iterdir()
    assert f"run it: {snippet}" in printed
    assert verify(monkeypatch, path, "--json") == 1
    (record,) = records(capsys.readouterr().out)
    assert record["counterexample"] == snippet.read_text()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, snippet], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "right: type" in done.stdout


def test_the_table_and_a_block_for_what_is_not_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    written(Path("a.json"), TRUE, FALSE)
    written(Path("b.json"), TRUE, ILL_TYPED)
    assert verify(monkeypatch, "a.json", "b.json") == 1
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "refuted: a.json: which axis?"
    assert lines[1] == "  softmax(x, axis=0) == softmax(x, axis=1)"
    assert lines[2] == "  the values differ"
    assert "element" in lines[3]
    assert "ill-typed: b.json: no axis" in lines
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert cells == [
        ["a.json", "1", "1", "0", "2"],
        ["b.json", "1", "0", "1", "2"],
        ["all", "2", "1", "1", "4"],
    ]
    assert printed.err == "unity: error: 2 files: 2 of 4 rules are not proved\n"


def test_foreign_rules_beside_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    own, foreign = written(tmp_path / "a.json", TRUE), foreign_file(tmp_path / "b.json")
    assert verify(monkeypatch, own, foreign, "--json") == 1
    verdicts = records(capsys.readouterr().out)
    told = [(r["file"], r["rule"], r["verdict"], r["degrees"]) for r in verdicts]
    assert told == [
        (str(own), "twice", "proved", "all"),
        (str(foreign), "any degree", "proved", "all"),
        (str(foreign), "degree 2", "proved", [2]),
        (str(foreign), "false", "refuted", "all"),
    ]
    assert "parse_graph" in verdicts[-1]["counterexample"]


def test_a_library_of_other_definitions_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    proof = {"side_conditions": 1, "digest": "0", "degrees": {}}
    kept = {"conditions": [], "verdict": "proved", "proof": proof}
    path = written(tmp_path / "rules.json", TRUE | kept, FALSE | kept, operators="stale")
    assert verify(monkeypatch, path, "--json") == 1
    verdicts = [record["verdict"] for record in records(capsys.readouterr().out)]
    assert verdicts == ["proved", "refuted"]


def test_certificates_are_written_and_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    written(Path("a.json"), TRUE, FALSE)
    written(Path("b.json"), TRUE | {"right": "relu(relu(relu(x)))"})
    assert verify(monkeypatch, "a.json", "b.json", "--certificates", "proofs") == 1
    assert len(list(Path("proofs").glob("*.json"))) == 2
    recheck(["proofs", "--solver", "z3", "--jobs", "1"], standalone_mode=False)
    assert "2 certificates accepted, 0 rejected" in capsys.readouterr().out


def test_operators_of_the_user_with_kernels_take_part_in_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "my_ops.py").write_text(
        "from pcg.types.operator import Operator\n"
        'double = Operator("double", "out[i...] = 2 * x[i...]", kernel=lambda task, x: x + x)\n'
    )
    call = {"name": "double", "inputs": {"x": 1}, "left": "double(x)"}
    true = call | {"right": "add(x, x)"}
    false = call | {"name": "square", "right": "multiply(x, x)"}
    path = written(tmp_path / "rules.json", true, false)
    given = (path, "--operators", tmp_path / "my_ops.py", "--jobs", "2", "--json")
    assert verify(monkeypatch, *given) == 1
    verdicts = records(capsys.readouterr().out)
    assert [record["verdict"] for record in verdicts] == ["proved", "refuted"]


@pytest.fixture
def usual_depth() -> Iterator[None]:
    """Use Python's own recursion limit, which libraries of other tests raise."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("usual_depth")
def test_a_rule_too_deep_to_expand_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    deep = "relu(" * 199 + "x" + ")" * 199
    path = written(tmp_path / "rules.json", TRUE | {"left": deep})
    assert verify(monkeypatch, path, "--json") == 1
    (record,) = records(capsys.readouterr().out)
    assert (record["verdict"], record["reason"]) == ("unknown", "operators nested too deeply")


def foreign_text(*left: dict[str, Any]) -> str:
    return json.dumps({"rule": [foreign_rule("r", list(left), [foreign_operator("RELU", (-1,))])]})


FIXED_AXIS = {
    **TRUE,
    "left": "softmax(x, axis=0)",
    "right": "softmax(x, axis=0)",
    "runs": [["x.0"]],
}
"""A true rule whose axis is declared as any number of axes, which is false."""
WRONG: list[tuple[str, str]] = [
    (foreign_text(foreign_operator("RELU", (1,)), foreign_operator("RELU", (0,))), "cycle"),
    (foreign_text(foreign_operator("FOO", (-1,))), "unknown operator 'OP_FOO'"),
    (foreign_text(foreign_operator("RELU", (-1, -2))), "OP_RELU: 2 inputs, expected 1"),
    (json.dumps({"schema_version": 1, "rules": [TRUE, TRUE]}), "rules[1]: the name twice is taken"),
    ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    ('{"schema_version": 1, "rules": ' + "[" * 100_000, "nested too deeply"),
    ('{"rule": ' + '{"a": ' * 100_000, "nested too deeply"),
    ('{"rules": []}', "schema_version: missing"),
    ('{"schema_version": 3, "rules": []}', "expected 1 or 2, got 3"),
    (
        json.dumps({"schema_version": 2, "rules": [FIXED_AXIS]}),
        "rules[0]: rule twice: no axis x.0 may be any number of axes",
    ),
    ('{"schema_version": 1, "rules": [', "not JSON"),
    ("{}", 'expected a rule file: "schema_version": 1 and "rules": [...], or "rule": [...]'),
    (json.dumps([TRUE]), "expected an object, got a list of 1 (expected a rule file"),
    ("", "not JSON"),
    *(
        (json.dumps({"schema_version": 1, "rules": [TRUE | changed]}), says)
        for changed, says in (
            (
                {"inputs": {"x": 2, "y": 2}, "right": "add(x, y)"},
                "rules[0]: rule twice: input y stands on the right side only",
            ),
            ({"right": "add(x, y)"}, "rules[0]: rule twice, right: unknown value 'y'"),
            ({"left": "rely(x)"}, "rules[0]: rule twice, left: unknown operator 'rely'"),
            ({"left": "relu(x, x)"}, "relu: operand *: 2 operands, expected 1"),
            ({"left": "softmax(x)"}, "softmax: operand *: attributes none, expected axis"),
            ({"left": "x, x"}, "rules[0]: rule twice: 2 outputs on the left, 1 on the right"),
            ({"left": "matmul(x"}, "rules[0]: rule twice, left: "),
            ({"left": "relu(" * 900 + "x" + ")" * 900}, "calls nested more than 200 deep"),
            ({"left": "x, " * 20_000 + "x"}, "at rules[0].left: string should have at most"),
            ({"inputs": {"x": 10**9}}, "at rules[0].inputs.x: expected less than or equal to"),
            ({"colour": "red"}, "at rules[0].colour: unknown field"),
        )
    ),
]


@pytest.mark.parametrize(("text", "says"), WRONG, ids=[says for _, says in WRONG])
def test_an_unusable_file_ends_with_status_2_at_once(
    text: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    path = tmp_path / "rules.json"
    path.write_text(text, "utf-8")
    good = written(tmp_path / "good.json", TRUE)
    # All files are read before a rule is decided.
    decided = "unity.commands.verify.limited_map"
    monkeypatch.setattr(decided, lambda *_: pytest.fail("a rule was decided"))
    assert verify(monkeypatch, good, path) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.startswith(f"unity: error: {path}: ")
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""


@pytest.mark.parametrize("size", [65 << 20, MAX_FILE_BYTES + 1])
def test_a_huge_file_is_refused_unread(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "rules.json"
    with path.open("wb") as file:
        file.truncate(size)
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("the file was read"))
    monkeypatch.setattr(Path, "read_text", lambda *_: pytest.fail("the file was read"))
    assert verify(monkeypatch, path) == 2
    assert f"larger than {MAX_FILE_BYTES >> 20} MiB" in capsys.readouterr().err


def test_a_missing_file_and_a_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert verify(monkeypatch, tmp_path / "none.json") == 2
    assert "no such file" in capsys.readouterr().err
    path = written(tmp_path / "rules.json", TRUE)
    assert verify(monkeypatch, path, "--snippets", path) == 2
    assert f"{path}: cannot be made a folder" in capsys.readouterr().err


def test_no_file_is_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = written(tmp_path / "library.json", TRUE)
    monkeypatch.setattr("unity.commands.verify.default_path", lambda: path)
    assert verify(monkeypatch) == 0


def test_number_of_processes_is_at_most_that_of_processors():
    assert 1 <= cores() <= (os.cpu_count() or 1)


def started(path: str, stderr: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "unity.verify", path]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr)


def test_progress_goes_to_terminals_only(tmp_path: Path):
    """A bar is drawn on a terminal's standard error, and the table still goes to its own place."""
    path = str(written(tmp_path / "rules.json", TRUE, FALSE))
    reader, terminal = pty.openpty()
    with started(path, terminal) as on_terminal:
        os.close(terminal)
        with started(path, subprocess.PIPE) as piped:
            out, err = piped.communicate()
        shown = read_all(reader)
        same, _ = on_terminal.communicate()
    assert b"proving" in shown
    assert err.splitlines() == [f"unity: error: {path}: 1 of 2 rules are not proved".encode()]
    assert same == out
    assert out.startswith(b"refuted: ")


def read_all(reader: int) -> bytes:
    """All output to a terminal until nobody has it open."""
    content = b""
    with contextlib.suppress(OSError):
        while part := os.read(reader, 65536):
            content += part
    os.close(reader)
    return content

"""`unity explain`, `unity diff` and `unity report`: their output, their files, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.borders import command, files, refused
from support.plans.cut_by_hand import DATA, TENSOR, plan_of

from pcg.plan.plan import save_plan
from unity.__main__ import main
from unity.diff import app as diff
from unity.explain import app as explain
from unity.optimize import app as optimize
from unity.report import app as report


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Plans on four devices of the local machine, in the current folder."""
    monkeypatch.chdir(tmp_path)
    save_plan(plan_of(DATA), "data.json")
    save_plan(plan_of(TENSOR), "tensor.json")
    return tmp_path


def test_every_operator_is_explained(folder):
    result = command(explain, "explain", "data.json")
    assert result.status == 0
    assert result.out.splitlines()[0] == "test on 4 x local"
    assert result.out.count("  placement: data 4, on devices 0-3") == 5
    assert "softmax" in result.out
    assert "all other operators stay where they are" in result.out


def test_explanation_of_one_operator_as_json(folder):
    result = command(explain, "explain", "data.json", "--operator", "w2", "--json")
    content = json.loads(result.out)
    (operator,) = content["operators"]
    assert operator["call"].startswith("matmul(")
    assert operator["cut"] == "data 4"
    assert operator["seconds"]["forward"] > 0
    assert len(operator["alternatives"]) == 8 <= operator["placements"]
    for other in operator["alternatives"]:
        more = other["step_seconds"] - content["step_seconds"]
        assert other["more_seconds"] == pytest.approx(more)


def test_number_of_alternatives_is_the_one_asked_for(folder):
    asked = ["explain", "data.json", "--operator", "w2", "--json", "--alternatives"]
    for number in (0, 3, 512):
        (operator,) = json.loads(command(explain, *asked, number).out)["operators"]
        wanted = operator["placements"] if number > 100 else number
        assert len(operator["alternatives"]) == wanted
    text = command(explain, "explain", "data.json", "--operator", "w2", "--alternatives", 0).out
    assert "next best" not in text


def test_unknown_operator_file_or_machine_is_refused(folder):
    line = refused(explain, "explain", "data.json", "--operator", "matmull")
    assert line == "data.json: matmull: no such operator in the plan (near it are matmul)"
    assert "no such file" in refused(explain, "explain", "none.json")
    line = refused(explain, "explain", "data.json", "--machine", "summit")
    assert "was made for 4 devices of local, not for 4 of summit" in line


def test_plans_differ(folder):
    result = command(diff, "diff", "data.json", "tensor.json")
    assert result.status == 0
    assert "2 operators are placed alike" in result.out
    assert "    A: data 4, on devices 0-3" in result.out
    assert "    B: model 4, on devices 0-3" in result.out
    content = json.loads(command(diff, "diff", "data.json", "tensor.json", "--json").out)
    assert content["placed_alike"] == 2
    assert len(content["operators"]) == 3
    assert content["figures"]["a"]["memory_bytes"] > content["figures"]["b"]["memory_bytes"]
    assert not content["same"]


def test_a_plan_is_the_same_as_itself(folder):
    result = command(diff, "diff", "data.json", "data.json")
    assert result.status == 0
    assert "both plans decide the same" in result.out
    assert json.loads(command(diff, "diff", "data.json", "data.json", "--json").out)["same"]


def test_plans_of_other_models_are_refused(folder):
    other = DATA.replace("48", "96")
    save_plan(plan_of(other, other), "other.json")
    line = refused(diff, "diff", "data.json", "other.json")
    assert "expected plans of one model" in line
    again = refused(report, "report", "data.json", "--against", "other.json")
    assert again == line
    assert not (folder / "report.html").exists()


def test_a_page_is_written_whole_or_not_at_all(folder):
    result = command(report, "report", "data.json", "--against", "tensor.json", "-o", "page.html")
    assert result.out == "page written to page.html\n"
    text = (folder / "page.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "tensor.json" in text
    again = command(report, "report", "data.json", "--against", "tensor.json", "-o", "page.html")
    assert again.status == 0
    assert (folder / "page.html").read_text() == text
    before = files(folder)
    assert "cannot" in refused(report, "report", "data.json", "-o", "/dev/null/page.html")
    assert "none.json" in refused(report, "report", "data.json", "--rules", "none.json")
    assert files(folder) == before


@pytest.mark.soak
def test_optimize_writes_the_page(folder):
    options = ["--planner", "data-parallel", "-o", "plan.json", "--report", "own.html", "--json"]
    result = command(optimize, "optimize", "mlp-mnist", *options)
    assert result.status == 0
    assert command(report, "report", "plan.json", "-o", "again.html").status == 0
    assert (folder / "own.html").read_text() == (folder / "again.html").read_text()
    assert "side conditions by Z3" in (folder / "own.html").read_text()
    bad = refused(optimize, "optimize", "mlp-mnist", "--report", "/dev/null/page.html")
    assert "/dev/null" in bad


def test_commands_are_listed_in_the_help(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for name in ("explain", "diff", "report"):
        assert f"\n  {name} " in shown

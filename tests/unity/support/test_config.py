"""Options from a file equal those of the flags, and a wrong file is refused in one line."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from support.cases import each

from pcg.errors import InputError
from unity.support.cli import run_app
from unity.support.commands import COMMANDS
from unity.support.config import options_of

PROBE = "unity.commands.optimize.run"


def parameters(command: str) -> list[Any]:
    app: typer.Typer = import_module(f"unity.{command}").app
    return list(typer.main.get_command(app).params)


def written(folder: Path, text: str) -> Path:
    path = folder / "unity.toml"
    path.write_text(text, "utf-8")
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The options of `unity optimize` from a command line."""

    def given(*arguments: object) -> object:
        seen: list[object] = []
        monkeypatch.setattr(PROBE, seen.append)
        app = import_module("unity.optimize").app
        with pytest.raises(SystemExit) as ended:
            run_app(app, "optimize", [str(argument) for argument in arguments])
        assert ended.value.code == 0
        return seen[0]

    return given


def test_options_of_a_file_equal_those_of_flags(asked: Any, tmp_path: Path) -> None:
    flags = ["mlp", "--nodes", 2, "-o", "p.json", "--budget", 2.5, "--no-compare", "--json"]
    flags += ["--mode", "parallel", "--batch-norm", "4", "--machine", "summit"]
    text = """
    [optimize]
    model = "mlp"
    nodes = 2
    out = "p.json"
    budget = 2.5
    compare = false
    json = true
    mode = "parallel"
    batch_norm = 4
    machine = "summit"
    [audit]
    solver = ["z3", "cvc5"]
    """
    path = written(tmp_path, text)
    assert asked("--config", path) == asked(*flags)
    assert asked("xdl", "--config", path, "--nodes", 3).model == "xdl"
    assert asked("xdl", "--nodes", 3, "--config", path).nodes == 3


@each("command", COMMANDS)
def test_every_option_of_every_command_can_be_in_a_file(
    command: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = [p for p in parameters(command) if p.name not in {"config", "help"}]
    assert own
    for parameter in own:
        for name in parameter.opts or parameter.secondary_opts:
            if name.startswith("--") or not name.startswith("-"):
                text = f"[{command}]\n{name.lstrip('-')} = true\n"
                path = written(tmp_path_factory.mktemp("config"), text)
                assert options_of(path, command, parameters(command)).keys() == {parameter.name}


def test_options_that_only_turn_off_are_read_from_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[audit]\nno-machine = true\nmachine = 'local'\nsolver = 'z3'\n")
    wanted = {"hardware": False, "machine": "local", "solver": ["z3"]}
    assert options_of(path, "audit", parameters("audit")) == wanted


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[optimise]", r"\[optimise\]: no such command, did you mean optimize\?"),
        ("[optimize]\nnods = 2", r"\[optimize\] nods: no such option, did you mean nodes\?"),
        ("[optimize]\nzzzzzz = 2", r"\[optimize\] zzzzzz: no such option$"),
        ("[optimize]\nconfig = 'x'", r"\[optimize\] config: no such option"),
        ("[optimize]\nnodes = [1, 2]", r"nodes: several values, expected text, a number, true"),
        ("[optimize]\nnodes = {a = 1}", r"nodes: a table, expected text, a number, true"),
        (
            "[optimize]\nbatch-norm = 1\nbatch_norm = 1",
            r"batch_norm: gives an option again",
        ),
        ("[audit]\nsolver = [['z3']]", r"solver: several values"),
        ("nodes = 2", r"at nodes: expected an object, got 2"),
        ("[optimize", r"not TOML|line 1"),
        ('[optimize]\n"a\\u001b" = 1', r"has the control character"),
    ],
)
def test_wrong_file_of_options_is_refused_in_one_line(
    tmp_path: Path, text: str, problem: str
) -> None:
    command = "audit" if "audit" in text else "optimize"
    with pytest.raises(InputError, match=problem) as raised:
        options_of(written(tmp_path, text), command, parameters(command))
    assert str(raised.value).startswith(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_values_are_read_as_those_of_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = import_module("unity.optimize").app
    for value in ("'two'", "true", "2.5", "nan", "''"):
        path = written(tmp_path, f"[optimize]\nmodel = 'mlp'\nnodes = {value}\n")
        with pytest.raises(SystemExit) as ended:
            run_app(app, "optimize", ["--config", str(path)])
        assert ended.value.code == 2
        assert "'--nodes'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        run_app(app, "optimize", ["--config", str(tmp_path / "none.toml")])
    assert ended.value.code == 2
    assert "no such file" in capsys.readouterr().err

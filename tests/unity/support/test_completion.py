"""Completion: the words that a shell is offered to continue a command line."""

from __future__ import annotations

import subprocess

import pytest

from unity.__main__ import main
from unity.support.commands import COMMANDS
from unity.support.completion import ASKED, SHELLS


def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str):
    """The possible words for the begun word at the end of a command line, as bash asks."""
    monkeypatch.setenv(ASKED, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" ")) - 1))
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("unity ", [*COMMANDS]),
        ("unity op", ["optimize"]),
        ("unity optimize --plan", ["--planner"]),
        ("unity optimize --mode ", ["joint", "sequential", "algebra", "parallel"]),
        ("unity run --prec", ["--precision"]),
        ("unity verify --con", ["--config"]),
        ("unity nothing --", []),
    ],
)
def test_words_that_are_begun(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: str,
    expected: list[str],
) -> None:
    assert set(expected) <= set(completed(monkeypatch, capsys, typed))


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_asks_this_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    monkeypatch.setenv(ASKED, "")
    monkeypatch.delenv(ASKED)
    with pytest.raises(SystemExit) as ended:
        main(["--completion", shell])
    assert ended.value.code == 0
    script = capsys.readouterr().out
    assert f"{ASKED}=complete_{shell}" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("given", [[], ["tcsh"], ["bash", "zsh"], ["\x1b[31m"]])
def test_other_shells_are_refused(capsys: pytest.CaptureFixture[str], given: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--completion", *given])
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert "expected one of bash, zsh, fish" in line
    assert line.count("\n") == 1
    assert "\x1b" not in line

"""The output of commands: no control character of any file reaches a terminal."""

from __future__ import annotations

import ast
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from support.paths import ROOT
from typer import Typer

import unity.audit
import unity.compare
import unity.export
import unity.generate
import unity.profile
import unity.recheck
import unity.run
import unity.simulate
import unity.verify
from pcg.errors import one_line, printable
from unity.optimize import app as optimize
from unity.support.cli import run_app, say
from unity.support.console import PlainConsole

UNITY = ROOT / "unity"
HOSTILE = "\x1b[31m \x07 \r \x9b \u202e \u2066 \u200b \ud800 \0 \x7f \u2028 [red]name[/red] :smile:"


FILE = "\x1b[31m\u202e\x07\r[red]"
COMMANDS: tuple[tuple[Typer, tuple[str, ...]], ...] = (
    (unity.verify.app, (FILE,)),
    (unity.verify.app, ("--operators", FILE)),
    (unity.recheck.app, (FILE,)),
    (unity.recheck.app, (".", "--solver", FILE)),
    (unity.audit.app, (FILE,)),
    (optimize, (FILE,)),
    (optimize, ("mlp-tiny", "--machine", FILE)),
    (unity.run.app, (FILE,)),
    (unity.simulate.app, (FILE,)),
    (unity.compare.app, (FILE,)),
    (unity.export.app, (FILE, "out")),
    (unity.generate.app, ("--explain", FILE)),
    (unity.generate.app, ("--out", f"/dev/null/{FILE}")),
    (unity.profile.app, ("--out", FILE, FILE)),
)


def _is_clean(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


@given(st.text(st.characters(codec=None)))
def test_printable_text_is_printable(text: str):
    assert _is_clean(printable(text))
    assert printable(printable(text)) == printable(text)
    assert one_line(text).isprintable()
    printable(text).encode()  # half a surrogate pair has none


def test_plain_text_stays_as_it_is():
    text = "rule r: |x.0| = 2\n  añ 中文 [1, 2]"
    assert printable(text) == text


def test_lines_and_tables(capsys: pytest.CaptureFixture[str]):
    say(HOSTILE)
    say(HOSTILE, error=True)
    console = PlainConsole()
    console.print(HOSTILE)
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    console.print(table)
    printed = capsys.readouterr()
    assert _is_clean(printed.out + printed.err)
    assert "\\x1b[31m" in printed.out
    assert "[red]name[/red] :smile:" in printed.out


def test_a_terminal_gets_the_styles_of_ours_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    console = PlainConsole()
    console.file = file = io.StringIO()
    console._force_terminal = True
    console.print(f"[bold]{HOSTILE}", style="red")
    shown = file.getvalue()
    assert "[bold]" in shown
    assert "\\x1b[31m" in shown
    assert not set("\x07\r\u202e\0\x9b") & set(shown)


def test_commands_print_in_no_other_way():
    """The tests above cover the output by ``say`` and on a ``PlainConsole``. No command prints in
    any other way."""
    wrong: list[str] = []
    for path in sorted(UNITY.rglob("*.py")):
        if path.name in ("cli.py", "console.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and node.id in ("print", "Console"):
                wrong.append(f"{path.name}:{node.lineno}: {node.id}")
            if isinstance(node, ast.Attribute) and node.attr == "echo":
                wrong.append(f"{path.name}:{node.lineno}: echo")
            if isinstance(node, ast.keyword) and node.arg == "markup":
                wrong.append(f"{path.name}:{node.value.lineno}: markup")
    assert not wrong


@pytest.mark.parametrize(("app", "arguments"), COMMANDS)
def test_refusals_of_commands_are_one_clean_line(
    app: Typer, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        run_app(app, "command", arguments)
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert printed.err.startswith("unity: error: ")
    assert printed.err.count("\n") == 1
    assert _is_clean(printed.out + printed.err)

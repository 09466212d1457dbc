"""The pages of the documentation: their blocks of code, and how tests run and compare these.

A page is Markdown. A block is the text between fences. The paragraph before it may say

- ``... in `NAME`:``, that the block is the content of a file of that name;
- ``*Run by the long tests: why*``, that it takes too long for each change;
- ``*Not run by the tests: why*``.

In a block of ``console``, ``$ `` begins a command. The lines after it are its output, with its
standard error. A line of three dots stands for any number of lines, and three dots within a line
for any text. Seconds may differ, and so may spaces and the borders of tables.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from support.graphs.operators import known_within
from support.paths import ROOT

from unity.__main__ import main

PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONTENT_OF = re.compile(r"in `([\w./-]+)`:$")
REMARK = re.compile(r"^\*(Run by the long tests|Not run by the tests):\s.+\*$", re.DOTALL)
SECONDS = re.compile(r"\b[\d.,]+ s\b")
BORDER = re.compile(r"[\s┏┓┗┛━┳┻╇┡┩└┘─┴├┤┼┃│]*")
GAP = "..."
WIDTH = "100"
"""Columns of the terminal whose output pages show."""

When = Literal["always", "long", "never"]


@dataclass(frozen=True)
class Block:
    """A block of code: the language of its fence, its text, its file name if it is the content of a
    file, and when tests run it. ``line``: the line of its fence."""

    line: int
    language: str
    text: str
    file: str | None
    when: When


@dataclass(frozen=True)
class Step:
    """A command of a page, and the output that the page shows. None if it shows none."""

    command: str
    prints: tuple[str, ...] | None


@dataclass(frozen=True)
class Result:
    """The output of a command, and its exit status."""

    status: int
    printed: str


def title(page: Path) -> str:
    """A page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> tuple[Block, ...]:
    """The blocks of a page, in order."""
    text = page.read_text("utf-8")
    return tuple(_block(text, fence) for fence in FENCE.finditer(text))


def _block(text: str, fence: re.Match[str]) -> Block:
    paragraph = text[: fence.start()].rstrip("\n").rpartition("\n\n")[2]
    file, remark = CONTENT_OF.search(paragraph), REMARK.match(paragraph)
    when: When = "always"
    if remark is not None:
        when = "long" if remark.group(1).startswith("Run") else "never"
    return Block(
        line=text.count("\n", 0, fence.start()) + 1,
        language=fence.group(1),
        text=fence.group(2),
        file=file.group(1) if file is not None else None,
        when=when,
    )


def prose(page: Path) -> str:
    """The text of a page without its blocks."""
    return FENCE.sub("", page.read_text("utf-8"))


def steps(block: Block) -> Iterator[Step]:
    """The commands of a block of ``sh`` or ``console``."""
    lines = block.text.splitlines()
    if block.language == "sh":
        yield from (Step(line, None) for line in lines if line.strip())
        return
    starts = [at for at, line in enumerate(lines) if line.startswith("$ ")]
    assert starts, f"line {block.line}: no command begins with '$ '"
    assert starts[0] == 0, f"line {block.line}: begins with no command"
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield Step(lines[start][2:], tuple(lines[start + 1 : end]))


Runner = Callable[[str, Path], Result]


def in_a_shell(command: str, folder: Path) -> Result:
    """Run a command in a shell, as a user does."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=os.environ | {"COLUMNS": WIDTH, "PYTHONPATH": str(ROOT), "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=900,
    )
    return Result(done.returncode, done.stdout)


def in_this_process(command: str, folder: Path) -> Result:
    """Run a command of Unity in this process, which saves loading torch, and any other command in a
    shell. The working folder is already ``folder``."""
    words = shlex.split(command, comments=True)
    if words[:2] == ["python", "-m"] and words[2].startswith("unity."):
        words = ["unity", words[2].removeprefix("unity."), *words[3:]]
    if words[0] != "unity" or "|" in words:
        return in_a_shell(command, folder)
    printed, status = io.StringIO(), None
    try:
        with known_within(), redirect_stdout(printed), redirect_stderr(printed):
            main(words[1:])
    except SystemExit as ended:
        status = ended.code
    assert isinstance(status, int)
    return Result(status, printed.getvalue())


def run_page(page: Path, folder: Path, run: Runner, when: Sequence[When]) -> int:
    """Run the blocks of a page in a folder, and return their number. Fails at the first block that
    does not do what the page says."""
    (folder / "generated_rules").symlink_to(ROOT / "generated_rules")
    names: dict[str, Any] = {}
    status, count = 0, 0
    for block in blocks(page):
        if block.file is not None:
            (folder / block.file).write_text(block.text, "utf-8")
        elif block.when not in when:
            continue
        elif block.language == "python":
            with _importable(folder):
                exec(compile(block.text, f"{title(page)}:{block.line}", "exec"), names)
        else:
            for step in steps(block):
                status = _take(step, status, run, folder, f"{title(page)}:{block.line}")
        count += 1
    return count


@contextmanager
def _importable(folder: Path) -> Generator[None]:
    """Make the files of a page importable as modules, and forget the modules afterwards."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for file in folder.glob("*.py"):
            sys.modules.pop(file.stem, None)


def _take(step: Step, last: int, run: Runner, folder: Path, where: str) -> int:
    """Check the output and the status of a step. The status has to be 0 if the page shows no error,
    and not 0 if it shows one."""
    if step.command == "echo $?":
        assert step.prints == (str(last),), f"{where}: the status is {last}"
        return 0
    done = run(step.command, folder)
    failing = any(line.startswith("unity: error:") for line in step.prints or ())
    assert (done.status != 0) == failing, f"{where}: status {done.status}\n{done.printed}"
    if step.prints is not None:
        problem = difference(step.prints, done.printed.splitlines())
        assert problem is None, f"{where}: {step.command}\n{problem}\nprinted:\n{done.printed}"
    return done.status


def difference(shown: Sequence[str], printed: Sequence[str]) -> str | None:
    """The difference between the lines shown and the lines printed. None if they agree."""
    left, right = _plain(shown), _plain(printed)
    parts: list[list[str]] = [[]]
    for line in left:
        if line == GAP:
            parts.append([])
        else:
            parts[-1].append(line)
    at = 0
    for number, part in enumerate(parts):
        first, last = number == 0, number == len(parts) - 1
        starts = range(at, len(right) - len(part) + 1)
        if first:
            starts = starts[:1]
        if last and part and not first:
            starts = starts[-1:]
        start_of_part = next((start for start in starts if _equal(part, right[start:])), None)
        if start_of_part is None or (last and first and len(part) != len(right)):
            return f"shown, and not printed there: {part[0] if part else 'nothing'}"
        at = start_of_part + len(part)
    return None


def _plain(lines: Sequence[str]) -> list[str]:
    """The lines without the parts that may differ."""
    kept = [line for line in lines if not BORDER.fullmatch(line)]
    return [SECONDS.sub("# s", " ".join(line.split())) for line in kept]


def _equal(shown: Sequence[str], printed: Sequence[str]) -> bool:
    return all(
        re.fullmatch(".*".join(re.escape(piece) for piece in line.split(GAP)), other)
        for line, other in zip(shown, printed, strict=False)
    )

"""The commands and snippets of the documentation work and print what the pages show."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.pages import (
    PAGES,
    Block,
    blocks,
    difference,
    in_a_shell,
    in_this_process,
    run_page,
    steps,
    title,
)

RUN = {"console", "sh", "python"}
QUICK = [page for page in PAGES if any(b.when == "always" and not b.file for b in blocks(page))]
LONG = [page for page in PAGES if any(b.when == "long" for b in blocks(page))]


@pytest.mark.parametrize("page", QUICK, ids=title)
def test_snippets_of_a_page_do_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    assert run_page(page, tmp_path, in_this_process, ("always",))


@pytest.mark.soak
@pytest.mark.parametrize("page", LONG, ids=title)
def test_long_snippets_of_a_page_do_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert run_page(page, tmp_path, in_a_shell, ("always", "long"))


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_every_block_is_run_or_a_file(page: Path):
    for block in blocks(page):
        assert block.file is not None or block.language in RUN, f"{title(page)}:{block.line}"


# ------------------------------------------------------------------------------------------------
# How blocks are read and compared


def read(text: str, tmp_path: Path) -> tuple[Block, ...]:
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")
    return blocks(page)


def test_remarks_and_files_are_read(tmp_path: Path):
    fence = "```python\n1\n```\n"
    text = (
        f"Put this in `a.py`:\n\n{fence}\n*Run by the long tests: so.*\n\n{fence}\n"
        f"*Not run by the tests:\nso.*\n\n{fence}\nIn `a.py` there is more.\n\n{fence}"
    )
    blocks = read(text, tmp_path)
    assert [block.file for block in blocks] == ["a.py", None, None, None]
    assert [block.when for block in blocks] == ["always", "long", "never", "always"]
    assert [block.line for block in blocks] == [3, 9, 16, 22]


def test_commands_are_separated_from_their_output(tmp_path: Path):
    (block,) = read("```console\n$ a b\n1\n2\n$ c\n```\n", tmp_path)
    assert [(s.command, s.prints) for s in steps(block)] == [("a b", ("1", "2")), ("c", ())]
    (block,) = read("```sh\na b\n\nc\n```\n", tmp_path)
    assert [(s.command, s.prints) for s in steps(block)] == [("a b", None), ("c", None)]


PRINTED = ["one", "two in 1.5 s", "┏━━┓", "│ a │ 2 │", "four"]


@pytest.mark.parametrize(
    "shown",
    [
        PRINTED,
        ["one", "two in 0.1 s", "│ a │   2 │", "four"],
        ["one", "...", "four"],
        ["...", "two...", "..."],
        ["..."],
        ["...", "four"],
        ["one", "..."],
        ["one", "...", "two in 1 s", "...", "four"],
    ],
)
def test_output_that_agrees_has_no_difference(shown: list[str]):
    assert difference(shown, PRINTED) is None


@pytest.mark.parametrize(
    "shown",
    [
        [],
        ["one"],
        ["four", "..."],
        ["...", "one"],
        ["...", "two...", "four", "..."],
        ["one", "two in 1.5 s", "│ a │ 3 │", "four"],
        ["one", "...", "four", "five"],
        ["one", "...", "five", "..."],
        [*PRINTED, "five"],
        ["...", "four", "...", "one", "..."],
    ],
)
def test_output_that_differs_has_a_difference(shown: list[str]):
    assert difference(shown, PRINTED) is not None


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("```console\n$ unity --version\nunity 9.9.9\n```\n", "unity 9.9.9"),
        ("```console\n$ unity frobnicate\n```\n", "status 2"),
        ("```console\n$ unity --version\nunity: error: no\n```\n", "status 0"),
        ("```console\n$ unity --version\n...\n$ echo $?\n1\n```\n", "the status is 0"),
        ("```sh\nfalse\n```\n", "status 1"),
        ("```python\nassert False, 7\n```\n", "7"),
    ],
)
def test_a_page_that_is_wrong_fails(
    block: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("support.pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(block, "utf-8")
    with pytest.raises(AssertionError, match=problem):
        run_page(page, tmp_path, in_this_process, ("always",))

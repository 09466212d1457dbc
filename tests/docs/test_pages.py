"""Names in the documentation exist: links, paths, modules, options, figures, words."""

from __future__ import annotations

import re
import runpy
import tomllib
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
import typer
from support.pages import PAGES, ROOT, blocks, prose, steps, title

import unity
from unity.__main__ import COMMANDS

PACKAGES = ("pcg", "substitutions", "verifier", "search", "runtime", "unity")
FOLDERS = (*PACKAGES, "tests", "docs", "generated_rules", ".ci")
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"(?:^|\s)(?:python -m unity\.|-m unity\.|unity[ .])([a-z]\w*)")
API = re.compile(rf"(?<!-m )\bunity\.(?:{'|'.join(unity.__all__)})\b(?! --)")
"""A function of the Python API. Some are called like commands."""
OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
FOREIGN = {"--nproc-per-node", "--nnodes", "--rdzv-backend", "--rdzv-endpoint", "-m", "--help"}
"""Options of torchrun and of Python, and the option that every command has."""

OF_OURS = ("way back", "ways to lie", "way to lie", "stretch", "weights in parts", "mesh digit")
"""Words that the glossary has others for."""


@lru_cache(maxsize=1)
def options() -> dict[str, set[str]]:
    """The options of each command."""
    by_command: dict[str, set[str]] = {}
    for name in COMMANDS:
        command = typer.main.get_command(import_module(f"unity.{name}").app)
        by_command[name] = {
            option for p in command.params for option in (*p.opts, *p.secondary_opts) if option
        }
    return by_command


def lines_of_code(page: Path) -> list[str]:
    """The code on a page: commands, and code within a line."""
    shown = [b for b in blocks(page) if b.file is None and b.language in ("sh", "console")]
    return [s.command for b in shown for s in steps(b)] + CODE.findall(prose(page))


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_options_exist(page: Path):
    known = set().union(*options().values()) | FOREIGN
    for line in lines_of_code(page):
        named = COMMAND.search(line)
        if API.search(line):
            continue
        given = set(OPTION.findall(line)) if named or line.startswith("--") else set[str]()
        if named:
            assert named.group(1) in COMMANDS, line
            given -= FOREIGN | options()[named.group(1)]
            assert not given, f"{line}: no such options: {given}"
        assert given <= known, f"{line}: no such options: {given - known}"


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=title)
def test_links_lead_somewhere(page: Path):
    for target in LINK.findall(prose(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE)
            assert anchor in map(slug, headings), target


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=title)
def test_paths_and_names_exist(page: Path):
    for line in lines_of_code(page):
        for word in re.findall(r"[\w./-]+", line):
            if "/" in word and word.split("/")[0] in FOLDERS and "NAME" not in word:
                assert (ROOT / word).exists(), word
            elif re.fullmatch(rf"({'|'.join(PACKAGES)})(\.[a-z]\w*)(\.\w+)*", word):
                assert resolve_name(word), word


def test_targets_of_make_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {
        target
        for page in PAGES
        for line in lines_of_code(page)
        for target in re.findall(r"^make (\w+)", line)
    }
    assert named
    assert named <= targets


def test_every_page_is_linked():
    for index in (ROOT / "docs" / "README.md", ROOT / "README.md"):
        targets = {
            (index.parent / t.partition("#")[0]).resolve() for t in LINK.findall(prose(index))
        }
        missing = {p for p in (ROOT / "docs").glob("*.md") if p.name != "README.md"} - targets
        assert not missing, (title(index), missing)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 900


def test_the_readme_says_what_has_not_run():
    text = (ROOT / "README.md").read_text("utf-8")
    assert "no step has run on two GPUs yet" in text.partition("## Start")[0]


# ------------------------------------------------------------------------------------------------
# Words and figures


def glossary() -> list[str]:
    """The words of the glossary."""
    section = (ROOT / "docs" / "concepts.md").read_text("utf-8").partition("## Glossary")[2]
    return [term for row in section.splitlines() for term in re.findall(r"\*\*(.+?)\*\*", row)]


def test_the_words_of_the_glossary_are_used():
    concepts = ROOT / "docs" / "concepts.md"
    pages = [prose(page) for page in PAGES if page != concepts]
    text = " ".join(" ".join([*pages, prose(concepts).partition("## Glossary")[0]]).lower().split())
    terms = glossary()
    assert len(terms) == len(set(terms)) > 30
    unused = [term for term in terms if term.split(" (")[0].lower() not in text]
    assert not unused


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_words_are_those_of_the_glossary(page: Path):
    text = " ".join(prose(page).lower().split())
    assert not [word for word in OF_OURS if word in text]


def test_figures_are_drawn_by_their_script():
    folder = ROOT / "docs" / "images"
    figures = runpy.run_path(str(folder / "figures.py"))["FIGURES"]
    assert {path.stem for path in folder.glob("*.svg")} == set(figures)
    for name, draw in figures.items():
        assert (folder / f"{name}.svg").read_text("utf-8") == draw(), name


def test_figures_are_shown():
    shown = {Path(target).name for page in PAGES for target in LINK.findall(prose(page))}
    assert {path.name for path in (ROOT / "docs" / "images").glob("*.svg")} <= shown


def test_the_licence_is_the_one_that_is_stated():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert text.split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert "END OF TERMS AND CONDITIONS" in text

"""Plans whose names are markup, code or control characters: these are shown as plain text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest
from support.borders import command, refused
from support.chromium import needs_browser, seen_by_browser
from support.plans.cut_by_hand import DATA, TENSOR, machine, plan_of

from pcg.plan.derivation import Application, AppliedRule
from pcg.plan.naming import NamingFile, ParameterFile
from pcg.plan.plan import Plan, save_plan
from search.report.page.page import page
from unity.diff import app as diff
from unity.explain import app as explain
from unity.report import app as report

EVIL = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "\"'><svg onload=document.title='owned'>",
    "</style><style>*{display:none}</style>",
    "<!--<script>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:document.title='owned'",
    "\u2028\u2029\u202e\u0000\u001b[31m]]>",
    "__proto__",
    "a" * 5000,
)


def named(evil: str) -> Plan:
    """A plan with hostile text in every name that its file may have."""
    plan = plan_of(DATA)
    rule = AppliedRule(evil, evil, (), (), reversed=False, text=evil)
    return replace(
        plan,
        model_name=evil,
        machine=plan.machine.model_copy(update={"name": evil}),
        library_hash=evil,
        derivation=(Application(rule, (evil,), (evil,)),),
        naming=NamingFile(parameters={"w1": ParameterFile.model_construct(names=(evil,))}),
    )


class Tags(HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))


@cache
def harmless() -> list[tuple[str, tuple[str, ...]]]:
    """The elements of the page of a plan with plain names."""
    return Tags(page(named("name"), machine(), explained=1)).found


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_a_name_is_no_part_of_the_page(evil):
    text = page(named(evil), machine(), explained=1)
    assert Tags(text).found == harmless()
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert "<" not in data[1]
    assert any(evil in box for box, _ in json.loads(data[1])["after"]["boxes"])


@needs_browser
def test_a_browser_shows_names_as_text(tmp_path):
    evil = "".join(name for name in EVIL if "\0" not in name and len(name) < 100)
    code = """
    for (const box of document.querySelectorAll("g.box")) box.dispatchEvent(new Event("click"));
    return { title: document.title, images: document.images.length,
             told: document.getElementById("told").textContent,
             shown: document.querySelector("h1").textContent };"""
    seen = seen_by_browser(page(named(evil), machine(), explained=1), code, tmp_path)
    assert (seen["errors"], seen["refused"], seen["loaded"]) == ([], [], [])
    result = seen["result"]
    assert result["title"].startswith("Unity: </script>")
    assert result["images"] == 0
    assert evil in result["shown"]


def test_terminals_get_no_control_characters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = plan_of(DATA)
    for name, text in (("good", "x [red] == x"), ("bad", "x\u202e == x")):
        rule = AppliedRule("r", "r", (), (), reversed=False, text=text)
        save_plan(replace(plan, derivation=(Application(rule, ("t0",), ("x",)),)), name)
    save_plan(plan, "plain")
    assert "x [red] == x" in command(diff, "diff", "plain", "good").out
    for app, name in ((diff, "diff"), (explain, "explain"), (report, "report")):
        files = ("bad", "good") if app is diff else ("bad",)
        assert "has the control character U+202E" in refused(app, name, *files)
    for wanted in ("w1\u202e\n\x1b[31m", "", "[red]"):
        assert "no such operator" in refused(explain, "explain", "good", "--operator", wanted)


def test_files_that_are_no_plans_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_plan(plan_of(TENSOR), "plan.json")
    for name, text in {"empty": "", "list": "[]", "cut": '{"schema_version": 4'}.items():
        (tmp_path / name).write_text(text)
        for one in (name, "plan.json"):
            other = "plan.json" if one == name else name
            assert refused(diff, "diff", one, other).startswith(f"{name}: ")


def test_smallest_plan_has_a_page():
    text = "x = input[1, 1]\nw = weight[1, 1]\nreturn mean_loss(matmul(x, w))\n"
    plan = plan_of(text, text, devices=1)
    assert "this plan" in page(plan, machine(1))

"""The trusted part is one folder, which imports nothing that searches."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from support.cases import each
from support.paths import ROOT

TRUSTED = sorted((ROOT / "verifier" / "trusted").rglob("*.py"))


def imported(path: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules.update(name.name for name in node.names)
    return modules


@each("path", TRUSTED, ids=lambda path: path.stem)
def test_trusted_part_imports_no_other_part(path: Path):
    ours = {m for m in imported(path) if m.split(".")[0] in ("verifier", "substitutions", "search")}
    assert all(module.startswith("verifier.trusted") for module in ours), ours


def test_the_page_about_proofs_states_its_lines():
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in TRUSTED)
    text = (ROOT / "docs" / "proofs.md").read_text("utf-8")
    stated = re.search(r"`verifier/trusted/` \(([\d,]+) lines", text)
    assert stated is not None
    assert int(stated.group(1).replace(",", "")) == lines

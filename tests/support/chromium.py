"""A headless Chromium, if one is installed: the state of a page after its scripts have run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WATCH = """<script>
const seen = { errors: [], refused: [] };
addEventListener("error", (event) => seen.errors.push(String(event.message)));
addEventListener("unhandledrejection", (event) => seen.errors.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => seen.refused.push(event.blockedURI));
console.error = (...words) => seen.errors.push(words.join(" "));
</script>"""
TELL = """<script>
seen.result = (() => {{ {code} }})();
seen.loaded = performance.getEntriesByType("resource").map((entry) => entry.name);
document.body.dataset.seen = JSON.stringify(seen);
</script>"""


def browser() -> str | None:
    """The path of a Chromium, if one is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


needs_browser = pytest.mark.skipif(browser() is None, reason="no Chromium is installed")


def seen_by_browser(page: str, code: str, folder: Path, width: int = 1280) -> dict[str, Any]:
    """The state of a page in a window of ``width`` pixels: its errors, the requests that its policy
    refused, the resources that it loaded beside itself, and the return value of ``code``, the body
    of a function."""
    path = browser()
    assert path is not None
    watched = page.replace("<head>", f"<head>{WATCH}", 1)
    file = folder / "watched.html"
    file.write_text(watched.replace("</body>", TELL.format(code=code) + "</body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    options += ["--disable-component-update", "--no-first-run", f"--window-size={width},900"]
    options += [f"--user-data-dir={folder / 'profile'}", "--dump-dom", file.as_uri()]
    done = subprocess.run([path, *options], capture_output=True, text=True, check=True, timeout=90)
    told = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert told is not None, done.stderr[-2000:]
    return json.loads(unescape(told[1]))

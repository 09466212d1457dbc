"""The releases that the project allows, pins and is tried with are in accord."""

from __future__ import annotations

from support.oldest import oldest
from support.pages import ROOT


def numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def test_the_pinned_releases_are_allowed() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = dict(line.lower().split("==") for line in lines if "==" in line)
    needed = {name.lower(): release for name, release in oldest()}
    assert {"numpy", "pydantic", "torch", "typer", "z3-solver", "pytest"} <= needed.keys() & pinned
    for name in needed.keys() & pinned:
        assert numbers(pinned[name]) >= numbers(needed[name]), name


def test_each_package_has_one_oldest_release() -> None:
    every = set(oldest())
    assert len(every) == len({name for name, _ in every})

"""Print constraints for pip: the oldest releases that pyproject.toml allows.

    python tests/support/oldest.py > oldest.txt

``make oldest`` runs the tests with these releases. ``>=2.11`` becomes ``==2.11.*``, of which pip
takes the last.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
REQUIREMENT = re.compile(r"(?P<name>[\w-]+)(\[[\w,-]+\])?>=(?P<release>[\d.]+)")


def oldest(project: Path = PROJECT) -> Iterator[tuple[str, str]]:
    """The packages that a project needs, extras included, with the oldest release of each."""
    table = tomllib.loads(project.read_text("utf-8"))["project"]
    for needed in (table["dependencies"], *table["optional-dependencies"].values()):
        for text in needed:
            found = REQUIREMENT.fullmatch(text)
            assert found is not None, f"{project}: {text}: expected NAME>=RELEASE"
            yield found["name"], found["release"]


def main() -> None:
    for name, release in sorted(set(oldest())):
        print(f"{name}=={release}" if release.count(".") > 1 else f"{name}=={release}.*")


if __name__ == "__main__":
    main()

"""Run programs in processes of their own, and read their output."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from support.paths import ROOT


def with_packages() -> dict[str, str]:
    """The environment of programs that import the repository's packages."""
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return os.environ | {"PYTHONPATH": path}


def answer_of(
    command: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None
) -> Any:
    """The last line that a program prints, read as JSON. Raises CalledProcessError if the program
    fails."""
    done = subprocess.run(
        command,
        env=environment or with_packages(),
        capture_output=True,
        text=True,
        check=True,
        timeout=timeout,
    )
    return json.loads(done.stdout.splitlines()[-1])

"""The path of the repository."""

from __future__ import annotations

from pathlib import Path

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())

"""A folder with checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.runs.checkpoints import MODEL, plan_of, train


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with checkpoints of steps 2, 4 and 5, which tests may not change."""
    folder = tmp_path_factory.mktemp("trained")
    train(plan_of(MODEL), folder, 5)
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of this folder, which tests may change."""
    return Path(shutil.copytree(trained, tmp_path / "copy"))

"""The modules that a command loads before it works: its options, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest
from support.paths import ROOT

import unity
from search.choices import OTHER_SYSTEMS, PLANNER_NAMES
from search.pipeline.planner import PIPELINES
from search.plan.families import PLANNERS
from unity.__main__ import COMMANDS
from verifier.solvers import SOLVERS

HEAVY = {
    "cvc5",
    "highspy",
    "matplotlib",
    "networkx",
    "numba",
    "numpy",
    "pydantic",
    "rich",
    "torch",
    "z3",
}
"""Packages that take long to load."""

LIGHT = {
    "pcg.budget",
    "pcg.collection",
    "pcg.errors",
    "pcg.plan.precision",
    "pcg.plan.training",
    "pcg.zoo",
    "runtime.world.status",
    "search.choices",
    "substitutions.generate.limits",
}
"""Modules of ours below the commands that their options need."""


def loaded(code: str) -> set[str]:
    """The modules that a new Python process has loaded at the end of some code."""
    end = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{end}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def of_ours(names: set[str]) -> set[str]:
    """Modules of layers below the commands, without the packages that contain them."""
    tops = ("pcg", "verifier", "substitutions", "search", "runtime")
    ours = {name for name in names if name.startswith(tuple(f"{top}." for top in tops))}
    return {name for name in ours if not any(other.startswith(f"{name}.") for other in ours)}


HELP = """
from unity.__main__ import COMMANDS, main

for command in ("", *COMMANDS):
    try:
        main([*([command] if command else []), "--help"])
    except SystemExit as end:
        assert end.code == 0, command
    else:
        raise AssertionError(command)
"""


def test_options_and_help_load_nothing_heavy():
    """All commands in one process, which shows the same for each."""
    names = loaded(HELP)
    assert {f"unity.{command}" for command in COMMANDS} <= names
    assert not HEAVY & names
    assert of_ours(names) <= LIGHT
    assert not any(name.startswith("unity.commands") for name in names)


def test_the_package_itself_loads_nothing_heavy():
    names = loaded("import unity; dir(unity)")
    assert not HEAVY & names
    assert not of_ours(names)


def test_functions_keep_their_names_beside_commands():
    module = import_module("unity.optimize")
    import_module("unity.commands.optimize")
    assert unity.optimize is not module
    assert unity.optimize.__module__ == "unity.api.optimizing"
    assert all(getattr(unity, name) is not None for name in unity.__all__)
    assert {*unity.__all__} <= {*dir(unity)}
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        getattr(unity, "optimise")  # noqa: B009 for pyright


def test_commands_load_no_torch():
    """Commands load torch when they need it. Rules and their proofs never need it. An export is all
    tensors."""
    commands = [command for command in COMMANDS if command != "export"]
    names = loaded("\n".join(f"import unity.commands.{command}" for command in commands))
    assert "torch" not in names


SEARCH = """
import sys
from unity.optimize import app
from unity.support import processes

processes.cores = lambda: 2
sys.argv = ["optimize", "mlp-tiny", "-o", {path!r}]
app(standalone_mode=False)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")
def test_a_search_loads_no_torch(tmp_path: Path):
    """The model is captured in a fork, and its plan and report need no torch."""
    path = tmp_path / "plan.json"
    names = loaded(SEARCH.format(path=str(path)))
    assert path.exists()
    assert "torch" not in names


LOOK = """
from unity.commands.looking import look_at
from unity.optimize import Options

look_at(Options("mlp-tiny"))
"""


def test_a_look_at_a_model_loads_no_search():
    """The fork begins before a search is loaded. Loading it there as well would take as long."""
    names = loaded(LOOK)
    assert "torch" in names
    assert of_ours(names) & of_ours(loaded("import unity.commands.planning")) >= {"pcg.machine"}
    assert not any(name.startswith(("search.", "substitutions.rules")) for name in names - LIGHT)
    assert "numba" not in names


def test_workers_of_a_run_load_no_prover_and_no_rules():
    """Each device has a worker, and the run waits for each of them."""
    names = loaded("import unity.run, unity.commands.train")
    assert "z3" not in names
    assert not any(name.startswith(("verifier", "substitutions", "search.")) for name in names)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_work_of_a_command_takes_its_options(command: str):
    options = import_module(f"unity.{command}").Options
    run = import_module(f"unity.commands.{command}").run
    assert get_type_hints(run) == {"options": options, "return": type(None)}


def test_names_of_planners_and_solvers_in_help_texts_exist():
    assert (*PLANNERS, *PIPELINES, *OTHER_SYSTEMS) == PLANNER_NAMES
    assert list(SOLVERS) == ["z3", "cvc5"]

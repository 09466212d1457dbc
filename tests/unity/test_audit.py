"""`unity audit`: plans of every planner follow, altered plans do not, and each finding is a
line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.cases import a_third
from typer.testing import CliRunner, Result

from pcg.errors import InputError, NegativeAnswer
from pcg.machine import load_machine
from pcg.models import build_model, capture_model
from pcg.plan.plan import part_hashes, save_plan
from pcg.plan.schema import PlanFile
from pcg.plan.text import parse_graph
from search.plan.families import PLANNERS
from search.plan.planner import MeshPlanner
from substitutions.audit.locate import of_module
from substitutions.rules.store import Library, default_path, load_library
from unity.__main__ import main
from unity.audit import app

runner = CliRunner()
Content = dict[str, Any]

UNDETERMINED = [
    "the optimizer and the recomputed operators, which are decisions",
    "the estimates, which are predictions",
]


def audit(*arguments: str) -> Result:
    return runner.invoke(app, list(arguments), catch_exceptions=True)


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, library: Library) -> Path:
    """A plan of a model of the zoo for two devices."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    machine = load_machine("local").with_devices(2)
    captured = capture_model("mlp-tiny", None, 2)
    plan = MeshPlanner(machine, library).plan("mlp-tiny", captured.graph).plan
    save_plan(of_module(plan, captured, library.rules), path)
    return path


@pytest.fixture
def plan(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(written, tmp_path / "plan.json"))


def altered(path: Path, change: Callable[[Content], None], *, hashed: bool = True) -> None:
    """Alter a plan file, with hashes that fit."""
    content = json.loads(path.read_text())
    change(content)
    if hashed:
        content["hashes"] = part_hashes(PlanFile.model_validate_json(json.dumps(content)))
    path.write_text(json.dumps(content))


def test_a_plan_follows(plan: Path):
    result = audit(str(plan), "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert f"{plan}: follows from mlp-tiny" in result.stdout
    for said in ("steps by", "side conditions that z3 solved", "2 x local", "captured again"):
        assert f"{said}" in result.stdout
    skipped = [line for line in result.stdout.splitlines() if line.startswith("not checked: ")]
    assert [line.removeprefix("not checked: ") for line in skipped] == UNDETERMINED


def test_json_has_the_figures(plan: Path):
    result = audit(str(plan), "--json", "--no-capture")
    content = json.loads(result.stdout)
    assert content["sound"] is True
    assert content["findings"] == []
    assert content["not_checked"] == ["the model (--no-capture)", *UNDETERMINED]
    steps = json.loads(plan.read_text())["decisions"]["derivation"]
    assert content["steps"] == len(steps)
    assert content["conditions"] > 2 * content["steps"]
    assert content["side_conditions"] > 10 * content["rules"]


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=() if f == "expert" else pytest.mark.soak) for f in PLANNERS],
)
def test_plans_of_every_planner_follow(family: str, tmp_path: Path, library: Library):
    machine = load_machine("summit").with_devices(2)
    graph = build_model("dlrm-tiny", 48, machine.devices)
    path = tmp_path / "plan.json"
    save_plan(MeshPlanner(machine, library, family).plan("dlrm-tiny", graph).plan, path)
    result = audit(str(path), "--no-proofs", "--no-capture")
    assert result.exit_code == 0, result.output
    assert "not checked: the proofs of the rules (--no-proofs)" in result.stdout


def with_gelu(lines: list[str]) -> list[str]:
    return [re.sub(r"\brelu\(", "gelu(", line) for line in lines]


def recut(content: Content) -> None:
    """Another degree for the last cut."""
    steps = content["decisions"]["derivation"]
    next(step for step in reversed(steps) if "k" in step["symbols"])["symbols"]["k"] = 4


def relabelled(content: Content) -> None:
    """The plan's own graph, with another model at its beginning."""
    content["model"]["graph"] = with_gelu(content["model"]["graph"])
    content["model"]["hash"] = parse_graph("\n".join(content["model"]["graph"])).digest


def other_layer(content: Content) -> None:
    for graph in (content["model"], content["decisions"]):
        graph["graph"] = with_gelu(graph["graph"])
    content["model"]["hash"] = parse_graph("\n".join(content["model"]["graph"])).digest


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c.update(library_hash="0"), "library_hash: 0, expected"),
        (lambda c: c["machine"].update(hash="0"), "machine.hash: 0, expected"),
        (lambda c: c["machine"].update(kind="gpu"), "machine.kind: gpu, expected cpu"),
        (lambda c: c["machine"].update(devices=3), "machine.hash: "),
        (lambda c: c["decisions"]["derivation"].pop(0), "decisions.derivation[0]: "),
        (recut, "decisions.graph["),
        (other_layer, "decisions.derivation["),
        (relabelled, "decisions.derivation["),
    ],
)  # fmt: skip
def test_altered_plan_is_a_finding_in_one_line(
    plan: Path, change: Callable[[Content], None], says: str
):
    altered(plan, change)
    result = audit(str(plan), "--no-capture", "--no-proofs")
    assert isinstance(result.exception, NegativeAnswer)
    lines = [line for line in result.stdout.splitlines() if line.startswith(str(plan))]
    assert len(lines) == 1
    assert lines[0].startswith(f"{plan}: {says}")
    assert str(result.exception) == f"{plan}: does not follow, 1 finding"


def test_altered_view_is_found_by_its_hash(plan: Path):
    def moved(content: Content) -> None:
        view = next(v for v in content["decisions"]["views"].values() if 2 in v["shape"])
        view["strides"] = [n if n else 2 for n in view["strides"]]  # of axes of one task

    altered(plan, moved, hashed=False)
    result = audit(str(plan), "--no-capture", "--no-proofs")
    assert isinstance(result.exception, NegativeAnswer)
    assert f"{plan}: decisions.views: was changed after it was written: its hash" in result.stdout


def test_plan_of_another_model_is_a_finding_with_its_line(plan: Path):
    altered(plan, lambda c: c["model"].update(name="mlp-mnist"))
    result = audit(str(plan), "--no-proofs", "--jobs", "1")
    assert isinstance(result.exception, NegativeAnswer)
    assert f"{plan}: model.graph[0]: 'x = input[" in result.stdout
    assert "as mlp-mnist is captured" in result.stdout


def swapped(content: Content) -> None:
    """Two weights with their names swapped."""
    names = content["naming"]["parameters"]
    first, second, *_ = sorted(names)
    names[first], names[second] = names[second], names[first]


def transposed(content: Content) -> None:
    content["naming"]["parameters"]["w1"]["transposed"] = True


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (swapped, "naming.parameters.w1: w2, expected w1 as mlp-tiny is captured"),
        (transposed, "naming.parameters.w1: w1, transposed, expected w1 as mlp-tiny is captured"),
        (lambda c: c["naming"]["parameters"].popitem(), r"naming.parameters.\w+: nothing, expec"),
        (lambda c: c["naming"]["inputs"].append(None), r"naming.inputs\[\d\]: None, expected no"),
        (lambda c: c["naming"]["buffers"].update(x="y"), r"naming.buffers.x: y, expected nothing"),
    ],
)  # fmt: skip
def test_weights_go_under_their_own_names(plan: Path, change: Callable[[Content], None], says: str):
    altered(plan, change)
    result = audit(str(plan), "--no-proofs", "--jobs", "1")
    assert isinstance(result.exception, NegativeAnswer)
    assert re.search(f"{re.escape(str(plan))}: {says}", result.stdout), result.stdout


@pytest.fixture(scope="module")
def normed(tmp_path_factory: pytest.TempPathFactory, library: Library) -> Path:
    """A plan of a model with batch norms."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    machine = load_machine("local").with_devices(2)
    captured = capture_model("resnext50-tiny", None, 2)
    planner = MeshPlanner(machine, library, "data-parallel")
    plan = planner.plan("resnext50-tiny", captured.graph).plan
    save_plan(of_module(plan, captured, library.rules), path)
    return path


def means_swapped(content: Content) -> None:
    first, second, *_ = content["statistics"]
    first["mean"], second["mean"] = second["mean"], first["mean"]


@pytest.mark.parametrize(
    ("change", "says"),
    a_third([
        (means_swapped, r"statistics\[0\].mean: .*, expected .*running_mean"),
        (lambda c: c["statistics"][1].update(momentum=0.5), r"statistics\[1\].momentum: 0.5, exp"),
        (lambda c: c["statistics"][1].update(at=None), r"statistics\[1\].at: None, expected t\d+"),
        (lambda c: c["statistics"].pop(), r"statistics\[\d+\]: nothing, expected a record"),
    ]),
)  # fmt: skip
def test_wrong_running_statistics_are_a_finding(
    normed: Path, tmp_path: Path, change: Callable[[Content], None], says: str
):
    plan = Path(shutil.copy(normed, tmp_path / "plan.json"))
    altered(plan, change)
    result = audit(str(plan), "--no-proofs", "--jobs", "1")
    assert isinstance(result.exception, NegativeAnswer)
    assert re.search(f"{re.escape(str(plan))}: {says}", result.stdout), result.stdout


def test_a_plan_with_running_statistics_follows(normed: Path):
    result = audit(str(normed), "--no-proofs", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert "batch norms keep running statistics" in result.stdout


def test_parameter_names_that_a_plan_does_not_state_are_not_checked(plan: Path):
    altered(plan, lambda c: c.update(naming=None))
    result = audit(str(plan), "--no-proofs", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert (
        "not checked: the names of its parameters, which the plan does not state" in result.stdout
    )


MODEL = """\
import torch
from torch import nn

def make_model():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)
        def forward(self, x):
            return torch.relu(self.layer(x)).square().mean()
    return Small(), (torch.zeros(64, 16),)
"""


def test_model_file_is_only_run_if_the_caller_names_it(tmp_path: Path, library: Library):
    source, path = tmp_path / "mine.py", tmp_path / "plan.json"
    source.write_text(MODEL)
    name = f"{source}:make_model"
    machine = load_machine("summit").with_devices(2)
    graph = build_model(name, None, 2)
    save_plan(MeshPlanner(machine, library).plan(name, graph).plan, path)
    source.write_text(MODEL.replace("relu", "tanh") + "\nopen(__file__ + '.ran', 'w').close()\n")
    result = audit(str(path), "--no-proofs")
    assert isinstance(result.exception, NegativeAnswer), result.output
    assert f"could not be checked: the model, because {name} is not in the zoo" in result.stdout
    assert audit(str(path), "--no-proofs", "--no-capture").exit_code == 0
    assert not source.with_name("mine.py.ran").exists()
    other = audit(str(path), "--no-proofs", "--model", name, "--jobs", "1")
    assert isinstance(other.exception, NegativeAnswer)
    assert "relu(" in other.stdout
    assert "tanh(" in other.stdout


def test_a_machine_that_is_not_known_is_no_success(plan: Path):
    def change(content: Content) -> None:
        content["machine"]["name"] = "mine"

    altered(plan, change)
    result = audit(str(plan), "--no-proofs", "--no-capture")
    assert isinstance(result.exception, NegativeAnswer), result.output
    assert "could not be checked in full: the machine, because mine is not a preset" in str(
        result.exception
    )
    left_out = audit(str(plan), "--no-proofs", "--no-capture", "--no-machine")
    assert left_out.exit_code == 0
    assert "not checked: the machine (--no-machine)" in left_out.stdout
    as_json = json.loads(audit(str(plan), "--no-proofs", "--no-capture", "--json").stdout)
    assert not as_json["sound"]
    assert as_json["findings"] == []
    assert [line.split()[1] for line in as_json["could_not_check"]] == ["machine,"]


def test_rules_without_certificates_are_refused(plan: Path, tmp_path: Path):
    rules = Path(shutil.copy(default_path(), tmp_path / "rules.json"))
    missing = audit(str(plan), "--rules", str(rules), "--no-capture")
    assert isinstance(missing.exception, InputError)
    assert missing.exception.where == str(tmp_path / "certificates.jsonl.xz")
    assert audit(str(plan), "--rules", str(rules), "--no-capture", "--no-proofs").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("missing.json",), "missing.json: no such file"),
        (("plan.json", "--no-capture", "--solver", "mine"), "mine"),
        (("plan.json", "--no-capture", "--no-proofs", "--machine", "cray"), "no such machine"),
        (("plan.json", "--model", "cray", "--no-proofs", "--jobs", "1"), "model cray: unknown"),
        (("plan.json", "--no-capture", "--rules", "missing.json"), "missing.json: no such file"),
    ],
)
def test_wrong_input_is_one_line(
    plan: Path,
    arguments: tuple[str, ...],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(plan.parent)
    monkeypatch.setattr("sys.argv", ["unity", "audit", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.strip().splitlines()) == 1

"""`unity compare`: its table, files and plots, the files after an interruption, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from pcg import machine
from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.models import build_model
from pcg.plan.plan import load_plan
from search.cost.planned import Planned
from search.plan.planner import MeshPlanner
from substitutions.rules.store import load_library
from unity import __main__ as console
from unity.compare import app
from unity.diff import app as diff
from unity.support.comparison import (
    ComparisonFile,
    Prediction,
    file_stems,
    first_devices,
    over_others,
    samples,
)
from unity.support.plot import plot, plot_steps

SMALL = ("--machine", "local", "--gpus", "2,1", "--planners", "data-parallel,joint")


def compare(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module", autouse=True)
def _one_library():
    """Read the library once: reading takes a second or two for each command."""
    with pytest.MonkeyPatch.context() as patch:
        library = load_library()
        patch.setattr("unity.commands.compare.load_library", lambda: library)
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    out = tmp_path_factory.mktemp("compared") / "new"
    return compare("mlp-tiny", *SMALL, "-o", str(out), "--json"), out


def test_comparison_file_holds_the_predictions_of_the_planners(done: tuple[Result, Path]):
    result, out = done
    assert result.exit_code == 0, result.output
    content = ComparisonFile.model_validate_json((out / "compare.json").read_text())
    assert json.loads(result.stdout) == json.loads((out / "compare.json").read_text())
    asked = [(n, planner) for n in (1, 2) for planner in ("data-parallel", "joint")]
    assert [(e.devices, e.planner) for e in content.entries] == asked
    for entry in content.entries:
        assert entry.step_seconds is not None
        assert entry.samples_per_second == pytest.approx(entry.batch / entry.step_seconds)
        if entry.planner == "joint":
            ratio = over_others(entry, content.entries)
            assert ratio is not None
            assert ratio >= 1
    target = first_devices(load_machine("local"), 2)
    graph = build_model("mlp-tiny", None, 2)
    alone = MeshPlanner(target, load_library()).plan("mlp-tiny", graph).plan.estimates
    assert content.entries[3].step_seconds == alone.step_seconds
    assert content.entries[3].memory_bytes == alone.peak_memory_bytes


def test_plans_of_a_comparison_are_saved_for_unity_diff(done: tuple[Result, Path]):
    """``unity diff`` compares any two plans of a model on equally many devices."""
    _, out = done
    content = ComparisonFile.model_validate_json((out / "compare.json").read_text())
    for entry in content.entries:
        assert entry.plan is not None
        assert load_plan(out / entry.plan).estimates.step_seconds == entry.step_seconds
        parts = entry.parts
        assert parts is not None
        total = parts.computing + parts.exposed + parts.idle
        assert total == pytest.approx(entry.step_seconds)
    two = [str(out / str(entry.plan)) for entry in content.entries[2:]]
    told = CliRunner().invoke(diff, two)
    assert told.exit_code == 0, told.output
    assert "in A" in told.output


def test_the_table_has_a_row_for_each(done: tuple[Result, Path]):
    result, _ = done
    lines = result.stderr.splitlines()
    assert sum("data-parallel" in line for line in lines) == 2
    assert max(len(line) for line in lines if "data-parallel" in line) <= 80


@pytest.fixture
def _undrawn(monkeypatch: pytest.MonkeyPatch):
    """Draw no plots: plots take longer than small plans."""
    monkeypatch.setattr("unity.commands.compare.plot", lambda *given: ("x.svg", "x.png"))
    monkeypatch.setattr("unity.commands.compare.plot_steps", lambda *given: None)


@pytest.mark.usefixtures("_undrawn")
def test_pipelines_can_be_compared(tmp_path: Path):
    few = ("--machine", "local", "--gpus", "2", "--planners", "zero,pipeline")
    result = compare("xdl-tiny", *few, "-o", str(tmp_path))
    assert result.exit_code == 0, result.output
    content = ComparisonFile.model_validate_json((tmp_path / "compare.json").read_text())
    assert [entry.planner for entry in content.entries] == ["zero", "pipeline"]
    assert all(entry.step_seconds is not None for entry in content.entries)


def test_plots_are_drawn(done: tuple[Result, Path]):
    _, out = done
    assert (out / "mlp-tiny.png").read_bytes().startswith(b"\x89PNG")
    svg = ElementTree.parse(out / "mlp-tiny.svg")
    texts = {text.strip() for text in svg.getroot().itertext()}
    assert {"mlp-tiny on local", "data-parallel", "joint", "devices", "1", "2"} <= texts
    assert "predicted throughput (samples/s)" in texts


def test_plot_shows_the_parts_of_a_step(done: tuple[Result, Path], tmp_path: Path):
    """A panel for each number of devices, a bar for each part of each planner's step."""
    _, out = done
    texts = {t.strip() for t in ElementTree.parse(out / "mlp-tiny-steps.svg").getroot().itertext()}
    assert {"1 device", "2 devices", "data-parallel", "joint", "exposed communication"} <= texts
    assert (out / "mlp-tiny-steps.png").read_bytes().startswith(b"\x89PNG")
    assert plot_steps("none", "local", [entry("expert", None)], tmp_path / "none") is None
    assert not list(tmp_path.iterdir())


def entry(planner: str, speed: float | None) -> Prediction:
    return Prediction(
        model="m",
        planner=planner,
        devices=8,
        batch=64,
        step_seconds=speed and 64 / speed,
        samples_per_second=speed,
        memory_bytes=None,
        search_seconds=1.0,
    )


def test_plan_that_does_not_fit_is_a_cross_in_the_plot(tmp_path: Path):
    svg, _ = plot("m", "local", [entry("joint", 10.0), entry("expert", None)], tmp_path / "m.py")
    assert svg.name == "m.py.svg"
    assert "expert does not fit" in svg.read_text()
    plot("none", "local", [entry("expert", None)], tmp_path / "none")


def test_each_model_has_files_of_its_own():
    models = ["a/b.py:m", "a-b.py:m", "a/b.py:m", "../..", "a/b.py-m"]
    assert list(file_stems(models).values()) == ["a-b.py-m", "a-b.py-m-2", "model", "a-b.py-m-3"]


def test_ratio_over_others_is_to_the_fastest_other_planner():
    entries = [entry("joint", 12.0), entry("expert", 4.0), entry("megatron", None)]
    assert [over_others(e, entries) for e in entries] == [3.0, 1 / 3, None]
    assert over_others(entries[0], entries[:1]) is None


@pytest.mark.usefixtures("_undrawn")
def test_a_plan_that_does_not_fit_is_an_entry(tmp_path: Path):
    preset = (Path(machine.__file__).parent / "machines" / "local.toml").read_text()
    (tmp_path / "small.toml").write_text(preset.replace("4_000_000_000", "1_000_000"))
    machine_file = ("--machine", str(tmp_path / "small.toml"))
    arguments = ("--gpus", "2", "--planners", "data-parallel", "-o", str(tmp_path))
    result = compare("mlp-mnist", *machine_file, *arguments)
    assert result.exit_code == 0, result.output
    assert "does not fit" in result.output
    (saved,) = json.loads((tmp_path / "compare.json").read_text())["entries"]
    assert saved["step_seconds"] is None
    assert "misses by" in saved["problem"]


def test_an_interruption_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    whole = MeshPlanner.plan

    def interrupted(self: MeshPlanner, name: str, graph: Graph) -> Planned:
        if name == "mlp-tiny":
            raise KeyboardInterrupt
        return whole(self, name, graph)

    monkeypatch.setattr(MeshPlanner, "plan", interrupted)
    few = ("--machine", "local", "--gpus", "2", "--planners", "data-parallel")
    with pytest.raises(SystemExit) as stop:
        console.main(["compare", "mlp-mnist", "mlp-tiny", *few, "-o", str(tmp_path)])
    assert stop.value.code == 130
    (saved,) = json.loads((tmp_path / "compare.json").read_text())["entries"]
    assert saved["model"] == "mlp-mnist"
    assert "data-parallel" in capsys.readouterr().out
    assert (tmp_path / "mlp-mnist.svg").exists()


def test_table_is_written_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("unity.commands.compare.can_plot", lambda: False)
    few = ("--machine", "local", "--gpus", "2", "--planners", "data-parallel")
    result = compare("xdl-tiny", *few, "-o", str(tmp_path))
    assert result.exit_code == 0
    assert "install matplotlib" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"compare.json", "plans"}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["mlp-tiny", "--gpus", "2,x"], "--gpus: expected numbers of devices such as 6,12,24"),
        (["mlp-tiny", "--gpus", "0"], "--gpus: expected numbers of devices such as 6,12,24"),
        (["mlp-tiny", "--gpus", "2,1000000"], "--gpus: expected at most 65536 devices to plan for"),
        (["mlp-tiny", "--gpus", "2", "--budget", "nan"], "compare: invalid value for '--budget'"),
        (["mlp-tiny", "--gpus", "7,4", "--batch", "7"], "batch: 7 shares no factor with 4 devices"),
        (["mlp-tiny", "--planners", "taso"], "--planners: expected some of joint, data-parallel"),
        (["mlp-huge", "--gpus", "2"], "model mlp-huge: unknown, expected"),
        (["mlp-tiny", "--profile", "gone.json"], "gone.json: no such file"),
        (["mlp-tiny", "--machine", "frontier"], "frontier: no such machine"),
    ],
)
def test_wrong_input_is_refused(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as stop:
        console.main(["compare", *arguments, "-o", str(tmp_path)])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(f"unity: error: {line}")


def test_samples_and_devices():
    assert samples(build_model("dlrm-tiny", None, 4)) == 192
    target = first_devices(load_machine("summit"), 8)
    assert (target.devices, target.nodes) == (8, 2)


def test_gspmd_is_compared_with_its_annotations(tmp_path: Path):
    given = ("mlp-tiny", "--machine", "local", "--gpus", "4", "--planners", "gspmd")
    named = ("--mesh", "data=2,model=2", "--shard", "x=data,-", "--shard", "w1=-,model")
    seconds: list[float] = []
    for options in ((), named):
        out = tmp_path / str(len(options))
        result = compare(*given, *options, "-o", str(out), "--json")
        assert result.exit_code == 0, result.output
        (entry,) = ComparisonFile.model_validate_json((out / "compare.json").read_text()).entries
        assert entry.step_seconds is not None
        seconds.append(entry.step_seconds)
    assert seconds[0] != seconds[1]


@pytest.mark.parametrize("option", ["--mesh", "--shard"])
def test_annotations_are_for_gspmd(option: str, tmp_path: Path):
    result = compare("mlp-tiny", *SMALL, option, "x=data,-", "-o", str(tmp_path))
    assert str(result.exception).startswith(f"{option}: only the planner gspmd reads it")


def test_a_mesh_of_other_devices_is_refused(tmp_path: Path):
    given = ("mlp-tiny", "--machine", "local", "--gpus", "2", "--planners", "gspmd")
    result = compare(*given, "--mesh", "data=2,model=2", "-o", str(tmp_path))
    assert str(result.exception) == "--mesh: 4 devices, expected 2 as the machine has"

"""Forged checkpoints, some of which would run code: refused in one line, and nothing is run or
written.

Each is signed as by its forger, so no hash gives it away.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.borders import files, refused
from support.runs.checkpoints import MODEL, plan_of, sign, train
from support.runs.pickles import PICKLES, RAN, RUN, named, proto
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from pcg.errors import InputError
from runtime.checkpoints.checkpoint import newest_manifest
from runtime.checkpoints.pieces import fill
from runtime.checkpoints.shards import Shard
from runtime.train.plain import state_dict
from unity.export import app

NEWEST = "step-00000005"
DATA = "__0_0.distcp"


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train(plan_of(MODEL), folder, 5, every=5)
    return folder


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    """A copy that tests may change, as the current folder."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def must_refuse(folder: Path, expected: str = "") -> None:
    """Check that neither export nor a resumed run accepts the folder."""
    before = files(folder)
    line = refused(app, "export", folder, "-o", "weights.pt")
    assert expected in line
    with pytest.raises(InputError) as caught:
        train(plan_of(MODEL), folder, 6, resume=True)
    assert str(caught.value).isprintable()
    assert files(folder) == before
    assert sorted(path.name for path in Path().iterdir()) == ["copy"]


def table(path: Path) -> Any:
    return json.loads((path / "contents.json").read_text())


def rewrite(path: Path, content: Any) -> None:
    (path / "contents.json").write_text(json.dumps(content))
    sign(path)


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickled_table_runs_nothing(folder, name):
    (folder / NEWEST / ".metadata").write_bytes(PICKLES[name])
    sign(folder / NEWEST)
    must_refuse(folder, ".metadata: ")


def test_an_earlier_checkpoint_is_refused_in_a_line(folder):
    (folder / NEWEST / "contents.json").unlink()
    sign(folder / NEWEST)
    must_refuse(
        folder, "has no contents.json, as those of earlier versions, which are read no more"
    )


def piece(**changes: Any):
    """Change the first piece of a tensor."""

    def change(path: Path) -> None:
        content = table(path)
        content["tensors"]["model.second"]["pieces"][0] |= changes
        rewrite(path, content)

    return change


def tensor(**changes: Any):
    def change(path: Path) -> None:
        content = table(path)
        content["tensors"]["model.second"] |= changes
        rewrite(path, content)

    return change


def pieces(change: Any):
    """Change the list of a tensor's pieces."""

    def act(path: Path) -> None:
        content = table(path)
        own = content["tensors"]["model.second"]
        own["pieces"] = change(own["pieces"])
        rewrite(path, content)

    return act


def cut_in_two(first: dict[str, Any], second: dict[str, Any]):
    return pieces(lambda old: [old[0] | first, old[0] | second])


def shared_bytes(path: Path) -> None:
    """One piece in place of another."""
    content = table(path)
    own, other = (
        content["tensors"][name]["pieces"][0]
        for name in ("model.second", "optimizer.second.exp_avg")
    )
    other |= {"at": own["at"], "bytes": own["bytes"]}
    rewrite(path, content)


def without(path: Path) -> None:
    content = table(path)
    del content["tensors"]["model.second"]
    rewrite(path, content)


def raw(content: str):
    def change(path: Path) -> None:
        (path / "contents.json").write_text(content)
        sign(path)

    return change


TABLES = {
    "a piece elsewhere": piece(file="../../../etc/passwd"),
    "a piece at an absolute place": piece(file="/etc/passwd"),
    "a piece in the manifest": piece(file="checkpoint.json"),
    "a piece in no file": piece(file="__7_0.distcp"),
    "a piece with a line break": piece(file="__0_0.distcp\n"),
    "a piece with other digits": piece(file="__٠_0.distcp"),
    "a piece beyond the file": piece(at=1 << 40),
    "a piece before the file": piece(at=-1),
    "a piece of no bytes": piece(bytes=0),
    "a piece of few bytes": piece(bytes=8),
    "a piece of many bytes": piece(bytes=1 << 40),
    "a piece that begins elsewhere": piece(at=1),
    "an offset below 0": piece(offsets=[-1, 0]),
    "an offset beyond": piece(offsets=[5, 0]),
    "an offset of another rank": piece(offsets=[0]),
    "an offset that is no number": piece(offsets=[float("nan"), 0]),
    "an offset that is large": piece(offsets=[10**30, 0]),
    "a smaller piece": piece(shape=[4, 4]),
    "a larger piece": piece(shape=[6, 4]),
    "a piece of size 0": piece(shape=[0, 4]),
    "a piece of another shape": piece(shape=[4, 5]),
    "no piece": pieces(lambda old: []),
    "a piece twice": pieces(lambda old: old * 2),
    "pieces that overlap": cut_in_two({"shape": [3, 4]}, {"shape": [3, 4], "offsets": [2, 0]}),
    "a gap between pieces": cut_in_two({"shape": [2, 4]}, {"shape": [2, 4], "offsets": [3, 0]}),
    "a corner that is missing": cut_in_two({"shape": [2, 2]}, {"shape": [3, 2], "offsets": [2, 2]}),
    "a piece 5,000 times": pieces(lambda old: old * 5_000),
    "pieces in one place": shared_bytes,
    "a tensor of 10^12 elements": tensor(shape=[10**6, 10**6]),
    "a tensor and piece of 10^12": pieces(lambda old: [old[0] | {"shape": [10**6, 10**6]}]),
    "a size of 10^30": tensor(shape=[10**30, 4]),
    "a size below 0": tensor(shape=[-5, 4]),
    "a size that is no whole number": tensor(shape=[5.0, 4]),
    "a size that is a text": tensor(shape=["5", 4]),
    "another rank": tensor(shape=[20]),
    "100,000 axes": tensor(shape=[1] * 100_000),
    "another number format": tensor(dtype="float32"),
    "whole numbers": tensor(dtype="int64"),
    "a number format of torch's": tensor(dtype="qint8"),
    "a number format that is none": tensor(dtype="os.system"),
    "an unknown field": tensor(device="cuda"),
    "a tensor that is missing": without,
    "no JSON": raw("{"),
    "nested deeply": raw("[" * 100_000),
    "a key twice": raw('{"schema_version": 1, "schema_version": 1, "tensors": {}}'),
    "a number of no end": raw('{"schema_version": 1, "tensors": ' + "9" * 100_000 + "}"),
    "another version": raw('{"schema_version": 2, "tensors": {}}'),
}


@pytest.mark.parametrize("name", TABLES)
def test_wrong_table_of_a_checkpoint_is_refused(folder, name):
    TABLES[name](folder / NEWEST)
    must_refuse(folder)


def replaced(path: Path, change: Any) -> None:
    """Put another piece in place of a tensor's, at the end of the file."""
    content = table(path)
    own = content["tensors"]["model.second"]["pieces"][0]
    data = (path / DATA).read_bytes()
    new = change(data[own["at"] : own["at"] + own["bytes"]])
    (path / DATA).write_bytes(data + new)
    own |= {"at": len(data), "bytes": max(len(new), 160)}
    rewrite(path, content)


def saved(value: Any) -> Any:
    """A piece with another object in it."""
    file = io.BytesIO()
    torch.save(value, file)
    return lambda _: file.getvalue()


def entry(name: str, content: bytes | None, how: int = zipfile.ZIP_STORED):
    """The piece with one entry replaced, or left out."""

    def change(old: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(old)) as before, zipfile.ZipFile(file, "w", how) as after:
            for known in before.namelist():
                kept = before.read(known) if not known.endswith(name) else content
                if kept is not None:
                    after.writestr(known, kept)
        return file.getvalue()

    return change


class Evil:
    def __reduce__(self) -> Any:
        return eval, (f"open({RAN!r}, 'w')",)


def sizes_that_lie(old: bytes) -> bytes:
    """The directory of the archive lists more bytes than there are."""
    changed = bytearray(old)
    at = changed.rindex(b"archive/data/0") - 46
    changed[at + 20 : at + 28] = struct.pack("<II", 160, 160)
    changed[at + 42 : at + 46] = struct.pack("<I", len(old) - 8)
    return bytes(changed)


PIECES = {
    "another number format": saved(torch.ones(5, 4)),
    "whole numbers": saved(torch.ones(5, 4, dtype=torch.int64)),
    "another shape": saved(torch.ones(4, 5, dtype=torch.float64)),
    "another order": saved(torch.ones(4, 5, dtype=torch.float64).mT),
    "a part of a larger one": saved(torch.ones(7, 4, dtype=torch.float64)[1:6]),
    "a list": saved([torch.ones(5, 4, dtype=torch.float64)]),
    "a parameter": saved(torch.nn.Parameter(torch.ones(5, 4, dtype=torch.float64))),
    "a sparse tensor": saved(torch.ones(5, 4, dtype=torch.float64).to_sparse()),
    "no tensor": saved({}),
    "code": entry("data.pkl", pickle.dumps(Evil())),
    "code with a dot": entry("data.pkl", proto(named("torch._utils", "os.system") + RUN)),
    "no description": entry("data.pkl", None),
    "no elements": entry("data/0", None),
    "too few elements": entry("data/0", b"\0" * 8),
    "too many elements": entry("data/0", b"\0" * 168),
    "a bomb": entry("data/0", b"\0" * 50_000_000, zipfile.ZIP_DEFLATED),
    "a long description": entry("data.pkl", b"\x80\x02" + b"N0" * 50_000 + b"."),
    "another order of bytes": entry("byteorder", b"big"),
    "sizes that lie": sizes_that_lie,
    "zeros": lambda old: bytes(len(old)),
    "an end that is missing": lambda old: old[:-30],
    "elements that are not those of the checksum": lambda old: old.replace(
        old[640:648], b"12345678"
    ),
}


@pytest.mark.parametrize("name", PIECES)
def test_wrong_piece_of_a_checkpoint_is_refused(folder, name):
    replaced(folder / NEWEST, PIECES[name])
    must_refuse(folder)


MANIFESTS: dict[str, dict[str, Any]] = {
    "a file elsewhere": {"files": {"../../copy": {"bytes": 1, "digest": ""}}},
    "an absolute place": {"files": {"/etc/passwd": {"bytes": 1, "digest": ""}}},
    "a pipe as a file": {"files": {"/dev/stdin": {"bytes": 1, "digest": ""}}},
    "a size below 0": {"files": {DATA: {"bytes": -1, "digest": ""}}},
    "no files": {"files": {}},
    "updates below 0": {"updates": -1},
    "updates of 10^30": {"updates": 10**30},
    "updates that are no number": {"updates": float("nan")},
    "another version": {"schema_version": 99},
    "an optimizer that is none": {"recipe": {"optimizer": "os.system"}},
    "a rate that is no number": {"recipe": {"rate": float("inf")}},
    "control characters": {"model": "\x1b[2J"},
    "parameters that are not there": {"parameters": {"third": ()}},
    "an unknown field": {"run_first": "touch ran"},
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_wrong_manifest_of_a_checkpoint_is_refused(folder, name):
    sign(folder / NEWEST, **MANIFESTS[name])
    if name == "parameters that are not there":  # a run does not ask for these
        assert "has no tensor model.third" in refused(app, "export", folder, "-o", "weights.pt")
        return
    must_refuse(folder)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def link_to(target: str) -> Any:
    def change(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    change.__name__ = f"link to {target}"
    return change


@pytest.mark.parametrize("name", [DATA, "contents.json", ".metadata", "checkpoint.json"])
@pytest.mark.parametrize(
    "change",
    [pipe, directory, link, link_to("/dev/zero"), link_to("."), link_to("gone"), Path.unlink],
)
def test_checkpoint_file_replaced_by_something_else_is_refused(folder, name, change):
    change(folder / NEWEST / name)
    before = files(folder)
    refused(app, "export", folder, "-o", "weights.pt")
    with pytest.raises(InputError):
        train(plan_of(MODEL), folder, 6, resume=True)
    assert files(folder) == before


def test_a_checkpoint_that_is_a_pipe(folder):
    shutil.rmtree(folder / NEWEST)
    os.mkfifo(folder / NEWEST)
    must_refuse(folder)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 2000), byte=st.integers(0, 255))
def test_a_piece_with_another_byte(trained, tmp_path, place, byte):
    """The piece is read as it was, or refused: its elements have a checksum."""
    contents = newest_manifest(trained).contents()
    own = contents["model.second"].pieces[0]
    data = bytearray((trained / NEWEST / DATA).read_bytes())
    data[own.at + place % own.bytes] = byte
    (tmp_path / DATA).write_bytes(data)
    assembled = torch.zeros(5, 4, dtype=torch.float64)
    shard = Shard("model.second", (5, 4), (0, 0), assembled, writes=False)
    try:
        fill([shard], contents, tmp_path)
    except InputError:
        return
    assert torch.equal(assembled, state_dict(newest_manifest(trained))["second"])


def test_undamaged_checkpoint_has_its_weights_to_the_bit(folder):
    """The weights are those of torch.distributed.checkpoint's own reader."""
    actual = state_dict(newest_manifest(folder))
    dcp_to_torch_save(folder / NEWEST, "plain.pt")
    expected = torch.load("plain.pt", weights_only=True)
    for name in ("first.weight", "second"):
        assert torch.equal(actual[name], expected[f"model.{name}"])

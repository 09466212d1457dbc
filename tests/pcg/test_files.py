"""Files: round trips, one clear line for every fault, and whole files or none."""

from __future__ import annotations

import errno
import json
import os
import stat
import string
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcg import files
from pcg.errors import InputError
from pcg.files import FileModel, read_json, read_text, read_toml, write_text_atomic


class Step(FileModel):
    operator: str
    degree: int = 1


class Document(FileModel):
    schema_version: Literal[1]
    steps: tuple[Step, ...] = ()
    factor: float = 1.0


@pytest.fixture
def document(tmp_path: Path) -> Path:
    return tmp_path / "plan.json"


def problem_of(path: Path, text: str | bytes) -> str:
    """Write the file, read it, and return the problem that the error states."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    read = read_toml if path.suffix == ".toml" else read_json
    with pytest.raises(InputError) as caught:
        read(path, Document)
    assert caught.value.where == str(path)
    assert "\n" not in str(caught.value)
    return caught.value.problem


def test_read_json(document: Path):
    document.write_text('{"schema_version": 1, "steps": [{"operator": "relu", "degree": 2}]}')
    assert read_json(document, Document) == Document(
        schema_version=1, steps=(Step(operator="relu", degree=2),)
    )


def test_read_toml(tmp_path: Path):
    path = tmp_path / "m.toml"
    path.write_text('schema_version = 1\nfactor = 2\n[[steps]]\noperator = "relu"\n')
    assert read_toml(path, Document) == Document(
        schema_version=1, steps=(Step(operator="relu"),), factor=2.0
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1, column 1: not JSON: expecting value"),
        ('{\n "schema_version": 1,\n "x": }', "line 3, column 7: not JSON: expecting value"),
        ("[]", "expected an object, got a list of 0"),
        ("{}", "at schema_version: missing"),
        ('{"schema_version": 2}', "at schema_version: expected 1, got 2"),
        (
            '{"schema_version": 1, "steps": [{"operator": "a"}, {"operator": "b", "degree": "2"}]}',
            'at steps[1].degree: expected integer, got "2"',
        ),
        ('{"schema_version": 1, "stepz": []}', "at stepz: unknown field"),
        (
            '{"schema_version": 3, "factor": "x", "steps": {}}',
            "at schema_version: expected 1, got 3 (and 2 more errors)",
        ),
        ('{"schema_version": 1, "schema_version": 1}', 'not JSON: key "schema_version" is given'),
        ('{"schema_version": 1, "factor": NaN}', "not JSON: NaN is no JSON number"),
        ('{"schema_version": 1, "factor": 1e999}', "at factor: expected a finite number, got"),
        ("9" * 5000, "not JSON: Exceeds the limit"),
        ("[" * 100_000, "nested too deeply"),
        ('{"schema_version": ' + "[" * 500 + "]" * 500 + "}", "nested too deeply"),
        (b"\xff{}", "byte 0 is not UTF-8 (expected a JSON file)"),
    ],
)
def test_wrong_json(document: Path, text: str | bytes, problem: str):
    assert problem_of(document, text).startswith(problem)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("schema_version = \n", "line 1, column 18: not TOML: invalid value"),
        ("schema_version = [1", "end of document: not TOML: unclosed array"),
        ("schema_version = 1\nfactor = 'x'\n", 'at factor: expected number, got "x"'),
        ("schema_version = 1\nfactor = 1979-05-27\n", 'at factor: expected number, got "1979'),
        ("schema_version = 1\nfactor = inf\n", "at factor: expected a finite number, got"),
        ("schema_version = 1\nx = " + "[" * 100_000, "line 2: longer than 512 characters"),
        ("schema_version = " + "9" * 5000, "line 1: longer than 512 characters"),
    ],
)
def test_wrong_toml(tmp_path: Path, text: str, problem: str):
    assert problem_of(tmp_path / "machine.toml", text).startswith(problem)


def test_long_values_are_cut_short(document: Path):
    problem = problem_of(document, json.dumps({"schema_version": "x" * 1000}))
    assert len(problem) < 100


def test_missing_file(tmp_path: Path):
    with pytest.raises(InputError, match=r"gone\.json: no such file \(expected a plan\)"):
        read_text(tmp_path / "gone.json", "a plan")


def test_directory_is_refused_as_a_file(tmp_path: Path):
    with pytest.raises(InputError, match=r"is a directory \(expected a plan\)"):
        read_text(tmp_path, "a plan")


def test_path_through_a_file(document: Path):
    document.write_text("{}")
    with pytest.raises(InputError, match="cannot read a plan: not a directory"):
        read_text(document / "x", "a plan")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(document: Path):
    document.write_text("{}")
    document.chmod(0)
    with pytest.raises(InputError, match="cannot read a plan: permission denied"):
        read_text(document, "a plan")


def test_nul_in_path():
    with pytest.raises(InputError, match="cannot read a plan"):
        read_text("a\0b", "a plan")


def test_too_large(document: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 10)
    document.write_text("x" * 10)
    assert read_text(document, "a plan") == "x" * 10
    document.write_text("x" * 11)
    with pytest.raises(InputError, match="larger than"):
        read_text(document, "a plan")


def test_byte_order_mark_is_dropped(document: Path):
    document.write_bytes(b'\xef\xbb\xbf{"schema_version": 1}')
    assert read_json(document, Document).schema_version == 1


TEXT = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"], include_characters="\n\t\\"))


@given(
    st.builds(
        Document,
        schema_version=st.just(1),
        steps=st.lists(st.builds(Step, operator=TEXT, degree=st.integers())).map(tuple),
        factor=st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_written_models_read_back(tmp_path_factory: pytest.TempPathFactory, value: Document):
    path = tmp_path_factory.mktemp("files") / "value.json"
    write_text_atomic(path, value.model_dump_json())
    assert read_json(path, Document) == value


CONTROL = [*map(chr, range(32)), *map(chr, range(0x7F, 0xA0)), "\u200b", "\u202e", "\u2066"]


@given(st.sampled_from([c for c in CONTROL if c not in "\n\t"]), st.booleans(), st.integers(0, 4))
def test_control_characters_are_refused(
    tmp_path_factory: pytest.TempPathFactory, control: str, escaped: bool, backslashes: int
):
    path = tmp_path_factory.mktemp("files") / "value.json"
    text = json.dumps({"schema_version": 1, "steps": [{"operator": "\\" * backslashes + control}]})
    path.write_text(text if escaped else json.dumps(json.loads(text), ensure_ascii=False))
    with pytest.raises(InputError) as caught:
        read_json(path, Document)
    assert str(caught.value).isprintable()
    toml = path.with_suffix(".toml")
    toml.write_text(f"schema_version = 1\n[[steps]]\noperator = {json.dumps(control)}\n")
    with pytest.raises(InputError):
        read_toml(toml, Document)


@given(st.text(alphabet=string.printable + "é\u2028", max_size=60))
def test_any_text_reads_or_is_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, text: str
):
    folder = tmp_path_factory.mktemp("files")
    for name, read in (("a.json", read_json), ("a.toml", read_toml)):
        (folder / name).write_text(text, newline="")
        with pytest.raises(InputError) as caught:
            read(folder / name, Document)
        assert len(str(caught.value).splitlines()) == 1


def test_write_keeps_the_text_and_leaves_nothing_else(document: Path):
    write_text_atomic(document, "old")
    write_text_atomic(document, "é\r\n")
    assert document.read_bytes() == "é\r\n".encode()
    assert list(document.parent.iterdir()) == [document]


def test_write_keeps_the_mode(document: Path):
    document.write_text("old")
    document.chmod(0o640)
    write_text_atomic(document, "new")
    assert stat.S_IMODE(document.stat().st_mode) == 0o640


def test_write_goes_through_links(tmp_path: Path, document: Path):
    document.write_text("old")
    link = tmp_path / "link.json"
    link.symlink_to(document)
    write_text_atomic(link, "new")
    assert link.is_symlink()
    assert document.read_text() == "new"


def test_write_to_a_device_leaves_the_device():
    write_text_atomic(os.devnull, "text")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failed_write_leaves_the_old_file(
    document: Path, monkeypatch: pytest.MonkeyPatch, step: str
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    document.write_text("old")
    monkeypatch.setattr(*((os, "fsync") if step == "fsync" else (Path, "replace")), full)
    with pytest.raises(InputError, match="cannot write: no space left on device"):
        write_text_atomic(document, "new")
    assert document.read_text() == "old"
    assert list(document.parent.iterdir()) == [document]


def test_interrupted_write_leaves_the_old_file(document: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    document.write_text("old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text_atomic(document, "new")
    assert document.read_text() == "old"
    assert list(document.parent.iterdir()) == [document]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing/plan.json", "no such file or directory"),
        (".", "is a directory|resource busy"),
        ("a\0b", "null"),
    ],
)
def test_unwritable_place(tmp_path: Path, name: str, problem: str):
    with pytest.raises(InputError, match=f"cannot write: .*({problem})"):
        write_text_atomic(f"{tmp_path}/{name}", "text")
    assert not list(tmp_path.iterdir())


def test_unencodable_text_touches_nothing(document: Path):
    document.write_text("old")
    with pytest.raises(InputError, match="cannot write"):
        write_text_atomic(document, "\ud800")
    assert document.read_text() == "old"

"""Certificates in one compressed file: read back as written, and a wrong file is refused in one
line."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
from support.rules.rule_files import parse

from pcg.errors import InputError
from verifier.bundle import bundle_text, read_bundle, write_bundle
from verifier.certificate import Certificate, certify
from verifier.decide import decide
from verifier.recheck import Rechecker
from verifier.solvers import SOLVERS
from verifier.trusted.sizes.runs import free_runs

CUT = "reduce(matmul(partition(x, dim=1, degree=k), partition(y, dim=0, degree=k)), degree=k)"
LINES = (
    f"x:2 y:2 | matmul(x, y) == {CUT}",
    "x:2 | pointwise(partition(x, dim=1, degree=k)) == partition(pointwise(x), dim=1, degree=k)",
    "x:2 y:2 | add(x, y) == add(y, x)",
)


def certified(line: str) -> Certificate:
    left, right = parse(line)
    return certify(line, left, right, decide(left, right), free_runs(left, right))


CERTIFICATES = tuple(map(certified, LINES))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "certificates.jsonl.xz"


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode()))


def test_a_bundle_is_read_back(path: Path):
    write_bundle(path, CERTIFICATES)
    bundle = read_bundle(path)
    assert bundle.certificates == tuple(c.file for c in CERTIFICATES)
    assert bundle.scripts == {n: text for c in CERTIFICATES for n, text in c.scripts.items()}
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_bundles_of_the_same_certificates_are_the_same(path: Path):
    write_bundle(path, CERTIFICATES)
    first = path.read_bytes()
    write_bundle(path, map(certified, LINES))
    assert path.read_bytes() == first


def test_scripts_are_held_once():
    lines = bundle_text((*CERTIFICATES, *CERTIFICATES)).splitlines()
    assert len(lines) == 1 + len({s for c in CERTIFICATES for s in c.scripts}) + 6


def test_certificates_of_a_bundle_are_accepted(path: Path):
    write_bundle(path, CERTIFICATES)
    bundle = read_bundle(path)
    checker = Rechecker(bundle.scripts, SOLVERS)
    for file in bundle.certificates:
        result = checker.check_file(file)
        assert result.accepted, result.reason
        assert result.conditions > 0


def test_a_changed_script_is_missed(path: Path):
    write_bundle(path, CERTIFICATES[:1])
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    changed = json.loads(lines[1])
    changed["condition"] = "(assert false)"
    write_lines(path, [lines[0], json.dumps(changed), *lines[2:]])
    bundle = read_bundle(path)
    result = Rechecker(bundle.scripts, SOLVERS).check_file(bundle.certificates[0])
    assert not result.accepted
    assert result.reason.startswith("has no script")


def test_axes_that_are_not_free_are_rejected():
    cut = CERTIFICATES[1]
    assert cut.file.runs == ((("x", 0),),)
    wrong = cut.file.model_copy(update={"runs": ((("x", 0),), (("x", 1),))})
    result = Rechecker(cut.scripts, SOLVERS).check_file(wrong)
    assert not result.accepted
    assert result.reason == "has axes that may not be any number of axes"


def test_a_stand_in_may_not_be_defined_as_something_else():
    cut = CERTIFICATES[1]
    own = tuple(
        o.model_copy(update={"equation": "out[i...] = relu(x[i...])"})
        if o.name == "pointwise"
        else o
        for o in cut.file.operators
    )
    assert own != cut.file.operators
    result = Rechecker(cut.scripts, SOLVERS).check_file(
        cut.file.model_copy(update={"operators": own})
    )
    assert not result.accepted
    assert result.reason == "defines pointwise anew"


def damaged(path: Path, damage: str) -> None:
    write_bundle(path, CERTIFICATES)
    data = path.read_bytes()
    lines = lzma.decompress(data).decode().splitlines()
    match damage:
        case "not compressed":
            path.write_text("text")
        case "cut off":
            path.write_bytes(data[:-40])
        case "a line less":
            write_lines(path, lines[:-1])
        case "no header":
            write_lines(path, lines[1:])
        case "half a line":
            path.write_bytes(lzma.compress("\n".join(lines).encode()[:-20]))
        case "other text":
            path.write_bytes(lzma.compress(b"\xff\n"))
        case "nothing":
            write_lines(path, [])
        case _:
            path.unlink()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("not compressed", "not an xz file"),
        ("cut off", "not an xz file"),
        ("a line less", "lines, expected"),
        ("no header", "line 1: at schema_version: missing"),
        ("half a line", "ends too early"),
        ("other text", "byte 0 is not UTF-8"),
        ("nothing", "line 1: "),
        ("missing", "cannot read compressed certificates"),
    ],
)
def test_damaged_bundle_is_refused(path: Path, damage: str, problem: str):
    damaged(path, damage)
    with pytest.raises(InputError, match=problem) as refusal:
        read_bundle(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_bundle_that_cannot_be_written_is_one_line(tmp_path: Path):
    with pytest.raises(InputError, match="cannot write"):
        write_bundle(tmp_path / "nowhere" / "a.jsonl.xz", CERTIFICATES)

"""The certificates of a library: one for each rule, about exactly its statement."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from support.rules.few_rules import few

from pcg.errors import NegativeAnswer
from pcg.files import read_json
from substitutions.rules.certificates import (
    certifies,
    library_certificates,
    uncertified,
    write_certificates,
)
from substitutions.rules.store import CERTIFICATES, RULES, LibraryFile, default_path, parse_entry
from unity.recheck import app as recheck
from verifier.bundle import read_bundle
from verifier.certificate import CertificateFile
from verifier.recheck import Rechecker
from verifier.solvers import SOLVERS

LIBRARY = few()
OWN = default_path().with_name(CERTIFICATES)


@cache
def made() -> list[CertificateFile]:
    """The certificates of the library, which take long to make."""
    return [certificate.file for certificate in library_certificates(LIBRARY, 1)]


def test_every_rule_has_a_certificate():
    assert [file.rule for file in made()] == [entry.name for entry in LIBRARY.rules]
    assert uncertified(LIBRARY, made()) == ()


def test_a_rule_without_a_certificate_is_named():
    assert uncertified(LIBRARY, made()[1:]) == (LIBRARY.rules[0].name,)


CHANGES: dict[str, tuple[str, dict[str, object]]] = {
    "another right side": ("associative", {"right": "matmul(matmul(x, y), z)"}),
    "fewer free axes": ("any function", {"runs": ()}),
    "an equation of sizes": ("associative", {"requires": ("|x.1| = 1",)}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_rule_that_says_something_else_needs_another_certificate(change):
    name, update = CHANGES[change]
    rules = [e.model_copy(update=update) if e.name == name else e for e in LIBRARY.rules]
    missing = uncertified(LIBRARY.model_copy(update={"rules": tuple(rules)}), made())
    # A rule for any number of axes holds for one. The reverse has to be certified.
    assert missing == (() if change == "fewer free axes" else (name,))


def test_free_axes_have_to_be_certified():
    (entry,) = [e for e in LIBRARY.rules if e.name == "any function"]
    (file,) = [f for f in made() if f.rule == "any function"]
    assert certifies(file, parse_entry(entry))
    assert not certifies(file.model_copy(update={"runs": file.runs[:1]}), parse_entry(entry))
    assert not certifies(file.model_copy(update={"whole": True}), parse_entry(entry))


def test_a_false_rule_has_no_certificate(tmp_path: Path):
    wrong = LIBRARY.rules[0].model_copy(update={"right": "matmul(y, matmul(x, z))", "runs": ()})
    with pytest.raises(NegativeAnswer, match="rule associative: "):
        write_certificates(LIBRARY.model_copy(update={"rules": (wrong,)}), tmp_path / "c.xz", 1)
    assert not list(tmp_path.iterdir())


def test_the_command_checks_a_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path, rules = tmp_path / CERTIFICATES, tmp_path / RULES
    write_certificates(LIBRARY, path, 1)
    rules.write_text(LIBRARY.model_dump_json())
    given = [str(path), "--library", str(rules), "--jobs", "1"]
    for way in (given, [str(tmp_path), "--jobs", "1"]):
        recheck(way, standalone_mode=False)
        out = capsys.readouterr().out
        assert f"{len(LIBRARY.rules)} certificates accepted, 0 rejected" in out
        assert "have a certificate with the same statement" in out
    changed = LIBRARY.rules[0].model_copy(update={"name": "new"})
    rules.write_text(
        LIBRARY.model_copy(update={"rules": (*LIBRARY.rules, changed)}).model_dump_json()
    )
    with pytest.raises(NegativeAnswer, match="1 rules have no certificate: new"):
        recheck(given, standalone_mode=False)


@pytest.mark.parametrize("step", [150, pytest.param(50, marks=pytest.mark.soak)])
def test_the_committed_certificates_are_of_the_committed_rules(step: int):
    library, bundle = read_json(default_path(), LibraryFile), read_bundle(OWN)
    assert [file.rule for file in bundle.certificates] == [entry.name for entry in library.rules]
    assert uncertified(library, bundle.certificates) == ()
    checker = Rechecker(bundle.scripts, {"z3": SOLVERS["z3"]})
    for file in bundle.certificates[::step]:
        result = checker.check_file(file)
        assert result.accepted, f"{file.rule}: {result.reason}"

"""The rule library on disk: what is written is read back, and what is wrong is one line."""

from __future__ import annotations

import json

import pytest

from pcg.errors import InputError
from substitutions import store
from substitutions.rule import parse_rule
from substitutions.store import (
    LibraryFile,
    ProofFile,
    RuleFile,
    default_path,
    library_hash,
    library_text,
    load_library,
    operators_hash,
    rule_name,
    save_library,
)

PROOF = ProofFile(side_conditions=1, digest="0123456789abcdef", degrees={"k": 2})
RULE = RuleFile(
    name="r1",
    inputs={"x": 2},
    left="relu(x)",
    right="combine(relu(partition(x, dim=0, degree=k)), dim=0, degree=k)",
    conditions=(),
    verdict="proved",
    proof=PROOF,
)
LIBRARY = LibraryFile(schema_version=1, operators=operators_hash(), rules=(RULE,))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rules.json"


def test_a_library_is_read_back(path):
    save_library(LIBRARY, path)
    found = load_library(path)
    assert found.hash == library_hash(LIBRARY)
    (rule,) = found.rules
    assert (rule.name, rule.inputs, rule.conditions) == ("r1", (("x", 2),), ())
    assert rule.text == f"{RULE.left} == {RULE.right}"
    assert path.read_text() == library_text(LIBRARY)
    assert LibraryFile.model_validate_json(path.read_text()) == LIBRARY


def test_the_committed_library_is_as_it_would_be_written():
    text = default_path().read_text()
    assert library_text(LibraryFile.model_validate_json(text)) == text
    assert load_library().hash == load_library(default_path()).hash


def test_an_empty_library(path):
    save_library(LIBRARY.model_copy(update={"rules": ()}), path)
    assert load_library(path).rules == ()


def test_the_hash_is_of_all_that_is_stored():
    assert library_hash(LIBRARY) == library_hash(LibraryFile.model_validate(LIBRARY.model_dump()))
    other = RULE.model_copy(update={"conditions": ("x.d0 = 1",)})
    assert library_hash(LIBRARY) != library_hash(LIBRARY.model_copy(update={"rules": (other,)}))


def test_the_hash_of_the_operators_follows_their_definitions(monkeypatch):
    before = operators_hash()
    assert before == operators_hash()
    fewer = {name: o for name, o in store.OPERATORS.items() if name != "relu"}
    monkeypatch.setattr(store, "OPERATORS", fewer)
    assert operators_hash() != before


def test_names_depend_on_the_text_alone():
    assert rule_name("x == y") == rule_name("x == y") != rule_name("y == x")


def changed(**fields) -> dict[str, object]:
    return {**RULE.model_dump(mode="json"), **fields}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "line 1, column 2: not JSON"),
        ("[]", "rules.json"),
        ({"schema_version": 2}, "schema_version"),
        ({"operators": 3}, "operators"),
        ({"operators": "0" * 16}, "made from other operator definitions"),
        ({"extra": 1}, "extra"),
        ({"rules": [changed(verdict="unknown")]}, "rules[0].verdict"),
        (
            {"rules": [changed(proof={"side_conditions": 1, "digest": "0"})]},
            "rules[0].proof.degrees",
        ),
        ({"rules": [changed(inputs={"x": "2"})]}, "rules[0].inputs.x"),
        ({"rules": [changed(left="rule(x)")]}, "rules[0]: rule r1, left: unknown operator 'rule'"),
        ({"rules": [changed(left="scale(x, by=2.0)")]}, "rules[0]: rule r1, left: scale"),
        ({"rules": [changed(right="relu(y)")]}, "rules[0]: rule r1, right: unknown value 'y'"),
        ({"rules": [changed(right="relu(x")]}, "rules[0]: rule r1, right: expected"),
        ({"rules": [changed(right="relu(x), x")]}, "rules[0]: rule r1: 1 outputs on the left"),
        ({"rules": [changed(), changed(name="r2", left="")]}, "rules[1]: rule r2, left"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_the_place(path, content, expected):
    if isinstance(content, dict):
        content = json.dumps({**LIBRARY.model_dump(mode="json"), **content})
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        load_library(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    assert expected in text
    assert caught.value.exit_status == 2


def test_a_missing_file(path):
    with pytest.raises(InputError, match="no such file"):
        load_library(path)
    with pytest.raises(InputError, match="is a directory"):
        load_library(path.parent)


def test_nothing_is_overwritten_by_a_failure(path, monkeypatch):
    save_library(LIBRARY, path)
    before = path.read_text()
    with pytest.raises(InputError, match="cannot write"):
        save_library(LIBRARY, path / "below")
    assert path.read_text() == before
    assert [p.name for p in path.parent.iterdir()] == ["rules.json"]


def test_a_rule_states_all_its_inputs():
    with pytest.raises(InputError, match="unknown value 'y'"):
        parse_rule("r", {"x": 1}, "x", "y")

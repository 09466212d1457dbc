"""The rule library on disk: a saved library is read back, and a wrong one is refused in one
line."""

from __future__ import annotations

import json

import pytest

from pcg.errors import InputError
from substitutions.rules import store
from substitutions.rules.rule import Rule, parse_rule
from substitutions.rules.store import (
    LibraryFile,
    ProofFile,
    RuleFile,
    default_path,
    library_hash,
    library_of,
    library_text,
    load_library,
    operators_hash,
    rule_file,
    rule_name,
    save_library,
)

PROOF = ProofFile(side_conditions=1, digest="0123456789abcdef", degrees={"k": 2})
RULE = RuleFile(
    name="r1",
    family="cut",
    inputs={"x": 3},
    left="relu(x)",
    right="combine(relu(partition(x, dim=1, degree=k)), dim=1, degree=k)",
    runs=(("x.0",), ("x.2",)),
    requires=(),
    conditions=(),
    derived=0,
    directions=(),
    verdict="proved",
    proof=PROOF,
)
LIBRARY = library_of([RULE], max_ops=2)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rules.json"


def test_a_library_is_read_back(path):
    save_library(LIBRARY, path)
    library = load_library(path)
    assert library.hash == library_hash(LIBRARY)
    (rule,) = library.rules
    assert (rule.name, rule.inputs, rule.conditions) == ("r1", (("x", 3),), ())
    assert (rule.runs, rule.family, rule.derived) == (((("x", 0),), (("x", 2),)), "cut", 0)
    assert rule.text == f"{RULE.left} == {RULE.right}"
    assert path.read_text() == library_text(LIBRARY)
    assert LibraryFile.model_validate_json(path.read_text()) == LIBRARY


def test_committed_library_equals_its_rewritten_file():
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


@pytest.mark.parametrize(("table", "name"), [("OPERATORS", "relu"), ("STAND_INS", "pointwise")])
def test_the_hash_of_the_operators_follows_their_definitions(monkeypatch, table, name):
    before = operators_hash()
    assert before == operators_hash()
    fewer = {n: o for n, o in getattr(store, table).items() if n != name}
    monkeypatch.setattr(store, table, fewer)
    assert operators_hash() != before


def test_library_states_its_options_versions_and_operators():
    content = json.loads(library_text(LIBRARY))
    assert content["unity"]
    assert content["options"] == {"max_ops": 2}
    assert content["versions"].keys() == {"python", "z3", "numpy"}
    assert content["operators"] == operators_hash()
    assert library_text(library_of([RULE], max_ops=2)) == library_text(LIBRARY)


def test_each_rule_of_a_library_is_one_line():
    text = library_text(LIBRARY.model_copy(update={"rules": (RULE, RULE)}))
    assert [json.loads(line.rstrip(","))["name"] for line in text.splitlines()[1:-1]] == ["r1"] * 2


def test_rule_is_written_as_the_entry_that_it_is_read_from():
    (rule,) = read_rules(RULE)
    made = rule_file(rule, PROOF)
    assert made.model_copy(update={"directions": ()}) == RULE
    (forth, back) = made.directions
    assert (forth.way, forth.applicable, forth.free) == ("left to right", True, ("k",))
    assert (back.way, back.applicable, back.free) == ("right to left", True, ())
    assert read_rules(made) == (rule,)


def read_rules(*entries: RuleFile) -> tuple[Rule, ...]:
    return tuple(store.parse_entry(entry) for entry in entries)


def test_runs_may_be_fewer_than_the_free_axes():
    (rule,) = read_rules(RULE.model_copy(update={"runs": (("x.2",),)}))
    assert rule.runs == ((("x", 2),),)


def test_names_depend_on_the_text_alone():
    assert rule_name("x == y") == rule_name("x == y") != rule_name("y == x")


def changed(**fields) -> dict[str, object]:
    return {**RULE.model_dump(mode="json"), **fields}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "line 1, column 2: not JSON"),
        ("[]", "rules.json"),
        ({"schema_version": 1}, "schema_version"),
        ({"versions": []}, "versions"),
        ({"options": {}}, "options.max_ops"),
        ({"operators": 3}, "operators"),
        ({"operators": "0" * 16}, "made from other operator definitions"),
        ({"extra": 1}, "extra"),
        ({"rules": [changed(verdict="unknown")]}, "rules[0].verdict"),
        (
            {"rules": [changed(proof={"side_conditions": 1, "digest": "0"})]},
            "rules[0].proof.degrees",
        ),
        ({"rules": [changed(inputs={"x": "2"})]}, "rules[0].inputs.x"),
        ({"rules": [changed(family="other")]}, "rules[0].family"),
        ({"rules": [changed(derived=-1)]}, "rules[0].derived"),
        # Axis 1 is cut: an altered file must not declare it as any number of axes.
        (
            {"rules": [changed(runs=[["x.0"], ["x.1"]])]},
            "rules[0]: rule r1: no axis x.1 may be any number of axes",
        ),
        ({"rules": [changed(runs=[["x.0", "x.2"]])]}, "no axis x.0, x.2 may be"),
        ({"rules": [changed(runs=[["x.0"], ["x.0"]])]}, "no axis x.0 may be"),
        ({"rules": [changed(runs=[["y.0"]])]}, "no axis y.0 may be"),
        ({"rules": [changed(runs=[[]])]}, "no axis of nothing may be"),
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


def test_failed_save_overwrites_nothing(path, monkeypatch):
    save_library(LIBRARY, path)
    before = path.read_text()
    with pytest.raises(InputError, match="cannot write"):
        save_library(LIBRARY, path / "below")
    assert path.read_text() == before
    assert [p.name for p in path.parent.iterdir()] == ["rules.json"]


def test_a_rule_states_all_its_inputs():
    with pytest.raises(InputError, match="unknown value 'y'"):
        parse_rule("r", {"x": 1}, "x", "y")

"""Wrong rule files end in one line that names the place. Operators may stand in any order."""

import json
import time

import pytest

from pcg.errors import InputError
from substitutions.importers import schema
from substitutions.importers.operators import RuleSystem
from substitutions.importers.schema import read_foreign
from substitutions.importers.verdict import decide_foreign
from verifier.decide import Verdict

LEFT = "RELU(-1) CONCAT(-1, t0; AXIS=1, NUMDIM=2) SPLIT(t1; AXIS=1) -> t2.0, t2.1"
RIGHT = "SIGMOID(-1) RELU(-1) -> t1, t0"


def problem(path):
    """The one line with which reading ends within a second, without the path."""
    start = time.perf_counter()
    with pytest.raises(InputError) as caught:
        read_foreign(path)
    assert time.perf_counter() - start < 1
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ")


def test_fields_are_read(rule):
    parsed = rule(LEFT, RIGHT)
    assert parsed.source is RuleSystem.TASO
    assert [o.name for o in parsed.left.operators] == ["OP_RELU", "OP_CONCAT", "OP_SPLIT"]
    assert [(r.op, r.port) for r in parsed.left.outputs] == [(2, 0), (2, 1)]
    assert [(r.op, r.port) for r in parsed.right.outputs] == [(1, 0), (0, 0)]
    assert parsed.left.operators[1].parameters["PM_AXIS"] == 1
    assert parsed.left.inputs == {-1}


def changed(rule, place, value):
    """A copy of a rule with one place changed, such as ``srcOp.1.type``."""
    rule = json.loads(json.dumps(rule))
    *path, last = (int(part) if part.isdigit() else part for part in place.split("."))
    at = rule
    for part in path:
        at = at[part]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return rule


WRONG = [
    ("srcOp.1.type", "OP_FOO", "rule[1].srcOp[1]: unknown operator 'OP_FOO'"),
    ("srcOp.0.input", [], "rule[1].srcOp[0]: OP_RELU: 0 inputs, expected 1"),
    ("dstOp.0.type", "OP_MUL", "rule[1].dstOp[0]: OP_MUL: 1 inputs, expected 2"),
    ("srcOp.1.para.1.key", "PM_AXIS", "OP_CONCAT: parameter PM_AXIS is given twice"),
    ("srcOp.1.para.1.key", "PM_FOO", "OP_CONCAT: unknown parameter 'PM_FOO'"),
    ("srcOp.1.para.0.value", 4, "OP_CONCAT: PM_AXIS is 4, expected 0 to 3"),
    ("srcOp.1.para.0.value", "1", "at rule[1].srcOp[1].para[0].value: expected integer"),
    ("srcOp.0.input.0.opId", -21, "rule[1].srcOp[0].input[0]: opId is -21, expected -20 to 2"),
    ("srcOp.0.input.0.opId", 3, "rule[1].srcOp[0].input[0]: opId is 3, expected -20 to 2"),
    ("srcOp.0.input.0.tsId", 1, "rule[1].srcOp[0].input[0]: tsId is 1, expected 0"),
    ("srcOp.0.input.0.tsId", -1, "rule[1].srcOp[0].input[0]: tsId is -1, expected 0"),
    ("srcOp.0.input.0.opId", 0, "rule[1].srcOp[0]: it is in a cycle of operators"),
    ("srcOp.0.input.0.opId", 2, "rule[1].srcOp[0]: it is in a cycle of operators"),
    ("mappedOutput", [], "rule[1].mappedOutput: no output is mapped"),
    ("mappedOutput.0.srcOpId", -1, "rule[1].mappedOutput[0]: srcOpId is -1, expected 0 to 2"),
    ("mappedOutput.0.dstOpId", 2, "rule[1].mappedOutput[0]: dstOpId is 2, expected 0 to 1"),
    ("mappedOutput.0.srcTsId", 2, "rule[1].mappedOutput[0]: srcTsId is 2, expected 0 to 1"),
    ("mappedOutput.1.dstTsId", 1, "rule[1].mappedOutput[1]: dstTsId is 1, expected 0"),
    ("dstOp", [], "rule[1].dstOp: no operators"),
    ("name", None, "at rule[1].name: missing"),
    ("name", 3, "at rule[1].name: expected string, got 3"),
    ("conditions", [], "at rule[1].conditions: unknown field"),
    ("srcOp.0.input.0.extra", 1, "at rule[1].srcOp[0].input[0].extra: unknown field"),
]


@pytest.mark.parametrize(("place", "value", "expected"), WRONG, ids=lambda value: str(value)[:40])
def test_error_in_a_rule_file_names_its_place(as_json, write, place, value, expected):
    good = as_json(LEFT, RIGHT)
    actual = problem(write(good, changed(good, place, value)))
    assert expected in actual


def test_a_rule_without_a_parameter_means_nothing_and_the_others_stay(as_json, write):
    good = as_json(LEFT, RIGHT)
    first, second = read_foreign(write(good, changed(good, "srcOp.1.para.0", None))).rules
    assert not first.meaningless
    assert second.meaningless == "srcOp[1]: OP_CONCAT: parameter PM_AXIS is missing"
    decided = decide_foreign(second)
    assert (decided.verdict, decided.reason) == (Verdict.ILL_TYPED, second.meaningless)


def test_the_number_of_inputs_is_checked(as_json, write):
    wrong = as_json("CONCAT(-1, -2; AXIS=1, NUM_INPUTS=3)", "CONCAT(-1, -2; AXIS=1)")
    assert "OP_CONCAT: PM_NUM_INPUTS is 3, expected 2" in problem(write(wrong))


def test_the_same_outputs_are_mapped_once(as_json, write):
    assert "mapped twice" in problem(write(as_json("RELU(-1) -> t0, t0", "RELU(-1) -> t0, t0")))


def test_operators_stand_in_any_order(rule):
    parsed = rule("RELU(t2) RELU(t0) RELU(-1) -> t1", "RELU(-1)")
    assert parsed.left.order == (2, 0, 1)


def test_a_side_has_a_limit(as_json, write, monkeypatch):
    monkeypatch.setattr(schema, "MAX_OPERATORS", 2)
    expected = "rule[0].srcOp: 3 operators, expected at most 2"
    assert problem(write(as_json(LEFT, RIGHT))) == expected


def test_a_file_has_a_limit(as_json, write, monkeypatch):
    monkeypatch.setattr(schema, "MAX_RULES", 1)
    rule = as_json(LEFT, RIGHT)
    assert problem(write(rule, rule)) == "2 rules, expected at most 1"


def test_large_files_are_refused_unread(tmp_path):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(schema.MAX_FILE_BYTES + 1)
    assert problem(path) == "larger than 8 MiB (expected a rule file)"


def test_deep_nesting(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text('{"rule": ' + "[" * 200_000 + "]" * 200_000 + "}")
    assert problem(path) == "nested too deeply"


def test_long_chains_are_no_matter_of_recursion(as_json, write):
    chain = " ".join(["RELU(-1)", *(f"RELU(t{i})" for i in range(schema.MAX_OPERATORS - 1))])
    (rule,) = read_foreign(write(as_json(chain, "RELU(-1)"))).rules
    assert rule.left.order == tuple(range(schema.MAX_OPERATORS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not JSON"),
        ("[]", "expected an object"),
        ("{}", "at rule: missing"),
        ('{"rule": [], "rule": []}', 'key "rule" is given twice'),
        ('{"rule": [NaN]}', "NaN is no JSON number"),
    ],
)
def test_other_files_are_refused(tmp_path, text, expected):
    path = tmp_path / "rules.json"
    path.write_text(text)
    assert expected in problem(path)


def test_a_missing_file(tmp_path):
    assert "no such file" in problem(tmp_path / "none.json")


RELU = "RELU(-1)"
JOINED = "CONCAT(-1, -2; AXIS=1, NUMDIM={}) EW_ADD(t0, t0)"


@pytest.mark.parametrize(
    ("side", "source"),
    [
        ("LINEAR(-1, -4; ACTI=0)", RuleSystem.FLEXFLOW),
        ("PARTITION(-1; PARALLEL_DIM=1, PARALLEL_DEGREE=2)", RuleSystem.FLEXFLOW),
        ("MATMUL(-1, -4; ACTI=0)", RuleSystem.TASO),
        ("TRANSPOSE(-1; NUMDIM=2, PERM=2)", RuleSystem.TASO),
        (JOINED.format(3), RuleSystem.FLEXFLOW),
        (JOINED.format(2), RuleSystem.TASO),
        ("EW_ADD(-7, -8)", RuleSystem.TASO),
        (RELU, RuleSystem.TASO),
    ],
)
def test_system_of_a_rule_follows_from_its_file(rule, side, source):
    assert rule(side, side).source is source


def test_the_system_is_that_of_the_whole_file(as_json, write):
    linear = as_json("LINEAR(-1, -4; ACTI=0)", "LINEAR(-1, -4; ACTI=0)")
    foreign = read_foreign(write(as_json(RELU, RELU), linear))
    assert {rule.source for rule in foreign.rules} == {RuleSystem.FLEXFLOW}


MIXED = [
    ("LINEAR(-1, -4; ACTI=0)", "MATMUL(-1, -4; ACTI=0)"),
    ("SIGMOID(-1) PARTITION(t0; PARALLEL_DIM=3, PARALLEL_DEGREE=2)", "SIGMOID(-1)"),
    ("TANH(-9) LINEAR(t0, -12; ACTI=1)", "TANH(-9)"),
]


def test_two_systems_in_one_file(as_json, write):
    """Each rule belongs to its own system. A rule with operators of both has its own verdict."""
    linear = as_json("LINEAR(-1, -4; ACTI=0)", "LINEAR(-1, -4; ACTI=0)")
    matmul = as_json("MATMUL(-1, -4; ACTI=0)", "MATMUL(-1, -4; ACTI=0)")
    rules = read_foreign(write(linear, *(as_json(*sides) for sides in MIXED), matmul)).rules
    assert [rule.source for rule in (rules[0], rules[-1])] == [RuleSystem.FLEXFLOW, RuleSystem.TASO]
    verdicts = [decide_foreign(rule) for rule in rules]
    proved, wrong = Verdict.PROVED, Verdict.ILL_TYPED
    assert [v.verdict for v in verdicts] == [proved, wrong, wrong, wrong, proved]
    assert verdicts[1].reason == (
        "it mixes the operators of two systems: OP_LINEAR of flexflow and OP_MATMUL of taso"
    )


def test_rules_that_both_systems_have_are_taken_for_tasos(as_json, write):
    """If other rules belong to both, the inputs and ranks decide, or else less is assumed."""
    linear = as_json("LINEAR(-1, -4; ACTI=0)", "LINEAR(-1, -4; ACTI=0)")
    tanh = as_json("TANH(-1)", "TANH(-1)")
    assert (
        read_foreign(write(linear, tanh, as_json(RELU, RELU))).rules[-1].source is RuleSystem.TASO
    )


def test_flexflow_has_no_images(as_json, write):
    wrong = as_json("LINEAR(-1, -7; ACTI=0)", "LINEAR(-1, -4; ACTI=0)")
    assert "opId is -7, expected -6 to 0" in problem(write(wrong))


def test_flexflow_has_two_activations(as_json, write):
    wrong = as_json("LINEAR(-1, -4; ACTI=1)", "LINEAR(-1, -4; ACTI=0)")
    assert "PM_ACTI is 1, expected 0 or 2" in problem(write(wrong))


@pytest.mark.parametrize(
    ("spelling", "name"),
    [("OP_Pool2D_Max", "OP_POOL2D_MAX"), ("relu", "OP_RELU"), ("OP_CONST_IMM", "OP_CONSTANT_IMM")],
)
def test_other_spellings_of_operators_are_canonical(spelling, name):
    assert schema.canonical(spelling) == name

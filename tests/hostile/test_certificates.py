"""Certificates of an adversary: none is accepted, each is one line, none takes long."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import lru_cache
from pathlib import Path

import pytest
from forging import Content, Forgery, believed, forge, forge_pair
from rule_files import lines, parse

from pcg.errors import OperatorError, one_line
from pcg.operator import Operator
from pcg.poly import Poly
from unity.cli import run_app
from unity.recheck import app
from verifier.bundle import write_bundle
from verifier.certificate import CertificateFile, OperatorFile
from verifier.recheck import Rechecker
from verifier.solvers import SOLVERS
from verifier.trusted.errors import TooLarge, Undecided, Unproved, Unsolvable

CUT = "reduce(matmul(partition(x, dim=1, degree=k), partition(w, dim=0, degree=k)), degree=k)"
TRUE: dict[str, tuple[dict[str, int], str, str]] = {
    "cut": ({"x": 2, "w": 2}, "matmul(x, w)", CUT),
    "sum": ({"x": 2, "y": 2}, "add(x, y)", "add(y, x)"),
    "part": (
        {"x": 2},
        "slice(relu(x), axis=0, start=a, size=b)",
        "relu(slice(x, axis=0, start=a, size=b))",
    ),
    "scale": (
        {"x": 1},
        "scale(scale(x, factor=c), factor=d)",
        "scale(scale(x, factor=d), factor=c)",
    ),
    "asking": ({"x": 2, "y": 2}, "split(concat(x, y, axis=0), axis=0, at=at).1", "y"),
}


@lru_cache
def _made(name: str) -> Forgery:
    inputs, left, right = TRUE[name]
    return forge(inputs, left, right)


def made(name: str) -> Forgery:
    return copy.deepcopy(_made(name))


def recheck(folder: Path, *options: str) -> tuple[int, str]:
    """The status of the command and all that it printed, which is plain text in any case."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        run_app(app, "recheck", [str(folder), "--solver", "z3", "--jobs", "1", *options])
    printed = out.getvalue() + err.getvalue()
    assert all(one_line(line) == line.strip() for line in printed.splitlines()), printed
    assert "Traceback" not in printed
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed


@pytest.mark.parametrize("name", TRUE)
def test_what_is_true_is_accepted(name: str, tmp_path: Path):
    status, printed = recheck(made(name).write(tmp_path))
    assert status == 0, printed
    assert "proved: forged: " in printed


def put(key: str, value: object) -> Callable[[Content], None]:
    return lambda content: content.update({key: value})


def equal(symbol: str) -> Callable[[Content], None]:
    return put("equal", [[[[["|x.0|"], 1]], [[[symbol], 1]]]])


def operator(**fields: object) -> Callable[[Content], None]:
    """Change the last of the operators, one that computes."""
    return lambda content: content["operators"][-1].update(fields)


def first_operator(**fields: object) -> Callable[[Content], None]:
    return lambda content: content["operators"][0].update(fields)


def text(old: str, new: str, side: str = "left") -> Callable[[Content], None]:
    def change(content: Content) -> None:
        assert old in content[side]
        content[side] = content[side].replace(old, new)

    return change


def both(old: str, new: str) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        for side in ("left", "right"):
            text(old, new, side)(content)

    return change


def witness(part: str, **fields: object) -> Callable[[Content], None]:
    return lambda content: content["witness"][part].update(fields)


def theorem(**fields: object) -> Callable[[Content], None]:
    return lambda content: content["theorems"][0].update(fields)


def again(key: str) -> Callable[[Content], None]:
    return lambda content: content[key].append(content[key][0])


def less(key: str) -> Callable[[Content], None]:
    return lambda content: content[key].pop() and None


INJECTION = "~| Int)\n(assert false)\n(exit)\n;"
BAD: dict[str, tuple[str, Callable[[Content], object], str]] = {
    # Symbols
    "commands in a symbol": ("sum", equal(INJECTION), "equal"),
    "commands in a size": ("sum", equal("|x.0| Int)(assert false)(exit);|"), "equal"),
    "a bar in a symbol": ("sum", equal("a|b"), "equal"),
    "a backslash in a symbol": ("sum", equal("a\\b"), "equal"),
    "a line break in a symbol": ("sum", equal("a\n"), "equal"),
    "no symbol": ("sum", equal(""), "equal"),
    "a space in a symbol": ("sum", equal("size x.0"), "equal"),
    "a NUL in a symbol": ("sum", equal("a\0"), "control character"),
    "a letter that looks like another": ("sum", equal("\u0445"), "equal"),
    "a symbol of the core": ("sum", equal("quotient 1"), "equal"),
    "an index of the core": ("sum", equal("o0"), "o0 is in no attribute"),
    "the size of another input": ("sum", equal("|z.0|"), "the size of no input"),
    "a size beyond the rank": ("sum", equal("|x.7|"), "the size of no input"),
    "a size in other digits": ("sum", equal("|x.00|"), "the size of no input"),
    "a size of its own": ("sum", equal("|N|"), "the size of no input"),
    "a symbol of nothing": ("sum", equal("q"), "q is in no attribute"),
    "a size in an attribute": ("part", both("start=a", "start=|z.0|"), "the size of no input"),
    "a symbol of 100,000 letters": ("sum", equal("a" * 100_000), "equal"),
    "a coefficient of 10**40": ("sum", put("equal", [[[[["|x.0|"], 10**40]], []]]), "equal"),
    "20,000 terms": ("sum", put("equal", [[[[[f"a{i}"], 1] for i in range(20_000)], []]]), "equal"),
    "a size of 0": ("sum", put("equal", [[[[["|x.0|"], 1]], []]]), ""),
    "sizes that cannot be": (
        "sum",
        put("equal", [[[[["|x.0|"], 1]], [[["|x.0|"], 1], [[], 1]]]]),
        "",
    ),
    # Definitions
    "commands in an operator's name": ("sum", operator(name=INJECTION), "operators"),
    "commands in a size attribute": ("part", operator(sizes=["start", INJECTION]), "operators"),
    "commands in a real attribute": ("scale", operator(reals=[INJECTION]), "operators"),
    "a kind of move that there is not": ("cut", first_operator(parallel="bogus"), "parallel"),
    "an operator that moves as reduce does": (
        "sum",
        operator(parallel="reduce"),
        "defines add anew",
    ),
    "add defined anew": (
        "sum",
        operator(equation="out[i...] = x[i...] * y[i...]"),
        "defines add anew",
    ),
    "add that does not commute": ("sum", operator(commutative=False), "defines add anew"),
    "a definition twice": ("sum", again("operators"), "defines add twice"),
    "a definition left out": ("cut", less("operators"), ""),
    "a definition too many": (
        "sum",
        lambda c: c["operators"].append({**c["operators"][0], "name": "mine"}),
        "other operators than it uses",
    ),
    "an equation without meaning": ("sum", operator(equation="out[i] = y[j]"), ""),
    "an equation nested deeply": ("sum", operator(equation="(" * 1_900), ""),
    "an equation of 10,000 letters": ("sum", operator(equation="x" * 10_000), "equation"),
    # Graphs
    "a torch function": (
        "sum",
        text("return", "opaque f = aten.relu.default(x0) : [2] float32 -> [2] float32\nreturn"),
        "without an equation",
    ),
    "a torch function behind a tab": (
        "sum",
        text("return", "\topaque\tf = aten.from_file(x0) : [2] float32 -> [2] float32\nreturn"),
        "left",
    ),
    "an input of a model": ("sum", both("x = tensor[_, _]", "x = input[2, 2]"), "none of a rule"),
    "a comment": ("sum", text("return", "# what it says\nreturn"), "as graphs are printed"),
    "an input with other words": ("sum", both("[_, _]", "[a, b]"), "as graphs are printed"),
    "a graph of 100,000 letters": ("sum", put("left", "x" * 100_000), "characters"),
    "a graph of 100,000 lines": ("sum", put("left", "\n" * 100_000), "lines"),
    "20,000 terms in an attribute": (
        "part",
        both("start=a", "start=" + "+".join(f"a{i}" for i in range(20_000))),
        "characters",
    ),
    "calls 10,000 deep": ("sum", put("left", "relu(" * 10_000), "characters"),
    "an escape character": ("sum", text("t0", "t\x1b[2J0"), "control character"),
    "a letter of another script": ("sum", both("x", "\u0445"), "ASCII"),
    "an input of two ranks": ("sum", text("y = tensor[_, _]", "y = tensor[_]"), ""),
    "a rank of 60": ("sum", both("x = tensor[_, _]", f"x = tensor[{', '.join('_' * 60)}]"), ""),
    "another output": ("sum", text("return t0", "return x"), ""),
    "no output": ("sum", text("return t0", "return"), ""),
    "a degree of 10**9": (
        "cut",
        text("degree=k", f"degree={10**9 + 7}", "right"),
        "degree is more",
    ),
    "a degree that is a size": ("cut", text("degree=k", "degree=|x.1|", "right"), ""),
    "a degree of 1": ("cut", text("degree=k", "degree=1", "right"), ""),
    "a start of 10**17": ("part", both("start=a", f"start={10**17}"), "start is more"),
    "a factor without end": ("scale", text("factor=c", "factor=1e999"), ""),
    # What is claimed
    "other conditions of types": ("cut", put("types", "0" * 24), "types is another"),
    "a typing that there is not": ("cut", put("typings", [4_000, 0]), "no such typing"),
    "a negative typing": ("cut", put("typings", [-1, 0]), "typings"),
    "requirements left out": ("asking", put("requires", []), "requires something else"),
    "requirements of another": ("cut", put("requires", ["x.d0 = 1"]), "requires something else"),
    "whole, though it moves": ("cut", put("whole", True), "moves them"),
    "an axis that is not free": ("cut", put("runs", [[["x", 1]]]), "any number of axes"),
    "an axis of nothing": ("cut", put("runs", [[["q", 0]]]), "any number of axes"),
    # The proof
    "a step left out": ("sum", less("steps"), ""),
    "a step too many": ("sum", again("steps"), "more than its proof needs"),
    "a step that is none": ("sum", lambda c: c["steps"].__setitem__(0, "no way"), "no way"),
    "an escape character in a step": (
        "sum",
        lambda c: c["steps"].__setitem__(0, "no\x1bway"),
        "control character",
    ),
    "100,000 steps": ("sum", put("steps", ["sorted"] * 100_000), "steps"),
    "a condition left out": ("sum", less("conditions"), "of its proof are others"),
    "conditions of another": ("cut", put("conditions", ["0" * 24]), "of its proof are others"),
    "a path as a condition": ("cut", put("conditions", ["../../../../etc/passwd"]), "conditions"),
    "a path as the types": ("cut", put("types", "../types"), "types"),
    "a theorem left out": ("cut", less("theorems"), "no theorem"),
    "the theorem of another": ("cut", theorem(operator="add"), "no theorem"),
    "a theorem of other conditions": ("cut", theorem(conditions=[]), "of its theorem are others"),
    "a theorem of more steps": (
        "cut",
        lambda c: again("steps")(c["theorems"][0]),
        "more of matmul",
    ),
    "a theorem of rank 10**9": ("cut", theorem(ranks=[10**9, 2]), "ranks"),
    # The witness
    "no witness": ("cut", put("witness", {"sizes": {}, "degrees": {}, "reals": {}}), "witness"),
    "a size of 0 in the witness": ("cut", witness("sizes", **{"|x.0|": 0}), "witness"),
    "a size of 10**9 in the witness": ("cut", witness("sizes", **{"|x.0|": 10**9}), "witness"),
    "a degree of 1 in the witness": ("cut", witness("degrees", k=1), "less than 2"),
    "a degree of 0 in the witness": ("cut", witness("degrees", **{"x.d0": 0}), "witness"),
    "a degree that does not divide": ("cut", witness("degrees", k=7), ""),
    "types that do not hold": ("cut", witness("degrees", **{"x.p": 2, "w.p": 2}), "do not hold"),
    "a size of nothing in the witness": ("cut", witness("sizes", q=1), "one too many, for q"),
    "a degree of nothing": ("cut", witness("degrees", q=2), "one too many, for q"),
    "a real of nothing": ("cut", witness("reals", q=2.0), "other real numbers"),
    "reals left out": ("scale", lambda c: c["witness"].update(reals={}), "other real numbers"),
    # The file
    "an unknown field": ("sum", put("trust", True), "unknown field"),
    "another version": ("sum", put("schema_version", 2), "schema_version"),
    "a label of 20,000 letters": ("sum", put("rule", "r" * 20_000), "rule"),
    "no label": ("sum", put("rule", ""), "rule"),
    "the label of a rule of the library": ("sum", put("rule", "r794b7f8e60"), "another rule than"),
    "a label that states something else": ("sum", put("rule", "relu(x) == x"), "another statement"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_with_a_certificate_is_one_line(case: str, tmp_path: Path):
    name, change, problem = BAD[case]
    forged = made(name)
    change(forged.content)
    assert forged.content != made(name).content
    status, printed = recheck(forged.write(tmp_path))
    assert status in (1, 2), printed
    assert "proved: " not in printed
    assert problem in printed
    assert len(printed) < 2_000
    assert [p.name for p in tmp_path.rglob("*") if p.suffix not in (".json", ".smt2", "")] == []


def test_commands_are_not_run_by_solvers(tmp_path: Path):
    """As complete as an adversary can make it: every script is there under its own name."""
    forged = forge({"x": 1}, "relu(x)", "x", equal=[(Poly.of("|x.0|"), Poly.of("~zz"))])
    forged.replace("|~zz|", f"|{INJECTION}|")
    forged.content["equal"] = [[[[["|x.0|"], 1]], [[[INJECTION], 1]]]]
    forged.content["witness"]["sizes"] = {INJECTION: 2}
    assert any(INJECTION in script for script in forged.scripts.values())
    status, printed = recheck(forged.write(tmp_path))
    assert status == 2
    assert "equal[0][1][0][0][0]" in printed


FALSE: dict[str, tuple[dict[str, int], str, str]] = {
    "relu is nothing": ({"x": 1}, "relu(x)", "x"),
    "a sum is a product": ({"x": 1, "y": 1}, "add(x, y)", "multiply(x, y)"),
    "products commute": ({"x": 2, "y": 2}, "matmul(x, y)", "matmul(y, x)"),
    "twice is once": ({"x": 2}, "scale(x, factor=2.0)", "x"),
    "another axis": ({"x": 2}, "softmax(x, axis=0)", "softmax(x, axis=1)"),
    "another start": (
        {"x": 1},
        "slice(x, axis=0, start=a, size=b)",
        "slice(x, axis=0, start=c, size=b)",
    ),
    "a start for a size": (
        {"x": 1},
        "pad(x, axis=0, before=a, size=b)",
        "pad(x, axis=0, before=0, size=b)",
    ),
    "not summed": (
        {"x": 2, "w": 2},
        "matmul(x, w)",
        "combine(matmul(partition(x, dim=0, degree=k), replicate(w, degree=k)), dim=1, degree=k)",
    ),
    "one of two": ({"x": 1, "y": 1}, "exp(add(x, y))", "multiply(exp(x), exp(x))"),
    "true of one row only": (
        {"x": 2},
        "softmax(x, axis=0)",
        "add(softmax(x, axis=0), scale(x, factor=0.5))",
    ),
}


@pytest.mark.parametrize("case", FALSE)
def test_what_is_false_is_rejected_by_solvers_and_by_evaluation(case: str, tmp_path: Path):
    forged = forge(*FALSE[case])
    status, printed = recheck(forged.write(tmp_path))
    assert status == 1
    assert "rejected: " in printed
    assert _evaluated(forged)


def _evaluated(forged: Forgery) -> bool:
    """Whether a certificate is rejected that solvers would accept."""
    file = CertificateFile.model_validate_json(json.dumps(forged.content))
    result = Rechecker(forged.scripts, {"believed": believed}).check_file(file)
    return not result.accepted


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.soak)])
def test_unsound_rules_are_rejected_whatever_solvers_say(step: int):
    """By two shapes alone: but for the few that differ at a few numbers of many."""
    tried = missed = 0
    for line in lines("unsound")[::step]:
        try:
            forged = forge_pair(parse(line))
        except (Unproved, TooLarge, Unsolvable, Undecided, OperatorError, ValueError):
            continue
        tried += 1
        missed += not _evaluated(forged)
    assert tried > 60 / step
    assert missed <= max(1, tried // 20), f"{missed} of {tried}"


def mine(equation: str, *, commutative: bool = False) -> Operator:
    return Operator("mine", equation, commutative=commutative)


def test_theorems_are_those_of_a_definition(tmp_path: Path):
    """One operator may be cut, the other of the same name may not: its output reads all of x."""
    call = "mine(partition(x, dim=0, degree=k))", "partition(mine(x), dim=0, degree=k)"
    good = forge({"x": 1}, *call, label="a", operators=[mine("out[i...] = 2 * x[i...]")])
    other = mine("out[i...] = x[i...] + 1")
    bad = forge({"x": 1}, *call, label="b", operators=[other])
    assert recheck(good.write(tmp_path / "good"))[0] == 0
    # The theorems of the first under the name of the second, whose own are left out.
    for key in ("theorems", "steps", "conditions", "types"):
        bad.content[key] = good.content[key]
    both_there = tmp_path / "both"
    good.write(both_there, "a")
    Forgery(bad.content, good.scripts | bad.scripts).write(both_there, "b")
    status, printed = recheck(both_there)
    assert status == 1
    assert "rejected: " in printed
    assert "b.json" in printed


def test_graphs_tell_definitions_of_one_name_apart(tmp_path: Path):
    """What may be any number of axes is found once for equal graphs, and these are not equal."""
    run, plain = mine("out[i...] = 2 * x[i...]"), mine("out[i] = 2 * x[i]")
    call = "relu(mine(x))", "relu(mine(x))"
    free = forge({"x": 1}, *call, label="a", operators=[run])
    free.content["runs"] = [[["x", 0]]]
    fixed = forge({"x": 1}, *call, label="b", operators=[plain])
    fixed.content["runs"] = [[["x", 0]]]
    free.write(tmp_path, "a")
    status, printed = recheck(fixed.write(tmp_path, "b"))
    assert status == 1
    assert "1 certificates accepted, 1 rejected" in printed
    assert "b.json: has axes that may not be any number of axes" in printed


def test_an_operator_that_says_it_commutes_has_to(tmp_path: Path):
    def commuting(o: Operator) -> OperatorFile:
        return OperatorFile.of(o).model_copy(update={"commutative": o.name == "mine"})

    sides = "relu(mine(x, y))", "relu(mine(x, y))"
    for number, (sign, status) in enumerate((("-", 1), ("+", 0))):
        own = mine(f"out[i...] = x[i...] {sign} y[i...]")
        forged = forge({"x": 1, "y": 1}, *sides, operators=[own], listed=commuting)
        folder = tmp_path / str(number)
        found, printed = recheck(forged.write(folder))
        assert found == status, printed
        assert ("is not shown to commute" in printed) == bool(status)


def test_an_operator_of_one_s_own_moves_no_data(tmp_path: Path):
    """Else it would need no theorem, and would compute what it says on whole tensors."""
    own = Operator("mine", "out[i...] = 2 * x[i...]", parallel="partition")
    forged = forge({"x": 1}, "relu(x)", "relu(x)")
    forged.content["operators"].append(OperatorFile.of(own).model_dump(mode="json"))
    forged.content["right"] = forged.content["right"].replace(
        "t0 = relu(x)\n", "t0 = mine(x, dim=0, degree=2)\n"
    )
    status, printed = recheck(forged.write(tmp_path))
    assert status == 1
    assert "mine moves data" in printed


def test_a_folder_or_bundle_without_certificates_proves_nothing(tmp_path: Path):
    assert recheck(tmp_path)[0] == 1
    write_bundle(tmp_path / "c.jsonl.xz", [])
    status, printed = recheck(tmp_path / "c.jsonl.xz")
    assert status == 1
    assert "holds no certificates, nothing is proved" in printed
    assert recheck(tmp_path / "nowhere")[0] == 2


def test_two_certificates_of_one_label(tmp_path: Path):
    made("sum").write(tmp_path, "a")
    status, printed = recheck(made("cut").write(tmp_path, "b"))
    assert status == 1
    assert "another certificate has its label" in printed


def test_a_proof_about_whole_tensors_is_said_to_be_one(tmp_path: Path):
    forged = made("sum")
    forged.content.update(whole=True, types="", theorems=[], typings=[0, 0], requires=[])
    forged.content["witness"]["degrees"] = {}
    status, printed = recheck(forged.write(tmp_path))
    assert status == 1
    assert "(whole tensors only)" in printed
    assert "1 of 1 certificates are about whole tensors only" in printed


def test_what_is_printed_is_plain_text(tmp_path: Path):
    forged = made("cut")
    forged.content["rule"] = "[red]name[/red] :smile:\nproved: all"
    status, printed = recheck(forged.write(tmp_path))
    assert status == 0
    assert "[red]name[/red] :smile:" in printed
    (line,) = [line for line in printed.splitlines() if line.startswith("proved: ")]
    assert "matmul(x, w) == reduce(" in line
    forged.content["rule"] = "\x1b]0;owned\x07 \u202e name"
    for options in ((), ("--json",)):
        status, printed = recheck(forged.write(tmp_path), *options)
        assert status == 2
        assert "has the control character U+001B" in printed
        assert "owned" not in printed


def test_swapped_scripts_are_noticed(tmp_path: Path):
    forged = made("cut")
    names = sorted(forged.scripts)
    first, last = names[0], names[-1]
    forged.scripts[first], forged.scripts[last] = forged.scripts[last], forged.scripts[first]
    status, printed = recheck(forged.write(tmp_path))
    assert status == 1
    assert "is not the condition that it stands for" in printed


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_false_condition_is_found_by_each_solver(solver: str):
    forged = forge(*FALSE["products commute"])
    file = CertificateFile.model_validate_json(json.dumps(forged.content))
    result = Rechecker(forged.scripts, {solver: SOLVERS[solver]}).check_file(file)
    assert not result.accepted

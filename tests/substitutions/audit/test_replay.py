"""Replaying plans: each field of a step is checked, and every alteration is found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.cases import each

from pcg.errors import InputError
from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.plan.derivation import Application, AppliedRule
from pcg.plan.plan import Plan, altered_parts, part_hashes, save_plan
from pcg.plan.plan import plan_of as read_plan
from pcg.plan.schema import PlanFile
from pcg.plan.text import parse_graph, print_graph
from search.plan.planner import MeshPlanner
from substitutions.audit.errors import Finding
from substitutions.audit.proofs import check_proofs
from substitutions.audit.provenance import check_library
from substitutions.audit.replay import PlanReplay, replay
from substitutions.rules.rule import Rule, parse_rule
from substitutions.rules.store import Library, default_path, load_library
from verifier.bundle import read_bundle
from verifier.solvers import SOLVERS

MODEL = (
    "x = input[4096, 1536]\nw = weight[1536, 3072]\nv = weight[3072, 1536]\n"
    "return mean_loss(matmul(relu(matmul(x, w)), v))"
)


@lru_cache(maxsize=1)
def library() -> Library:
    return load_library()


@lru_cache(maxsize=1)
def plan() -> Plan:
    machine = load_machine("dgx-a100").with_devices(2)
    answer = MeshPlanner(machine, library()).plan("perceptron", parse_graph(MODEL)).plan
    assert len(answer.derivation) >= 4
    return answer


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    save_plan(plan(), path)
    return json.loads(path.read_text())


def test_a_plan_that_was_not_altered_follows():
    followed = replay(plan(), library().rules)
    assert followed.findings == ()
    assert followed.steps == len(plan().derivation)
    assert followed.conditions > followed.steps
    assert {rule.name for rule in followed.rules.values()} == {
        step.applied.rule for step in plan().derivation
    }


# -- altered files --------------------------------------------------------------------------------

Places = list[tuple[str | int, ...]]


def places(value: Any, way: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path to every number, text and truth value of a file."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*way, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from places(inner, (*way, i))
    else:
        yield way


def parent(value: Any, way: tuple[str | int, ...]) -> Any:
    for key in way[:-1]:
        value = value[key]
    return value


def problems(altered: dict[str, Any]) -> list[str]:
    """The problems that loading a plan finds, or else those of its audit."""
    try:
        given = PlanFile.model_validate_json(json.dumps(altered))
        loaded = read_plan(given, "plan.json")
    except (InputError, ValueError) as error:
        return [str(error)]
    errors = [*check_library(loaded, library(), "rules.json")]
    errors += replay(loaded, library().rules).findings
    errors += [Finding(part, "altered") for part in altered_parts(given)]
    return [str(finding) for finding in errors]


def sealed(altered: dict[str, Any]) -> dict[str, Any]:
    """The content with valid hashes, if it can be read."""
    try:
        hashes = part_hashes(PlanFile.model_validate_json(json.dumps(altered)))
    except ValueError:
        return altered
    return {**altered, "hashes": hashes}


@st.composite
def another(draw: st.DrawFn, old: Any, others: list[Any]) -> Any:
    """Another value of the same kind, from the same file or near."""
    if old is None:
        return "0"
    if isinstance(old, bool):
        return not old
    if isinstance(old, (int, float)):
        return draw(
            st.sampled_from([old + 1, old * 2, max(old // 2, 0)]).filter(lambda n: n != old)
        )
    same = [value for value in others if isinstance(value, str) and value != old]
    return draw(
        st.sampled_from([*same, old + "0", old[:-1], old.replace("2", "4")]).filter(
            lambda text: text != old
        )
    )


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_field_that_is_altered_is_found(content: dict[str, Any], data: st.DataObject):
    """The error names at least the part of the altered field."""
    way = data.draw(st.sampled_from(list(places(content))))
    altered = deepcopy(content)
    inside = parent(altered, way)
    near = list(inside.values()) if isinstance(inside, dict) else list(inside)
    inside[way[-1]] = data.draw(another(inside[way[-1]], near))
    errors = problems(altered)
    assert errors
    part = ".".join(map(str, way[:2])) if way[0] == "decisions" else str(way[0])
    named = str(way[1]) if part == "hashes" else part
    assert any(named in line for line in errors), errors


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_altered_plan_with_a_matching_hash_does_not_follow(
    content: dict[str, Any], data: st.DataObject
):
    """All decisions but the views. Views follow from nothing: any that fit are a plan."""
    decisions = content["decisions"]
    kinds = [
        way
        for way in places(content)
        if way[:2] in (("decisions", "graph"), ("decisions", "rules"), ("decisions", "derivation"))
        or way[0] in ("library_hash",)
        or way[:2] in (("model", "graph"), ("model", "hash"))
    ]
    way = data.draw(st.sampled_from(kinds))
    altered = deepcopy(content)
    inside = parent(altered, way)
    ids = [i for step in decisions["derivation"] for i in (*step["at"], *step["inputs"])]
    near = {"rule": list(decisions["rules"]), "derivation": ids}.get(
        str(way[-1]) if isinstance(way[-1], str) else str(way[1]), []
    )
    inside[way[-1]] = data.draw(another(inside[way[-1]], near or ids))
    errors = problems(sealed(altered))
    assert errors
    if way[1:2] == ("derivation",):
        said = errors[0]
        number = said.partition("derivation[")[2].partition("]")[0]
        assert number or "decisions." in said, said
        assert not number or int(number) >= int(way[2])


STEPS = ("drop", "repeat", "swap")


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(change=st.sampled_from(STEPS), number=st.integers(0, 1000))
def test_steps_that_are_dropped_repeated_or_swapped_are_found(
    content: dict[str, Any], change: str, number: int
):
    altered = deepcopy(content)
    steps = altered["decisions"]["derivation"]
    at = number % (len(steps) - 1)
    if change == "drop":
        del steps[at]
    elif change == "repeat":
        steps.insert(at, steps[at])
    else:
        # Independent steps at the end may come in either order.
        after = (*steps[at + 1]["at"], *steps[at + 1]["inputs"])
        assume(any(value.startswith(f"{at}.") for value in after))
        steps[at], steps[at + 1] = steps[at + 1], steps[at]
    used = {step["rule"] for step in steps}
    rules = altered["decisions"]["rules"]
    altered["decisions"]["rules"] = {name: rules[name] for name in rules if name in used}
    errors = problems(sealed(altered))
    assert errors
    assert "decisions.derivation[" in errors[0] or "decisions.graph[" in errors[0]


def test_altered_graph_is_reported_by_its_line(content: dict[str, Any]):
    altered = deepcopy(content)
    lines = altered["decisions"]["graph"]
    at = next(i for i, line in enumerate(lines) if "mean_loss(" in line)
    old = lines[at]
    lines[at] = old.replace("mean_loss", "sum_loss")
    (errors,) = problems(sealed(altered))
    assert errors.startswith(f"decisions.graph[{at}]: {lines[at]!r} is not what the derivation")
    assert errors.endswith(f"expected {old!r}")


# -- steps that do not follow ---------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A rule, its stated place in a graph, and the graph after it."""

    rule: Rule
    model: str
    at: tuple[str, ...]
    inputs: tuple[str, ...]
    symbols: tuple[tuple[str, int | float], ...]
    graph: str

    def replay(self) -> PlanReplay:
        form = self.rule.form
        applied = AppliedRule(
            self.rule.name, form.rule, form.axes, form.operators, form.reversed, self.rule.text
        )
        step = Application(applied, self.at, self.inputs, self.symbols)
        base = self.rule.reversed if form.reversed else self.rule
        base = replace(base, name=form.rule, made_from=None)
        steps = replace(plan(), model=parse_graph(self.model), graph=parse_graph(self.graph))
        return replay(replace(steps, derivation=(step,)), [base])


CUT = parse_rule(
    "cut",
    {"x": 2, "y": 2},
    "matmul(x, y)",
    "combine(matmul(partition(x, dim=0, degree=k), replicate(y, degree=k)), dim=0, degree=k)",
)
MATMUL = "x = input[6, 4]\ny = weight[4, 6]\nreturn matmul(x, y)"
WELL = Case(
    CUT,
    MATMUL,
    ("t0",),
    ("x", "y"),
    (("k", 2),),
    MATMUL.replace("matmul(x, y)", CUT.text.split(" == ")[1].replace("k)", "2)")),
)
ROW = replace(
    parse_rule("row", {"x": 2}, "softmax(x, axis=1)", "softmax(scale(x, factor=c), axis=1)"),
    requires=("|x.1| = 1",),
)
PARTS = parse_rule(
    "parts",
    {"x": 2, "y": 2, "z": 2},
    "matmul(x, y), matmul(x, z)",
    "split(matmul(x, concat(y, z, axis=1)), axis=1, at=|y.1|).0,"
    " split(matmul(x, concat(y, z, axis=1)), axis=1, at=|y.1|).1",
)
CHAIN = "x = input[4, 4]\ny = weight[4, 4]\nt = matmul(x, y)\nreturn matmul(x, relu(t))"
WRONG = parse_rule(
    "wrong", {"x": 2, "y": 2}, "matmul(x, y)", "partition(matmul(x, y), dim=0, degree=k)"
)


def test_a_step_by_hand_follows():
    assert WELL.replay().findings == ()
    assert WELL.replay().conditions == 5  # four operators, one output


@each(
    ("case", "says"),
    [
        (replace(WELL, at=("t9",)), "t9 is no value, expected one of the model"),
        (replace(WELL, at=("x",)), "expected matmul, found x"),
        (replace(WELL, at=("t0", "t0")), "is at 2 values, expected 1"),
        (replace(WELL, inputs=("x",)), "has 1 inputs, expected 2"),
        (replace(WELL, inputs=("y", "x")), "input x is another value"),
        (replace(WELL, symbols=()), "symbol k has no value"),
        (replace(WELL, symbols=(("k", 2), ("j", 2))), "the rule has no symbol j"),
        (replace(WELL, symbols=(("k", 4),)), "has no type there: partition"),
        (replace(WELL, symbols=(("k", 1),)), "degree 1, expected 2 or more"),
        (replace(WELL, symbols=(("k", -2),)), "degree -2, expected 2 or more"),
        (replace(WELL, symbols=(("k", 2.0),)), "has no type there"),
        (replace(WELL, symbols=(("k", 3),)), "is not what the derivation leads to"),
        (Case(WRONG, MATMUL, ("t0",), ("x", "y"), (("k", 2),), MATMUL),
         r"gives a tensor \[6/2, 6\], expected \[6, 6\]"),
        (Case(ROW, "x = input[4, 2]\nreturn softmax(x, axis=1)", ("t0",), ("x",), (("c", 1.0),),
              MATMUL), r"requires \|x.1\| = 1, which is 2 = 1"),
        (Case(ROW, "x = input[4, 1]\nreturn softmax(x, axis=0)", ("t0",), ("x",), (("c", 1.0),),
              MATMUL), "expected softmax with axis=1, found 0"),
        (Case(ROW, "x = input[4, 1, 1]\nreturn softmax(x, axis=1)", ("t0",), ("x",), (("c", 1.0),),
              MATMUL), "input x has rank 3, expected 2"),
        (Case(PARTS, CHAIN, ("t0", "t2"), ("x", "y", "t1"), (), CHAIN),
         "would compute a value from itself"),
        (Case(PARTS, CHAIN, ("t0", "t0"), ("x", "y", "y"), (), CHAIN), "are the same value"),
        (Case(parse_rule("new", {"x": 2, "y": 2}, "x", "split(concat(x, y, axis=0), axis=0,"
              " at=|x.0|).0"), CHAIN, ("x",), ("x", "t1"), (), CHAIN), "input y is not on the"),
    ],
)  # fmt: skip
def test_a_step_that_does_not_follow_says_why(case: Case, says: str):
    (finding,) = case.replay().findings
    assert re.search(says, str(finding)), finding
    assert finding.where.startswith(("decisions.derivation[0]", "decisions.graph["))


def test_equal_values_that_are_replaced_together():
    model = "x = input[4, 4]\ny = weight[4, 4]\nz = weight[4, 2]\nreturn matmul(x, y), matmul(x, z)"
    right = PARTS.text.split(" == ")[1]
    graph = model[: model.index("return")] + f"return {right.replace('|y.1|', '4')}"
    assert Case(PARTS, model, ("t0", "t1"), ("x", "y", "z"), (), graph).replay().findings == ()


# -- rules that are wrong -------------------------------------------------------------------------


def with_rule(change: Callable[[Rule], Rule]) -> tuple[Rule, ...]:
    """The library with the first rule that the plan applies altered."""
    name = plan().derivation[0].applied.rule
    return tuple(change(rule) if rule.name == name else rule for rule in library().rules)


def test_rule_that_differs_from_the_plan_is_refused():
    rules = with_rule(lambda rule: replace(rule, right=rule.left, left=rule.right))
    (finding,) = replay(plan(), rules).findings
    assert finding.where == f"decisions.rules.{plan().derivation[0].rule}"
    assert "the rule says" in finding.what


def test_a_rule_that_the_library_lacks_is_refused():
    (finding,) = replay(plan(), ()).findings
    assert "the library has no rule" in finding.what


def test_a_rule_without_its_own_certificate_is_refused():
    """A false rule under the name of a proved one, and a plan that follows from it."""
    bundle = read_bundle(default_path().with_name("certificates.jsonl.xz"))
    solvers = {"z3": SOLVERS["z3"]}
    used = replay(plan(), library().rules).rules
    sound = check_proofs(used, bundle, solvers)
    assert sound.findings == ()
    assert sound.conditions > len(used)
    name = next(iter(used))
    false = parse_rule(name, {"x": 2, "y": 2}, "matmul(x, y)", "matmul(y, x)")
    (finding,) = check_proofs({name: false}, bundle, solvers).findings
    assert finding.where == f"rule {name}"
    assert "is not about 'matmul(x, y) == matmul(y, x)'" in finding.what
    (missing,) = check_proofs({"r0": replace(false, name="r0")}, bundle, solvers).findings
    assert missing.what == "has no certificate"
    wider = replace(used[name], requires=(), runs=(*used[name].runs, (("x", 9),)))
    assert check_proofs({name: wider}, bundle, solvers).findings
    without = replace(bundle, scripts={})
    (rejected,) = check_proofs({name: used[name]}, without, solvers).findings
    assert "its certificate is rejected: has no script" in rejected.what


def test_the_order_of_commutative_operands_is_free():
    rule = parse_rule("swap", {"x": 1, "y": 1}, "add(relu(x), y)", "add(y, relu(x))")
    model = "x = input[4]\ny = input[4]\nreturn add(y, relu(x))"
    assert Case(rule, model, ("t1",), ("x", "y"), (), model).replay().findings == ()


def test_a_graph_is_compared_by_structure():
    assert Graph(plan().graph.outputs) == plan().graph
    same = replace(plan(), graph=parse_graph("\n".join(reversed_leaves())))
    assert replay(same, library().rules).findings == ()


def reversed_leaves() -> list[str]:
    """The text of the plan's graph with its leaves first and in another order."""
    lines = print_graph(plan().graph).splitlines()
    leaves = [line for line in lines if " = input[" in line or " = weight[" in line]
    return [*reversed(leaves), *(line for line in lines if line not in leaves)]


def test_derivation_in_a_plan_file_stays_short(tmp_path: Path):
    save_plan(plan(), tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    assert text.count("\n") < 3 * len(plan().derivation) + 3 * len(plan().graph.nodes) + 60

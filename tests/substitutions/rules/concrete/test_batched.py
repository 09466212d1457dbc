"""Rules about batched functions: exactly those of the generator, and proved."""

from __future__ import annotations

import pytest

from pcg.graph.graph import Graph, Node, apply, leaf, tensor
from pcg.graph.opaque import Batched, TensorType, batched, opaque
from pcg.graph.slicewise import SharedIndex, SliceForm, form_of
from pcg.language.poly import Poly
from pcg.ops.parallel import combine, partition
from substitutions.generate.cuts.cuts import OperatorCuts
from substitutions.rules.canonical import canonical_pair
from substitutions.rules.concrete.batched import (
    certificate,
    graph_rules,
    is_about_a_form,
    proved_rules,
    rules_about,
    rules_of_form,
)
from substitutions.rules.concrete.rooted import ListedRules
from substitutions.rules.rule import open_call, parse_rule
from substitutions.rules.store import load_library
from verifier.decide import Verdict, decide
from verifier.recheck import Rechecker
from verifier.solvers import SOLVERS

ROWS = SharedIndex((0,), (0,))
FORMS = {
    "one operand": form_of([(4, 6)], [(4, 6)], [ROWS]),
    "two results": form_of([(4, 6)], [(4, 2), (4,)], [SharedIndex((0,), (0, 0))]),
    "a shared operand": form_of([(4, 6), (6,)], [(4, 6)], [SharedIndex((0, None), (0,))]),
    "shared in turn": form_of(
        [(4, 6), (6, 3)], [(4, 3)], [SharedIndex((0, None), (0,)), SharedIndex((None, 1), (1,))]
    ),
    "other places": form_of(
        [(6, 4, 2)], [(2, 4, 3)], [SharedIndex((1,), (1,)), SharedIndex((2,), (0,))]
    ),
    "a number": form_of([(4,), ()], [(4,)], [SharedIndex((0, None), (0,))]),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_rules_of_batched_functions_equal_the_generated_ones(form: SliceForm) -> None:
    layout = OperatorCuts.of(form)
    assert layout is not None
    generated = {canonical_pair(layout.written(relation)) for relation in layout.basis([])}
    assert {canonical_pair((rule.left, rule.right)) for rule in rules_of_form(form)} == generated


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_each_is_proved_and_its_certificate_accepted(form: SliceForm) -> None:
    assert len(proved_rules(form)) == len(rules_of_form(form))
    for rule in proved_rules(form):
        made = certificate(rule)
        checked = Rechecker(made.scripts, {"z3": SOLVERS["z3"]}).check_file(made.file)
        assert checked.accepted, checked.reason
        assert is_about_a_form(rule)


def test_a_cut_within_slices_is_not_proved() -> None:
    form = FORMS["one operand"]
    call, degree, x = open_call(form, ()), Poly.of("k"), tensor("x", 2)
    block = apply(call, apply(partition(dim=1, degree=degree), x))
    decision = decide((apply(call, x),), (apply(combine(dim=1, degree=degree), block),))
    assert decision.verdict is not Verdict.PROVED


def rows_summed() -> Batched:
    types = (TensorType((4, 6), "float32"),)
    return batched("aten.cumsum.default(x0, 1)", types, types)


def test_rules_are_made_for_batched_operators_only() -> None:
    operator = rows_summed()
    assert [rule.left[0].node.name for rule in rules_about(operator)][:2] == [operator.name] * 2
    assert rules_about(operator)[0].form.operators == (operator.name,)
    types = (TensorType((4,), "float32"),)
    assert rules_about(opaque("aten.cumsum.default(x0, 0)", types, types)) == ()


def test_rules_of_a_graph_are_each_there_once() -> None:
    x = leaf("input", "x", (4, 6))
    twice = apply(rows_summed()(), apply(rows_summed()(), x))
    assert graph_rules(Graph((twice,))) == rules_of_form(rows_summed().form)
    assert Node(rows_summed()(), (x,)).types == (x.type,)


def test_rules_of_a_graph_are_found_at_their_roots() -> None:
    operator = rows_summed()
    graph = Graph((apply(operator(), leaf("input", "x", (4, 6))),))
    rules = load_library().concrete(graph)
    about = [rule.name for rule in rules_about(operator)]
    assert [r.name for r in rules if operator.name in r.form.operators] == about
    rooted = [rule.name for rule in rules.rooted(operator.name, parallel=True)]
    assert set(about) & set(rooted)
    everywhere = [r.name for r in ListedRules(rules).rooted(operator.name, parallel=True)]
    assert rooted == everywhere
    assert not rules.rooted(operator.name, parallel=False)


def test_no_rule_is_about_a_stand_in_and_a_form() -> None:
    assert not is_about_a_form(parse_rule("r", {"x": 1}, "pointwise(x)", "pointwise(x)"))
    assert rules_of_form(FORMS["one operand"])[0].stand_ins == ("batched_0s_to_0s",)

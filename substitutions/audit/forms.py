"""Builds the forms of rules that a plan applies again, from the library that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pcg.errors import OperatorError
from pcg.graph.opaque import torch_functions
from pcg.language.template import EquationError
from pcg.ops import OPERATORS
from pcg.plan.derivation import AppliedRule
from pcg.plan.plan import Plan
from pcg.types.operator import Operator
from substitutions.audit.errors import Refused
from substitutions.rules.concrete.batched import graph_rules
from substitutions.rules.rule import Rule, attribute_symbols, open_call


def rules_of(plan: Plan, library: Sequence[Rule]) -> Mapping[str, Rule]:
    """The rules that a plan may apply, by name: those of a library, and those about the forms of
    the batched functions that its model declares."""
    form_rules = {rule.name: rule for rule in graph_rules(plan.model)}
    return form_rules | {rule.name: rule for rule in library}


def concrete(
    applied: AppliedRule, library: Mapping[str, Rule], operators: Mapping[str, Operator]
) -> Rule:
    """The form of a library's rule that a plan names. ``operators``: the operators that may take
    the place of stand-ins. Raises Refused if there is no such form, or the plan states another name
    or text for it."""
    general = library.get(applied.rule)
    if general is None:
        raise Refused(f"the library has no rule {applied.rule}")
    rule = _with_operators(_with_axes(general, applied.axes), applied.operators, operators)
    if applied.reversed:
        rule = rule.reversed
    if rule.name != applied.name:
        raise Refused(f"its form is {rule.name}, expected {applied.name}")
    if rule.text != applied.text:
        raise Refused(f"the rule says {rule.text!r}, not {applied.text!r}")
    return rule


def _with_axes(rule: Rule, axes: tuple[int, ...]) -> Rule:
    if not axes:
        return rule
    if len(axes) != len(rule.runs):
        problem = f"{len(axes)} numbers of axes for a rule with {len(rule.runs)} runs of them"
        raise Refused(problem)
    form = rule.at(axes)
    if form is None:
        raise Refused(f"the rule has no form with {axes} axes")
    return form


def operators_of(plan: Plan) -> Mapping[str, Operator]:
    """The operators that a plan may name: known ones, and those that its model declares."""
    declared = {function.name: function for function in torch_functions(plan.model)}
    return {**OPERATORS, **declared}


def _with_operators(rule: Rule, names: tuple[str, ...], known: Mapping[str, Operator]) -> Rule:
    for name in names:
        if name not in known:
            raise Refused(f"unknown operator {name}")
        taken = attribute_symbols((*rule.left, *rule.right))
        try:
            rule = rule.with_operator(open_call(known[name], taken))
        except (ValueError, OperatorError, EquationError) as error:
            raise Refused(str(error)) from None
    if rule.stand_ins:
        raise Refused(f"it names no operator in the place of {rule.stand_ins[0]}")
    return rule

"""The rules about batched functions, made and proved for the forms that a graph has.

A batched function is the same for each slice along its axes (``pcg.graph.slicewise``). For each
axis, blocks of its operands give blocks of its results, and so do slices in time. An operand that
lacks the axis is copied for blocks, and used again for slices. Copies of all operands give copies
of all results. A test compares these rules with those that the generator finds around such an
operator.

There are infinitely many forms, so no library has their rules. A planner proves the rules that it
uses, once per process, in a few tenths of a second per form. An audit proves them again.

A rule is about all functions of a form at once, for all sizes and degrees, like a rule about a
stand-in (``pcg.ops.stand_ins``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph, Node, Value, tensor
from pcg.graph.opaque import Batched, torch_functions
from pcg.graph.pairs import both
from pcg.graph.slicewise import SliceForm
from pcg.language.poly import Poly
from pcg.ops import OPERATORS
from pcg.types.local import Axis
from pcg.types.operator import Operator
from substitutions.rules.rule import Rule, input_ranks, open_call
from verifier.certificate import Certificate, certify
from verifier.decide import Decision, Verdict, decide

DEGREE = "k"
_CUTS = {"blocks": ("partition", "replicate", "combine"), "slices": ("pipeline", "", "batch")}
"""How an axis is cut: the parallel operators on operands that have it, on operands that lack it,
and on results."""


def rules_about(operator: Operator) -> tuple[Rule, ...]:
    """The proved rules about an operator; none unless it is a batched function. Raises
    NegativeAnswer if a rule is not proved."""
    if not isinstance(operator, Batched):
        return ()
    call = open_call(operator, ())
    return tuple(rule.with_operator(call) for rule in proved_rules(operator.form))


@lru_cache(maxsize=1024)
def proved_rules(form: SliceForm) -> tuple[Rule, ...]:
    """The proved rules about a form. Raises NegativeAnswer if a rule is not proved."""
    return tuple(
        replace(rule, conditions=_decided(rule).conditions) for rule in rules_of_form(form)
    )


def certificate(rule: Rule) -> Certificate:
    """The certificate of a rule about a form. Raises NegativeAnswer if the rule is not proved."""
    return certify(rule.name, rule.left, rule.right, _decided(rule, brief=False), rule.runs)


def graph_rules(graph: Graph) -> tuple[Rule, ...]:
    """The rules about the forms of the batched functions in a graph, without proofs."""
    functions = (f for f in torch_functions(graph) if isinstance(f, Batched))
    forms = dict.fromkeys(function.form for function in functions)
    return tuple(rule for form in forms for rule in rules_of_form(form))


def is_about_a_form(rule: Rule) -> bool:
    """Whether a rule is about the functions of a form. Such rules are in no library."""
    nodes = both((rule.left, rule.right)).operators
    return any(isinstance(node.operator_call.operator, SliceForm) for node in nodes)


@lru_cache(maxsize=1024)
def rules_of_form(form: SliceForm) -> tuple[Rule, ...]:
    """The rules about a form, without proofs."""
    return tuple(_rules(form))


def _rules(form: SliceForm) -> Iterator[Rule]:
    equation = form.instance(tuple(len(o.dims) for o in form.template.operands), ())
    ranks = tuple(len(operand.dims) for operand in equation.operands)
    inputs = tuple(tensor(f"x{i}", rank) for i, rank in enumerate(ranks))
    uncut = _called(form, inputs)
    for axis in form.typing(ranks, ()).axes:
        for kind, (cut, shared, joined) in _CUTS.items():
            blocks = _cut(axis, inputs, cut, shared)
            results = _called(form, blocks)
            dims = (dim for dim in axis.outputs if dim is not None)
            parallel = tuple(
                _moved(joined, value, dim) for value, dim in zip(results, dims, strict=True)
            )
            yield _stated(f"{form.name}_{kind}_{axis.name}", uncut, parallel)
    copies = _called(form, tuple(_moved("replicate", value) for value in inputs))
    yield _stated(
        f"{form.name}_copies", copies, tuple(_moved("replicate", value) for value in uncut)
    )


def _called(form: SliceForm, operands: tuple[Value, ...]) -> tuple[Value, ...]:
    node = Node(open_call(form, (DEGREE,)), operands)
    return tuple(node.value(port) for port in range(len(form.outputs)))


def _cut(axis: Axis, inputs: Sequence[Value], cut: str, shared: str) -> tuple[Value, ...]:
    """The operands cut along an axis by ``cut``; operands that lack the axis go through ``shared``,
    if that is not empty."""
    return tuple(
        _moved(cut, value, dim) if dim is not None else (_moved(shared, value) if shared else value)
        for value, dim in zip(inputs, axis.operands, strict=True)
    )


def _moved(name: str, value: Value, dim: int | None = None) -> Value:
    degree = Poly.of(DEGREE)
    operator = OPERATORS[name]
    call = operator(degree=degree) if dim is None else operator(dim=dim, degree=degree)
    return Node(call, (value,)).value()


def _stated(name: str, left: tuple[Value, ...], right: tuple[Value, ...]) -> Rule:
    return Rule(name, input_ranks((*left, *right)), left, right, family="cut")


def _decided(rule: Rule, *, brief: bool = True) -> Decision:
    decision = decide(rule.left, rule.right, [], brief=brief)
    if decision.verdict is not Verdict.PROVED or decision.hypotheses:
        raise NegativeAnswer(f"{rule.text}: {decision.verdict}: {decision.reason}")
    return decision

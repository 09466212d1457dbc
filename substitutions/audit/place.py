"""Checks that a rule matches where a step of a plan says, with the inputs and symbols of the step.

Nothing is searched: each attribute of the rule is evaluated from the symbols and the sizes of the
inputs, and has to be equal to the attribute in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose

from pcg.graph.graph import Leaf, Value
from pcg.language.poly import Poly
from pcg.plan.schema import Symbol
from pcg.types.operator import Attribute, Call
from substitutions.audit.errors import Refused
from substitutions.audit.values import Port


def numbers(inputs: Mapping[str, Port], symbols: Mapping[str, Symbol]) -> dict[str, Symbol]:
    """The symbols of a rule with their values, and the sizes of its inputs."""
    sizes = {
        f"|{name}.{dim}|": size
        for name, port in inputs.items()
        for dim, size in enumerate(port.type.shape)
    }
    if known := sorted(sizes.keys() & symbols.keys()):
        raise Refused(f"{known[0]} is the size of an input, and no symbol")
    return {**sizes, **symbols}


def evaluated(value: Attribute, known: Mapping[str, Symbol]) -> Symbol:
    """An attribute as a number. Raises Refused if a symbol has no value or the number is too
    large."""
    if not isinstance(value, Poly):
        return value
    if missing := sorted(value.symbols - known.keys()):
        raise Refused(f"symbol {missing[0]} has no value")
    try:
        return value.at(known)
    except OverflowError:
        raise Refused(f"{value} is too large") from None


class RulePlace:
    """The inputs of a rule and the numbers for its symbols, as a step of a plan states them."""

    def __init__(self, inputs: Mapping[str, Port], known: Mapping[str, Symbol]) -> None:
        self._inputs, self._known = inputs, known

    def check(self, pattern: Value, port: Port) -> None:
        """Raise Refused unless a value of the graph matches an output of the rule's left side."""
        problem = self._mismatch(pattern, port)
        if problem:
            raise Refused(problem)

    def _mismatch(self, pattern: Value, port: Port) -> str:
        """How a value differs from a pattern; empty if it does not."""
        call, placed = pattern.node.call, port.item.call
        if isinstance(call, Leaf):
            return "" if self._inputs[call.name] == port else f"input {call.name} is another value"
        if isinstance(placed, Leaf) or placed.operator != call.operator:
            return f"expected {call.name}, found {placed.name}"
        if pattern.port != port.number:
            return f"expected output {pattern.port} of {call.name}, found output {port.number}"
        problem = self._attributes(call, placed)
        if problem:
            return problem
        problem = self._operands(pattern.node.inputs, port.item.inputs)
        if problem and call.operator.commutative:
            return self._operands(pattern.node.inputs, port.item.inputs[::-1]) and problem
        return problem

    def _operands(self, patterns: Sequence[Value], ports: Sequence[Port]) -> str:
        problems = (self._mismatch(a, b) for a, b in zip(patterns, ports, strict=True))
        return next((problem for problem in problems if problem), "")

    def _attributes(self, wanted: Call, actual: Call) -> str:
        """How attributes differ; empty if they do not. Names are compared too, since a partition
        with a halo has more attributes than others."""
        if [name for name, _ in wanted.attributes] != [name for name, _ in actual.attributes]:
            return f"expected {wanted}, found {actual}"
        for (name, value), (_, given) in zip(wanted.attributes, actual.attributes, strict=True):
            number = evaluated(value, self._known)
            if isinstance(given, Poly) or not _equal(number, given):
                return f"expected {wanted.name} with {name}={number}, found {given}"
        return ""


def _equal(a: Symbol, b: Symbol) -> bool:
    """Whether numbers are equal: integers exactly, reals up to rounding."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    try:
        return isclose(a, b, rel_tol=1e-12)
    except OverflowError:
        return False

"""Writes a counterexample as a Python program that a reader can run and change."""

from __future__ import annotations

from pcg.types.operator import Operator
from verifier.counterexample import VALUES, Counterexample, Nested, difference, replayable

TOLERANCE = "rtol=1e-6, atol=1e-9, equal_nan=True"


def snippet(counterexample: Counterexample) -> str:
    """A program that evaluates both sides on the inputs, prints them and asserts that they differ.

    It needs only Unity and numpy: it defines the operators that do not come with Unity. Raises
    ValueError if the two sides do not differ, so the assertion of a program never fails.
    """
    known = difference(*replayable(counterexample))
    if known is None:
        raise ValueError(f"the two sides do not differ: {counterexample}")
    parts = [_head(counterexample), _graphs(counterexample), _inputs(counterexample), EVALUATION]
    return "\n".join([*parts, ASSERT_VALUES if known.kind in VALUES else ASSERT_TYPES])


def _head(counterexample: Counterexample) -> str:
    further = counterexample.operators
    imports = [
        "import numpy as np",
        "",
        "from pcg.readings.evaluate import evaluate_shards, meaning",
        *(
            ["from pcg.types.operator import Operator", "from pcg.ops import OPERATORS"]
            if further
            else []
        ),
        "from pcg.readings.ring import Reals",
        "from pcg.plan.text import parse_graph",
        *(["", "operators = dict(OPERATORS)"] if further else []),
        *(f"operators[{o.name!r}] = {_definition(o)}" for o in further),
    ]
    return "\n".join([*(f"# {line}" for line in str(counterexample).splitlines()), *imports, ""])


def _definition(operator: Operator) -> str:
    """An operator as the expression that declares it."""
    parts = [repr(operator.name), repr(operator.equation)]
    parts += [f"sizes={operator.sizes!r}"] if operator.sizes else []
    parts += [f"reals={operator.reals!r}"] if operator.reals else []
    return f"Operator({', '.join(parts)})"


def _graphs(counterexample: Counterexample) -> str:
    sides = (("left", counterexample.left), ("right", counterexample.right))
    given = ", operators=operators" if counterexample.operators else ""
    return "\n".join(f'{name} = parse_graph("""\n{text}"""{given})' for name, text in sides)


def _inputs(counterexample: Counterexample) -> str:
    """One array for each input. Its first axis is over partials, whose sum is the tensor."""
    lines = [
        f"    {name!r}: np.array({_literal(values)}, float),  # {kind}"
        for (name, values), (_, kind) in zip(
            counterexample.values, counterexample.inputs, strict=True
        )
    ]
    head = "# V of the inputs: the first axis is that of the partials, whose sum is the tensor.\n"
    return "\n".join([f"{head}inputs = {{", *lines, "}"]) if lines else "inputs = {}"


def _literal(values: Nested) -> str:
    if isinstance(values, tuple):
        return f"[{', '.join(map(_literal, values))}]"
    return str(int(values)) if values == int(values) else repr(values)


EVALUATION = """\
ring = Reals()


def values(graph):
    with np.errstate(all="ignore"):
        return [meaning(v, ring) for v in evaluate_shards(graph, inputs, ring)]


for name, graph in (("left", left), ("right", right)):
    for output, value in zip(graph.outputs, values(graph), strict=True):
        print(f"{name}: type {output.type}, value")
        print(value)
"""

ASSERT_VALUES = f"""\
pairs = zip(values(left), values(right), strict=True)
assert not all(np.allclose(a, b, {TOLERANCE}) for a, b in pairs)
"""

ASSERT_TYPES = """\
assert [v.type for v in left.outputs] != [v.type for v in right.outputs]
"""

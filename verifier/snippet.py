"""A counterexample as a Python program that shows it, for a reader to run and change."""

from __future__ import annotations

from verifier.counterexample import VALUES, Counterexample, Nested, difference, replayable

TOLERANCE = "rtol=1e-6, atol=1e-9, equal_nan=True"


def snippet(found: Counterexample, operators: str | None = None) -> str:
    """A program that evaluates both sides on the inputs, prints them and asserts that they differ.

    It needs this package and numpy, nothing else. ``operators``: the file of operators that the
    graphs use beyond those of ``pcg.ops``; the program reads it too. Raises ValueError where the
    two sides do not differ, so there is no program that ends in a failure.
    """
    known = difference(*replayable(found))
    if known is None:
        raise ValueError(f"the two sides do not differ: {found}")
    parts = [_head(found, operators), _graphs(found), _inputs(found), EVALUATION]
    return "\n".join([*parts, ASSERT_VALUES if known.kind in VALUES else ASSERT_TYPES])


def _head(found: Counterexample, operators: str | None) -> str:
    imports = [
        "import numpy as np",
        "",
        "from pcg.evaluate import evaluate_shards, meaning",
        "from pcg.ring import Reals",
        "from pcg.text import parse_graph",
    ]
    if operators is not None:
        imports += [
            "from pcg.user import load_operators",
            "",
            "# Operators of the graphs come from a user's own file, which has to be there.",
            f"load_operators({operators!r})",
        ]
    return "\n".join([*(f"# {line}" for line in str(found).splitlines()), *imports, ""])


def _graphs(found: Counterexample) -> str:
    sides = (("left", found.left), ("right", found.right))
    return "\n".join(f'{name} = parse_graph("""\n{text}""")' for name, text in sides)


def _inputs(found: Counterexample) -> str:
    """An array an input, the first axis over its partials, which add up to what it means."""
    lines = [
        f"    {name!r}: np.array({_literal(values)}, float),  # {kind}"
        for (name, values), (_, kind) in zip(found.values, found.inputs, strict=True)
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

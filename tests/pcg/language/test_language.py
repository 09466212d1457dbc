"""Equations: their values, and a message that names the fault of each equation without meaning."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from support.cases import each

from pcg.language.equation import Dimension, size_of
from pcg.language.expr import Access, Mul, Sum, accesses
from pcg.language.language import expand
from pcg.language.poly import Poly
from pcg.language.template import EquationError, parse_template
from pcg.ops import OPERATORS
from pcg.readings.evaluate import evaluate_call
from pcg.readings.ring import Reals
from pcg.types.operator import Operator


def evaluate(equation: str, *inputs: Any, **attributes: float) -> list[Any]:
    """The first output of an operator with this equation."""
    reals = tuple(name for name, value in attributes.items() if isinstance(value, float))
    probe = parse_template(equation).positions
    sizes = tuple(name for name in attributes if name not in reals and name not in probe)
    operator = Operator("test", equation, sizes=sizes, reals=reals)
    arrays = [np.asarray(x, np.float64) for x in inputs]
    return evaluate_call(operator(**attributes), arrays, Reals())[0].tolist()


@each("operator", OPERATORS.values(), ids=list(OPERATORS))
def test_declared_operators_parse_at_all_ranks(operator: Operator):
    runs = {d.names[0] for o in operator.template.operands for d in o.dims if d.run}
    for length in range(4):
        equation = operator._expand(tuple((run, length) for run in sorted(runs)))
        assert [o.name for o in equation.operands] == list(operator.operand_names)
        assert [o.name for o in equation.outputs] == list(operator.outputs)


def test_matmul_is_read_as_written():
    equation = expand(parse_template("out[m, n] = sum k: x[m, k] * w[k, n]"), {})
    m, n, k = (Poly.of(name) for name in "mnk")
    body = Sum("k", size_of("k"), Mul((Access(0, (m, k)), Access(1, (k, n)))))
    (output,) = equation.outputs
    assert output.body == body
    assert output.dims == (Dimension(("m",), size_of("m")), Dimension(("n",), size_of("n")))


@each(
    ("equation", "inputs", "attributes", "expected"),
    [
        ("out[i] = 2 * x[i] - 1", [[1, 2]], {}, [1, 3]),
        ("out[i] = x[i] / 4 + 1/2", [[1, 2]], {}, [0.75, 1]),
        ("out[i] = -x[i] * -3", [[1, 2]], {}, [3, 6]),
        ("out[i] = i + 10 * |i| + 0 * x[i]", [[7, 8]], {}, [20, 21]),
        ("out[] = sum i, j: x[i, j]", [[[1, 2], [3, 4]]], {}, 10),
        ("out[i...] = sum j...: x[i...] * y[j...]", [[1, 2], [3, 4]], {}, [7, 14]),
        ("out[i] = sum k < 2: x[i] * k", [[3, 5]], {}, [3, 5]),
        ("x[i] -> out[i] = x[i - 1] + x[i + 1]", [[1, 2, 4]], {}, [2, 5, 2]),
        ("x[i] -> out[j < 2 * |i|] = x[j] if j < |i| else x[j - |i|]", [[1, 2]], {}, [1, 2, 1, 2]),
        ("x[i] -> out[i] = 1 if i >= 1 else x[i]", [[5, 6]], {}, [5, 1]),
        ("x[i] -> out[i] = 1 if i <= 0 else x[i]", [[5, 6]], {}, [1, 6]),
        ("x[i] -> out[i] = 1 if i > 0 else x[i]", [[5, 6]], {}, [5, 1]),
        ("x[i] -> out[i, j < 2] = x[i] * (i == j)", [[5, 6]], {}, [[5, 0], [0, 6]]),
        ("x[i] -> out[i] = x[i] == 5", [[5, 6]], {}, [1, 0]),
        ("x[i, i] -> out[i] = x[i, i]", [[[1, 2], [3, 4]]], {}, [1, 4]),
        ("x[i], y[j] -> out[(i j)] = x[i] * y[j]", [[1, 2], [3, 4]], {}, [3, 4, 6, 8]),
        ("x[(i j)] -> out[i < n, j < 2] = x[(i j)]", [[1, 2, 3, 4]], {"n": 2}, [[1, 2], [3, 4]]),
        ("out[i] = shift + x[i]", [[1, 2]], {"shift": 0.5}, [1.5, 2.5]),
        ("let y[i] = x[i] * x[i]; out[i] = y[i] + y[i]", [[1, 2]], {}, [2, 8]),
        ("let s[] = sum i: x[i]; out[i] = x[i] / s[]", [[1, 3]], {}, [0.25, 0.75]),
        ("let s[i] = sum k: x[i] * w[k]; out[] = sum k: s[k]", [[1, 2], [3, 4]], {}, 21),
        ("out[] = (sum k: x[k]) * (sum k: y[k])", [[1, 2], [3, 4]], {}, 21),
        ("x[a..., i@at, b...] -> out[a..., b...] = sum i: x[a..., i, b...]", [[[1, 2], [3, 4]]],
         {"at": 0}, [4, 6]),
    ],
)  # fmt: skip
def test_evaluation_gives_the_expected_values(
    equation: str, inputs: list[Any], attributes: dict[str, Any], expected: Any
):
    assert evaluate(equation, *inputs, **attributes) == expected


def test_a_value_that_is_used_twice_has_its_own_summed_indices():
    text = "let s[i] = sum k: x[i, k]; out[i] = s[i] * s[i]"
    equation = expand(parse_template(text), {})
    read = {access.index[1] for access in accesses(equation.outputs[0].body)}
    assert len(read) == 2


def test_rational_constants_are_exact():
    equation = expand(parse_template("out[i] = x[i] / 3"), {})
    assert str(Fraction(1, 3)) in str(equation.outputs[0].body).replace("Fraction(1, 3)", "1/3")


@each(
    ("equation", "problem"),
    [
        ("out[i] = x[i] + y[j]", "index 'j' is never bound"),
        ("out[i] = x[i] * z", "index 'z' is never bound"),
        ("out[i] = foo(x[i])", "unknown function 'foo'"),
        ("out[i] = exp(x[i], x[i])", "exp takes 1 values, got 2"),
        ("x[i] -> out[i] = y[i]", "unknown operand 'y'"),
        ("x[i, j] -> out[i] = x[i]", "x has 2 indices, got 1"),
        ("x[a..., i] -> out[i] = x[j, i]", "index 'j' is never bound"),
        ("x[a..., i], y[j] -> out[i] = sum j: x[j, i]", "x has 3 indices, got 2"),
        ("x[i] -> out[j] = x[j]", "the size of index 'j' does not follow"),
        ("x[(i j)] -> out[i] = sum j: x[(i j)]", "the size of index 'i' does not follow"),
        ("x[i] -> out[i] = sum k: x[k]", "the size of index 'k' is not stated"),
        ("x[i] -> out[i] = sum k < |j|: x[k]", "the size of index 'j' is not stated"),
        ("x[i] -> out[] = sum i, k < i: x[k]", "the size of index 'k' depends on index 'i'"),
        ("x[i] -> out[j < |k|, k < 2] = x[j]", "the size of index 'k' does not follow"),
        ("out[i] = sum i: x[i]", "index 'i' is bound twice"),
        ("out[] = sum k, k: x[k]", "index 'k' is bound twice"),
        ("out[] = sum k: x[k] * sum k: x[k]", "index 'k' is bound twice"),
        ("out[i, i] = x[i]", "index 'i' is bound twice"),
        ("x[i], y[i] -> out[j < 2] = x[j]; b[j < 3] = y[j]", "index 'j' has the sizes 2 and 3"),
        ("x[(i j)] -> out[(i j) < 6] = x[(i j)]", "state the sizes of i and j one by one"),
        ("x[i] -> let m[i@axis] = x[i]; out[i] = m[i]", "'@axis' in m, which is no tensor"),
        ("x[a..., b...] -> out[a..., b...] = x[a..., b...]", "ranks do not determine the length"),
        ("x[a..., i@at], y[i@at] -> out[a..., i] = x[a..., i]", "'@at' stands at 1 and 0"),
        ("out[i] = x[i]; out[i] = x[i]", "'out' is defined twice"),
        ("let y[i] = x[i]", "no output is defined"),
        ("let s[] = sum i: x[i]; out[i] = s[i]", "s has 0 indices, got 1"),
        ("x[i] -> out[j...] = x[i]", "run 'j' stands in no operand"),
        ("out[i] = x[i] if x[i] else 0", "a condition compares two indices with <, <="),
        ("out[i] = x[i] < 2", "< compares indices, not values"),
        ("out[i] = y[x[i]]", "state the shape of y before '->'"),
        ("x[i], y[j] -> out[i] = y[x[i]]", "expected an index, got a value"),
        ("out[i] = x[i] / 0", "division by zero"),
        ("out[i] = (x[i]", "expected ')', got 'end of the equation'"),
        ("out[i] = x[i] x[i]", "unexpected 'x'"),
        ("out[i] = x[i] + ", "expected a value or an index, got 'end of the equation'"),
        ("out[i] = 0.5 * x[i]", "unexpected '.5"),
        ("out[i] = x[i] & 1", "unexpected '& 1'"),
        ("out[if] = x[if]", "expected an index name, got 'if'"),
        ("out[] = sum 3 < 4: x[0]", "state the shape of x before '->'"),
        ("x[i] -> out[] = sum 3 < 4: x[0]", "expected an index name, got '3'"),
        ("x[i]", "expected NAME[...] = VALUE"),
        ("out = x[i]", "expected NAME[...], got 'out'"),
        ("", "expected NAME[...] = VALUE, got ''"),
        ("out[i] = " + "(" * 3000 + "x[i]" + ")" * 3000, "nested too deeply"),
    ],
)  # fmt: skip
def test_equations_without_meaning(equation: str, problem: str):
    with pytest.raises(EquationError) as caught:
        Operator("bad", equation)
    assert str(caught.value).startswith("operator bad: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("equation", "names", "problem"),
    [
        ("x[i@n] -> out[i] = x[i]", {"sizes": ("n",)}, "attribute 'n' is given twice"),
        ("out[i] = x[i]", {"sizes": ("i",)}, "index 'i' is also an attribute"),
        ("out[] = sum k: x[k]", {"reals": ("k",)}, "index 'k' is also an attribute"),
        ("x[i] -> out[] = sum n < 2: x[n]", {"sizes": ("n",)}, "index 'n' is also an attribute"),
    ],
)
def test_attributes_have_names_of_their_own(
    equation: str, names: dict[str, tuple[str, ...]], problem: str
):
    with pytest.raises(EquationError, match=problem):
        Operator("bad", equation, names.get("sizes", ()), names.get("reals", ()))

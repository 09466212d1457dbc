"""Hypothesis strategies for valid attributes of an operator, read off its equation.

The sizes of the operands' indices come first; attributes that state such a size follow from them.
"""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from pcg.language.equation import Equation
from pcg.language.expr import Access, Apply, Const, IndexValue, walk
from pcg.types.operator import Attribute as AttributeValue
from pcg.types.operator import Operator

OFFSETS = ("top", "left", "before", "start")
"""Attributes that may be 0; other sizes count something."""

LARGEST = {"batch_norm": 2, "ghost_batch_norm": 2}
"""Sizes up to which these operators are drawn; others are drawn up to 3. In normal form, these two
sum over the batch four times, which takes long to evaluate."""

reals = st.sampled_from((-1.0, 0.5, 3.0, 1e-2))


def fixed_sizes(equation: Equation) -> dict[str, int]:
    """The sizes of indices that the equation states as numbers."""
    return {
        name: bound.constant for name, bound in equation.bounds if isinstance(bound.constant, int)
    }


def attributes(
    draw: DrawFn, operator: Operator, equation: Equation, sizes: Mapping[str, int]
) -> dict[str, AttributeValue]:
    """Values for the attributes that are sizes or reals, given the sizes of operands' indices."""
    given: dict[str, AttributeValue] = {name: draw(reals) for name in operator.reals}
    if "eps" in given:
        given["eps"] = draw(st.sampled_from((1e-2, 0.5)))
    return {**given, **_sizes(draw, operator, equation, sizes)}


def _sizes(
    draw: DrawFn, operator: Operator, equation: Equation, sizes: Mapping[str, int]
) -> dict[str, int]:
    stated = {str(bound): sizes[name] for name, bound in equation.bounds if name in sizes}
    given = {name: stated[name] for name in operator.sizes if name in stated}
    for name in operator.sizes:
        if name == "at":
            given[name] = draw(st.integers(1, max(1, sizes["n"] - 1)))
        elif name not in given:
            given[name] = draw(st.integers(0 if name in OFFSETS else 1, 3))
    if "stride_h" in given and "kernel_h" in given:
        given |= _overlapping(given, "height", "kernel_h", "stride_h", "top", sizes["i"])
        given |= _overlapping(given, "width", "kernel_w", "stride_w", "left", sizes["j"])
    return given


def _overlapping(
    given: Mapping[str, int], count: str, kernel: str, stride: str, before: str, size: int
) -> dict[str, int]:
    """Fewer windows and less padding, so that each window has an element to pool."""
    padding = min(given[before], given[kernel] - 1)
    most = (size - 1 + padding) // given[stride] + 1
    return {before: padding, count: min(given[count], most)}


def index_operands(
    equation: Equation, sizes: Mapping[str, int], given: Mapping[str, AttributeValue]
) -> dict[int, int]:
    """The bound of each operand whose elements are compared with an index or with 0."""
    known = {f"|{name}|": size for name, size in sizes.items()}
    known |= {name: value for name, value in given.items() if isinstance(value, int)}
    for name, bound in equation.bounds:
        known[f"|{name}|"] = bound.evaluate(known)
    positions: dict[int, int] = {}
    for part in (part for output in equation.outputs for part in walk(output.body)):
        match part:
            case Apply("eq", (Access(operand), IndexValue(index))):
                (name,) = index.symbols
                positions[operand] = known[f"|{name}|"]
            case Apply("eq", (Access(operand), Const())):
                positions[operand] = 2
            case _:
                pass
    return positions

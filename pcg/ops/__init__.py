"""The operators, one declaration each, and the table of their names."""

from __future__ import annotations

from pcg.operator import Operator
from pcg.ops import algebra, layers, layout, parallel

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (*algebra.OPERATORS, *layout.OPERATORS, *layers.OPERATORS, *parallel.OPERATORS)
}

"""Equations on many operands at once, against the reference evaluation of each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from support.cases import each

from pcg.errors import OperatorError
from pcg.language.poly import Poly
from pcg.ops import OPERATORS
from pcg.readings.evaluate import evaluate_call
from pcg.readings.ring import PrimeField
from pcg.types.operator import Attribute, Operator
from substitutions.generate.algebra.enumerate import instances
from substitutions.generate.algebra.prime_field import compile_call

FIELD = PrimeField(generic=True)
BATCH = 3
DRAWS = 60
COMPUTE = [o for o in OPERATORS.values() if o.parallel is None and o.arity]


def attributes(
    operator: Operator, given: Mapping[str, Attribute], rng: np.random.Generator
) -> dict[str, Attribute]:
    """Numbers for sizes, and symbols for reals: the reference draws these from their names too."""
    return {
        name: int(rng.integers(1, 4)) if name in operator.sizes else value
        for name, value in given.items()
    }


@each("operator", COMPUTE, ids=lambda o: o.name)
def test_a_batch_is_each_of_its_operands(operator: Operator) -> None:
    compared = 0
    for instance in instances(operator):
        rng = np.random.default_rng(len(instance.ranks))
        for draw in range(DRAWS):
            shapes = [tuple(int(n) for n in rng.choice((1, 2, 4), r)) for r in instance.ranks]
            if draw % 2:
                shapes = [(2,) * rank for rank in instance.ranks]
            call = operator(**attributes(operator, dict(instance.call.attributes), rng))
            try:
                compiled = compile_call(call, shapes, FIELD)
            except OperatorError:
                continue
            operands = [rng.integers(0, FIELD.prime, (BATCH, *shape)) for shape in shapes]
            flat = [x.reshape(BATCH, -1) for x in operands]
            for b in range(BATCH):
                expected = evaluate_call(call, [x[b] for x in operands], FIELD)
                for port, run in enumerate(compiled.outputs):
                    actual = np.broadcast_to(run(flat), (BATCH, expected[port].size))[b]
                    assert compiled.shapes[port] == expected[port].shape
                    assert (actual == expected[port].reshape(-1)).all()
            compared += 1
            break
    if operator.name != "depthwise_conv2d":  # operators whose operands rarely fit by chance
        assert compared


def test_empty_sizes_are_refused() -> None:
    call = OPERATORS["split"](axis=0, at=3)
    with pytest.raises(OperatorError, match="below 1"):
        compile_call(call, [(3,)], FIELD)


def test_a_product_of_symbols_is_that_of_their_values() -> None:
    scale = OPERATORS["scale"]
    x = np.array([[5, 7]])
    twice = compile_call(scale(factor=Poly.of("b")), [(2,)], FIELD).outputs[0]
    once = compile_call(scale(factor=Poly.of("a")), [(2,)], FIELD).outputs[0]
    both = compile_call(scale(factor=Poly.of("a") * Poly.of("b")), [(2,)], FIELD).outputs[0]
    assert (both([x]) == twice([once([x])])).all()

"""Declares the worlds of the algebraic enumeration: operators, shapes and values of attributes.

A world fixes sizes. They are as equal as graphs of three operators allow: one base size, and its
sums of two or three. So all values that can have the same type do. A rule that holds for all sizes
holds at these too, so no true rule is missed. Equalities that hold at these sizes alone are
excluded later: at pairwise different sizes, and by the proof. Ranks are the least at which an
operator shows all of its behaviour. Further axes are added by generalisation
(``substitutions.rules.general``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from pcg.errors import OperatorError
from pcg.language.poly import Poly
from pcg.language.poly import product as product_of
from pcg.language.template import EquationError
from pcg.ops import OPERATORS
from pcg.ops.stand_ins import STAND_INS
from pcg.readings.ring import PrimeField
from pcg.types.operator import Attribute, Call, Operator, positions_at
from substitutions.generate.algebra.enumerate import edge_ranks
from substitutions.generate.algebra.prime_field import Evaluate, Shape, compile_call

PADDED = ("enlarge", "pad")
"""Operators whose outputs have elements that are always 0, by definition."""

DRAWS = 32
"""An element that is 0 on so many random operands is assumed to be 0 always."""

AttributeChoice = int | str
"""A size; or a polynomial of the symbols of real attributes, as text."""


@dataclass(frozen=True)
class AlgebraWorld:
    """A set of operators, shapes and values of attributes for the enumeration.

    ``inputs``: the shapes of inputs. ``inner``: the further shapes that values may have.
    ``attributes``: the values of each attribute. Equal sizes have the same symbol.
    """

    name: str
    operators: tuple[str, ...]
    inputs: tuple[Shape, ...]
    inner: tuple[Shape, ...] = ()
    attributes: Mapping[str, tuple[AttributeChoice, ...]] = field(
        default_factory=dict[str, tuple[AttributeChoice]]
    )
    most: int = 4
    """The most operators of a side in this world."""

    def steps(self, prime_field: PrimeField) -> list[ShapedOutput]:
        """Every output of every operator at every choice of shapes and attributes."""
        shapes = (*self.inputs, *self.inner)
        known = {**OPERATORS, **STAND_INS}
        outputs: list[ShapedOutput] = []
        for name in self.operators:
            operator = known[name]
            for given in product(shapes, repeat=operator.arity):
                for call, actual in self._calls(operator, given):
                    outputs += _steps(call, actual, given, frozenset(shapes), prime_field)
        return outputs

    def _calls(self, operator: Operator, given: Sequence[Shape]) -> Iterator[tuple[Call, Call]]:
        """Yield each call twice: with symbols, and with the values of the symbols."""
        names = (*operator.sizes, *operator.reals)
        choices = [self._choices(operator, name) for name in names]
        for positions in _placements(operator, tuple(len(shape) for shape in given)):
            for values in product(*choices):
                symbols: dict[str, Attribute] = dict(positions)
                actual: dict[str, Attribute] = dict(positions)
                for name, value in zip(names, values, strict=True):
                    if isinstance(value, int):
                        symbols[name] = Poly.of(f"{name}{self._number(name, value)}")
                        actual[name] = value
                    else:
                        symbols[name] = attribute = product_of(map(Poly.of, value.split("*")))
                        actual[name] = attribute.substitute(self._sizes)
                yield operator(**symbols), operator(**actual)

    def _choices(self, operator: Operator, name: str) -> tuple[AttributeChoice, ...]:
        """The values of an attribute: those for this operator, or else those for any operator."""
        return self.attributes.get(f"{operator.name}.{name}") or self.attributes.get(name, ())

    def _number(self, name: str, value: int) -> str:
        """The number of a value among all values of an attribute, as the end of a symbol; empty for
        the first."""
        every = (v for key, v in self.attributes.items() if key.rpartition(".")[2] == name)
        known = list(dict.fromkeys(value for values in every for value in values))
        return str(known.index(value) + 1) if known.index(value) else ""

    @cached_property
    def _sizes(self) -> dict[str, Poly]:
        """The values of the first symbol of each size."""
        pairs = ((name, values[0]) for name, values in self.attributes.items())
        return {name: Poly.of(value) for name, value in pairs if isinstance(value, int)}


@dataclass(frozen=True)
class ShapedOutput:
    """One output of an operator at concrete shapes.

    ``call`` has symbols for attributes, ``evaluate`` their values.
    """

    call: Call
    port: int
    inputs: tuple[Shape, ...]
    shape: Shape
    evaluate: Evaluate


def _steps(
    call: Call,
    actual: Call,
    given: tuple[Shape, ...],
    allowed: frozenset[Shape],
    prime_field: PrimeField,
) -> Iterator[ShapedOutput]:
    try:
        compiled = compile_call(actual, given, prime_field)
    except OperatorError:
        return
    for port, shape in enumerate(compiled.shapes):
        run = compiled.outputs[port]
        if shape in allowed and not _reads_nothing(call, run, given, prime_field):
            yield ShapedOutput(call, port, given, shape, run)


def _reads_nothing(
    call: Call, evaluate: Evaluate, given: tuple[Shape, ...], prime_field: PrimeField
) -> bool:
    """Whether some element is 0 for all operands, as one beyond the end of a slice, or of a window
    that lies outside of its operand. At such sizes, equalities hold by accident."""
    if call.name in PADDED or not given:
        return False
    rng = np.random.default_rng(0)
    operands = [rng.integers(1, prime_field.prime, (DRAWS, prod(shape))) for shape in given]
    return not evaluate(operands).any(axis=0).all()


def _placements(operator: Operator, ranks: tuple[int, ...]) -> Iterator[dict[str, int]]:
    """Yield the positions that the indices of an operator may have in operands of these ranks."""
    most = max(ranks, default=0)
    seen: set[tuple[int, ...]] = set()
    for lengths in product(range(most + 1), repeat=len(operator.runs)):
        run = dict(zip(operator.runs, lengths, strict=True))
        positions = positions_at(operator.template, run)
        known = tuple(positions.values()) in seen
        if known or edge_ranks(operator, run)[: len(ranks)] != ranks:
            continue
        seen.add(tuple(positions.values()))
        try:
            operator.instance(ranks, tuple(positions.values()))
        except (OperatorError, EquationError):
            continue
        yield positions


_UNIT = dict.fromkeys(("stride_h", "stride_w", "dilation_h", "dilation_w"), (1,))
"""The strides and dilations of windows. The proof excludes equalities that hold only since these
are equal to sizes."""

MATRICES = AlgebraWorld(
    "matrices",
    (
        *("matmul", "batch_matmul", "add", "multiply", "scale", "pointwise", "concat", "split"),
        *("slice", "transpose", "flatten", "unflatten", "sum_axis", "softmax"),
        *("ones1", "ones2", "identity_matrix", "join"),
    ),
    ((), (3,), (6,), (3, 3), (6, 3), (3, 6)),
    ((9,), (9, 3), (3, 9), (6, 6)),
    {
        "factor": ("factor", "factor2", "factor*factor2"),
        **dict.fromkeys(("at", "size", "outer", "inner", "size0", "size1"), (3,)),
        "start": (1, 3),
    },
)
"""Matrices, vectors and scalars."""

WINDOWS = AlgebraWorld(
    "windows",
    (
        *("add", "multiply", "scale", "pointwise", "concat", "split", "conv2d"),
        *("depthwise_conv2d", "avg_pool2d", "max_pool2d", "enlarge"),
        *("identity_kernel", "averaging_kernel"),
    ),
    ((2, 2, 2, 2),),
    ((4, 2, 2, 2), (2, 4, 2, 2), (2, 2, 4, 4), (2, 1, 2, 2)),
    {
        **_UNIT,
        **dict.fromkeys(("at", "height", "width", "channels", "kernel_h", "kernel_w"), (2,)),
        **dict.fromkeys(("enlarge.kernel_h", "enlarge.kernel_w"), (4,)),
        **dict.fromkeys(("top", "left"), (1,)),
        **dict.fromkeys(("conv2d.top", "conv2d.left"), (1, 2)),
        "factor": ("factor",),
    },
)
"""Images and kernels: four dimensions each."""

PIECES = AlgebraWorld(
    "pieces", ("concat", "split"), ((2,), (4,), (6,)), ((8,), (10,), (12,)), {"at": (2, 4)}
)
"""Tensors that are cut at two places."""

GROUPS = AlgebraWorld(
    "groups",
    (
        *("add", "multiply", "scale", "pointwise", "concat", "split", "matmul"),
        *("repeat_each", "sum_groups"),
    ),
    ((2,), (2, 2), (6, 2), (2, 6)),
    ((6,), (4, 2), (2, 4), (12, 2), (2, 12), (6, 4), (4, 6), (6, 6), (18, 2), (2, 18)),
    {"factor": ("factor", "times"), "at": (2, 6), "times": (3,)},
)
"""Tensors that are repeated and summed in groups along an axis. Groups have three elements, since a
sum of two is an addition."""

_SLICED = (
    *("add", "multiply", "scale", "pointwise", "concat", "split"),
    *("repeat_each", "sum_groups", "sliced_linear"),
)

SLICES = AlgebraWorld(
    "slices",
    _SLICED,
    ((1, 6, 6), (2, 6, 6)),
    (
        *((1, 12, 6), (1, 6, 12), (2, 12, 6), (2, 6, 12), (3, 6, 6), (6, 6, 6), (4, 6, 6)),
        *((1, 3, 6), (1, 6, 3), (2, 3, 6), (2, 6, 3), (1, 18, 6), (1, 6, 18), (2, 18, 6)),
        (2, 6, 18),
    ),
    {
        "factor": ("factor", "times"),
        "at": (6, 1),
        "repeat_each.times": (3,),
        "sum_groups.times": (2,),
        "shares": (2, 1),
    },
    most=2,
)
"""Linear layers whose operands hold slices. Rules that hold only for axes of one element state
that."""

SINGLE_SLICES = AlgebraWorld(
    "single slices",
    ("concat", "sum_groups", "sliced_linear"),
    ((1, 4, 4),),
    ((1, 8, 4), (1, 4, 8), (1, 2, 4), (1, 4, 2)),
    {"times": (2,), "shares": (1,)},
)
"""The same with one slice each: so few graphs that those of three operators are enumerated too."""

WORLDS = (MATRICES, PIECES, WINDOWS, GROUPS, SLICES, SINGLE_SLICES)


def worlds(names: frozenset[str]) -> list[AlgebraWorld]:
    """The worlds of the given operators, the longest search first.

    Element-wise operators are in every world by their stand-ins, and constants with the operators
    that they are about. A world other than the common ones is searched only for operators that the
    world of matrices lacks: all other candidates are found there.
    """
    chosen: list[AlgebraWorld] = []
    for world in sorted(WORLDS, key=lambda w: -len(w.operators) * len(w.inputs + w.inner)):
        kept = tuple(n for n in world.operators if n in names or n in STAND_INS or n in CONSTANTS)
        if names.intersection(kept).difference(() if world in COMMON else MATRICES.operators):
            chosen.append(replace(world, operators=kept))
    return chosen


COMMON = (MATRICES, PIECES)

CONSTANTS = frozenset(operator.name for operator in OPERATORS.values() if not operator.arity)

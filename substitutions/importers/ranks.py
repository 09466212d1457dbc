"""Infers the ranks of the inputs of TASO's rules from their use.

A file does not state the ranks of inputs. Operators determine them: a product of matrices has
operands of rank 2, a convolution of rank 4, and the operands of a sum have equal ranks.
Method: tensors that have to have equal ranks are one class (disjoint sets). A class has the rank
that an operator or a stated number of dimensions gives it. If none does, its inputs have the usual
rank of their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pcg.disjoint import DisjointSets
from substitutions.importers import operators
from substitutions.importers.schema import ForeignOperator, ForeignRule

TensorPlace = tuple[str, int, int]
"""A tensor: (side, empty for inputs; number of its operator or input; port)."""

RANKS: Mapping[str, int] = {
    "OP_MATMUL": 2,
    "OP_CONSTANT_IMM": 2,
    **dict.fromkeys(("OP_CONV2D", "OP_POOL2D_MAX", "OP_POOL2D_AVG", "OP_ENLARGE"), 4),
    **dict.fromkeys(("OP_CONSTANT_ICONV", "OP_CONSTANT_POOL"), 4),
}
"""The rank of all operands and outputs of an operator. All tensors of other operators have equal
ranks."""


@dataclass(frozen=True)
class InputRanks:
    """The ranks of a rule's inputs, by number. ``kernels``: the inputs that are kernels of
    convolutions, perhaps after enlarging, concatenating or adding."""

    of: Mapping[int, int]
    kernels: frozenset[int]


def usual_rank(op: int) -> int:
    """The rank of an input by its number, as in the published files."""
    return 2 if op >= -6 else 4 if op >= -19 else 0


def ranks_of(rule: ForeignRule) -> InputRanks:
    """The ranks of a rule's inputs. If uses contradict each other, the first one counts, and the
    others will have no type."""
    classes = _Classes()
    for name, side in rule.sides:
        for number in side.order:
            classes.visit(name, number, side.operators[number])
    for a, b in zip(rule.left.outputs, rule.right.outputs, strict=True):
        classes.join(_place("left", a.op, a.port), _place("right", b.op, b.port))
    inputs = rule.left.inputs | rule.right.inputs
    kernels = {classes.root(place) for place in classes.kernels}
    roots = {op: classes.root(_place("", op, 0)) for op in inputs}
    for op in sorted(inputs, key=usual_rank, reverse=True):
        classes.ranks.setdefault(roots[op], usual_rank(op))
    return InputRanks(
        {op: classes.ranks[root] for op, root in roots.items()},
        frozenset(
            op for op, root in roots.items() if root in kernels or (not kernels and op <= -10)
        ),
    )


def _place(side: str, op: int, port: int) -> TensorPlace:
    return ("", op, 0) if op < 0 else (side, op, port)


@dataclass
class _Classes:
    """Classes of tensors of equal rank, with the known ranks of classes."""

    ranks: dict[TensorPlace, int] = field(default_factory=dict[TensorPlace, int])
    kernels: list[TensorPlace] = field(default_factory=list[TensorPlace])
    _same: DisjointSets[TensorPlace] = field(default_factory=DisjointSets[TensorPlace])

    def root(self, place: TensorPlace) -> TensorPlace:
        return self._same.root(place)

    def join(self, a: TensorPlace, b: TensorPlace) -> None:
        a, b = self.root(a), self.root(b)
        self._same.join(b, a)
        if b in self.ranks:
            self.ranks.setdefault(a, self.ranks[b])

    def visit(self, side: str, number: int, operator: ForeignOperator) -> None:
        """Record the ranks and classes of an operator's operands and outputs."""
        read = [_place(side, r.op, r.port) for r in operator.inputs]
        made = [(side, number, port) for port in range(operator.outputs)]
        if operator.name == "OP_MUL":
            self._state(read.pop(), 0)
        if operator.name == "OP_CONV2D":
            self.kernels.append(read[1])
        rank = RANKS.get(operator.name)
        if rank is not None:
            for place in (*read, *made):
                self._state(place, rank)
            # A kernel stays a kernel when enlarged. Other operators with known ranks do not join
            # operands and outputs: an image is no kernel because it is convolved with one.
            if operator.name == "OP_ENLARGE":
                self.join(read[0], made[0])
            return
        for place in (*read, *made[1:]):
            self.join(place, made[0])
        if stated := operator.parameters.get(operators.NUM_DIM, 0):
            self._state(made[0], stated)

    def _state(self, place: TensorPlace, rank: int) -> None:
        self.ranks.setdefault(self.root(place), rank)

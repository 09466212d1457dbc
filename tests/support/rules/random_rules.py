"""Random rules over a few operators, true and false ones, as text.

One side is made at random. The other is made from it by rewritings. Most of these keep the value,
and some do not. The prover has to find out which, and so has the oracle that judges it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

UNARY = ("relu", "exp", "log", "negate", "reciprocal", "sqrt")
BINARY = ("add", "subtract", "multiply", "maximum", "matmul")
SYMBOLS = ("n", "m", "o0", "u0", "h0", "sigma", "k")
"""Symbols for sizes and starts. A careless proof would use these names itself."""


@dataclass(frozen=True)
class Term:
    """A call, or the name of an input if there are no operands."""

    name: str
    operands: tuple[Term, ...] = ()
    attributes: str = ""

    def __str__(self) -> str:
        if not self.operands:
            return self.name
        parts = [*map(str, self.operands), *([self.attributes] if self.attributes else [])]
        return f"{self.name}({', '.join(parts)})"


LOG = Term("log", (Term("y"),))


class Maker:
    """Makes rules. Every choice is drawn from ``seed``."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def rule(self) -> tuple[str, str]:
        """Both sides of a rule over inputs x, y, z of rank 2."""
        left = self._term(self._random.randint(1, 3))
        right = left
        for _ in range(self._random.randint(1, 2)):
            right = self._somewhere(right, self._kept if self._chance(0.65) else self._changed)
        return str(left), str(right)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _term(self, depth: int) -> Term:
        if depth == 0 or self._chance(0.1):
            return Term(self._random.choice("xyz"))
        kind = self._random.random()
        inner = self._term(depth - 1)
        if kind < 0.35:
            return Term(self._random.choice(BINARY), (inner, self._term(depth - 1)))
        if kind < 0.55:
            return Term(self._random.choice(UNARY), (inner,))
        return self._with_attributes(inner, depth)

    def _with_attributes(self, inner: Term, depth: int) -> Term:
        axis = self._random.randint(0, 1)
        start, size = self._random.sample(SYMBOLS, 2)
        match self._random.randint(0, 7):
            case 0:
                return Term(
                    "scale", (inner,), f"factor={self._random.choice(('2.0', '-1.0', 'c'))}"
                )
            case 1:
                return Term("transpose", (inner,), "dim0=0, dim1=1")
            case 2:
                return Term("concat", (inner, self._term(depth - 1)), f"axis={axis}")
            case 3:
                return Term("softmax", (inner,), f"axis={axis}")
            case 4:
                return Term("slice", (inner,), f"axis={axis}, start={start}, size={size}")
            case 5:
                cut = Term("partition", (inner,), f"dim={axis}, degree=d")
                return Term("combine", (cut,), f"dim={axis}, degree=d")
            case 6:
                parts = Term("join", (inner, self._term(depth - 1)))
                return Term("reduce", (parts,), "degree=2")
            case _:
                return Term("slice", (inner,), f"axis={axis}, start={start} + 1, size={size}")

    def _somewhere(self, term: Term, change: Callable[[Term], Term]) -> Term:
        """A change at a random place."""
        if term.operands and self._chance(0.5):
            at = self._random.randrange(len(term.operands))
            operands = list(term.operands)
            operands[at] = self._somewhere(operands[at], change)
            return Term(term.name, tuple(operands), term.attributes)
        return change(term)

    def _kept(self, term: Term) -> Term:
        """A term that mostly has the same value."""
        a, b = (*term.operands, term, term)[:2]
        ways = [
            Term("negate", (Term("negate", (term,)),)),
            Term("transpose", (Term("transpose", (term,), "dim0=0, dim1=1"),), "dim0=0, dim1=1"),
            Term("log", (Term("exp", (term,)),)),
            Term("exp", (Term("log", (term,)),)),
            Term("subtract", (Term("add", (term, Term("x"))), Term("x"))),
            Term(
                "subtract",
                (Term("add", (term, Term("log", (Term("y"),)))), Term("log", (Term("y"),))),
            ),
            Term("combine", (Term("partition", (term,), "dim=0, degree=d"),), "dim=0, degree=d"),
        ]
        match term.name:
            case "add" | "multiply" | "maximum":
                ways += [Term(term.name, (b, a))] * 4
            case "relu":
                ways += [Term("relu", (term,)), Term("maximum", (term, term))] * 2
            case "matmul":
                turned = (Term("transpose", (v,), "dim0=0, dim1=1") for v in (b, a))
                ways += [Term("transpose", (Term("matmul", tuple(turned)),), "dim0=0, dim1=1")] * 2
                cut = (Term("partition", (v,), f"dim={d}, degree=d") for v, d in ((a, 1), (b, 0)))
                ways += [Term("reduce", (Term("matmul", tuple(cut)),), "degree=d")] * 3
            case "scale" | "negate" | "transpose" | "relu" | "exp" if a.name == "add":
                parts = tuple(Term(term.name, (v,), term.attributes) for v in a.operands)
                ways += [Term("add", parts)] * 4
            case _:
                pass
        return self._random.choice(ways)

    def _changed(self, term: Term) -> Term:
        """A term that mostly has another value."""
        a, b = (*term.operands, term, term)[:2]
        if not term.operands:
            return Term(self._random.choice("xyz"))
        ways = [
            a,
            Term(term.name, term.operands[::-1], term.attributes),
            Term("relu", (term,)),
            Term("subtract", (term, term)),
            Term("multiply", (term, Term("multiply", (a, Term("reciprocal", (a,)))))),
            Term("multiply", (term, Term("exp", (Term("subtract", (b, b)),)))),
            Term(term.name, term.operands, self._other(term.attributes)),
        ]
        return self._random.choice(ways)

    def _other(self, attributes: str) -> str:
        """The attributes with one number or symbol replaced."""
        old = self._random.choice((*SYMBOLS, "0", "1", "2.0", "c"))
        new = self._random.choice((*SYMBOLS, "0", "1"))
        parts = [part.split("=") for part in attributes.split(", ") if part]
        return ", ".join(f"{name}={new if value == old else value}" for name, value in parts)

"""The laws of scalar functions and of sums over indices that proofs may use.

Apart from these laws, a proof knows nothing of a function but its name. ``LAWS`` lists all that is
assumed. Tests prove with Z3 each law that it can express. The others are definitions or the
functional equations of exp and log. ``verifier.trusted.values.simplify`` applies these laws and no
others.

Laws are about numbers: a law holds where all values in it are defined.
``verifier.trusted.values.domain`` says which values are undefined, and how a proof keeps track of
them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Law:
    """A law. ``formula`` states it as an SMT-LIB 2 term over the real constants a, b, c; where that
    is empty, ``source`` names the definition or textbook identity."""

    name: str
    statement: str
    formula: str = ""
    source: str = ""


_EXP = "defining functional equation of the exponential function (Rudin, 3rd ed., 8.6)"
RELU = Law(
    "relu is a maximum",
    "relu(a) = max(a, 0)",
    "(= (ite (> a 0.0) a 0.0) (ite (>= a 0.0) a 0.0))",
)
MAX_ASSOCIATIVE = Law(
    "max is associative",
    "max(max(a, b), c) = max(a, b, c), in any order",
    "(let ((ab (ite (>= a b) a b)) (bc (ite (>= b c) b c)))"
    " (and (= (ite (>= ab c) ab c) (ite (>= a bc) a bc))"
    " (= ab (ite (>= b a) b a))))",
)
MAX_NONNEGATIVE = Law(
    "max of what is not negative",
    "max(a, 0) = a for a >= 0, such as sums of products of maxima with 0",
    "(=> (and (>= a 0.0) (>= b 0.0)) (and (= (ite (>= a 0.0) a 0.0) a)"
    " (>= (+ a b) 0.0) (>= (* a b) 0.0) (>= (ite (>= c 0.0) c 0.0) 0.0)))",
)
MAX_HOMOGENEOUS = Law(
    "max is homogeneous",
    "max(a b, a c) = a max(b, c) for a > 0",
    "(=> (> a 0.0) (= (ite (>= (* a b) (* a c)) (* a b) (* a c)) (* a (ite (>= b c) b c))))",
)
MAX_IDEMPOTENT = Law("max is idempotent", "max(a, a) = a", "(= (ite (>= a a) a a) a)")
MAX_ONE = Law(
    "a maximum over one",
    "max over i < 1 of a(i) = a(0)",
    source="definition of a maximum over a finite range",
)
EXP_SUM = Law("exp of a sum", "exp(a + b) = exp(a) exp(b), exp(0) = 1", source=_EXP)
EXP_DIFFERENCE = Law("exp of a difference", "exp(a) exp(-a) = 1 and exp(a) > 0", source=_EXP)
LOG_EXP = Law(
    "log inverts exp",
    "log(exp(a)) = a; exp(log(a)) = a and exp(-log(a)) = 1/a for a > 0",
    source="log is the inverse of exp (Rudin, 8.6)",
)
LOG_PRODUCT = Law(
    "log of a product",
    "log(a b) = log(a) + log(b), log(1/a) = -log(a) for a, b > 0",
    source="exp of a sum, log inverts exp",
)
RECIP_PRODUCT = Law(
    "reciprocal of a product",
    "1/(a b) = (1/a) (1/b) for a > 0",
    "(=> (and (> a 0.0) (not (= b 0.0))) (= (/ 1.0 (* a b)) (* (/ 1.0 a) (/ 1.0 b))))",
)
RECIP_CANCELS = Law(
    "reciprocals cancel", "a (1/a) = 1 for a > 0", "(=> (> a 0.0) (= (* a (/ 1.0 a)) 1.0))"
)
RECIP_RECIP = Law(
    "reciprocal of a reciprocal",
    "1/(1/a) = a for a > 0",
    "(=> (> a 0.0) (= (/ 1.0 (/ 1.0 a)) a))",
)
RSQRT_SQUARE = Law(
    "square of an inverse root",
    "rsqrt(a) rsqrt(a) = 1/a for a > 0",
    "(=> (and (> a 0.0) (> b 0.0) (= (* b b a) 1.0)) (= (* b b) (/ 1.0 a)))",
)
SUM_POINT = Law(
    "a sum over one place",
    "sum over i of [i = e] a(i) = a(e) for 0 <= e < |i|, else 0",
    source="definition of a finite sum",
)
SUM_EQUAL = Law(
    "a sum of equal values",
    "sum over i of a = |i| a, for |i| of at least 0",
    source="definition of a finite sum",
)
SUM_RANGE = Law(
    "a sum over a range",
    "sum over i < n of [i < m] a(i) = sum over i < m of a(i) for m <= n, and the rest likewise",
    source="definition of a finite sum",
)
SUM_FEW = Law(
    "a sum over few",
    "sum over i < 2 of a(i) = a(0) + a(1), and so for one or a few more",
    source="definition of a finite sum",
)
LAWS = frozenset(
    (
        *(RELU, MAX_ASSOCIATIVE, MAX_NONNEGATIVE, MAX_HOMOGENEOUS, MAX_IDEMPOTENT, MAX_ONE),
        *(EXP_SUM, EXP_DIFFERENCE, LOG_EXP, LOG_PRODUCT),
        *(RECIP_PRODUCT, RECIP_CANCELS, RECIP_RECIP, RSQRT_SQUARE),
        *(SUM_POINT, SUM_EQUAL, SUM_RANGE, SUM_FEW),
    )
)

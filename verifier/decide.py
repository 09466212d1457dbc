"""The verdict on a pair of graphs: does the right compute what the left does, for all sizes,
degrees, copies and partials on which both are typed?

Both sides are typed symbolically first. A typing is a theorem of each operator (``verifier.local``)
that its tasks, each on its own blocks, compute the operator's equation. Once that is proved and the
types agree, what is left is that the composed equations are equal (``verifier.prove``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pcg.errors import OperatorError
from pcg.graph import Graph, Node, Value
from pcg.poly import Poly
from verifier import smt
from verifier.counterexample import Counterexample, instances, replay
from verifier.degrees import ONE, Basis, Monomial, Typing, entries, ranks, typings
from verifier.errors import TooLarge, Undecided, Unproved, Unsolvable
from verifier.local import prove_typing
from verifier.meaning import Meaning, free_indices
from verifier.prove import Proof, Prover
from verifier.sizes import SizeEquation, Sizes
from verifier.steps import Searching
from verifier.witness import solve


class Verdict(StrEnum):
    PROVED = "proved"
    REFUTED = "refuted"
    VACUOUS = "vacuous"
    ILL_TYPED = "ill-typed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Decision:
    """A verdict with its grounds.

    ``conditions``: what has to hold, beyond the left side being typed, for the right side to be
    typed alike. ``degrees``: one choice of degrees for which all hold.
    """

    verdict: Verdict
    reason: str = ""
    conditions: tuple[str, ...] = ()
    degrees: tuple[tuple[str, int], ...] = ()
    proof: Proof | None = None
    counterexample: Counterexample | None = None


class _Stop(Exception):
    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.reason)
        self.decision = decision


def decide(
    left: Sequence[Value], right: Sequence[Value], equal: Sequence[SizeEquation] = ()
) -> Decision:
    """Decide whether two graphs over the same inputs, with paired outputs, are equal, for all
    sizes for which the equations in ``equal`` hold."""
    pair = (tuple(left), tuple(right))
    try:
        sizes, conditions = _sizes(*pair, equal)
        agreed = _agree(*pair, sizes)
        conditions += agreed.conditions
        return _value(*pair, sizes, agreed.degrees, conditions)
    except _Stop as stop:
        return stop.decision


@dataclass(frozen=True)
class _Agreement:
    conditions: tuple[str, ...]
    degrees: Mapping[str, int]


def _sizes(
    left: tuple[Value, ...], right: tuple[Value, ...], equal: Sequence[SizeEquation]
) -> tuple[Sizes, tuple[str, ...]]:
    """Solve for the sizes; what the right side asks beyond the left becomes a condition."""
    if len(left) != len(right):
        raise _Stop(Decision(Verdict.ILL_TYPED, f"{len(left)} outputs against {len(right)}"))
    leaves = {node.leaf for node in Graph((*left, *right)).leaves}
    if len(leaves) > len({leaf.name for leaf in leaves}):
        raise _Stop(Decision(Verdict.ILL_TYPED, "an input has two ranks"))
    for side, outputs in (("left", left), ("right", right)):
        try:
            alone = _visited(Sizes.where(equal), outputs)
        except (Unsolvable, OperatorError) as error:
            verdict = Verdict.UNKNOWN if isinstance(error, Undecided) else Verdict.ILL_TYPED
            raise _Stop(Decision(verdict, f"{side}: {error}")) from None
        if not _satisfiable(alone):
            raise _Stop(Decision(Verdict.ILL_TYPED, f"{side}: no sizes fit"))
    sizes = _visited(Sizes.where(equal), left)
    before = frozenset(sizes.solved)
    try:
        _visited(sizes, right)
        for number, (a, b) in enumerate(zip(left, right, strict=True)):
            _same_shape(sizes, a, b, number)
    except Unsolvable as error:
        verdict = Verdict.UNKNOWN if isinstance(error, Undecided) else Verdict.VACUOUS
        raise _Stop(Decision(verdict, f"sizes: {error}")) from None
    if not _satisfiable(sizes):
        raise _Stop(Decision(Verdict.VACUOUS, "no sizes fit both sides"))
    return sizes, tuple(sizes.equation(s) for s in sizes.solved if s not in before)


def _visited(sizes: Sizes, outputs: tuple[Value, ...]) -> Sizes:
    for node in Graph(outputs).nodes:
        sizes.visit(node)
    return sizes


def _same_shape(sizes: Sizes, left: Value, right: Value, number: int) -> None:
    a, b = sizes.shape(left), sizes.shape(right)
    if len(a) != len(b):
        reason = f"output {number} has rank {len(a)} on the left, {len(b)} on the right"
        raise _Stop(Decision(Verdict.ILL_TYPED, reason))
    for x, y in zip(a, b, strict=True):
        sizes.equal(x, y)


def _satisfiable(sizes: Sizes) -> bool:
    resolved = [sizes.resolve(size) for size in sizes.positive]
    if all(size.terms and all(c > 0 for _, c in size.terms) for size in resolved):
        return True
    symbols = sorted(frozenset[str]().union(*(size.symbols for size in resolved)))
    positive = [*resolved, *(Poly.of(symbol) for symbol in symbols)]
    return smt.check(smt.script(smt.at_least(size, 1) for size in positive)) != "unsat"


def _agree(left: tuple[Value, ...], right: tuple[Value, ...], sizes: Sizes) -> _Agreement:
    """Find the typings on which both sides have the same types, the most general first."""
    try:
        lefts = [t for t in typings(Graph(left).nodes, left) if _witness([t]) is not None]
        rights = [t for t in typings(Graph(right).nodes, right) if _witness([t]) is not None]
    except Undecided as error:
        raise _Stop(Decision(Verdict.UNKNOWN, str(error))) from None
    except (OperatorError, ValueError) as error:
        raise _Stop(Decision(Verdict.ILL_TYPED, str(error))) from None
    for side, found in (("left", lefts), ("right", rights)):
        if not found:
            raise _Stop(Decision(Verdict.ILL_TYPED, f"{side}: no degrees fit"))
    options = sorted(
        ((_residual(a, b), a, b) for a in lefts for b in rights),
        key=lambda option: (len(option[0][0]), len(option[0][1]), option[0]),
    )
    for (equations, whole), a, b in options:
        degrees = _witness([a, b], _differences(a, b))
        if degrees is not None:
            return _Agreement(equations + whole, degrees)
    raise _Stop(_types_differ(left, right, sizes, lefts, rights))


def _differences(a: Typing, b: Typing) -> tuple[Monomial, ...]:
    pairs = zip(a.types, b.types, strict=True)
    return tuple(
        x.over(y)
        for left, right in pairs
        for x, y in zip(entries(left), entries(right), strict=True)
        if x != y
    )


def _witness(found: Sequence[Typing], extra: Sequence[Monomial] = ()) -> Mapping[str, int] | None:
    equations = [e for typing in found for e in typing.equations] + list(extra)
    whole = [w for typing in found for w in typing.whole]
    return solve(equations, whole, frozenset[str]().union(*(t.symbols for t in found)))


def _residual(a: Typing, b: Typing) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the right typing asks beyond the left one: equations, and quotients to be whole."""
    basis = Basis.of(a.equations)
    equations: list[str] = []
    for equation in (*b.equations, *_differences(a, b)):
        if not basis.implies(equation):
            equations.append(_equation_text(basis.reduce(equation)))
            basis = basis.extended(equation)
    held = [basis.reduce(w) for w in a.whole]
    whole: list[str] = []
    for quotient in dict.fromkeys(basis.reduce(w) for w in b.whole):
        # A product of whole numbers is whole.
        if not any(_is_whole(quotient.over(known)) for known in (ONE, *held)):
            whole.append(f"{quotient} is whole")
            held.append(quotient)
    return tuple(equations), tuple(whole)


def _is_whole(quotient: Monomial) -> bool:
    return all(e > 0 and e.denominator == 1 for _, e in quotient.powers)


def _equation_text(equation: Monomial) -> str:
    """``equation`` is 1, with the divisors on the other side."""
    above = Monomial(tuple((s, e) for s, e in equation.powers if e > 0))
    below = Monomial(tuple((s, -e) for s, e in equation.powers if e < 0))
    return f"{above} = {below}" if above != ONE else f"{below} = 1"


def _types_differ(
    left: tuple[Value, ...],
    right: tuple[Value, ...],
    sizes: Sizes,
    lefts: Sequence[Typing],
    rights: Sequence[Typing],
) -> Decision:
    for a in lefts:
        for b in rights:
            degrees = _witness([a, b])
            if degrees is None:
                continue
            for instance in instances(left, right, sizes, degrees):
                if found := replay(instance):
                    return Decision(Verdict.REFUTED, "the types differ", counterexample=found)
    return Decision(Verdict.VACUOUS, "no degrees fit both sides")


def _value(
    left: tuple[Value, ...],
    right: tuple[Value, ...],
    sizes: Sizes,
    degrees: Mapping[str, int],
    conditions: tuple[str, ...],
) -> Decision:
    """Prove the outputs equal, or find inputs on which they are not.

    One replay comes first: it is cheap, and most false pairs end there. It also shows that there
    are sizes that the degrees divide: without any, a proof says nothing.
    """
    concrete = instances(left, right, sizes, degrees)
    first = next(concrete, None)
    if first is None:
        return Decision(Verdict.UNKNOWN, "no small sizes fit the degrees")
    if found := replay(first):
        return Decision(Verdict.REFUTED, "the values differ", counterexample=found)
    try:
        proof = _prove(left, right, sizes)
    except (Unproved, TooLarge) as error:
        for instance in concrete:
            if found := replay(instance):
                return Decision(Verdict.REFUTED, "the values differ", counterexample=found)
        return Decision(Verdict.UNKNOWN, str(error))
    shown = tuple(sorted(degrees.items()))
    return Decision(Verdict.PROVED, "", conditions, shown, proof)


def _check_typings(nodes: Sequence[Node]) -> None:
    """Raise Unproved where an operator's tasks are not known to compute its equation."""
    for node in nodes:
        if node.is_leaf or node.operator_call.operator.parallel is not None:
            continue
        for theorem in prove_typing(node.operator_call, ranks(node)):
            if theorem.proof is None:
                raise Unproved(f"the parallel type of {node.name}: {theorem.reason}")


def _prove(left: tuple[Value, ...], right: tuple[Value, ...], sizes: Sizes) -> Proof:
    _check_typings(Graph((*left, *right)).nodes)
    positive = tuple(dict.fromkeys(sizes.resolve(size) for size in sizes.positive))
    naturals = tuple(dict.fromkeys(sizes.resolve(value) for value in sizes.naturals))
    obligations: list[str] = []
    steps = Searching()
    for a, b in zip(left, right, strict=True):
        prover = Prover(positive, {}, obligations, naturals, steps)
        meaning = Meaning(sizes, prover.ranges, prover.is_digit)
        index = free_indices(sizes, a)
        forms = meaning.at(a, index), meaning.at(b, index)
        prover.equal(*forms, frozenset(name for i in index for name, _ in i.digits))
    return Proof(tuple(obligations), tuple(steps.taken))

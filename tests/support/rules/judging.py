"""Judge pairs of graphs by reference evaluation alone, and compare verdicts with that.

A pair claims that both sides compute the same at all types of the inputs at which both sides have
equal types. A pair at such types is an *instance*. Evaluation shows that a pair is false if an
instance has different values (``Judgement.VALUE``), in the prime field and in real numbers:
``relu(relu(x))`` differs from ``relu(x)`` in the field only. Evaluation also shows it for a pair
whose sides have types, but never equal degrees (``DEGREES``): a rewrite would change the type. If
not even the shapes are ever equal (``SHAPE``), or no types are found at which both sides have types
(``UNTYPED``), nothing can be evaluated.

Two generators propose the types. One guesses, and knows nothing of the verifier. The other solves
the symbolic types (``degrees``), with other seeds, sizes and degrees than ``decide``. In both cases
type inference on the concrete graphs decides.

Which verdicts are correct for a judgement (``examine``):

- VALUE and DEGREES: refuted, and nothing else;
- SHAPE and UNTYPED: anything but proved, for want of an instance. Ill-typed and vacuous are at home
  here; a refutation has an instance of its own, which is replayed;
- SAME: not ill-typed or vacuous, nor refuted for its types, which an instance contradicts. Refuted
  for a value is in order: its counterexample, replayed, shows what random inputs did not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np
from support.graphs.instances import _degrees, _sized, agree, random_instance
from support.rules.mutation import Mutant, Outputs, mutants, spread

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Leaf, Node, Value
from pcg.graph.pairs import both
from pcg.language.poly import Poly
from pcg.ops import OPERATORS
from pcg.plan.text import parse_graph
from pcg.readings.evaluate import concrete, evaluate_shards, meaning
from pcg.readings.ring import Reals
from pcg.types.operator import Call, Operator
from pcg.types.tensor import Degrees, ParallelTensor
from substitutions.rules.rule import input_ranks, side_text
from substitutions.rules.workers import parallel_map
from verifier.counterexample import Counterexample, random_leaves
from verifier.decide import Verdict, decide
from verifier.instances import Instance
from verifier.trusted.errors import Undecided, Unsolvable
from verifier.trusted.sizes.degrees import Typing, typings
from verifier.trusted.sizes.sizes import Sizes

GUESSES = 12
TRIES = (4, 2)
"""Instances proposed after the guesses: the numbers of degrees that are set at random in each."""
MORE_TRIES = 6
"""The number of further instances, with the fewest degrees, if none of these had types."""
DRAWS = 8
"""The number of real inputs of an instance that are tried if its sides differ in the field."""
MAX_TASKS = 64
MAX_ELEMENTS = 4096


class Judgement(StrEnum):
    """The result of evaluating a pair; the first that applies."""

    VALUE = "values differ"
    SAME = "same"
    DEGREES = "degrees differ"
    SHAPE = "shapes differ"
    UNTYPED = "no types met"


def distinguishes(left: Sequence[Value], right: Sequence[Value]) -> bool | None:
    """Whether evaluation shows that the sides differ. None if there is nothing to evaluate."""
    match judge(tuple(left), tuple(right)):
        case Judgement.VALUE | Judgement.DEGREES:
            return True
        case Judgement.SAME:
            return False
        case _:
            return None


@lru_cache(maxsize=1 << 16)
def judge(left: Outputs, right: Outputs) -> Judgement:
    """Evaluate a pair at a dozen types, always the same ones for the same pair."""
    random = Random(f"{Graph(left).digest} {Graph(right).digest}")
    met = {Judgement.UNTYPED}
    for instance in _proposed(left, right, random):
        verdict = _compare(instance, random.getrandbits(32))
        if verdict is Judgement.VALUE:
            return verdict
        met.add(verdict)
    return next(judgement for judgement in Judgement if judgement in met)


def _compare(instance: Instance, seed: int) -> Judgement:
    """Compare one instance. Infinite values and NaN in real numbers do not count against a pair."""
    left = [value.type for value in instance.left.outputs]
    right = [value.type for value in instance.right.outputs]
    if left != right:
        alike = [t.shape for t in left] == [t.shape for t in right]
        return Judgement.DEGREES if alike else Judgement.SHAPE
    # Several draws for few elements: the relu of one element is the identity for half of the draws,
    # in the field too, where a maximum is by some order.
    fewest = min(t.elements for t in left)
    if all(agree(instance, seed + draw) for draw in range(1 + DRAWS // fewest)):
        return Judgement.SAME
    for draw in range(DRAWS):
        rng = np.random.default_rng(seed + draw)
        leaves = random_leaves(instance, Reals(), rng)
        if not all(same for same in _close(instance.left, instance.right, leaves)):
            return Judgement.VALUE
    return Judgement.SAME


def _close(left: Graph, right: Graph, leaves: Mapping[str, Any]) -> Iterator[bool]:
    """Whether all elements that are numbers on both sides are equal, for each output."""
    with np.errstate(all="ignore"):
        sides = [evaluate_shards(side, leaves, Reals()) for side in (left, right)]
        for values in zip(*sides, strict=True):
            x, y = (meaning(value, Reals()) for value in values)
            defined = np.isfinite(x) & np.isfinite(y)
            scale = max(1.0, float(np.abs(x[defined]).max(initial=0.0)))
            yield bool(np.allclose(x[defined], y[defined], rtol=1e-6, atol=1e-9 * scale))


def _proposed(left: Outputs, right: Outputs, random: Random) -> Iterator[Instance]:
    """Guesses, then types at which both sides have equal types. If there are none, types at which
    both sides have types at all."""
    for _ in range(GUESSES):
        if (instance := guess(left, right, random)) is not None:
            yield instance
    alike = False
    try:
        sides = _typings(left), _typings(right)
    except (OperatorError, ValueError, Undecided):
        return
    if any(_degrees(a, b, random, 0) is not None for a in sides[0] for b in sides[1]):
        for tries in TRIES:
            if (instance := random_instance(left, right, random, tries)) is not None:
                yield instance
                alike = True
        for _ in range(0 if alike else MORE_TRIES):
            if (instance := random_instance(left, right, random, 0)) is not None:
                yield instance
    else:
        yield from _unlike(left, right, sides, random)


@lru_cache(maxsize=4096)
def _typings(side: Outputs) -> tuple[Typing, ...]:
    return tuple(typings(Graph(side).nodes, side))


def _unlike(
    left: Outputs, right: Outputs, sides: tuple[tuple[Typing, ...], ...], random: Random
) -> Iterator[Instance]:
    """Types at which both sides have types, of equal shapes if possible."""
    for same in (True, False):
        sizes = _joint_sizes(left, right, same_shapes=same)
        for pins in (2, 0) if sizes is not None else ():
            a, b = (random.choice(side) for side in sides)
            # Without outputs there is nothing in which the types would have to agree.
            degrees = _degrees(replace(a, types=()), replace(b, types=()), random, pins)
            instance = _sized(left, right, sizes, degrees, random) if sizes and degrees else None
            if instance is not None:
                yield instance
                break


def _joint_sizes(left: Outputs, right: Outputs, *, same_shapes: bool) -> Sizes | None:
    sizes = Sizes()
    try:
        for node in both((left, right)).nodes:
            sizes.visit(node)
        for a, b in zip(left, right, strict=True) if same_shapes else ():
            for x, y in zip(sizes.shape(a), sizes.shape(b), strict=True):
                sizes.equal(x, y)
    except (Unsolvable, ValueError):
        return None
    return sizes


def guess(left: Outputs, right: Outputs, random: Random) -> Instance | None:
    """Both sides at random types. None if a side has no type there, which is most common."""
    nodes = both((left, right)).nodes
    values = _guessed_symbols(nodes, random)
    cuts = [v for s, v in values.items() if s in _symbols(nodes, "degree")] or [2]
    sizes = random.choice(((12,), (6, 12), (2, 3, 4, 6, 12)))
    some = (1, 1, 1, *cuts)
    leaves: dict[str, Node] = {}
    for node in (n for n in nodes if n.is_leaf):
        leaf, dims = node.leaf, range(node.leaf.rank)
        shape = tuple(random.choice(sizes) for _ in dims)
        values |= {f"|{leaf.name}.{i}|": size for i, size in enumerate(shape)}
        degrees = tuple(random.choice(some) for _ in dims)
        slices = tuple(random.choice((1, *some) if random.random() < 0.2 else (1,)) for _ in dims)
        if any(s % (d * t) for s, d, t in zip(shape, degrees, slices, strict=True)):
            return None
        own = Degrees(degrees, slices, random.choice(some), random.choice(some))
        kind = leaf.type or ParallelTensor(shape, own)
        leaves[leaf.name] = Node(Leaf("input", leaf.name, leaf.rank, kind, leaf.below))
    try:
        sides = [Graph(_typed(side, leaves, values)) for side in (left, right)]
        types = [t for side in sides for node in side.nodes for t in node.types]
    except (OperatorError, KeyError, ValueError):
        return None
    if any(t.elements > MAX_ELEMENTS or t.pieces > MAX_TASKS for t in types):
        return None
    return Instance(sides[0], sides[1], {})


def _symbols(nodes: Iterable[Node], attribute: str) -> set[str]:
    return {
        symbol
        for node in nodes
        if isinstance(node.call, Call)
        for name, value in node.call.attributes
        if name == attribute and isinstance(value, Poly)
        for symbol in value.symbols
    }


def _guessed_symbols(nodes: Sequence[Node], random: Random) -> dict[str, Any]:
    """A value for every symbol in an attribute: a degree, a size or a real number."""
    values: dict[str, Any] = {}
    for node in nodes:
        for name, given in () if isinstance(node.call, Leaf) else node.call.attributes:
            for symbol in sorted(given.symbols) if isinstance(given, Poly) else ():
                if name == "degree":
                    values[symbol] = random.choice((2, 3))
                elif name in node.operator_call.operator.reals:
                    values.setdefault(symbol, random.choice((0.5, -1.25, 2.0, 3.5)))
                else:
                    values.setdefault(symbol, random.choice((1, 2, 3, 4, 6, 12)))
    return values


def _typed(side: Outputs, leaves: Mapping[str, Node], values: Mapping[str, Any]) -> Outputs:
    new: dict[Node, Node] = {}
    for node in Graph(side).nodes:
        if node.is_leaf:
            new[node] = leaves[node.leaf.name]
            continue
        inputs = tuple(Value(new[v.node], v.port) for v in node.inputs)
        new[node] = Node(concrete(node.operator_call, values), inputs)
    return tuple(Value(new[v.node], v.port) for v in side)


@dataclass(frozen=True)
class Finding:
    """A pair's verdict, compared with evaluation."""

    kind: str
    text: str
    verdict: str
    judgement: Judgement
    problem: str = ""
    """The fault of the verdict. Empty if the verdict is correct."""

    def __str__(self) -> str:
        return f"{self.problem or 'in order'}: {self.text} ({self.kind})"


def pair_text(left: Outputs, right: Outputs) -> str:
    """A pair as in ``tests/rules``, such as ``x:2 | relu(relu(x)) == relu(x)``."""
    ranks = " ".join(f"{name}:{rank}" for name, rank in sorted(input_ranks((*left, *right))))
    return f"{ranks} | {side_text(left)} == {side_text(right)}"


def examine(
    left: Sequence[Value],
    right: Sequence[Value],
    kind: str = "",
    operators: Mapping[str, Operator] = OPERATORS,
) -> Finding:
    """Decide a pair and judge the verdict. Any fault becomes the problem of the finding."""
    pair = (tuple(left), tuple(right))
    text = pair_text(*pair)
    judgement = judge(*pair)
    try:
        decision = decide(*pair)
        shown = decision.counterexample is None or holds(decision.counterexample, operators)
    except Exception as error:  # An exception of the verifier is a finding like any other.
        problem = f"raised {type(error).__name__}: {error}"
        return Finding(kind, text, "raised", judgement, problem)
    problem = _mismatch(decision.verdict, decision.reason, judgement)
    if not shown:
        problem = f"refuted, but not by its counterexample {decision.counterexample}"
    return Finding(kind, text, decision.verdict, judgement, problem)


def examine_mutants(
    pairs: Sequence[tuple[Outputs, Outputs]],
    operators: Mapping[str, Operator] = OPERATORS,
    *,
    most: int | None = None,
    jobs: int = 1,
) -> list[Finding]:
    """Examine the mutants of pairs, such as those of a rule file: all or ``most`` of each pair,
    each mutant once. A mutant that equals one of the pairs is skipped. ``jobs`` processes share the
    work."""
    seen = {pair_text(*pair) for pair in pairs}
    work: list[list[Mutant]] = []
    for pair in pairs:
        found = spread(mutants(*pair, operators), most)
        texts = [pair_text(left, right) for _, left, right in found]
        work.append([m for m, text in zip(found, texts, strict=True) if text not in seen])
        seen.update(texts)

    def examined(mutants_of_kind: list[Mutant]) -> list[Finding]:
        return [examine(left, right, kind, operators) for kind, left, right in mutants_of_kind]

    return [finding for found in parallel_map(examined, work, jobs) for finding in found]


def _mismatch(verdict: Verdict, reason: str, judgement: Judgement) -> str:
    """The fault of a verdict, given the judgement."""
    match judgement:
        case Judgement.VALUE:
            wrong = verdict is not Verdict.REFUTED
        case Judgement.DEGREES:
            # Halos are part of a type, but no degree. If they are never equal, the verdict states
            # that.
            halos = verdict in (Verdict.VACUOUS, Verdict.ILL_TYPED) and (
                "halo" in reason or reason.startswith("sizes")
            )
            wrong = verdict is not Verdict.REFUTED and not halos
        case Judgement.SHAPE | Judgement.UNTYPED:
            wrong = verdict is Verdict.PROVED
        case Judgement.SAME:
            types = verdict is Verdict.REFUTED and "types" in reason
            wrong = types or verdict in (Verdict.ILL_TYPED, Verdict.VACUOUS)
    return f"{verdict} ({reason}), yet {judgement}" if wrong else ""


def holds(counterexample: Counterexample, operators: Mapping[str, Operator] = OPERATORS) -> bool:
    """Whether a counterexample, read back from its text, shows a difference."""
    left = parse_graph(counterexample.left, "left", operators)
    right = parse_graph(counterexample.right, "right", operators)
    if [v.type for v in left.outputs] != [v.type for v in right.outputs]:
        return True
    leaves = {name: np.array(values, np.float64) for name, values in counterexample.values}
    with np.errstate(all="ignore"):
        sides = [evaluate_shards(side, leaves, Reals()) for side in (left, right)]
    return not all(
        np.allclose(meaning(x, Reals()), meaning(y, Reals()), 1e-7, 1e-10, equal_nan=True)
        for x, y in zip(*sides, strict=True)
    )


def table(findings: Iterable[Finding]) -> str:
    """Counts by kind: the number of mutants, of those that evaluation shows to be false, of each
    verdict, and of wrong verdicts."""
    rows: dict[str, Counter[str]] = {}
    columns = ("mutants", "apart", *(str(verdict) for verdict in Verdict), "raised", "wrong")
    for finding in findings:
        for kind in (finding.kind, "all"):
            count = rows.setdefault(kind, Counter())
            count["mutants"] += 1
            count["apart"] += finding.judgement in (Judgement.VALUE, Judgement.DEGREES)
            count[finding.verdict] += 1
            count["wrong"] += bool(finding.problem)
    rows["all"] = rows.pop("all", Counter())
    width = max(map(len, rows))
    lines = [" ".join([" " * width, *columns])]
    for kind, count in rows.items():
        cells = (str(count[name]).rjust(len(name)) for name in columns)
        lines.append(" ".join([kind.ljust(width), *cells]))
    return "\n".join(lines)


def crossed(findings: Iterable[Finding]) -> str:
    """Counts of verdicts (columns) by judgement (rows)."""
    counts = Counter((f.judgement, f.verdict) for f in findings)
    columns = sorted({verdict for _, verdict in counts})
    lines = [" ".join([" " * 14, *columns])]
    for judgement in Judgement:
        cells = (str(counts[judgement, verdict]).rjust(len(verdict)) for verdict in columns)
        lines.append(" ".join([judgement.ljust(14), *cells]))
    return "\n".join(lines)

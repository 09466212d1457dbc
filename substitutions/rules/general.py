"""Generalises pairs of graphs, and decides whether a pair is an instance of another.

A general rule is a pair of graphs at one choice of ranks, with ``runs``: groups of input dimensions
that may each stand for any number of axes (``verifier.trusted.sizes.runs``). A stand-in in it
stands for any element-wise operator (``pcg.ops.stand_ins``).
Method: unification, for each direction, order of outputs and number of axes.
Exact: a pair that is called an instance is one, at the ranks that are tried.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations, product

from pcg.errors import OperatorError
from pcg.graph.graph import Value
from pcg.graph.pairs import GraphPair, Outputs, both
from pcg.language.template import EquationError
from pcg.ops.stand_ins import STAND_INS
from substitutions.rules.canonical import canonical_pair, reordered
from substitutions.rules.gaps import with_inserted_axes
from substitutions.rules.rule import attribute_symbols, input_ranks, side_text
from substitutions.rules.unify import unifiers
from verifier.trusted.sizes.runs import Group, free_runs, widened


@dataclass(frozen=True)
class GeneralForm:
    """A pair of graphs, and the axes that may be any number of axes. ``requires``: the equations
    between sizes under which the pair is equal."""

    left: Outputs
    right: Outputs
    runs: tuple[Group, ...] = ()
    requires: tuple[str, ...] = ()

    @property
    def pair(self) -> GraphPair:
        return self.left, self.right

    @property
    def both(self) -> tuple[Value, ...]:
        """The outputs of both sides."""
        return (*self.left, *self.right)

    @cached_property
    def text(self) -> str:
        return f"{side_text(self.left)} == {side_text(self.right)}"

    @cached_property
    def operators(self) -> tuple[Counter[str], Counter[str]]:
        """The operators of each side, counted as often as their values are used."""
        return _operators(self.left), _operators(self.right)

    @cached_property
    def named(self) -> tuple[Counter[str], Counter[str]]:
        """``operators`` without stand-ins."""
        left, right = (
            Counter({name: n for name, n in used.items() if name not in STAND_INS})
            for used in self.operators
        )
        return left, right


def general(left: Outputs, right: Outputs) -> GeneralForm:
    """The most general form of a pair that is found.

    Axes that may be absent are removed, then an axis is inserted at every place that can take one.
    If the pair is no instance of the result, the pair itself is returned.
    """
    pair = (left, right)
    form = _widest(*_narrowed(pair))
    ranks = dict(input_ranks((*left, *right)))
    if any(instance == pair for instance in _at_ranks(form, ranks)):
        return form
    unchanged = GeneralForm(left, right, free_runs(left, right))
    return form if is_instance(unchanged, form) else unchanged


@lru_cache(maxsize=1 << 12)
def _widest(left: Outputs, right: Outputs) -> GeneralForm:
    """The form with an axis inserted at every place that can take one."""
    pair = with_inserted_axes((left, right))
    return GeneralForm(*pair, free_runs(*pair))


def _narrowed(pair: GraphPair) -> GraphPair:
    """The pair without the axes that may be absent."""
    groups = free_runs(*pair)
    if not groups:
        return pair
    smaller = _checked(pair, dict.fromkeys(groups, 0))
    if smaller is not None:
        return smaller
    for group in groups:
        if (smaller := _checked(pair, {group: 0})) is not None:
            return _narrowed(smaller)
    return pair


def _checked(pair: GraphPair, counts: Mapping[Group, int]) -> GraphPair | None:
    """The pair with ``counts[group]`` axes for each group; None if an operator has no such
    instance."""
    try:
        wide = widened(*pair, counts)
        _ = [node.ranks for node in both(wide).nodes]
    except (OperatorError, EquationError):
        return None
    return wide


@lru_cache(maxsize=1 << 16)
def at_counts(form: GeneralForm, counts: tuple[int, ...]) -> GraphPair | None:
    """The pair with ``counts`` axes in the place of the runs; None if an operator has no such
    instance."""
    changed = {g: n for g, n in zip(form.runs, counts, strict=True) if n != 1}
    return _checked(form.pair, changed) if changed else form.pair


def _at_ranks(form: GeneralForm, ranks: Mapping[str, int]) -> Iterator[GraphPair]:
    """Yield the pair at all numbers of axes for which its inputs have the given ranks."""
    missing = {name: ranks.get(name, rank) - rank for name, rank in input_ranks(form.both)}
    uses = [Counter(name for name, _ in group) for group in form.runs]
    for name in {name for counter in uses for name in counter}:
        missing[name] += sum(counter[name] for counter in uses)
    for counts in _counts(uses, missing):
        if (pair := at_counts(form, counts)) is not None:
            yield pair


def _counts(
    uses: Sequence[Mapping[str, int]], missing: Mapping[str, int]
) -> Iterator[tuple[int, ...]]:
    """Yield the possible numbers of axes of the runs. ``own``: how often each run is in each input.
    ``missing``: the number of axes that the runs have to add to each input."""
    if not uses:
        if not any(missing.values()):
            yield ()
        return
    first, rest = uses[0], uses[1:]
    most = min(missing[name] // times for name, times in first.items())
    for count in range(most + 1):
        remaining = {name: m - count * first.get(name, 0) for name, m in missing.items()}
        for others in _counts(rest, remaining):
            yield (count, *others)


def canonical(form: GeneralForm) -> GeneralForm:
    """The canonical form: the same for rules that differ only in names, order and direction."""
    pair = canonical_pair(form.pair)
    return GeneralForm(*pair, free_runs(*pair) if form.runs else ())


# -- instances --------------------------------------------------------------------------------


def is_instance(special: GeneralForm, form: GeneralForm) -> bool:
    """Whether ``special`` is an instance of ``form``.

    An instance has values for the inputs of ``form``, numbers of axes for its runs and operators
    for its stand-ins, is read in either direction, and has its outputs in any order. ``special``
    has to be an instance with one axis for each of its runs, and also with none and with two. A
    form that holds under equations between sizes counts as covering only itself.
    """
    if form.requires and special != form:
        return False
    directions = _directions(special, form)
    if not directions or not _covers(form, special.pair, directions):
        return False
    for count in (2, 0) if special.runs else ():
        other = at_counts(special, (count,) * len(special.runs))
        if other is not None and not _covers(form, other, directions):
            return False
    return True


def _directions(special: GeneralForm, form: GeneralForm) -> list[int]:
    """The directions, 1 as written and -1 reversed, in which ``special`` has at least the operators
    of ``form``."""
    if len(special.left) != len(form.left):
        return []
    return [
        way
        for way in (1, -1)
        if all(a <= b for a, b in zip(form.named, special.named[::way], strict=True))
    ]


def _covers(form: GeneralForm, pair: GraphPair, directions: Sequence[int]) -> bool:
    """Whether a pair, in one of the directions and with its outputs in some order, is an instance
    of ``form``."""
    return any(
        _covers_directed(form, (reordered(left, order), reordered(right, order)))
        for left, right in (pair[::way] for way in directions)
        for order in permutations(range(len(left)))
    )


def _covers_directed(form: GeneralForm, given: GraphPair) -> bool:
    if not form.runs:
        return next(unifiers(form.pair, given), None) is not None
    # First without ranks and positions: few pairs unify, and these give the ranks.
    for loose in unifiers(form.pair, given, loose=True):
        ranks = {name: value.rank for name, value in loose.values.items()}
        for pair in _at_ranks(form, ranks):
            if next(unifiers(pair, given), None) is not None:
                return True
    return False


def most_general(forms: Sequence[GeneralForm]) -> list[GeneralForm]:
    """The forms that are no instance of another; of equal forms, the first."""
    kept: dict[GeneralForm, None] = {}
    by_roots: dict[_Roots, list[GeneralForm]] = defaultdict(list)
    for form in sorted(dict.fromkeys(forms), key=_generality):
        if not any(is_instance(form, other) for other in _related(form, by_roots)):
            kept[form] = None
            by_roots[_roots(form)].append(form)
    return [form for form in dict.fromkeys(forms) if form in kept]


def _generality(form: GeneralForm) -> tuple[int, int, int, int, str]:
    """A sort key by which a form comes before its instances. For an instance has more operators
    (counted as often as their values are used), or fewer different inputs, symbols or axes."""
    named = sum(used.total() for used in form.named)
    total = sum(used.total() for used in form.operators)
    inputs = len(input_ranks(form.both))
    symbols = len(attribute_symbols(form.both))
    return total, named, -inputs - len(form.runs), -symbols, form.text


def _operators(side: Outputs) -> Counter[str]:
    """The operators of a side, counted as often as their values are used."""
    counts: Counter[str] = Counter()
    pending = list(side)
    while pending:
        node = pending.pop().node
        if not node.is_leaf:
            counts[node.name] += 1
            pending += node.inputs
    return counts


_Roots = tuple[int, frozenset[tuple[str, ...]]]
"""The number of outputs of a form, and the operators that compute the outputs of each side."""
ANY = "*"
"""The root of a side that is an input or a stand-in; an instance may have any root there."""


def _roots(form: GeneralForm) -> _Roots:
    return len(form.left), frozenset(_side_roots(side) for side in form.pair)


def _side_roots(side: Outputs) -> tuple[str, ...]:
    names = (ANY if v.node.is_leaf or v.node.name in STAND_INS else v.node.name for v in side)
    return tuple(sorted(names))


def _related(
    form: GeneralForm, by_roots: Mapping[_Roots, list[GeneralForm]]
) -> Iterator[GeneralForm]:
    """Yield the forms that a form may be an instance of, by the roots of both sides."""
    options = [_covering(_side_roots(side)) for side in form.pair]
    related = {frozenset(sides) for sides in product(*options)}
    for roots in sorted(related, key=sorted):
        yield from by_roots.get((len(form.left), roots), ())


def _covering(roots: tuple[str, ...]) -> set[tuple[str, ...]]:
    """The roots of all sides that a side with the given roots may be an instance of."""
    return {tuple(sorted(chosen)) for chosen in product(*((root, ANY) for root in roots))}

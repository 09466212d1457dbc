"""Cancels a positive sum with its reciprocal, even if the summands stand in different terms.

Problem: a row of a softmax adds up to 1, but no term has a factor S to cancel. With S = s_1 + ... +
s_n, the terms are C s_1 / S, ..., C s_n / S for some cofactor C.

Method: for each reciprocal 1/S among the factors of a term, search the other factors for the first
summand of S, under a renaming of its summed indices to those of the term. The factors that are left
are the cofactor C. If each other summand of S, times the same cofactor, is a term too, then C
replaces all these terms.

    sum over j: C s(j) / S = C, where S = sum over k: s(k), and C and S do not depend on j

Exact. C, its conditions and S do not contain the summed indices, so C / S may be taken out of the
sum, by distributivity. What is left is S (1/S) = 1, which is used only for an S that
``is_positive`` knows to be a number greater than 0. Nothing is chosen, so certificates need no
further step.
Complexity: renamings times summands times terms; at most ``MAX_RENAMINGS`` renamings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, permutations

from pcg.language.normal import Factor, Function, NormalForm, Term, factor_symbols, substitute_term
from pcg.language.poly import Poly
from verifier.trusted.values.keys import key, key_of_term

MAX_RENAMINGS = 24
IsPositive = Callable[[NormalForm], bool]
"""Whether a value is known to be a number greater than 0."""


def cancelled(form: NormalForm, is_positive: IsPositive) -> NormalForm:
    """The same value with each sum C s / S replaced by its cofactor C."""
    terms = list(form)
    while (cancelling := _next_cancellation(terms, is_positive)) is not None:
        removed, cofactor = cancelling
        terms = [term for position, term in enumerate(terms) if position not in removed] + [
            cofactor
        ]
    return tuple(terms)


def _next_cancellation(
    terms: Sequence[Term], is_positive: IsPositive
) -> tuple[set[int], Term] | None:
    """The positions of terms that add up to a cofactor, and the cofactor; None if there are
    none."""
    for position, term in enumerate(terms):
        for factor in term.factors:
            if not isinstance(factor, Function) or factor.name != "recip" or term.divisions:
                continue
            sums = factor.args[0].form
            if not is_positive_sum(sums, is_positive):
                continue
            for cofactor in _cofactors(term, factor, sums[0]):
                removed = _all_summands(terms, factor, sums, cofactor)
                if removed is not None:
                    return removed | {position}, cofactor
    return None


def _all_summands(
    terms: Sequence[Term], factor: Function, sums: NormalForm, cofactor: Term
) -> set[int] | None:
    """The positions of the terms that are the cofactor times a summand, for each summand but the
    first; None if one is missing."""
    removed: set[int] = set()
    wanted = _unordered(cofactor)
    for summand in sums[1:]:
        for position, term in enumerate(terms):
            cofactors = _cofactors(term, factor, summand) if position not in removed else ()
            if any(_unordered(other) == wanted for other in cofactors):
                removed.add(position)
                break
        else:
            return None
    return removed


def _unordered(term: Term) -> object:
    """A key that is equal for terms that differ only in the names of bound indices and in the order
    of factors."""
    return key_of_term(replace(term, factors=tuple(sorted(term.factors, key=_text))))


def _text(factor: Factor) -> str:
    return str(key(factor))


def _cofactors(term: Term, factor: Function, summand: Term) -> Iterator[Term]:
    """The cofactors of ``summand * factor`` in a term, one for each renaming of the summand's
    summed indices under which it divides the term. ``factor`` is the reciprocal."""
    if term.divisions or summand.divisions:
        return
    rest = _without(list(term.factors), [key(factor)])
    if rest is None or len(summand.binders) > len(term.binders):
        return
    sizes = dict(term.binders)
    for chosen in islice(permutations(sizes, len(summand.binders)), MAX_RENAMINGS):
        names = {
            name: Poly.of(chosen_name)
            for (name, _), chosen_name in zip(summand.binders, chosen, strict=True)
        }
        renamed = substitute_term(replace(summand, binders=()), names)
        alike = (
            n == sizes[chosen_name]
            for (_, n), chosen_name in zip(summand.binders, chosen, strict=True)
        )
        if not all(alike) or not set(renamed.guards) <= set(term.guards):
            continue
        factors = _without(rest, [key(f) for f in renamed.factors])
        if factors is None:
            continue
        left = Term(
            term.coefficient / summand.coefficient,
            tuple(b for b in term.binders if b[0] not in chosen),
            tuple(g for g in term.guards if g not in renamed.guards),
            tuple(factors),
        )
        if _symbols_of(left, factor).isdisjoint(chosen):
            yield left


def _without(factors: list[Factor], keys: Sequence[object]) -> list[Factor] | None:
    """The factors without those of the given keys; None if one of these is missing."""
    left = list(factors)
    for wanted in keys:
        position = next((i for i, f in enumerate(left) if key(f) == wanted), None)
        if position is None:
            return None
        del left[position]
    return left


def _symbols_of(cofactor: Term, factor: Function) -> set[str]:
    """The symbols in a cofactor and a reciprocal."""
    symbols = {s for guard in cofactor.guards for s in guard.symbols}
    symbols.update(s for _, size in cofactor.binders for s in size.symbols)
    symbols.update(*(factor_symbols(f) for f in (*cofactor.factors, factor)))
    return symbols


def is_positive_sum(form: NormalForm, is_positive: IsPositive) -> bool:
    """Whether a sum is known to be a number greater than 0.

    Either ``is_positive`` knows it, or each term is positive where its condition holds and the
    conditions of two terms are complementary, so that one of them always holds.
    """
    if is_positive(form):
        return True
    bare = [replace(term, guards=()) for term in form]
    if not bare or not all(is_positive((term,)) for term in bare):
        return False
    return any(
        len(a.guards) == len(b.guards) == 1 and b.guards == (-a.guards[0] - 1,)
        for a in form
        for b in (replace(b, guards=_renamed_guards(a, b)) for b in form)
    )


def _renamed_guards(a: Term, b: Term) -> tuple[Poly, ...]:
    """The guards of b in terms of the indices of a; none if the indices have other ranges."""
    if [n for _, n in a.binders] != [n for _, n in b.binders]:
        return ()
    names = {v: Poly.of(w) for (v, _), (w, _) in zip(b.binders, a.binders, strict=True)}
    return tuple(guard.substitute(names) for guard in b.guards)

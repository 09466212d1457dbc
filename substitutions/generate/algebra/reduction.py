"""Decides which terms of a table are reducible by smaller equalities.

Problem: most equalities between terms follow from smaller ones.
Method: ordered rewriting, as in unfailing completion (Bachmair, Dershowitz and Plaisted, 1989). A
term is *reducible* if it is an instance of a smaller term (the pattern), at its root or at its root
with operands opened, and replacing the pattern by another member of the pattern's class gives a
lesser term. Terms are ordered by their number of operators, then in a fixed way.
Complexity: openings of a term times members of a class times its symmetries.
Exact: the equality of a reducible term with its class follows in one step. Operands are opened one
at a time or all together, one level deep, so a reducible term may be missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from substitutions.generate.algebra.table import ClassMember, ClassTable
from substitutions.generate.algebra.terms import (
    ClassTerm,
    TermNames,
    TermPart,
    canonical,
    least_names,
)

REMEMBERED = 1 << 16
"""The number of terms whose forms and measures are cached: neighbours in the table need the same
ones."""

TermMeasure = tuple[int, int, tuple[TermPart, ...]]
OpenedTerm = tuple[TermPart, tuple[TermPart, ...]]
"""An opened term: the class of the term with inputs for its operands, and the operands, in order of
these inputs. The operands are in the variables of the opened term's class."""


class Reduction:
    """Decides which terms of a table are reducible. ``more``: members of classes besides those in
    the table."""

    def __init__(self, table: ClassTable) -> None:
        self.table = table
        self.more: dict[int, list[ClassMember]] = {}
        # A class never changes and the table is complete, so cached results stay valid.
        self._form = lru_cache(REMEMBERED)(self._canonical)
        self._opened = lru_cache(REMEMBERED)(self._openings_of)
        self.measure = lru_cache(REMEMBERED)(self._measured)
        self._counted = lru_cache(REMEMBERED)(self._operators)

    def canonical(self, step: int, parts: Sequence[TermPart]) -> tuple[ClassTerm, TermNames]:
        """A term with its variables named in order of use, and the old names of these variables."""
        return self._form(step, tuple(parts))

    def _canonical(self, step: int, parts: tuple[TermPart, ...]) -> tuple[ClassTerm, TermNames]:
        return canonical(step, parts, self.table.steps, self.table.classes)

    def is_irreducible(self, term: ClassTerm) -> bool:
        """Whether no smaller equality makes a term less. Terms of equal size are compared by the
        names of variables too, so the answer may change when the term is named canonically."""
        return not any(
            self._reduces(term, pattern, bound) for pattern, bound in self._patterns(term)
        )

    # -- instances ----------------------------------------------------------------------------

    def _patterns(self, term: ClassTerm) -> Iterator[tuple[ClassTerm, list[TermPart]]]:
        """Yield smaller terms that a term is an instance of, with the values of their variables."""
        step, parts = term
        mine = self.canonical(step, parts)[0]
        for opened in self._openings(parts):
            binding: list[TermPart] = []
            pattern: list[TermPart] = []
            for part in parts:
                inner = opened.get(part)
                made = self._placed(inner, part[1], binding) if inner else None
                made = made or self._variable(part, binding)
                if made is not None:
                    pattern.append(made)
            if len(pattern) < len(parts):
                continue
            small, used = self.canonical(step, pattern)
            if small != mine:
                yield small, [binding[v] for v in used]

    def _openings(self, parts: Sequence[TermPart]) -> Iterator[Mapping[TermPart, OpenedTerm]]:
        """Yield the choices of operands to open, each as a term of its class: none, each operand by
        each of its terms, and all operands by their least terms."""
        yield {}
        computed = {part: terms for part in parts if (terms := self._opened(part[0]))}
        for part, terms in computed.items():
            for term in terms:
                if term is not None:
                    yield {part: term}
        if len(computed) > 1:
            firsts = {part: terms[0] for part, terms in computed.items()}
            if None not in firsts.values():
                yield {part: first for part, first in firsts.items() if first is not None}

    def _openings_of(self, number: int) -> tuple[OpenedTerm | None, ...]:
        """The terms of a class, opened, the least first; None for a term of whose operands some
        have a shape that no input of the world has."""
        if self.table.classes[number].term is None:
            return ()
        openings: list[OpenedTerm | None] = []
        for member in self.table.found[number]:
            step, parts = member.term
            place = {there: v for v, there in enumerate(member.names)}
            if all(v in place for _, own in parts for v in own):
                openings.append(
                    self._opening(step, [(c, tuple(place[v] for v in own)) for c, own in parts])
                )
        return tuple(openings)

    def _opening(self, step: int, parts: Sequence[TermPart]) -> OpenedTerm | None:
        binding: list[TermPart] = []
        inner = [self._variable(part, binding) for part in parts]
        if any(p is None for p in inner):
            return None
        made = self._class(step, [p for p in inner if p is not None])
        return None if made is None else (made, tuple(binding))

    def _placed(self, opened: OpenedTerm, names: TermNames, binding: list[TermPart]) -> TermPart:
        """An opened operand in a pattern. ``names``: the names of its class's variables. Its own
        operands are added to ``binding``."""
        (number, own), bound = opened
        places: list[int] = []
        for c, under in bound:
            part = least_names((c, tuple(names[v] for v in under)), self.table.classes)
            if part not in binding:
                binding.append(part)
            places.append(binding.index(part))
        return number, tuple(places[v] for v in own)

    def _variable(self, part: TermPart, binding: list[TermPart]) -> TermPart | None:
        """An input in the place of an operand, the same for equal operands. None if no input has
        the operand's shape."""
        part = least_names(part, self.table.classes)
        number = self.table.variable(self.table.classes[part[0]].shape)
        if number is None:
            return None
        if part not in binding:
            binding.append(part)
        return number, (binding.index(part),)

    def _class(self, step: int, parts: Sequence[TermPart]) -> TermPart | None:
        """The class of a step applied to classes; None if it is not known."""
        term, used = self.canonical(step, parts)
        known = self.table.index.get(term)
        if known is None:
            return None
        number, names = known
        return number, tuple(used[v] for v in names)

    def _reduces(self, term: ClassTerm, pattern: ClassTerm, bound: Sequence[TermPart]) -> bool:
        """Whether another member of the pattern's class, in its place, makes the term less."""
        known = self.table.index.get(pattern)
        if known is None:
            return False
        number, names = known
        more, symmetries = self.more.get(number, ()), self.table.classes[number].symmetries
        if self.table.classes[number].term is None:
            return True  # The pattern equals one of its own inputs.
        members = (*self.table.found[number], *more)
        if len(members) == len(symmetries) == 1:
            return False  # The pattern is the only member of its class.
        mine = self.measure(term)
        for member in members:
            # The pattern itself, with its variables as they are, gives the same term.
            options = symmetries if member.term != pattern else symmetries[1:]
            for option in options:
                # Variable i of the class is names[i] of the pattern, found.names[i] of the other.
                values = {
                    there: bound[names[v]] for there, v in zip(member.names, option, strict=True)
                }
                made = self._instance(member, values)
                if made is not None and self.measure(made) < mine:
                    return True
        return False

    def _instance(self, member: ClassMember, values: dict[int, TermPart]) -> ClassTerm | None:
        step, parts = member.term
        made = [self._substituted(part, values) for part in parts]
        if any(part is None for part in made):
            return None
        return step, tuple(part for part in made if part is not None)

    def _substituted(self, part: TermPart, values: dict[int, TermPart]) -> TermPart | None:
        number, names = part
        own = self.table.classes[number].term
        if own is None:
            return values.get(names[0])
        step, parts = own
        inner: list[TermPart] = []
        for c, under in parts:
            made = self._substituted((c, tuple(names[v] for v in under)), values)
            if made is None:
                return None
            inner.append(made)
        return self._class(step, inner)

    def _measured(self, term: ClassTerm) -> TermMeasure:
        """The measure by which terms are ordered: the number of operators, then a fixed order."""
        step, parts = term
        ordered = tuple(least_names(part, self.table.classes) for part in parts)
        if self.table.steps[step].call.operator.commutative:
            ordered = tuple(sorted(ordered))
        return self.size((step, ordered)), step, ordered

    def size(self, term: ClassTerm) -> int:
        return self.operators(term[1]) + 1

    def operators(self, parts: Sequence[TermPart]) -> int:
        """The number of operators of the least terms of the classes; shared operators count
        once."""
        return self._counted(tuple(parts))

    def _operators(self, parts: tuple[TermPart, ...]) -> int:
        seen: set[tuple[int, tuple[TermPart, ...]]] = set()
        pending = list(parts)
        while pending:
            number, names = pending.pop()
            own = self.table.classes[number].term
            if own is None:
                continue
            step, inner = own
            here = tuple((c, tuple(names[v] for v in under)) for c, under in inner)
            call = self.table.calls[step]
            if (call, here) not in seen:
                seen.add((call, here))
                pending += here
        return len(seen)

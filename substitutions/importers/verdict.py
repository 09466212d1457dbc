"""Decides a rule of another system: the degrees for which it holds, and its conditions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from substitutions.importers import flexflow, taso
from substitutions.importers.imported import (
    IllTypedError,
    ImportedCase,
    ImportedRule,
    UnsupportedError,
)
from substitutions.importers.operators import RuleSystem
from substitutions.importers.schema import ForeignRule, ForeignSide
from verifier.counterexample import Counterexample
from verifier.decide import Decision, Verdict, decide
from verifier.trusted.sizes.sizes import input_size

ALL = "all"

MAX_EXPANDED = 2_000
"""The most operators of a side when each use of a tensor is counted, as a proof expands it."""

MAX_OPERATORS = 64
"""The most operators of a side; published rules have up to five."""

_QUOTIENT = re.compile(r"\|([\w.]+?)\.by\.([\w.]+)\|")


@dataclass(frozen=True)
class ForeignDecision:
    """A verdict on a rule of another system.

    ``degrees``: ``all``, or the degrees of the file, if the verdict is about these only; empty for
    a rule without parallel operators. ``decisions``: one for each case of sizes.
    """

    verdict: Verdict
    reason: str = ""
    degrees: str = ""
    conditions: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()

    @property
    def counterexample(self) -> Counterexample | None:
        examples = (d.counterexample for d in self.decisions)
        return next((c for c in examples if c is not None), None)


def decide_foreign(rule: ForeignRule) -> ForeignDecision:
    """Decide a rule in the most general reading in which it is proved.

    Degrees are arbitrary, or else those of the file. Convolutions are of any kind, or else without
    groups, or with equal numbers of output channels. If no reading is proved, the verdict is that
    on the file's degrees, and for TASO's rules the most telling one of all readings: refuted,
    unknown, vacuous, ill-typed.
    """
    if rule.meaningless:
        return ForeignDecision(Verdict.ILL_TYPED, rule.meaningless)
    if reason := _too_large(rule.left) or _too_large(rule.right):
        return ForeignDecision(Verdict.UNKNOWN, reason)
    decisions: list[ForeignDecision] = []
    seen: set[tuple[ImportedCase, ...]] = set()
    for reading in _readings(rule):
        imported = _imported(reading)
        if isinstance(imported, ImportedRule):
            known = (decision.counterexample for decision in decisions)
            if imported.cases in seen or any(_refutes(c, imported) for c in known):
                continue
            seen.add(imported.cases)
            decision = decide_imported(imported)
        else:
            decision = imported
        if decision.verdict is Verdict.PROVED:
            return decision
        decisions.append(decision)
    if rule.source is RuleSystem.FLEXFLOW:
        return decisions[-1]
    # A rule that is false for some convolutions is false. If one reading has no meaning, another
    # one may have.
    return min(decisions, key=lambda decision: _PREFERENCE.index(decision.verdict))


_PREFERENCE = (Verdict.REFUTED, Verdict.UNKNOWN, Verdict.VACUOUS, Verdict.ILL_TYPED)

_LEFT, _RIGHT = ("left",), ("right",)


def _readings(rule: ForeignRule) -> Iterator[Callable[[], ImportedRule]]:
    """Yield the readings of a rule, the most general first."""
    if rule.source is RuleSystem.FLEXFLOW:
        if len(flexflow.stated_degrees(rule)) == 1:
            yield partial(flexflow.import_rule, rule, symbolic=True)
        yield partial(flexflow.import_rule, rule, symbolic=False)
        return
    yield partial(taso.import_rule, rule)
    if any(o.name == "OP_CONV2D" for _, side in rule.sides for o in side.operators):
        for same in (False, True):
            for sides in (_LEFT, _RIGHT, _LEFT + _RIGHT):
                yield partial(taso.import_rule, rule, ungrouped=sides, same_outputs=same)
        yield partial(taso.import_rule, rule, same_outputs=True)


def _imported(reading: Callable[[], ImportedRule]) -> ImportedRule | ForeignDecision:
    try:
        return reading()
    except IllTypedError as error:
        return ForeignDecision(Verdict.ILL_TYPED, str(error))
    except UnsupportedError as error:
        return ForeignDecision(Verdict.UNKNOWN, str(error))


def _refutes(counterexample: Counterexample | None, imported: ImportedRule) -> bool:
    """Whether a counterexample to a more general reading refutes this reading too: the equations
    that this one demands hold there."""
    if counterexample is None or not imported.demanded:
        return False
    sizes = {
        input_size(name, dim): size
        for name, values in counterexample.values
        for dim, size in enumerate(np.shape(values)[1:])  # The first axis is over partials.
    }
    return all(
        (a.symbols | b.symbols) <= sizes.keys() and a.evaluate(sizes) == b.evaluate(sizes)
        for a, b in imported.demanded
    )


def decide_imported(imported: ImportedRule) -> ForeignDecision:
    """Decide each case. The rule is proved if every case is proved or vacuous, and not all are
    vacuous."""
    degrees = ALL if imported.degree else ", ".join(map(str, imported.degrees))
    conditions = dict.fromkeys(imported.conditions)
    decisions: list[Decision] = []
    for case in imported.cases:
        decision = decide(case.left, case.right, case.equal, whole=True)
        decisions.append(decision)
        if decision.verdict in (Verdict.REFUTED, Verdict.UNKNOWN, Verdict.ILL_TYPED):
            where = f" (where {case.assumed})" if case.assumed else ""
            reason = f"{decision.reason}{where}"
            return ForeignDecision(decision.verdict, reason, degrees, decisions=(decision,))
        if decision.verdict is Verdict.PROVED:
            conditions |= dict.fromkeys(decision.conditions)
    if all(decision.verdict is Verdict.VACUOUS for decision in decisions):
        return ForeignDecision(
            Verdict.VACUOUS, decisions[0].reason, degrees, decisions=tuple(decisions)
        )
    shown = tuple(_QUOTIENT.sub(r"|\1|/|\2|", condition) for condition in conditions)
    return ForeignDecision(Verdict.PROVED, "", degrees, shown, tuple(decisions))


def _too_large(side: ForeignSide) -> str:
    """Why a side is too large for a proof, as a clause; empty if it is not."""
    if len(side.operators) > MAX_OPERATORS:
        return f"a side of more than {MAX_OPERATORS} operators"
    expanded: dict[int, int] = {}
    for number in side.order:
        read = (reference.op for reference in side.operators[number].inputs)
        expanded[number] = 1 + sum(expanded.get(op, 0) for op in read)
    if max(expanded.values()) > MAX_EXPANDED:
        return f"a side of more than {MAX_EXPANDED} operators when expanded"
    return ""

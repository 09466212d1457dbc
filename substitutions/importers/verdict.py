"""Decides a rule of another system: for which degrees it holds, and on what conditions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from substitutions.importers import flexflow, taso
from substitutions.importers.imported import IllTypedError, Imported, ImportedCase, UnsupportedError
from substitutions.importers.operators import RuleSystem
from substitutions.importers.schema import ForeignRule, ForeignSide
from verifier.counterexample import Counterexample
from verifier.decide import Decision, Verdict, decide
from verifier.trusted.sizes.sizes import input_size

ALL = "all"

MAX_EXPANDED = 2_000
"""Operators of a side when nothing is shared: a proof expands each use of a tensor."""

MAX_OPERATORS = 64
"""Of a side; published ones have up to five."""

_QUOTIENT = re.compile(r"\|([\w.]+?)\.by\.([\w.]+)\|")


@dataclass(frozen=True)
class ForeignDecision:
    """A verdict on a rule of another system.

    ``degrees``: ``all``, or those for which it holds, as the file states them; empty for a rule
    without parallel operators. ``decisions``: one for each case of sizes.
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
    """Decide a rule as generally as it is true: for every degree, or else for the file's; for
    convolutions of any kind, or else for those without groups, or with equal channels.

    Where it is not proved, the verdict is that on the file's degrees and on all convolutions.
    """
    if rule.meaningless:
        return ForeignDecision(Verdict.ILL_TYPED, rule.meaningless)
    if reason := _too_large(rule.left) or _too_large(rule.right):
        return ForeignDecision(Verdict.UNKNOWN, reason)
    decisions: list[ForeignDecision] = []
    seen: set[tuple[ImportedCase, ...]] = set()
    for reading in _readings(rule):
        imported = _imported(reading)
        if isinstance(imported, Imported):
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
    # What is false for some convolutions is false; and where a reading has no meaning, a more
    # general one may have.
    return min(decisions, key=lambda decision: _PREFERENCE.index(decision.verdict))


_PREFERENCE = (Verdict.REFUTED, Verdict.UNKNOWN, Verdict.VACUOUS, Verdict.ILL_TYPED)

_LEFT, _RIGHT = ("left",), ("right",)


def _readings(rule: ForeignRule) -> Iterator[Callable[[], Imported]]:
    """The ways to read a rule, the most general first."""
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


def _imported(reading: Callable[[], Imported]) -> Imported | ForeignDecision:
    try:
        return reading()
    except IllTypedError as error:
        return ForeignDecision(Verdict.ILL_TYPED, str(error))
    except UnsupportedError as error:
        return ForeignDecision(Verdict.UNKNOWN, str(error))


def _refutes(counterexample: Counterexample | None, imported: Imported) -> bool:
    """Whether a counterexample to a more general reading is one to this: what it demands of sizes
    holds there."""
    if counterexample is None or not imported.demanded:
        return False
    sizes = {
        input_size(name, dim): size
        for name, values in counterexample.values
        for dim, size in enumerate(np.shape(values)[1:])  # the first is that of partial sums
    }
    return all(
        (a.symbols | b.symbols) <= sizes.keys() and a.evaluate(sizes) == b.evaluate(sizes)
        for a, b in imported.demanded
    )


def decide_imported(imported: Imported) -> ForeignDecision:
    """Decide each case; the rule is proved if all are that can occur, and some can."""
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
    """Why a proof for a side would not end, as a clause; empty if it would."""
    if len(side.operators) > MAX_OPERATORS:
        return f"a side of more than {MAX_OPERATORS} operators"
    expanded: dict[int, int] = {}
    for number in side.order:
        read = (reference.op for reference in side.operators[number].inputs)
        expanded[number] = 1 + sum(expanded.get(op, 0) for op in read)
    if max(expanded.values()) > MAX_EXPANDED:
        return f"a side of more than {MAX_EXPANDED} operators when expanded"
    return ""

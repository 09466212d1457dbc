"""Remembers which parallel types are proved, in this process and in those that it forks.

Many pairs of graphs rest on the same theorem about an operator (``trusted.proof.local``), and
processes that decide pairs side by side would each prove it. What a process has been told, those
that it forks know.
"""

from __future__ import annotations

from collections.abc import Iterable

from pcg.graph.graph import Graph, Node, Value
from pcg.types.local import LocalTyping
from pcg.types.operator import Call
from verifier.trusted.proof.local import prove_typing
from verifier.trusted.sizes.degrees import local_typing, ranks

Theorem = tuple[Call, tuple[int, ...], LocalTyping]
"""An operator's typing at some ranks. Attributes that are no positions have no part in it."""
TheoremKey = tuple[object, ...]

_REASONS: dict[TheoremKey, str | None] = {}


def missing(sides: Iterable[Value]) -> list[Theorem]:
    """The theorems about operators of some graphs that this process knows nothing of, once."""
    theorems: dict[TheoremKey, Theorem] = {}
    for node in Graph(tuple(sides)).nodes:
        if (theorem := _theorem(node)) is not None and _key(theorem) not in _REASONS:
            theorems[_key(theorem)] = theorem
    return list(theorems.values())


def reason_against(theorem: Theorem) -> str | None:
    """Why a theorem is not proved, or None where it is."""
    key = _key(theorem)
    if key not in _REASONS:
        open_ones = (proof.reason for proof in prove_typing(*theorem) if proof.proof is None)
        _REASONS[key] = next(open_ones, None)
    return _REASONS[key]


def remember(theorem: Theorem, reason: str | None) -> None:
    """What ``reason_against`` said in another process."""
    _REASONS[_key(theorem)] = reason


def problem_of(node: Node) -> str | None:
    """Why the tasks of an operator are not known to compute its equation, if they are not."""
    theorem = _theorem(node)
    return None if theorem is None else reason_against(theorem)


def _theorem(node: Node) -> Theorem | None:
    if node.is_leaf or node.operator_call.operator.parallel is not None:
        return None
    return node.operator_call, ranks(node), local_typing(node)


def _key(theorem: Theorem) -> TheoremKey:
    call, of_ranks, typing = theorem
    return call.operator, of_ranks, call.positions, typing

"""Remembers which typing theorems are proved, in this process and in those that it forks.

Many pairs of graphs rest on the same typing theorem about an operator (``trusted.proof.local``).
Processes that decide pairs in parallel would each prove it. So a process proves the theorems or is
told of their proofs before it forks others, which inherit what it remembers.
"""

from __future__ import annotations

from collections.abc import Iterable

from pcg.graph.graph import Graph, Node, Value
from pcg.types.local import LocalTyping
from pcg.types.operator import Call
from verifier.trusted.proof.local import prove_typing
from verifier.trusted.sizes.degrees import local_typing, ranks

Theorem = tuple[Call, tuple[int, ...], LocalTyping]
"""An operator's call, the ranks of its operands, and its typing. Of the attributes, only positions
matter."""
TheoremKey = tuple[object, ...]

_REASONS: dict[TheoremKey, str | None] = {}


def missing(sides: Iterable[Value]) -> list[Theorem]:
    """The typing theorems that the graphs of ``sides`` rest on and this process has no result for,
    each once."""
    theorems: dict[TheoremKey, Theorem] = {}
    for node in Graph(tuple(sides)).nodes:
        if (theorem := _theorem(node)) is not None and _key(theorem) not in _REASONS:
            theorems[_key(theorem)] = theorem
    return list(theorems.values())


def reason_against(theorem: Theorem) -> str | None:
    """Why a theorem is not proved; None if it is. Proves it unless a result is remembered."""
    key = _key(theorem)
    if key not in _REASONS:
        unproved = (proof.reason for proof in prove_typing(*theorem) if proof.proof is None)
        _REASONS[key] = next(unproved, None)
    return _REASONS[key]


def remember(theorem: Theorem, reason: str | None) -> None:
    """Record the result of ``reason_against`` from another process."""
    _REASONS[_key(theorem)] = reason


def problem_of(node: Node) -> str | None:
    """Why the tasks of an operator are not proved to compute its equation; None if they are, or if
    the node is an input or a parallel operator."""
    theorem = _theorem(node)
    return None if theorem is None else reason_against(theorem)


def _theorem(node: Node) -> Theorem | None:
    if node.is_leaf or node.operator_call.operator.parallel is not None:
        return None
    return node.operator_call, ranks(node), local_typing(node)


def _key(theorem: Theorem) -> TheoremKey:
    call, of_ranks, typing = theorem
    return call.operator, of_ranks, call.positions, typing

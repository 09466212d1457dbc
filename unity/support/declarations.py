"""Reads operators from a user's file, and checks their declarations.

An equation is checked when its operator is made. This module checks the rest of a declaration: a
kernel has to compute the equation, and a commutative operator has to be commutative.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pcg.errors import InputError
from pcg.graph.graph import Node, Value, tensor
from pcg.ops import OPERATORS
from pcg.ops.user import read_operators
from pcg.types.operator import Operator
from substitutions.generate.algebra.enumerate import instances


def load_user_operators(path: str | Path | None) -> tuple[Operator, ...]:
    """Run a file of operator declarations, if one is given. Check the operators and add them to
    ``OPERATORS``.

    Raises InputError that names the file, the operator and the mistake.
    """
    if path is None:
        return ()
    declared = read_operators(path)
    for operator in declared:
        where = f"{path}: operator {operator.name}"
        if operator.commutative:
            _check_commutative(operator, where)
        if operator.kernel is not None:
            _check_kernel(operator, where)
    OPERATORS.add(declared)
    return declared


def _check_kernel(operator: Operator, where: str) -> None:
    # Imported here because most files declare no kernel, and torch takes seconds to load.
    from unity.support.kernels import kernel_problem

    if problem := kernel_problem(operator):
        raise InputError(where, problem)


def _check_commutative(operator: Operator, where: str) -> None:
    """Prove that the operands may be exchanged, because the graph code takes that for granted."""
    # Imported here because training, which also reads such files, does not need the prover.
    from verifier.decide import Verdict, decide

    if operator.arity != 2:
        raise InputError(where, f"declared commutative, but takes {operator.arity} operands")
    for ranks, left, right in _exchanged(operator):
        if ranks[0] != ranks[1]:
            problem = f"its operands may have ranks {ranks[0]} and {ranks[1]}"
            raise InputError(where, f"declared commutative, but {problem}")
        decision = decide(left, right)
        if decision.verdict is not Verdict.PROVED:
            shown = decision.counterexample or decision.reason
            problem = f"exchanging its operands is {decision.verdict}: {shown}"
            raise InputError(where, f"declared commutative, but {problem}")


def _exchanged(
    operator: Operator,
) -> Iterator[tuple[tuple[int, ...], tuple[Value, ...], tuple[Value, ...]]]:
    """Yield both orders of the operands, with their ranks."""
    # Without the declaration, because otherwise both orders are the same graph.
    plain = replace(operator, commutative=False)
    for instance in instances(plain):
        operands = [tensor(name, rank) for name, rank in zip("xy", instance.ranks, strict=True)]
        nodes = [Node(instance.call, tuple(order)) for order in (operands, operands[::-1])]
        left, right = (
            tuple(node.value(port) for port in range(len(plain.outputs))) for node in nodes
        )
        yield instance.ranks, left, right

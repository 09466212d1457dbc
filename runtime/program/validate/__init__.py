"""Validation of all ranks' programs against their plan, before they run and without a solver.

Problem. A plan is a graph with parallel types and machine views. Each process runs a list of
instructions on registers, with offsets, groups, peers, an order, a backward pass, and sums of
gradients. Show that these programs train the graph, without trusting the code that lowered them.

Method. Follow the programs of all ranks at once, step by step as the runtime executes them. In
place of numbers, a register holds a triple (tensor, partials, region).

1. *Each piece once.* An operator may run if its operands hold the blocks that the typing theorem
   (``verifier.trusted.proof.local``) requires for the device's task, and the task has the
   theorem's ranges and offsets. Then its results hold the blocks that the theorem states. The
   parts that a communication delivers must form one block of one tensor, with each element of each
   partial once (``content``). At the end of the step, the loss, the outputs, the weights and the
   statistics must be present, each part once (``ends``).
2. *The backward pass.* Each communication is a linear map between the registers of all ranks, and
   its adjoint must be the transpose of this map (``transposed``). torch differentiates the segments
   between communications. So the backward pass computes the derivative of the sum of all parts of
   the loss by every register. The gradient of a weight is the sum over exactly the ranks that hold
   it. No gradient is lost on its way, and none arrives after its sum has begun.
3. *Order.* Ranks post and wait as the runtime does, to groups that execute one operation after the
   other as with NCCL, and all ranks reach their end (``order``). So all members of a group meet in
   the same collective of the same step, each message has a receiver with the same shape, and no
   rank waits for ever. Number formats do not matter: all ranks communicate in the run's format.

Source. The idea of a translation validator (Pnueli, Siegel, Singerman, TACAS 1998). Trusted: the
graph and its types, the typing theorem, autograd, and that the runtime executes a program as
``frame`` and ``passes`` follow it, which tests compare. Copies are equal by type.

Complexity. A few look-ups per instruction of any rank. The theorem is evaluated once for equal
operators; rows of operators are checked once for similar ranks (``alike``); ranks whose programs
have the same structure are followed together (``lockstep``).

Exact: a program that is accepted is right, and a right program from ``runtime.program.lower`` is
accepted. A program that does the same in another way may be refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from pcg.collection import uncollected
from pcg.errors import InputError
from pcg.plan.plan import Plan
from runtime.program.lower import Lowering
from runtime.program.program import Program
from runtime.program.validate.alike import Forms
from runtime.program.validate.ends import check_alike, check_ends
from runtime.program.validate.errors import ProgramError
from runtime.program.validate.frame import RankState
from runtime.program.validate.local import DeviceCheck, Holdings
from runtime.program.validate.lockstep import follow_together
from runtime.program.validate.meaning import PlanMeaning
from runtime.program.validate.order import Lanes, OrderError, run
from runtime.program.validate.passes import PassesCheck
from runtime.program.validate.sync import Sync

FLOAT32 = 4
"""Bytes of a number in a gradient. They decide which gradients share a bucket."""


def validate(
    plan: Plan, programs: Sequence[Program], where: str = "plan", itemsize: int = FLOAT32
) -> None:
    """Validate the programs of all ranks, in the order of ranks, against a plan.

    Raises ProgramError, which names the rank, the instruction and the expectation, for a program
    that differs from the plan, and InputError for a wrong number of programs.
    """
    if len(programs) != plan.machine.devices:
        raise InputError(where, f"{len(programs)} programs, expected {plan.machine.devices}")
    with uncollected():
        _validate(plan, programs, where, itemsize)


def _validate(plan: Plan, programs: Sequence[Program], where: str, itemsize: int) -> None:
    check_alike(plan, programs, where)
    meaning, forms = PlanMeaning(plan, where), Forms()
    holdings = follow_together(meaning, programs, forms, where, itemsize)
    if holdings is None:
        holdings = follow_each(meaning, programs, forms, where, itemsize)
    check_ends(meaning, programs, holdings, where)


def follow_each(
    meaning: PlanMeaning, programs: Sequence[Program], forms: Forms, where: str, itemsize: int
) -> list[Holdings]:
    """Follow each rank by itself. Return what each rank holds at the end of its forward pass.
    Raises ProgramError."""
    lanes = Lanes()
    ranks = [RankState(DeviceCheck(program, meaning, forms), lanes, where) for program in programs]
    passes = [PassesCheck(rank, Sync(rank, itemsize)) for rank in ranks]
    try:
        run({rank: check.steps() for rank, check in enumerate(passes)}, lanes)
    except OrderError as error:
        operation = error.operation
        raise ProgramError(where, operation.rank, operation.what, error.problem) from error
    return [check.made for check in passes]


def validate_lowered(lowering: Lowering, itemsize: int = FLOAT32) -> None:
    """Lower a plan and validate its programs. Raises ProgramError as ``validate`` does."""
    with uncollected():
        validate(lowering.plan, lowering.programs(), lowering.where, itemsize)


__all__ = ["ProgramError", "follow_each", "validate", "validate_lowered"]

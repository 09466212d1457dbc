"""Validation of all ranks' programs against their plan, before they run and without a solver.

Problem. A plan is a graph with parallel types and machine views. What each process runs is a list
of instructions on registers, with offsets, groups, peers, an order, a backward pass, and sums of
gradients. That these train the graph is to be shown for just these programs, whatever made them.

Method. All ranks are run at once with what registers hold, (tensor, partials, region), in place of
numbers, step by step as the runtime does.

1. *Each piece once.* An operator may run where its operands hold what the typing theorem
   (``verifier.trusted.proof.local``) says of the device's task, on the task's blocks and at its
   offsets; then its results hold what the theorem says. What communication brings has to make up
   one block of one tensor, with each element of each partial once (``content``). In the end the
   loss, the outputs, the weights and the statistics are all there, each part once (``ends``).
2. *The backward pass.* Each communication is a linear map between the registers of all ranks, and
   its adjoint the transpose of that (``transposed``). Between two of them torch differentiates. So
   what comes back is the derivative of the sum of the parts of the loss that count, by every
   register: by a weight that several ranks hold, the sum of theirs, taken over just these. No
   gradient is dropped on its way, and none comes after the sum was begun.
3. *Order.* Ranks post and wait as the runtime does, to groups that do one thing after the other as
   with NCCL, and all come to their ends (``order``): so members meet in the same collective of the
   same step, messages have another end of the same shapes, and nobody waits for ever. A number
   format is no matter of programs: all communicate in the one format of the run.

Source. The idea is that of a translation validator (Pnueli, Siegel, Singerman, TACAS 1998). What is
believed: the graph and its types, the theorem, autograd, and that the runtime runs a program as
``frame`` and ``passes`` say, which tests compare with what it posts. Copies are equal by type.

Complexity: of the instructions of all ranks, a few look-ups each; what the theorem asks is worked
out once for operators alike, and operators in a row once for ranks alike (``alike``); ranks whose
programs have one structure are followed in lockstep (``lockstep``). Exact: what is accepted is
right, and what is right and made by ``runtime.program.lower`` is accepted; a program that does the
same in another way may be refused.
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
from runtime.program.validate.frame import Rank
from runtime.program.validate.local import DeviceCheck, Holdings
from runtime.program.validate.lockstep import followed
from runtime.program.validate.meaning import PlanMeaning
from runtime.program.validate.order import Blame, Lanes, run
from runtime.program.validate.passes import PassesCheck
from runtime.program.validate.sync import Sync

FLOAT32 = 4
"""Bytes of a number, which decide which gradients are summed up together."""


def validate(
    plan: Plan, programs: Sequence[Program], where: str = "plan", itemsize: int = FLOAT32
) -> None:
    """Show that the programs of all ranks, by rank, are those of a plan. Raises ProgramError, which
    names the rank, the instruction and what was expected of it."""
    if len(programs) != plan.machine.devices:
        raise InputError(where, f"{len(programs)} programs, expected {plan.machine.devices}")
    with uncollected():
        _validate(plan, programs, where, itemsize)


def _validate(plan: Plan, programs: Sequence[Program], where: str, itemsize: int) -> None:
    check_alike(plan, programs, where)
    meaning, forms = PlanMeaning(plan, where), Forms()
    made = followed(meaning, programs, forms, where, itemsize)
    if made is None:
        made = each_followed(meaning, programs, forms, where, itemsize)
    check_ends(meaning, programs, made, where)


def each_followed(
    meaning: PlanMeaning, programs: Sequence[Program], forms: Forms, where: str, itemsize: int
) -> list[Holdings]:
    """What ranks hold in the end, each followed by itself."""
    lanes = Lanes()
    ranks = [Rank(DeviceCheck(program, meaning, forms), lanes, where) for program in programs]
    passes = [PassesCheck(rank, Sync(rank, itemsize)) for rank in ranks]
    try:
        run({rank: own.steps() for rank, own in enumerate(passes)}, lanes)
    except Blame as blame:
        operation = blame.operation
        raise ProgramError(where, operation.rank, operation.what, blame.problem) from blame
    return [own.made for own in passes]


def validate_lowered(lowering: Lowering, itemsize: int = FLOAT32) -> None:
    """Validate the programs that a plan is lowered to. Raises ProgramError as ``validate`` does."""
    with uncollected():
        validate(lowering.plan, lowering.programs(), lowering.where, itemsize)


__all__ = ["ProgramError", "each_followed", "validate", "validate_lowered"]

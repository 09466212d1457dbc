"""The order of communication that a validation foresees is the order in a run."""

from __future__ import annotations

import pytest
from support.plans.small_plans import NAMES, small_plan
from support.runs.simulated import on_ranks

from runtime.execute.executor import Executor
from runtime.execute.segment import Meeting, blocks_of
from runtime.program import buckets
from runtime.program.lower import Lowering
from runtime.program.validate import segments as validated
from runtime.program.validate.frame import RankState
from runtime.program.validate.local import DeviceCheck
from runtime.program.validate.meaning import PlanMeaning
from runtime.program.validate.order import Lanes, OrderError, Posted, run
from runtime.program.validate.passes import PassesCheck
from runtime.program.validate.sync import Sync

STEPS = 3


class Recorded(Lanes):
    """Records the operations of each rank, in order, in the words of ``posted``."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.of = [[] for _ in range(ranks)]

    def post(self, key, operation: Posted) -> Posted:
        ways = sorted(operation.sends), sorted(operation.receives)
        self.of[operation.rank].append((key, *(ways if any(ways) else ())))
        return super().post(key, operation)


def expected(lowering: Lowering) -> list[list[object]]:
    programs = [lowering.program(rank) for rank in range(lowering.ranks)]
    meaning, lanes = PlanMeaning(lowering.plan, "plan"), Recorded(lowering.ranks)
    ranks = [RankState(DeviceCheck(p, meaning), lanes, "plan") for p in programs]
    passes = [PassesCheck(rank, Sync(rank, 8)) for rank in ranks]
    run({rank: own.steps() for rank, own in enumerate(passes)}, lanes)
    return lanes.of


def posted(lowering: Lowering, steps: int) -> list[list[object]]:
    """The operations that ranks post to the network in some steps."""

    def work(world):
        executor = Executor(lowering.program(world.rank), world, "fp64")
        order: list[object] = []
        names = {id(group): name for name, group in world._channels.items()}
        names |= {id(group): ranks for ranks, group in world._groups.items()}
        network = world.network
        reduce, collective, messages = network.all_reduce, network.collective, network.messages

        def all_reduce(values, group):
            order.append((names[id(group)],))
            return reduce(values, group)

        def collected(name, result, own, group):
            order.append((names[id(group)],))
            return collective(name, result, own, group)

        def sent(outgoing, incoming, group):
            order.append((names[id(group)], sorted(outgoing), sorted(incoming)))
            return messages(outgoing, incoming, group)

        network.all_reduce, network.collective, network.messages = all_reduce, collected, sent
        for step in range(steps):
            executor.step(step, lambda gradients: None, more=step + 1 < steps)
        return order

    return on_ranks(lowering.ranks, work, ordered=True)


@pytest.mark.parametrize(
    ("name", "small"), [*((name, True) for name in NAMES), ("1f1b", False), ("tail", False)]
)
def test_ranks_post_communication_in_the_foreseen_order(name, small, monkeypatch):
    if small:  # every gradient by itself
        monkeypatch.setattr(buckets, "FIRST_BYTES", 1)
        monkeypatch.setattr(buckets, "BUCKET_BYTES", 1)
    lowering = Lowering(small_plan(name))
    pipeline = lowering.program(0).pipeline
    steps = STEPS if pipeline is not None and pipeline.overlaps_batches else 1
    actual = posted(lowering, steps)
    assert actual == expected(lowering)
    assert all(actual) or name == "one device"


@pytest.mark.parametrize("name", NAMES)
def test_validated_blocks_equal_the_executed_blocks(name):
    lowering = Lowering(small_plan(name))
    for rank in range(lowering.ranks):
        program = lowering.program(rank)
        joined = frozenset(program.pipeline.joined if program.pipeline else ())
        parts = program.pipeline.slices if program.pipeline else ()
        for instructions in (program.instructions, *parts):
            ours = validated.blocks_of(instructions, joined)
            theirs = blocks_of(instructions, frozenset(), joined)
            assert [isinstance(b, validated.MeetingBlock) for b in ours] == [
                isinstance(b, Meeting) for b in theirs
            ]


def message(rank: int, sends: tuple[int, ...], receives: tuple[int, ...]) -> Posted:
    ways = dict.fromkeys(sends), dict.fromkeys(receives)
    return Posted(rank, f"messages of {rank}", "same", sends=ways[0], receives=ways[1])


def test_ranks_that_wait_for_each_other_never_end():
    lanes = Lanes()

    def work(rank):
        yield lanes.post("forward", message(rank, (), (1 - rank,)))
        lanes.post("forward", message(rank, (1 - rank,), ()))

    with pytest.raises(OrderError, match="never ends, expected the other end at rank 1"):
        run({rank: work(rank) for rank in range(2)}, lanes)


def test_a_message_that_nobody_takes_is_left_over():
    lanes = Lanes()

    def work(rank):
        if rank == 0:
            lanes.post("forward", message(0, (1,), ()))
        yield from ()

    with pytest.raises(OrderError, match="is left over"):
        run({rank: work(rank) for rank in range(2)}, lanes)


def test_a_group_does_one_thing_after_the_other():
    """Two ranks post to one group in different orders. With two groups both ranks end."""

    def work(lanes, rank, keys):
        first, second = (message(rank, (1,), ()), message(rank, (), (1,)))
        if rank:
            first, second = message(1, (0,), ()), message(1, (), (0,))
        made = [lanes.post(key, own) for key, own in zip(keys, (first, second), strict=True)]
        yield from made

    apart = Lanes()
    run({rank: work(apart, rank, (rank, 1 - rank)) for rank in range(2)}, apart)
    one = Lanes()
    with pytest.raises(OrderError):
        run({rank: work(one, rank, ("a", "a")) for rank in range(2)}, one)

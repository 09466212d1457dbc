"""The bytes that torch's allocator reserves for published runs, against its rules."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from fidelity.data import points
from fidelity.models import Llama
from fidelity.price import priced
from fidelity.reserved import MIB, Block, CachingAllocator


def test_segments_are_rounded_up():
    allocator = CachingAllocator()
    for size, reserved in (
        (1, 2),
        (MIB, 2),
        (MIB, 4),
        (MIB + 1, 24),
        (3 * MIB, 24),
        (17 * MIB, 42),
    ):
        allocator.take(size)
        assert allocator.reserved == reserved * MIB


def test_a_block_is_split_and_its_parts_become_one_again():
    allocator = CachingAllocator()
    allocator.give(allocator.take(100 * MIB))
    for _ in range(2):
        parts = [allocator.take(size * MIB) for size in (30, 20, 50)]
        for at in (1, 0, 2):
            allocator.give(parts[at])
        allocator.give(allocator.take(100 * MIB))
    assert allocator.reserved == 100 * MIB


def test_free_parts_do_not_serve_a_larger_block():
    allocator = CachingAllocator()
    first, _ = allocator.take(60 * MIB), allocator.take(20 * MIB)
    allocator.give(first)
    allocator.take(50 * MIB)
    allocator.take(20 * MIB)
    assert allocator.reserved == 100 * MIB


def test_reserved_bytes_cover_the_bytes_taken():
    random, allocator = Random(0), CachingAllocator()
    held: list[tuple[Block, int]] = []
    most = 0
    for _ in range(2000):
        if held and random.random() < 0.5:
            allocator.give(held.pop(random.randrange(len(held)))[0])
        else:
            size = int(2 ** random.uniform(6, 28))
            held.append((allocator.take(size), size))
        assert all(not block.is_free and block.bytes >= size for block, size in held)
        most = max(most, sum(block.bytes for block, _ in held))
    assert most <= allocator.reserved
    for block, _ in held:
        allocator.give(block)
    before = allocator.reserved
    allocator.take(max(size for _, size in held))
    assert allocator.reserved == before


def test_eager_checkpoints_reserve_more_than_compiled_ones():
    compiled, eager = (
        next(p for p in points() if p.reserves and p.gpus == 8 and p.compiled is fused)
        for fused in (True, False)
    )
    model = Llama(4, 256, 4, 2, 512, 512, 1024)
    small = [priced(replace(p, model=model, gpus=8, batch=64)) for p in (compiled, eager)]
    assert small[0].reserved is not None
    assert small[1].reserved is not None
    assert small[0].memory < small[0].reserved < small[1].reserved
    # The last product of a block, in the narrow format, which nothing reads.
    assert small[1].reserved - small[0].reserved == pytest.approx(4 * 8 * 512 * 256 * 2, rel=0.5)

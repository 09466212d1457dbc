"""Bytes that torch reserves for a step of fully sharded training, as torchtitan reports them.

Problem: sources publish the bytes that torch's allocator had taken from the device. These are more
than the bytes of tensors: the allocator keeps free blocks, which may be too small for the next
request.

Method: tensors come and go as ``search.cost.liveness`` says, once forward and back, and an
allocator as torch's serves them: that is ``CachingAllocator``. What that system holds beside what
our runtime does follows its source and torch's:

- Weights are kept in float32 alone; FSDP2 casts them when it gathers them.
- The root's parameters, here the table and the last layer, are one group that stays gathered from
  forward to backward (torch.distributed.fsdp, ``_fsdp_state.py``).
- Gradients are cast to float32 before they are reduced and scattered.
- Logits are made in bf16 and cast to float32. Their cross-entropy saves logarithms of
  probabilities, and its backward pass makes two gradients of that size (``nll_loss`` and
  ``log_softmax`` of torch).
- Checkpointing that selects operators keeps what they return until the backward pass of their
  block, whether or not that reads it (``torch.utils.checkpoint``). Compiled, what nothing reads is
  not there.

States of the optimizer are made after the first backward pass, in blocks that activations left.
What streams other than that of computations keep for themselves is left out.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from pcg.graph.graph import Graph, Node
from pcg.placement.schedule import Compute, Reshard
from pcg.plan.training import Training
from search.by_hand.planner import HandPlan
from search.by_hand.recomputed import alternate
from search.cost.liveness import Liveness, liveness
from search.cost.memory import itemsizes
from search.split.blocks import blocks_of

WIDE, NARROW = 4, 2
STEPS = 2
"""The number of steps after which no more is reserved."""
MIB = 1 << 20
Span = tuple[int, int, int]
"""The first and the last time at which a tensor is held, and its bytes."""


@dataclass(eq=False)
class Block:
    """A part of a segment that was taken from the device."""

    bytes: int
    is_small: bool
    is_free: bool = False
    before: Block | None = None
    after: Block | None = None


@dataclass
class CachingAllocator:
    """Torch's allocator on one stream (c10/cuda/CUDACachingAllocator.cpp): the smallest free block
    that is large enough, split where much is left of it, else a new segment. Requests of up to
    1 MiB have segments of their own. Free neighbours become one block."""

    reserved: int = 0
    _free: list[tuple[bool, int, int, Block]] = field(
        default_factory=list[tuple[bool, int, int, Block]]
    )

    def take(self, size: int) -> Block:
        """A block for so many bytes."""
        size = max(512, -(-size // 512) * 512)
        is_small = size <= MIB
        at = bisect_left(self._free, (is_small, size, 0), key=lambda entry: entry[:3])
        if at < len(self._free) and self._free[at][0] == is_small:
            block = self._free.pop(at)[3]
        else:
            block = self._segment(size, is_small)
        block.is_free = False
        if block.bytes - size > (511 if is_small else MIB):
            rest = Block(block.bytes - size, is_small, False, block, block.after)
            if block.after is not None:
                block.after.before = rest
            block.after, block.bytes = rest, size
            self.give(rest)
        return block

    def give(self, block: Block) -> None:
        """Take a block back."""
        for other in (block.before, block.after):
            if other is not None and other.is_free:
                self._free.remove(self._entry(other))
                first, second = (other, block) if other is block.before else (block, other)
                first.bytes += second.bytes
                first.after = second.after
                if second.after is not None:
                    second.after.before = first
                block = first
        block.is_free = True
        insort(self._free, self._entry(block), key=lambda entry: entry[:3])

    def _entry(self, block: Block) -> tuple[bool, int, int, Block]:
        return block.is_small, block.bytes, id(block), block

    def _segment(self, size: int, is_small: bool) -> Block:
        even = -(-size // (2 * MIB)) * 2 * MIB
        size = 2 * MIB if is_small else 20 * MIB if size < 10 * MIB else even
        self.reserved += size
        return Block(size, is_small)


def reserved_bytes(graph: Graph, plan: HandPlan, training: Training, *, selects: bool) -> int:
    """The bytes reserved on the first GPU for a plan of fully sharded weights. ``graph``: the
    planned graph. ``selects``: whether checkpointing selects operators."""
    living = liveness(plan.steps, plan.recompute)
    itemsize = itemsizes(plan.steps, training)
    spans = [
        (life.first, life.last, prod(life.layout.type.held) * itemsize(life))
        for life in (*living.lifetimes, *living.gradients)
        if 0 in life.layout.devices
    ]
    spans += [*_losses(plan, living.end), *_gathered(graph, plan, living.end)]
    if selects and not training.compiled:
        spans += _checkpointed(graph, plan, living)
    parts = [
        WIDE * prod(home.type.block) for node, home in plan.steps.homes.items() if node.is_weight
    ]
    return _served(spans, parts, living.end)


def _losses(plan: HandPlan, end: int) -> Iterator[Span]:
    """Narrow logits, and the tensors that a cross-entropy makes of the wide ones."""
    steps = plan.steps.steps
    makers = {slot: at for at, step in enumerate(steps) for slot in step.results}
    for at, step in enumerate(steps):
        if isinstance(step, Compute) and step.node.name == "cross_entropy":
            elements, made = prod(step.operands[0].layout.type.held), makers[step.operands[0]]
            back = end - 1 - at
            for first, last, itemsize in (
                (made, at, NARROW),
                (at, at, WIDE),
                (back, back, WIDE),
                (back + 1, end - 1 - made, NARROW),
            ):
                yield first, last, itemsize * elements


def _gathered(graph: Graph, plan: HandPlan, end: int) -> Iterator[Span]:
    """The root's parameters, and the wide gradients of all gathered weights."""
    blocks = blocks_of(graph)
    inner = frozenset[Node]() if blocks is None else blocks.operators
    names = {leaf.leaf.name for node in inner for leaf in _weights(node)}
    for at, step in enumerate(plan.steps.steps):
        if isinstance(step, Reshard) and (leaf := step.source.value.node).is_weight:
            elements, back = prod(step.target.layout.type.held), end - 1 - at
            yield back, back, WIDE * elements
            if leaf.leaf.name not in names:
                yield at, back, NARROW * elements


def _weights(node: Node) -> list[Node]:
    return [value.node for value in node.inputs if value.node.is_weight]


def _checkpointed(graph: Graph, plan: HandPlan, living: Liveness) -> Iterator[Span]:
    """The outputs of selected operators that no backward pass reads."""
    blocks = blocks_of(graph)
    if blocks is None:
        return
    cut = dict(zip(graph.operators, plan.cut.views, strict=True))
    kept = {cut[node] for node in alternate(blocks)}
    last = {life.slot: life.last for life in living.lifetimes if life.first < living.end // 2}
    for at, step in enumerate(plan.steps.steps):
        if isinstance(step, Compute) and step.node in kept:
            for slot in step.results:
                if slot in last and last[slot] < living.end // 2:
                    elements = prod(slot.layout.type.held)
                    yield last[slot] + 1, living.end - 1 - at, NARROW * elements


def _served(spans: Sequence[Span], weights: Sequence[int], end: int) -> int:
    """The bytes that an allocator reserves for weights of some bytes and, in each step, for tensors
    that come and go."""
    allocator, begins = CachingAllocator(), defaultdict[int, list[Span]](list)
    for span in spans:
        begins[span[0]].append(span)
    for size in weights:
        allocator.take(size)
    for step in range(STEPS):
        held: dict[int, list[Block]] = defaultdict(list)
        for time in range(end + 1):
            for _, last, size in begins[time]:
                held[last].append(allocator.take(size))
            for block in held.pop(time, ()):
                allocator.give(block)
            if time == end - 1 and step == 0:
                for size in weights:
                    allocator.take(2 * size)
    return allocator.reserved

"""Reshards: the places where tensors change their sharding, for users of annotations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pcg.graph.graph import Graph
from pcg.placement.schedule import Compute, Reshard
from pcg.placement.transfer import Transfer
from pcg.plan.text import node_names
from search.map.choose.choosing import Choice, Chooser
from search.planners.common import PricedChoice
from search.planners.gspmd.annotations import NamedMesh, sharding_text
from search.planners.gspmd.propagation import PropagatedShardings
from search.planners.gspmd.strategies import operand_sharding, result_sharding

MOST = 20
"""The most lines of one kind that are printed. The report has all."""


@dataclass(frozen=True)
class CausedReshard:
    """A tensor that is resharded for an operator that reads it. ``moved``: bytes that cross between
    devices in the forward pass, summed over all devices."""

    tensor: str
    before: str
    after: str
    kind: str
    moved: int
    operator: str

    def __str__(self) -> str:
        way = f"{self.before} to {self.after}"
        return f"{self.tensor}: {way} for {self.operator}, {self.kind}, {self.moved:,} bytes"


def caused(
    choice: Choice, priced: PricedChoice, chooser: Chooser, mesh: NamedMesh
) -> Iterator[CausedReshard]:
    """The reshards of a plan by the strategies of a choice, in the order of its operators. A tensor
    that is moved once for several operators is listed for the first of these."""
    names, spaces = node_names(choice.graph), chooser.spaces
    steps = priced.cut.schedule().steps
    made = {step.target: step for step in steps if isinstance(step, Reshard)}
    computed = [step for step in steps if isinstance(step, Compute)]
    for node, step in zip(choice.graph.operators, computed, strict=True):
        for position, (value, slot) in enumerate(zip(node.inputs, step.operands, strict=True)):
            move = made.pop(slot, None)
            if move is None or not move.transfer.elements:
                continue
            strategy = choice.strategies
            needed = operand_sharding(spaces.of(node), strategy[node], position, mesh)
            if value.node.is_leaf:
                before = f"stored {list(move.source.layout.type.degrees.dims)}"
            else:
                space = spaces.of(value.node)
                left = result_sharding(space, strategy[value.node], value.port, mesh)
                before = sharding_text(left, value.rank, mesh)
            yield CausedReshard(
                names[value.node][value.port],
                before,
                sharding_text(needed, value.rank, mesh),
                _kind(move.transfer),
                move.transfer.elements * chooser.pricing.cost.itemsize,
                f"{names[node][0]} = {node.name}",
            )


def _kind(transfer: Transfer) -> str:
    return "all_to_all" if transfer.swaps else transfer.kind


def report_lines(
    reshards: Iterable[CausedReshard],
    propagated: PropagatedShardings,
    mesh: NamedMesh,
    graph: Graph,
    elsewhere: Iterable[str],
) -> Iterator[str]:
    """The remarks about a plan, a line each: its reshards, the largest first; shardings that were
    not compatible; and weights whose parts are stored on other devices."""
    ranked = sorted(reshards, key=lambda item: -item.moved)
    total = sum(item.moved for item in ranked)
    count = f"{len(ranked)} reshard{'' if len(ranked) == 1 else 's'}"
    yield f"propagation causes {count}, {total:,} bytes between devices"
    yield from _some([f"  {item}" for item in ranked])
    names = node_names(graph)
    refusals = [
        f"  {names[item.value.node][item.value.port]} does not take {mesh.names[item.axis]} along"
        f" dimension {item.dim} from {names[item.operator][0]} = {item.operator.name}, and stays"
        f" {sharding_text(propagated.shardings.get(item.value, {}), item.value.rank, mesh)}"
        for item in propagated.refusals
    ]
    if refusals:
        yield f"{len(refusals)} shardings are not compatible"
        yield from _some(refusals)
    for name in elsewhere:
        yield f"{name} is stored in the annotated parts, but in another order of devices"


def _some(lines: list[str]) -> Iterator[str]:
    yield from lines[:MOST]
    if len(lines) > MOST:
        yield f"  and {len(lines) - MOST} more"

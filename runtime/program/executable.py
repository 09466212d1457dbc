"""Check that the runtime can execute a plan, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable

from pcg.errors import InputError
from pcg.graph.graph import Graph, Leaf
from pcg.language.poly import Poly
from pcg.placement.schedule import Slot
from pcg.plan.plan import Plan
from pcg.types.operator import Call

EXACT_IN_FLOAT32 = 1 << 24
"""All whole numbers up to this one are exact in float32, the format in which ids are sent."""


def concrete(call: Call, where: str) -> Call:
    """The call with numbers as attributes. Raises InputError for an attribute with a symbol."""
    attributes = tuple(
        (name, value.constant if isinstance(value, Poly) else value)
        for name, value in call.attributes
    )
    for name, value in attributes:
        if value is None:
            problem = f"attribute {name} is {call.values[name]}, expected a number"
            raise InputError(where, f"{call.name}: {problem}")
    return Call(call.operator, tuple((n, v) for n, v in attributes if v is not None))


def check_types(plan: Plan, where: str) -> None:
    """Raise InputError unless slices in time belong to a pipeline, no leaf is stored as partial
    sums, and the loss is one number."""
    for node in plan.graph.nodes:
        slices = (cut for output in node.types for cut in output.degrees.slices)
        if plan.pipeline is None and any(cut > 1 for cut in slices):
            problem = "slices in time, expected decisions.pipeline to say how they run"
            raise InputError(where, f"{node.name}: {problem}")
        if node.is_leaf and node.types[0].degrees.partials > 1:
            problem = "stored as partial sums, expected a leaf without partials="
            raise InputError(where, f"{node.leaf.name}: {problem}")
    if (loss := plan.graph.outputs[0].type).elements != 1:
        raise InputError(where, f"the first output is {loss}, expected the loss, one number")


def check_leaves(plan: Plan, where: str) -> None:
    """Raise InputError for a leaf that the model does not have, so that the plan could not read the
    model's data, and for ids that are not exact in float32."""
    model_leaves = _leaves(plan.model)
    for name, leaf in _leaves(plan.graph).items():
        expected = model_leaves.get(name)
        if expected is None or expected.uncut != leaf.uncut:
            described = "no such leaf" if expected is None else str(expected)
            raise InputError(where, f"the plan reads {leaf}, the model has {described}")
        if leaf.below is not None and leaf.below > EXACT_IN_FLOAT32:
            problem = f"integers below {leaf.below}, expected {EXACT_IN_FLOAT32} at most"
            raise InputError(where, f"{name}: {problem}")


def _leaves(graph: Graph) -> dict[str, Leaf]:
    return {node.leaf.name: node.leaf for node in graph.leaves}


def check_devices(slots: Iterable[Slot], ranks: int, where: str) -> None:
    """Raise InputError for a tensor with a piece on a device that the machine does not have."""
    for slot in slots:
        if max(slot.layout.devices) >= ranks:
            problem = f"{slot.layout.type} takes {len(slot.layout.pieces)} devices"
            raise InputError(where, f"{slot.value.node.name}: {problem}, the machine has {ranks}")

"""The explanation of an operator of a plan: its placement, its cost, its alternatives, and why
other cuts are refused.

Other placements are priced with all other operators left as they are (``alternatives``). Operators
are alike if they do the same on the same devices, between neighbours that do the same. One of them
is analysed for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from math import gcd

from pcg.errors import InputError
from pcg.graph.graph import Node, Value
from pcg.graph.opaque import Opaque
from pcg.placement.layout import grid
from pcg.placement.schedule import trace
from pcg.plan.plan import Plan
from pcg.plan.text import node_names
from pcg.types.halo import typing_of
from pcg.types.infer import index_sizes
from pcg.types.local import Axis
from search.choices import IndexRole
from search.cost.efficiency import Speed
from search.map.space.allow import batch_axes, dimension_of, is_weight
from search.report.alternatives import (
    MOST_SIMULATED,
    Alternatives,
    RankedPlacements,
    all_axes,
    lengths,
    stage_mesh,
    uncut,
)
from search.report.describe import OperatorRow, operator_row, placement, stored
from search.report.spending import OperatorSeconds, representative, spent
from search.report.trace import SimulatedPlan

NEAR = 5
"""The most names that are proposed in place of an unknown one."""


@dataclass(frozen=True)
class IndexText:
    """An index of an operator. ``kind``: its role; ``length``: on one slice of the batch;
    ``degree``: the number of its blocks; ``refused``: why it can't be cut further, or None."""

    name: str
    kind: str
    length: int
    degree: int
    refused: str | None


@dataclass(frozen=True)
class OperatorExplanation:
    """The explanation of an operator. ``parameters``: those of the module that it reads;
    ``operands`` and ``results``: name and placement of each; ``device``: the one whose time is in
    ``spent``; ``alike``: the operators for which the same holds, itself first."""

    row: OperatorRow
    parameters: tuple[str, ...]
    operands: tuple[tuple[str, str], ...]
    results: tuple[tuple[str, str], ...]
    indices: tuple[IndexText, ...]
    device: int
    spent: OperatorSeconds
    ranked: RankedPlacements
    alike: tuple[str, ...]


class PlanExplainer:
    """Explains the operators of one plan."""

    def __init__(self, simulated: SimulatedPlan, speed: Speed | None = None) -> None:
        self.simulated, self.plan = simulated, simulated.plan
        self._alternatives = Alternatives(simulated, speed)
        self._batch = batch_axes(self.plan.graph)

    @cached_property
    def names(self) -> Mapping[Node, tuple[str, ...]]:
        return node_names(self.plan.graph)

    @cached_property
    def spent(self) -> Mapping[Node, OperatorSeconds]:
        return spent(self.simulated)

    @cached_property
    def operators(self) -> tuple[Node, ...]:
        """The operators with tasks, in order."""
        return tuple(node for node in self.plan.graph.nodes if node in self.plan.views)

    def groups(self) -> Iterator[tuple[Node, ...]]:
        """Groups of operators that are alike, in descending cost."""
        alike: dict[object, list[Node]] = {}
        for node in self.operators:
            alike.setdefault(self._kind(node), []).append(node)
        cost = {key: sum(self.spent[n].total for n in nodes) for key, nodes in alike.items()}
        for key in sorted(alike, key=lambda key: -cost[key]):
            yield tuple(alike[key])

    def _kind(self, node: Node) -> object:
        """A key that is equal for operators that are alike."""
        made_by = tuple(self._end(value) for value in node.inputs)
        read_by = tuple(
            (reader.signature, self.plan.views[reader], position)
            for reader, position in self._readers.get(node, ())
        )
        return node.signature, self.plan.views[node], made_by, read_by

    def _end(self, value: Value) -> object:
        source = trace(value)[0]
        if source.node.is_leaf:
            return source.node.leaf.kind, source.type
        return source.type, self.plan.views[source.node], source.node.name

    @cached_property
    def _readers(self) -> Mapping[Node, list[tuple[Node, int]]]:
        """For each operator, the operators that read its results, with the position of the
        operand."""
        readers: dict[Node, list[tuple[Node, int]]] = {}
        for node in self.operators:
            for position, value in enumerate(node.inputs):
                readers.setdefault(trace(value)[0].node, []).append((node, position))
        return readers

    def explain(self, nodes: Sequence[Node], most: int = MOST_SIMULATED) -> OperatorExplanation:
        """Explain operators that are alike. ``most``: the number of other placements to
        simulate."""
        node = nodes[0]
        values = zip(node.operator_call.operator.operand_names, node.inputs, strict=True)
        named = node.outputs
        return OperatorExplanation(
            operator_row(node, self.plan.views[node], self.names, self._batch.get(node)),
            parameters_of(self.plan, node),
            tuple((self._shown(value, name), self._placed(value)) for name, value in values),
            tuple((self.names[node][v.port], placement(v.type)) for v in named),
            tuple(self._indices(node)),
            representative(self.simulated, node),
            self.spent[node],
            self._alternatives.of(node, most),
            tuple(self.names[n][0] for n in nodes),
        )

    def _shown(self, value: Value, name: str) -> str:
        source = trace(value)[0]
        return f"{name} = {self.names[source.node][source.port]}"

    def _placed(self, value: Value) -> str:
        kept = stored(self.simulated.steps, value)
        return placement(value.type) + (f" (stored: {kept})" if kept is not None else "")

    def _indices(self, node: Node) -> Iterator[IndexText]:
        if node.is_join:
            return
        own, sizes = lengths(node), _sizes(node)
        typing = typing_of(node.operator_call, [value.type for value in node.inputs])
        degrees = dict(zip((a.name for a in typing.axes), grid(node), strict=False))
        for axis in all_axes(node):
            kind = self._kind_of(node, axis)
            refused = self._length_refused(own[axis.name])
            degree = degrees.get(axis.name, 1)
            yield IndexText(axis.name, kind, own[axis.name], degree, refused)
        for name in (name for name in sizes if name not in own):
            yield IndexText(name, "", sizes[name], 1, _why_never(node, name))

    def _kind_of(self, node: Node, axis: Axis) -> str:
        whole = uncut(node)
        typing = whole.operator_call.typing(tuple(value.rank for value in whole.inputs))
        if any(window.axis == axis for window in typing.windows):
            return IndexRole.SPATIAL
        return dimension_of(node, axis, self._batch.get(node))

    def _length_refused(self, length: int) -> str | None:
        """Why the length of an index allows no further cut, or None if it does."""
        mesh = stage_mesh(self.plan, self.simulated.machine)
        devices, common = mesh.machine.devices, gcd(length, mesh.machine.devices)
        if devices == 1:
            where = "there is" if self.plan.pipeline is None else "a stage has"
            return f"{where} one device only"
        if common == devices:
            return None
        what = f"{length} elements cannot be cut in {{}} equal blocks"
        if common == 1:
            primes = " or ".join(map(str, dict.fromkeys(mesh.primes)))
            return what.format(primes) + f", nor in any other number that divides {devices}"
        return what.format(devices) + f", at most in {common}"


def _why_never(node: Node, name: str) -> str:
    """Why an index of an operator can never be cut."""
    if isinstance(node.operator_call.operator, Opaque):
        return "the operator is opaque: no equation says what an element of it depends on"
    equation = node.operator_call.instance(tuple(value.rank for value in node.inputs))
    if any(name in dim.names for output in equation.outputs for dim in output.dims):
        return "a block of the result reads elements of other blocks along it"
    return "its elements are reduced inside a function, so that no sum of parts is the result"


def _sizes(node: Node) -> Mapping[str, int]:
    """The lengths of all indices of an operator."""
    return index_sizes(node.operator_call, [value.type for value in node.inputs])


def parameters_of(plan: Plan, node: Node) -> tuple[str, ...]:
    """The parameters of the module that an operator reads."""
    weights = (trace(value)[0].node for value in node.inputs if is_weight(value))
    names = (name for w in weights for name in plan.naming.parameter(w.leaf.name).names)
    return tuple(dict.fromkeys(names))


def find(plan: Plan, wanted: str, where: str) -> tuple[Node, ...]:
    """The operators of a name: that of a result in the plan's graph, of a weight or a parameter of
    the module that is read, or of the operator itself. Raises InputError if there is none."""
    names = node_names(plan.graph)
    operators = plan.graph.computing
    by_name: dict[str, dict[Node, None]] = {}
    for node in operators:
        for name in names[node]:
            by_name[name] = {node: None}
    for node in operators:
        read = (trace(value)[0].node for value in node.inputs)
        leaves = [source.leaf.name for source in read if source.is_leaf]
        for name in (*leaves, *parameters_of(plan, node), node.name):
            by_name.setdefault(name, {})[node] = None
    if wanted in by_name:
        return tuple(by_name[wanted])
    near = get_close_matches(wanted, by_name, NEAR, 0.4)
    hint = f"near it are {', '.join(near)}" if near else f"there are {_some(by_name)}"
    raise InputError(where, f"{wanted}: no such operator in the plan ({hint})")


def _some(names: Mapping[str, object]) -> str:
    listed = list(names)
    return ", ".join(listed[:NEAR]) + (", ..." if len(listed) > NEAR else "")

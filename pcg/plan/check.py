"""Check that a graph is well-formed and that its placement fits a machine.

Two tables list the checks, one for graphs and one for placements.

Operators raise errors for their own use when a graph is built or typed. The checks here find
problems of a graph as a whole, or of a graph that was read from a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, prod
from typing import Generic, TypeVar

from pcg.errors import OperatorError
from pcg.graph.graph import DRAWN, Graph, Node
from pcg.graph.opaque import TorchFunction
from pcg.language.expr import Access, Apply, IndexValue, children, walk
from pcg.language.poly import Poly
from pcg.placement.layout import covers, grid
from pcg.placement.view import MachineView
from pcg.plan.text import node_names
from pcg.readings.integers import integer_values
from pcg.types.halo import states_halo
from pcg.types.operator import Call
from pcg.types.parallel_operators import PARALLEL, PLACING
from pcg.types.tensor import ParallelTensor


@dataclass(frozen=True)
class Problem:
    """A problem: the check that found it, the node by its name in the text, and a description."""

    check: str
    node: str
    what: str

    def __str__(self) -> str:
        return f"{self.node}: {self.what}" if self.node else self.what


MAX_TASKS = 1 << 24
"""The most tasks of all operators together, each on a device."""

Finding = tuple[Node | None, str]
T = TypeVar("T")


@dataclass(frozen=True)
class Check(Generic[T]):
    """A check: its name, the property that it checks, and a function that yields violations."""

    name: str
    meaning: str
    find: Callable[[T], Iterator[Finding]]


@dataclass(frozen=True)
class Placement:
    """A graph with a machine view for each operator, on a machine of ``devices`` devices."""

    graph: Graph
    views: Mapping[Node, MachineView]
    devices: int

    @cached_property
    def operators(self) -> tuple[Node, ...]:
        """The operators that have tasks."""
        return self.graph.computing


def check_graph(graph: Graph, *, training: bool = False) -> list[Problem]:
    """Return the problems of a graph. With ``training``, its first output has to be a loss.

    The checks run in the order of the table, up to the first that finds a problem. Each check
    relies on those before it.
    """
    checks = (*GRAPH_CHECKS, *(TRAINING_CHECKS if training else ()))
    return _first(checks, graph, graph)


def check_placement(placement: Placement) -> list[Problem]:
    """Return the problems of the views of a graph that is itself well-formed."""
    return _first(PLACEMENT_CHECKS, placement, placement.graph)


def _first(checks: tuple[Check[T], ...], subject: T, graph: Graph) -> list[Problem]:
    for check in checks:
        if findings := list(check.find(subject)):
            names = {node: first for node, (first, *_) in node_names(graph).items()}
            return [
                Problem(check.name, names.get(node, "") if node else "", what)
                for node, what in findings
            ]
    return []


def _outputs(graph: Graph) -> Iterator[Finding]:
    if not graph.outputs:
        yield None, "no outputs, expected at least one"


def _references(graph: Graph) -> Iterator[Finding]:
    read = [(node, value) for node in graph.nodes for value in node.inputs]
    for node, value in [*read, *((value.node, value) for value in graph.outputs)]:
        source = value.node
        ports = 1 if source.is_leaf else len(source.operator_call.operator.outputs)
        if not 0 <= value.port < ports:
            yield node, f"output {value.port} of {source.name}, which has {ports}"


def _operands(graph: Graph) -> Iterator[Finding]:
    for node in graph.nodes:
        expected = 0 if node.is_leaf else node.operator_call.operator.arity
        if len(node.inputs) != expected:
            yield node, f"{len(node.inputs)} operands, expected {expected}"


def _rule_inputs(graph: Graph) -> Iterator[Finding]:
    for node in graph.leaves:
        if node.leaf.kind == "tensor" or node.leaf.type is None:
            yield node, "an input of a rule, expected input or weight with sizes"


def _names(graph: Graph) -> Iterator[Finding]:
    seen: set[str] = set()
    for node in graph.leaves:
        name = node.leaf.name
        if not name.isidentifier() or name == "return":
            yield node, f"name {name!r}, expected letters, digits and _"
        if name in seen:
            yield node, f"two leaves with the name {name!r}"
        seen.add(name)


def _leaf_types(graph: Graph) -> Iterator[Finding]:
    for node in graph.leaves:
        leaf = node.leaf
        if leaf.type is None:
            continue
        if leaf.rank != leaf.type.rank:
            yield node, f"rank {leaf.rank}, but its type has {leaf.type.rank}"
        if leaf.below is not None and (leaf.kind != "input" or leaf.below < 1):
            yield node, f"below {leaf.below}, expected 1 or more and on an input"
        if leaf.least > 0 or (leaf.least < 0 and leaf.below is None):
            yield node, f"from {leaf.least}, expected a negative integer and a bound above"
        if leaf.share is not None:
            is_drawn = leaf.kind == "input" and leaf.name.startswith(DRAWN) and leaf.below is None
            if not (is_drawn and 0.0 < leaf.share < 1.0):
                yield node, f"share {leaf.share}, expected one between 0 and 1 of a drawn mask"
        if what := _type_fault(leaf.type):
            yield node, what


def _type_fault(tensor: ParallelTensor) -> str | None:
    d = tensor.degrees
    if min((*tensor.shape, *d.dims, *d.slices, d.copies, d.partials)) < 1:
        return f"sizes and degrees are 1 or more: {tensor}"
    for dim, (size, cut, slices) in enumerate(zip(tensor.shape, d.dims, d.slices, strict=True)):
        if size % (cut * slices):
            return f"dimension {dim}: degree {cut * slices} does not divide size {size}"
    return None


def _attributes(graph: Graph) -> Iterator[Finding]:
    for node in _calls(graph):
        call = node.operator_call
        names, least = tuple(name for name, _ in call.attributes), call.operator.attributes
        if names not in (least, (*least, *call.operator.optional)):
            expected = ", ".join(least) or "none"
            yield node, f"{call}: expected the attributes {expected}"
        for name, value in call.attributes:
            if isinstance(value, Poly) and value.constant is None:
                yield node, f"{call.name}: {name} is {value}, expected a number"
            elif isinstance(value, float) and not isfinite(value):
                yield node, f"{call.name}: {name} is {value}, expected a finite number"


def _degrees(graph: Graph) -> Iterator[Finding]:
    for node in _calls(graph):
        call = node.operator_call
        if call.operator.parallel not in PARALLEL:
            continue
        given = call.values["degree"]
        degree = given.constant if isinstance(given, Poly) else given
        if not isinstance(degree, int) or degree < (1 if _moves_halo(node) else 2):
            yield node, f"{call.name}: degree {given}, expected an integer of at least 2"


def _moves_halo(node: Node) -> bool:
    """Whether an operator adds or drops a halo, which it may do with a degree of 1."""
    dim = node.operator_call.values.get("dim")
    try:
        x = node.inputs[0].type.degrees
    except OperatorError:
        return False
    if states_halo(node.operator_call):
        return isinstance(dim, int) and 0 <= dim < len(x.dims) and x.dims[dim] > 1
    return node.name == "combine" and isinstance(dim, int) and x.halo(dim) is not None


def _types(graph: Graph) -> Iterator[Finding]:
    for node in graph.nodes:
        try:
            _ = node.types
        except OperatorError as error:
            # Its readers have no type either, but they are not at fault.
            yield node, str(error)
            return


def _integers(graph: Graph) -> Iterator[Finding]:
    integers = integer_values(graph)
    for node in _calls(graph):
        call = node.operator_call
        if isinstance(call.operator, TorchFunction):
            continue  # its kernel knows which operands are integers
        ranks = tuple(value.type.rank for value in node.inputs)
        for operand in sorted(index_operands(call, ranks)):
            if node.inputs[operand] not in integers:
                name = call.operator.operand_names[operand]
                problem = f"operand {name} is an index, expected integers with a bound"
                yield node, f"{node.name}: {problem}"


def index_operands(call: Call, ranks: tuple[int, ...]) -> frozenset[int]:
    """Return the operands whose elements serve only as indices, such as the ids of an embedding."""
    bodies = [output.body for output in call.instance(ranks).outputs]
    used: set[int] = set()
    other: set[int] = set()
    for part in (part for body in bodies for part in walk(body)):
        indexes = isinstance(part, Apply) and part.function == "eq"
        indexes = indexes and any(isinstance(child, IndexValue) for child in children(part))
        for child in children(part):
            if isinstance(child, Access):
                (used if indexes else other).add(child.operand)
    other |= {body.operand for body in bodies if isinstance(body, Access)}
    return frozenset(used - other)


def _loss(graph: Graph) -> Iterator[Finding]:
    loss = graph.outputs[0]
    if loss.type.shape != ():
        shape = list(loss.type.shape)
        yield loss.node, f"the first output is the loss, expected a scalar, got shape {shape}"
    if not any(node.is_weight for node in Graph((loss,)).leaves):
        yield loss.node, "the loss depends on no weight"


def _calls(graph: Graph) -> Iterator[Node]:
    return (node for node in graph.nodes if not node.is_leaf)


def _viewed(placement: Placement) -> Iterator[Finding]:
    for node in placement.operators:
        if node not in placement.views:
            yield node, f"no view, expected one of {grid(node)} tasks"
    for node in placement.views.keys() - set(placement.operators):
        yield node, f"{node.name} has a view, but has no tasks in this graph"


def _shapes(placement: Placement) -> Iterator[Finding]:
    for node in placement.operators:
        view = placement.views[node]
        if not covers(view, node) or len(view.strides) != len(view.shape):
            yield node, f"shape {view.shape}, expected {grid(node)} ({node.name})"


def _within(placement: Placement) -> Iterator[Finding]:
    for node in placement.operators:
        view = placement.views[node]
        steps = [(n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True)]
        first = view.start + sum(step for step in steps if step < 0)
        last = view.start + sum(step for step in steps if step > 0)
        if first < 0 or last >= placement.devices:
            device = first if first < 0 else last
            yield node, f"device {device}, the machine has {placement.devices}"
        elif prod(view.shape) > placement.devices:
            yield node, f"{prod(view.shape)} tasks on {placement.devices} devices"


def _tasks(placement: Placement) -> Iterator[Finding]:
    tasks = sum(view.size for view in placement.views.values())
    if tasks > MAX_TASKS:
        yield None, f"{tasks} tasks, expected at most {MAX_TASKS}"


def _injective(placement: Placement) -> Iterator[Finding]:
    for node in placement.operators:
        if not placement.views[node].is_injective:
            yield node, "puts two tasks on one device"


def _homes(placement: Placement) -> Iterator[Finding]:
    """Yield stored leaves and outputs that have more pieces than there are devices."""
    graph = placement.graph
    stored: dict[Node, None] = {}
    for node in graph.nodes:
        if node.is_leaf or (node.name in PLACING and node.inputs[0].node in stored):
            stored[node] = None
    for value in dict.fromkeys((*(node.value() for node in stored), *graph.outputs)):
        if value.type.pieces > placement.devices:
            yield value.node, f"{value.type.pieces} pieces on {placement.devices} devices"


GRAPH_CHECKS: tuple[Check[Graph], ...] = (
    Check("outputs", "there is an output", _outputs),
    Check("references", "values that are read or returned are outputs of nodes", _references),
    Check("operands", "operators have as many operands as their equation", _operands),
    Check("rule inputs", "every leaf is an input or a weight", _rule_inputs),
    Check("names", "leaves have names of their own that print and parse", _names),
    Check("leaf types", "leaves have positive sizes, and degrees that divide them", _leaf_types),
    Check("attributes", "attributes are those of the operator, and are numbers", _attributes),
    Check("degrees", "the six parallel operators have degrees from 2 on, or move a halo", _degrees),
    Check("types", "every operator has a type", _types),
    Check("integers", "indices are whole numbers", _integers),
)
TRAINING_CHECKS: tuple[Check[Graph], ...] = (
    Check("loss", "the first output is a scalar that depends on a weight", _loss),
)
PLACEMENT_CHECKS: tuple[Check[Placement], ...] = (
    Check("views", "operators have a view, and only they", _viewed),
    Check("shapes", "a view has the shape of its operator's task grid", _shapes),
    Check("devices", "a view lies within the machine", _within),
    Check("tasks", "there are few enough tasks to enumerate them", _tasks),
    Check("injective", "no two tasks of an operator share a device", _injective),
    Check("homes", "leaves and outputs have devices for all of their pieces", _homes),
)

"""Convert a program of ATen operators into a graph, node by node."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pcg.capture.apart import returned
from pcg.capture.aten.call import AtenCall, Unsupported
from pcg.capture.aten.complexes import ENTRIES as COMPLEX
from pcg.capture.aten.parts import Complex
from pcg.capture.aten.random import Drawing, Normal, read_by
from pcg.capture.aten.shapes import of_torch
from pcg.capture.aten.table import DRAWING, KEPT, entry_of
from pcg.capture.constants import constants
from pcg.capture.export import examples, export
from pcg.capture.fallback import by_its_function, draws
from pcg.capture.frozen import frozen_parameters
from pcg.capture.groups import check_samples, in_groups
from pcg.capture.leaves import CapturedWeight, Leaves, named_tensors
from pcg.capture.regions import STOPS, ancestors, place_of, with_history
from pcg.capture.states import changed_buffers, new_states, told_of_lost
from pcg.capture.statistics import NORMS, check_momentum, running_statistics
from pcg.errors import InputError, OperatorError
from pcg.graph.graph import Graph, Value
from pcg.graph.opaque import Opaque, opaque_nodes
from pcg.lazy import torch
from pcg.mixtures.blocks import told, without_loops
from pcg.plan.check import check_graph
from pcg.plan.naming import NamingFile, StateFile
from pcg.plan.statistics import RunningFile, groups_of
from pcg.plan.text import node_names

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram
    from torch.nn import Module


@dataclass(frozen=True)
class Captured:
    """The graph of a module, with the origin of each leaf. Its outputs are the module's, and then
    the new values of its ``states``."""

    graph: Graph
    weights: tuple[CapturedWeight, ...]
    """In the order of the module's ``state_dict``. Parameters that no output needs are left out."""
    inputs: tuple[str | None, ...]
    """The leaf that each input of the module feeds, lists of tensors flattened. None for an input
    that no output needs."""
    buffers: Mapping[str, str]
    """By the name of an input of the graph: the buffer, constant or frozen parameter of the module
    that feeds it. Running statistics of batch norms are not included, since training does not read
    them."""
    statistics: tuple[RunningFile, ...] = ()
    """The running statistics that batch norms keep."""
    norm_groups: int = 1
    """The number of groups of samples over which batch norms take their statistics
    (``pcg.capture.groups``). 1 for a module without batch norms."""
    draws: tuple[str, ...] = ()
    """The inputs of the graph that are random numbers of the module, in the order in which it draws
    them (``pcg.capture.aten.random``). Those that no output needs are left out."""
    notes: tuple[str, ...] = ()
    """Notes for the user about the capture, one line each."""
    states: tuple[StateFile, ...] = ()
    """The buffers that every step changes. Their new values are the last outputs of the graph."""

    @property
    def naming(self) -> NamingFile:
        """The names of the graph's leaves in the module."""
        parameters = {w.leaf: w.record for w in self.weights}
        return NamingFile(
            parameters=parameters,
            inputs=self.inputs,
            buffers=dict(self.buffers),
            states=self.states,
        )

    @property
    def opaque(self) -> tuple[str, ...]:
        """The torch functions kept as opaque operators, one entry for each call."""
        operators = (node.operator_call.operator for node in opaque_nodes(self.graph))
        return tuple(o.target for o in operators if isinstance(o, Opaque))


Known = Value | Complex | tuple[Value | Complex, ...]
"""The value of a node: one tensor or several. Empty for running statistics that one batch norm
hands on to the next, which does not read them."""


def capture(
    module: Module, inputs: tuple[Any, ...], where: str = "model", norm_groups: int = 1
) -> Captured:
    """Return the graph of a module called with these inputs. Its first output has to be the loss.

    The module is exported in its current mode, so one in evaluation mode gives another graph. With
    ``norm_groups`` above 1, batch norms take statistics over so many groups of samples. Raises
    InputError, naming ``where``, for a module that cannot be exported, draws random numbers, or has
    no valid training graph, and for groups that its batch norms cannot take.
    """
    check_momentum(module, where)
    with without_loops(module) as blocks:
        program, checks = export(module, inputs, KEPT, where)
    signature = program.graph_signature
    outputs = _outputs(program, where)
    fixed = constants(program, named_tensors(module), where)
    changed = changed_buffers(program)
    new = [buffer.node for buffer in changed]
    returned_live = ancestors(outputs, lambda node: node not in fixed, read_by)
    live = returned_live | ancestors(new, lambda node: node not in fixed, read_by)
    frozen = frozen_parameters(module, program, outputs[0], new)
    leaves = Leaves(module, signature, live, frozen, examples(program), where)
    trained = signature.inputs_to_parameters.keys() - {node.name for node in frozen}
    history = with_history(program.graph, trained)
    walk = _Walk(leaves, where, dict(fixed), history, norm_groups, _narrow_format(module))
    walk.visit_all(program, returned_live)
    states, lost = new_states(module, program, changed, walk, live)
    graph = Graph((*map(walk.value, outputs), *(state.value for state in states)))
    for problem in check_graph(graph, training=True):
        raise InputError(where, str(problem))
    read = {node.leaf.name for node in graph.leaves}
    buffers = {name: origin for name, origin in leaves.buffers.items() if name in read}
    fed = tuple(leaves.inputs.get(name) for name in signature.user_inputs)
    groups = _norm_groups(graph, fed, norm_groups, where)
    name, normed = _naming(graph, walk), (node for node in program.graph.nodes if node in live)
    statistics = running_statistics(module, signature, normed, _given, name)
    drawn = tuple(name for name in walk.draws if name in read)
    records = tuple(state.record(len(outputs) + at) for at, state in enumerate(states))
    notes = (*map(told, blocks.items()), *checks, *told_of_lost(lost, buffers.values(), where))
    return Captured(graph, leaves.weights, fed, buffers, statistics, groups, drawn, notes, records)


def _naming(graph: Graph, walk: _Walk) -> Callable[[fx.Node], str]:
    """Return a function from a node to the name of its value in the text of the graph."""
    names = node_names(graph)

    def name(node: fx.Node) -> str:
        value = walk.value(node)
        return names[value.node][value.port]

    return name


def _outputs(program: ExportedProgram, where: str) -> list[fx.Node]:
    """Return the outputs of a program, the loss first. Raises InputError if one is no tensor."""
    wanted = program.graph_signature.user_outputs
    outputs = [node for node in returned(program) if node.name in wanted]
    if not outputs or len(outputs) < len(wanted):
        raise InputError(where, "returns something that is no tensor, expected the loss")
    return outputs


def _norm_groups(graph: Graph, inputs: Sequence[str | None], wanted: int, where: str) -> int:
    """Return the number of groups of samples of the graph's batch norms: ``wanted``, or 1 if there
    are none. Raises InputError if the groups are not possible."""
    if wanted == 1 or not groups_of(graph):
        return 1
    check_samples(graph, _sampled(graph, inputs), wanted, where)
    return wanted


def _sampled(graph: Graph, inputs: Sequence[str | None]) -> frozenset[str]:
    """Return the inputs whose first dimension is the samples: it is as long as that of the first
    input."""
    shapes = {n.leaf.name: n.leaf.type.shape for n in graph.leaves if n.leaf.type}
    rows = {name: shape[0] for name in inputs if name and (shape := shapes.get(name))}
    samples = next(iter(rows.values()), 0)
    return frozenset(name for name, size in rows.items() if size == samples)


@dataclass
class _Walk:
    """Conversion of a program's nodes into values of the graph, in program order."""

    leaves: Leaves
    where: str
    known: dict[fx.Node, Known]
    trains: set[fx.Node]
    """The nodes with gradients, by which a trained parameter reaches the loss."""
    norm_groups: int = 1
    narrow: str | None = None
    """The format of the module, if it is a narrow one. A plan chooses the format of a module, so
    that a cast to the module's own format does not round."""
    draws: list[str] = field(default_factory=list[str])
    aside: set[fx.Node] = field(default_factory=set["fx.Node"])
    """The nodes that the loss does not need."""
    _is_aside: bool = False
    _detached: dict[fx.Node, Value] = field(default_factory=dict["fx.Node", Value])

    def value(self, node: fx.Node) -> Value:
        known = self.known[node]
        if not isinstance(known, Value):
            raise InputError(self.where, f"{node.name}: expected one tensor")
        return known

    def visit_all(self, program: ExportedProgram, live: set[fx.Node]) -> None:
        """Convert the nodes in ``live``."""
        for node in program.graph.nodes:
            if node in live:
                self.visit(node)

    def visit(self, node: fx.Node) -> None:
        self.known[node] = self._converted(node)

    def visit_aside(self, node: fx.Node) -> None:
        """Convert a node that the loss does not need. It has no gradients: what it reads of the
        loss's operators is detached."""
        self._is_aside = True
        self.visit(node)
        self._is_aside = False
        self.aside.add(node)

    def _read(self, node: fx.Node) -> Value:
        """Return the value that a call reads."""
        value = self.value(node)
        if not self._is_aside or node in self.aside or node not in self.trains:
            return value
        if node not in self._detached:
            kind = str(node.meta["val"].dtype).removeprefix("torch.")
            self._detached[node] = of_torch("aten.detach.default(x0)", kind, (value, kind))
        return self._detached[node]

    def _converted(self, node: fx.Node) -> Known:
        if node.op == "placeholder":
            return () if self.leaves.is_part(node) else self.leaves.value(node)
        if (stack := self.leaves.stack(node)) is not None:
            return stack
        if node.target is operator.getitem:
            source, at = node.args
            return self._picked(source, at)
        if node.op != "call_function" or not hasattr(node.target, "overloadpacket"):
            raise InputError(self.where, f"{node.op} {node.target}: cannot be captured")
        if str(node.target) == STOPS and self.trains.isdisjoint(node.all_input_nodes):
            return self.known[node.all_input_nodes[0]]
        if self._is_complex(node):
            return self._of_complex(node)
        drawing = DRAWING.get(str(node.target)) if draws(node) else None
        if drawing is not None:
            try:
                return self._drawn(node, drawing)
            except Unsupported:
                return by_its_function(node, self._read, place_of(node, self.where))
        entry = entry_of(str(node.target))
        if entry is not None:
            try:
                return _checked(node, self._in_groups(entry(self._call(node))))
            except (Unsupported, OperatorError):
                pass
        return by_its_function(node, self._read, place_of(node, self.where))

    def _is_complex(self, node: fx.Node) -> bool:
        if any(isinstance(self.known.get(source), Complex) for source in node.all_input_nodes):
            return True
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and value.is_complex()

    def _of_complex(self, node: fx.Node) -> Known:
        """Convert a function of complex numbers into one of real and imaginary parts."""
        entry = COMPLEX.get(str(node.target))
        try:
            if entry is not None:
                return entry(self._call(node))
        except (Unsupported, OperatorError):
            pass
        problem = f"{node.target} of complex numbers cannot be captured, expected real ones"
        raise InputError(place_of(node, self.where), problem)

    def _drawn(self, node: fx.Node, drawing: Drawing) -> Known:
        """Convert a call that draws random numbers. The numbers become inputs of the graph."""
        return _checked(node, drawing(self._call(node), Normal(node.name, self.draws)))

    def _in_groups(self, made: Value | tuple[Value, ...]) -> Value | tuple[Value, ...]:
        """Give batch norms the requested groups of samples. Other values stay as they are."""
        if isinstance(made, Value):
            return in_groups(made, self.norm_groups, self.where)
        return made

    def _picked(self, source: Any, at: Any) -> Known:
        values = self.known[source]
        if isinstance(values, (Value, Complex)):
            values = (values,)
        if at >= len(values) and str(source.target) in NORMS:
            return ()
        if at >= len(values):
            raise InputError(self.where, f"{source.target}: result {at} cannot be captured")
        return values[at]

    def _call(self, node: fx.Node) -> AtenCall:
        given, read = _given(node), set(read_by(node))
        for name, value in given.items():
            if isinstance(value, torch.fx.Node) and value not in read:
                given[name] = None
        arguments = {name: self._argument(value) for name, value in given.items()}
        choices = frozenset(name for name, value in given.items() if _is_choice(value))
        formats, lies = self._formats(node), _lies(given)
        return AtenCall(str(node.target), arguments, _shapes(node), choices, formats, lies)

    def _formats(self, node: fx.Node) -> Mapping[str, str]:
        """Return the number formats of a call's tensors, the module's own as a wide one."""
        formats = _formats(node)
        return {name: "float32" if f == self.narrow else f for name, f in formats.items()}

    def _argument(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._argument(part) for part in value]
        if not isinstance(value, torch.fx.Node):
            return value
        known = self.known[value]
        if isinstance(known, Complex):
            return known
        return self._read(value) if known else None


def _narrow_format(module: Module) -> str | None:
    """Return the number format of a module if all of its parameters have the same narrow one."""
    formats = {parameter.dtype for parameter in module.parameters()}
    if len(formats) != 1 or not formats <= {torch.bfloat16, torch.float16}:
        return None
    return str(formats.pop()).removeprefix("torch.")


def _given(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a call by their names in the operator's schema, with defaults."""
    target: Any = node.target
    schema = target._schema.arguments
    given = {argument.name: argument.default_value for argument in schema}
    given |= {argument.name: value for argument, value in zip(schema, node.args, strict=False)}
    return given | dict(node.kwargs)


def _formats(node: fx.Node) -> Mapping[str, str]:
    """Return the number formats of a call's tensors by argument, and its result's under ``""``."""
    given = {"": node, **_given(node)}
    tensors = {name: value.meta["val"] for name, value in given.items() if hasattr(value, "meta")}
    return {
        name: str(tensor.dtype).removeprefix("torch.")
        for name, tensor in tensors.items()
        if isinstance(tensor, torch.Tensor)
    }


def _lies(given: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return strides and storage offset of the tensors among the arguments of a call, by name."""
    tensors = {n: v.meta["val"] for n, v in given.items() if isinstance(v, torch.fx.Node)}
    return {
        name: (tensor.stride(), int(tensor.storage_offset()))
        for name, tensor in tensors.items()
        if isinstance(tensor, torch.Tensor)
    }


def _is_choice(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        tensors = [part for part in value if isinstance(part, torch.fx.Node)]
        # In a list of indices, torch treats uint8 tensors as masks too.
        return any(part.meta["val"].dtype in (torch.bool, torch.uint8) for part in tensors)
    return isinstance(value, torch.fx.Node) and value.meta["val"].dtype == torch.bool


def _shapes(node: fx.Node) -> tuple[tuple[int, ...], ...]:
    result = node.meta["val"]
    parts = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(tuple(part.shape) for part in parts if part is not None)


def _checked(node: fx.Node, made: Value | tuple[Value, ...]) -> Value | tuple[Value, ...]:
    """Assert that values have the shapes that torch gives them, and return them."""
    values = (made,) if isinstance(made, Value) else made
    for value, shape in zip(values, _shapes(node), strict=False):
        assert value.type.shape == shape, f"{node.target}: {value.type} is not {shape}"
    return made

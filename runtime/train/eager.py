"""Compare a captured graph with the module itself: outputs and gradients on random inputs.

Problem: a capture can lose what no program says, and then all that is proved is about another
model. Method: the module is made for real, at the batch of its own examples, and run by torch and
as the graph that planning starts from, on the same random inputs and dropout masks, in double
precision; outputs, and the gradients of the loss, have to agree. One batch of random numbers finds
differences, and does not prove that there are none. It costs a capture, and a step of each on the
CPU: nothing is compared beyond ``MOST_PARAMETERS`` and ``MOST_OPERATIONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from pcg.capture import Captured
from pcg.errors import InputError, one_line
from pcg.graph.graph import Graph
from pcg.models import capture_model
from pcg.models.file import module_and_inputs
from pcg.readings.work import work
from runtime.execute.precision import in_float64
from runtime.train.check import evaluate, gradients
from runtime.train.checkpointing import without_checkpoints
from runtime.train.initial import seeded
from runtime.train.random_inputs import Inputs, any_meta
from runtime.train.replay import OtherDraws, Replay, aligned

MOST_PARAMETERS = 20_000_000
MOST_OPERATIONS = 20_000_000_000
"""Floating-point operations of a step forward: some seconds of one core."""
NEAR = 1e-6
"""Relative to the largest element of a tensor, or of the gradients of all."""
ON_EXAMPLES = "the module itself on its example inputs"
AGAINST = "so that the graph is not what the module computes; --no-self-check plans it all the same"


@dataclass(frozen=True)
class ModuleAgreement:
    """What became of a comparison. ``error``: the largest one found; None where nothing could be
    compared, for which ``reason`` says why."""

    gradients: int = 0
    error: float | None = None
    reason: str = ""
    copy: str = ""
    """What was compared in the place of the module itself, in words."""

    def __str__(self) -> str:
        if self.error is None:
            own = f" ({self.copy})" if self.copy else ""
            return f"not compared with the module itself{own}: {self.reason}"
        what = f"its outputs and {self.gradients} gradients agree to {self.error:.1e}"
        return f"compared with {self.copy or 'the module itself'}: {what}"


Make = Callable[[Callable[[], object]], tuple[Module, tuple[Any, ...]]]
"""Makes a module that may be changed, and its example inputs. It calls what it is given right
before it draws numbers."""


def compare_with_module(name: str) -> ModuleAgreement:
    """Compare a user's model, FILE.py:FUNCTION, with its captured graph. Raises InputError where
    they differ."""

    def make(begin: Callable[[], object]) -> tuple[Module, tuple[Any, ...]]:
        return module_and_inputs(name, begin)

    return compare_captured(name, capture_model(name, None, 1), make)


def compare_captured(name: str, captured: Captured, make: Make) -> ModuleAgreement:
    """Compare a module with the graph that was captured from it with its example inputs. Raises
    InputError where they differ."""
    if (reason := _too_much(captured.graph)) is not None:
        return ModuleAgreement(reason=reason)
    with seeded(0) as begin:
        module, inputs = make(begin)
        return _compared(module, inputs, captured, name)


def compare_module(
    module: Module, inputs: tuple[Any, ...], captured: Captured, where: str
) -> ModuleAgreement:
    """Compare a module, which has its values and is changed to double precision, with a graph that
    was captured from it at these inputs. Raises InputError, naming ``where``, where they differ."""
    reason = _too_much(captured.graph)
    if any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
        reason = "its parameters have no values"
    if reason is not None:
        return ModuleAgreement(reason=reason)
    with seeded(0) as begin:
        begin()
        return _compared(module, inputs, captured, where)


def _compared(
    module: Module, inputs: tuple[Any, ...], captured: Captured, where: str
) -> ModuleAgreement:
    """On random inputs; where these are none for the module, as shares have to be between 0 and 1,
    on its examples."""
    agreement = _compared_on(module, inputs, captured, where, Inputs(captured, module))
    if agreement.error is None and not any_meta(inputs):
        given = Inputs(captured, module, of_examples=True)
        on_examples = _compared_on(module, inputs, captured, where, given)
        if on_examples.error is not None:
            return replace(on_examples, copy=ON_EXAMPLES)
    return agreement


def _compared_on(
    module: Module, inputs: tuple[Any, ...], captured: Captured, where: str, given: Inputs
) -> ModuleAgreement:
    others = {
        name: parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and not any(parameter is p for p in given.parameters.values())
    }
    parameters, fed = [*given.parameters.values(), *others.values()], given.of(inputs)
    try:
        expected, of_module = _of_module(module, fed, parameters, given.drawn)
    except Exception as error:
        problem = f"on {given.kind} inputs it raises {type(error).__name__}: {error}"
        return ModuleAgreement(reason=one_line(problem))
    with in_float64():
        outputs = evaluate(captured.graph, given.leaves)
    for name, own in zip(others, of_module[len(given.parameters) :], strict=True):
        if bool(own.any()):
            problem = f"the gradient of {name} is 0 in the graph, and not that of the module itself"
            raise InputError(where, f"{problem}, {AGAINST}")
    return _agreement(where, captured, given, expected, outputs, of_module)


def _of_module(
    module: Module, inputs: Any, parameters: Sequence[Tensor], normals: Sequence[Tensor]
) -> tuple[list[Tensor], Sequence[Tensor]]:
    """The outputs of a module with these random numbers, and the gradients of its loss."""

    def run(drawn: Sequence[Tensor | None]) -> tuple[list[Tensor], Sequence[Tensor]]:
        with in_float64(), without_checkpoints(), Replay(drawn) as draws:
            outputs = _flat(module(*inputs))
            draws.check()
            # Drawn again on the way back, numbers would be others.
            return outputs, gradients(outputs[0], parameters)

    try:
        return run(normals)
    except OtherDraws:
        # Some are drawn that no output needs, and the program of the module has forgotten them.
        with in_float64(), without_checkpoints(), Replay(None) as draws:
            module(*inputs)
        drawn = aligned(normals, draws.shapes)
        if drawn is None:
            raise
        return run(drawn)


def _too_much(graph: Graph) -> str | None:
    weights = [node.leaf.type for node in graph.leaves if node.leaf.kind == "weight"]
    count = sum(weight.elements for weight in weights if weight is not None)
    if count > MOST_PARAMETERS:
        return f"it has {count:,} parameters, more than {MOST_PARAMETERS:,}"
    nodes = (node for node in graph.nodes if not node.is_leaf)
    total = sum(work(node, frozenset()).flops_forward for node in nodes)
    if total > MOST_OPERATIONS:
        return f"a step takes {total:.1e} operations, more than {MOST_OPERATIONS:.0e}"
    return None


def _agreement(
    name: str,
    captured: Captured,
    given: Inputs,
    expected: Sequence[Tensor],
    outputs_of_graph: Sequence[Tensor],
    of_module: Sequence[Tensor],
) -> ModuleAgreement:
    outputs = [f"output {number}" for number in range(len(expected))]
    if (what := _not_finite(["loss", *outputs[1:]], expected)) is not None:
        return ModuleAgreement(reason=f"its {what} of random inputs is not finite")
    worst = 0.0
    for what, own, graph in zip(outputs, expected, outputs_of_graph, strict=True):
        size = max(own.detach().double().abs().max().item(), 1e-30) if own.numel() else 1.0
        worst = max(worst, _checked(name, given.kind, what, own, graph, size))
    trained = list(given.parameters)
    of_module = of_module[: len(trained)]
    size = max((g.abs().max().item() for g in of_module if g.numel()), default=0.0) or 1e-30
    names = [f"the gradient of {parameter}" for parameter in trained]
    if (what := _not_finite(names, of_module)) is not None:
        return ModuleAgreement(reason=f"{what} on random inputs is not finite")
    of_graph = _by_parameter(captured, given, outputs_of_graph[0])
    for parameter, what, own in zip(trained, names, of_module, strict=True):
        worst = max(worst, _checked(name, given.kind, what, own, of_graph[parameter], size))
    return ModuleAgreement(len(trained), worst)


def _by_parameter(captured: Captured, given: Inputs, loss: Tensor) -> dict[str, Tensor]:
    """The gradients of a graph's loss, by the names of the module's parameters."""
    records = captured.naming.parameters
    of_leaves = gradients(loss, [given.leaves[leaf] for leaf in records])
    pairs = zip(records.values(), of_leaves, strict=True)
    return {name: own for record, grad in pairs for name, own in record.tensors(grad).items()}


def _not_finite(names: Sequence[str], tensors: Sequence[Tensor]) -> str | None:
    """The first tensor of a module that has a NaN or an infinity. Beside these no distance means
    anything, so nothing is said of the graph."""
    for name, tensor in zip(names, tensors, strict=True):
        if not torch.isfinite(tensor).all():
            return name
    return None


def _checked(name: str, kind: str, what: str, own: Tensor, graph: Tensor, size: float) -> float:
    if own.shape != graph.shape:
        problem = f"{what} has shape {list(graph.shape)}, that of the module itself"
        raise InputError(name, f"{problem} {list(own.shape)}, {AGAINST}")
    error = (own.detach().double() - graph.detach().double()).abs()
    worst = error.max().item() / size if error.numel() else 0.0
    # Not "worst > NEAR": a NaN has to fail.
    if not worst <= NEAR:
        problem = f"{what} differs by {worst:.1e} from that of the module itself"
        raise InputError(name, f"{problem} (relative, on {kind} inputs), {AGAINST}")
    return worst


def _flat(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    return [tensor for part in parts for tensor in _flat(part)]

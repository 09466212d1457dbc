"""Compare a captured graph with the module itself: outputs and gradients on random inputs.

Problem. A capture may lose a part of the module's behaviour. Then all proofs are about another
model.

Method. Create the module with real values, at the batch size of its own example inputs. Run it by
torch, and run the graph with which planning starts, on the same random inputs and dropout masks in
double precision. The outputs and the gradients of the loss must agree. Run the module once more, on
the same numbers: a step that depends on earlier ones, by other means than buffers, must differ.

Complexity. A capture, and three training steps on the CPU. Models beyond ``MOST_PARAMETERS`` or
``MOST_OPERATIONS`` are not compared.

A heuristic: one batch of random numbers can find a difference, but cannot prove that there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_map

from pcg.capture import Captured
from pcg.errors import InputError, one_line
from pcg.graph.graph import Graph
from pcg.models import capture_model
from pcg.models.file import module_and_inputs
from pcg.readings.work import work
from runtime.execute.precision import in_float64
from runtime.train.check import evaluate, gradients
from runtime.train.checkpointing import without_checkpoints
from runtime.train.grouped import grouped_in_double
from runtime.train.initial import seeded
from runtime.train.random_inputs import ComparisonInputs, any_meta
from runtime.train.replay import OtherDraws, Replay, aligned

MOST_PARAMETERS = 20_000_000
MOST_OPERATIONS = 20_000_000_000
"""Floating-point operations of a forward pass: a few seconds of one core."""
NEAR = 1e-6
"""The largest error that passes, relative to the largest element of an output, or of all
gradients."""
ON_EXAMPLES = "the module itself on its example inputs"
AGAINST = "so that the graph is not what the module computes; --no-self-check plans it all the same"


@dataclass(frozen=True)
class ModuleAgreement:
    """The result of a comparison in which nothing differs."""

    gradients: int = 0
    """The number of gradients that were compared."""
    error: float | None = None
    """The largest relative error. None if nothing could be compared."""
    reason: str = ""
    """Why nothing could be compared."""
    copy: str = ""
    """If something else than the module on random inputs was compared: its description."""

    def __str__(self) -> str:
        if self.error is None:
            note = f" ({self.copy})" if self.copy else ""
            return f"not compared with the module itself{note}: {self.reason}"
        result = f"its outputs and {self.gradients} gradients agree to {self.error:.1e}"
        return f"compared with {self.copy or 'the module itself'}: {result}"


ModuleMaker = Callable[[Callable[[], object]], tuple[Module, tuple[Any, ...]]]
"""Creates a module, which may be changed, and its example inputs. It calls its argument, which sets
the seed, right before it draws random numbers."""


def compare_with_module(name: str) -> ModuleAgreement:
    """Compare a user's model, FILE.py:FUNCTION, with its captured graph. Raises InputError if they
    differ."""

    def make(begin: Callable[[], object]) -> tuple[Module, tuple[Any, ...]]:
        return module_and_inputs(name, begin)

    return compare_captured(name, capture_model(name, None, 1), make)


def compare_captured(name: str, captured: Captured, make: ModuleMaker) -> ModuleAgreement:
    """Compare a module with the graph that was captured from it at its example inputs. Raises
    InputError if they differ."""
    if (reason := _too_much(captured.graph)) is not None:
        return ModuleAgreement(reason=reason)
    with seeded(0) as begin:
        module, inputs = make(begin)
        return _compare(module, inputs, captured, name)


def compare_module(
    module: Module, inputs: tuple[Any, ...], captured: Captured, where: str
) -> ModuleAgreement:
    """Compare a module with the graph that was captured from it at these inputs. The module is
    converted to double precision in place. Raises InputError, naming ``where``, if they differ."""
    reason = _too_much(captured.graph)
    if any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
        reason = "its parameters have no values"
    if reason is not None:
        return ModuleAgreement(reason=reason)
    with seeded(0) as begin:
        begin()
        return _compare(module, inputs, captured, where)


def _compare(
    module: Module, inputs: tuple[Any, ...], captured: Captured, where: str
) -> ModuleAgreement:
    """Compare on random inputs. If the module cannot take these, for instance because it expects
    numbers between 0 and 1, compare on its example inputs."""
    agreement = _compare_on(module, inputs, captured, where, ComparisonInputs(captured, module))
    if agreement.error is None and not any_meta(inputs):
        examples = ComparisonInputs(captured, module, of_examples=True)
        on_examples = _compare_on(module, inputs, captured, where, examples)
        if on_examples.error is not None:
            return replace(on_examples, copy=ON_EXAMPLES)
    return agreement


def _compare_on(
    module: Module,
    inputs: tuple[Any, ...],
    captured: Captured,
    where: str,
    chosen: ComparisonInputs,
) -> ModuleAgreement:
    unused = {
        name: parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and not any(parameter is p for p in chosen.parameters.values())
    }
    parameters, arguments = [*chosen.parameters.values(), *unused.values()], chosen.of(inputs)
    try:
        names = [state.names[0] for state in captured.states]
        expected, of_module = _of_module(module, arguments, parameters, chosen.drawn, names)
        again, of_again = _of_module(module, arguments, parameters, chosen.drawn, names)
    except Exception as error:
        problem = f"on {chosen.kind} inputs it raises {type(error).__name__}: {error}"
        return ModuleAgreement(reason=one_line(problem))
    with in_float64():
        outputs = evaluate(captured.graph, chosen.leaves)
    for name, gradient in zip(unused, of_module[len(chosen.parameters) :], strict=True):
        if bool(gradient.any()):
            problem = f"the gradient of {name} is 0 in the graph, and not that of the module itself"
            raise InputError(where, f"{problem}, {AGAINST}")
    agreement = _agreement(where, captured, chosen, expected, outputs, of_module)
    if agreement.error is not None:
        _check_same_again(where, (*expected, *of_module), (*again, *of_again))
    return agreement


def _check_same_again(where: str, first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
    """Raise InputError if outputs or gradients of a module are others in a second step on the same
    numbers."""
    is_same = len(first) == len(second) and all(
        one.shape == other.shape
        and torch.allclose(one.detach().double(), other.detach().double(), rtol=NEAR, atol=1e-12)
        for one, other in zip(first, second, strict=True)
    )
    if not is_same:
        problem = "a second step on the same numbers has another result than the first"
        expected = "expected that a step depends on parameters, buffers and inputs alone"
        raise InputError(where, f"{problem}, {expected}; --no-self-check plans the first step")


def _of_module(
    module: Module,
    inputs: Any,
    parameters: Sequence[Tensor],
    normals: Sequence[Tensor],
    states: Sequence[str],
) -> tuple[list[Tensor], Sequence[Tensor]]:
    """The outputs of a module with the new values of the buffers ``states``, and the gradients of
    its loss by ``parameters``. ``normals``: the normal random numbers that take the place of the
    module's own. Buffers are as before afterwards."""

    def run(numbers: Sequence[Tensor | None]) -> tuple[list[Tensor], Sequence[Tensor]]:
        with _in_double(), same_buffers(module), Replay(numbers) as draws:
            outputs = _flat(module(*_copied(inputs)))
            draws.check()
            # Within the replay, which refuses numbers drawn again in the backward pass.
            found = gradients(outputs[0], parameters)
            outputs += [module.get_buffer(name).detach().clone() for name in states]
        return outputs, [grad.to_dense() if grad.is_sparse else grad for grad in found]

    try:
        return run(normals)
    except OtherDraws:
        # The module may draw numbers that no output needs. The captured program has dropped those.
        with _in_double(), same_buffers(module), Replay(None) as draws:
            module(*_copied(inputs))
        numbers = aligned(normals, draws.shapes)
        if numbers is None:
            raise
        return run(numbers)


@contextmanager
def _in_double() -> Generator[None]:
    """What a module runs in, to be compared."""
    with in_float64(), without_checkpoints(), grouped_in_double():
        yield


@contextmanager
def same_buffers(module: Module) -> Generator[None]:
    """Give the buffers of a module their values again after a block, also those that it has
    replaced."""
    before = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for part, name, buffer, value in before:
            with torch.no_grad():
                buffer.data = value
            setattr(part, name, buffer)


def _copied(inputs: Any) -> Any:
    """Inputs that a module may change in place; the graph has them as they were."""
    return tree_map(_clone, inputs)


def _clone(part: Any) -> Any:
    return part.clone() if isinstance(part, Tensor) else part


def _too_much(graph: Graph) -> str | None:
    """Why a model is too large to be compared. None if it is not."""
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
    chosen: ComparisonInputs,
    expected: Sequence[Tensor],
    outputs_of_graph: Sequence[Tensor],
    of_module: Sequence[Tensor],
) -> ModuleAgreement:
    """Compare outputs (``expected`` are the module's) and gradients (``of_module``). Raises
    InputError if they differ."""
    states = [f"buffer {state.names[0]}" for state in captured.states]
    count = len(expected) - len(states)
    outputs = [*(f"output {number}" for number in range(count)), *states]
    if (what := _not_finite(["loss", *outputs[1:]], expected)) is not None:
        return ModuleAgreement(reason=f"its {what} of random inputs is not finite")
    worst = 0.0
    for what, output, graph in zip(outputs, expected, outputs_of_graph, strict=True):
        size = max(output.detach().double().abs().max().item(), 1e-30) if output.numel() else 1.0
        worst = max(worst, _error(name, chosen.kind, what, output, graph, size))
    trained = list(chosen.parameters)
    of_module = of_module[: len(trained)]
    size = max((g.abs().max().item() for g in of_module if g.numel()), default=0.0) or 1e-30
    names = [f"the gradient of {parameter}" for parameter in trained]
    if (what := _not_finite(names, of_module)) is not None:
        return ModuleAgreement(reason=f"{what} on random inputs is not finite")
    of_graph = _by_parameter(captured, chosen, outputs_of_graph[0])
    for parameter, what, gradient in zip(trained, names, of_module, strict=True):
        worst = max(worst, _error(name, chosen.kind, what, gradient, of_graph[parameter], size))
    return ModuleAgreement(len(trained), worst)


def _by_parameter(captured: Captured, chosen: ComparisonInputs, loss: Tensor) -> dict[str, Tensor]:
    """The gradients of a graph's loss, by the names of the module's parameters."""
    records = captured.naming.parameters
    of_leaves = gradients(loss, [chosen.leaves[leaf] for leaf in records])
    pairs = zip(records.values(), of_leaves, strict=True)
    return {name: part for record, grad in pairs for name, part in record.tensors(grad).items()}


def _not_finite(names: Sequence[str], tensors: Sequence[Tensor]) -> str | None:
    """The name of the first tensor of a module that has a NaN or an infinity. Then no error can be
    computed, and the graph is not judged."""
    for name, tensor in zip(names, tensors, strict=True):
        if not torch.isfinite(tensor).all():
            return name
    return None


def _error(name: str, kind: str, what: str, own: Tensor, graph: Tensor, size: float) -> float:
    """The largest error of a graph's tensor, relative to ``size``. ``own``: the module's tensor.
    Raises InputError if shapes differ, or the error is above ``NEAR``."""
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
    """The tensors of a module's output, in order."""
    if isinstance(result, Tensor):
        return [result]
    if not isinstance(result, (dict, list, tuple)):
        return []
    parts = result.values() if isinstance(result, dict) else result
    return [tensor for part in parts for tensor in _flat(part)]

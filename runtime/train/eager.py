"""Compare a captured graph with the module itself: outputs and gradients on random inputs.

Problem: a capture can lose what no program says, and then all that is proved is about another
model. Method: the module is made for real, at the batch of its own examples, and run by torch and
as the graph that planning starts from, on the same random inputs and dropout masks, in double
precision; outputs, and the gradients of the loss, have to agree. One batch of random numbers finds
differences, and does not prove that there are none. It costs a capture, and a step of each on the
CPU: nothing is compared beyond ``MOST_PARAMETERS`` and ``MOST_OPERATIONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode

from pcg.capture import Captured
from pcg.errors import InputError, one_line
from pcg.graph.graph import Graph
from pcg.models import capture_model
from pcg.models.file import made_for_real
from pcg.plan.naming import DRAWN
from pcg.readings.work import work
from runtime.execute.precision import in_float64
from runtime.train.check import evaluate, gradients
from runtime.train.initial import seeded, tensors_of

MOST_PARAMETERS = 20_000_000
MOST_OPERATIONS = 20_000_000_000
"""Floating-point operations of a step forward: some seconds of one core."""
NEAR = 1e-6
"""Relative to the largest element of a tensor, or of the gradients of all."""


@dataclass(frozen=True)
class ModuleAgreement:
    """What became of a comparison. ``error``: the largest one found; None where nothing could be
    compared, for which ``reason`` says why."""

    gradients: int = 0
    error: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.error is None:
            return f"not compared with the module itself: {self.reason}"
        what = f"its outputs and {self.gradients} gradients agree to {self.error:.1e}"
        return f"compared with the module itself: {what}"


Make = Callable[[Callable[[], object]], tuple[Module, tuple[Any, ...]]]
"""Makes a module that may be changed, and its example inputs. It calls what it is given right
before it draws numbers."""


def compare_with_module(name: str) -> ModuleAgreement:
    """Compare a user's model, FILE.py:FUNCTION, with its captured graph. Raises InputError where
    they differ."""

    def make(begin: Callable[[], object]) -> tuple[Module, tuple[Any, ...]]:
        return made_for_real(name, begin)

    return compare_captured(name, capture_model(name, None, 1), make)


def compare_captured(name: str, captured: Captured, make: Make) -> ModuleAgreement:
    """Compare a module with the graph that was captured from it with its example inputs. Raises
    InputError where they differ."""
    if (reason := _too_much(captured.graph)) is not None:
        return ModuleAgreement(reason=reason)
    with seeded(0) as begin:
        module, inputs = make(begin)
        given = _Inputs(captured, module)
        try:
            with _Masks(given.masks) as masks:
                expected = _flat(module(*given.of(inputs)))
            masks.check()
        except Exception as error:
            problem = f"on random inputs it raises {type(error).__name__}: {error}"
            return ModuleAgreement(reason=one_line(problem))
    with in_float64():
        outputs = evaluate(captured.graph, given.leaves)
    return _agreement(name, captured, given, expected, outputs)


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


class _Inputs:
    """Random inputs for a module in double precision, and what the leaves of its graph are then."""

    def __init__(self, captured: Captured, module: Module) -> None:
        self._captured = captured
        _make_double(module)
        state = tensors_of(module)
        self.parameters = {w.leaf: state[w.parameter] for w in captured.weights}
        self.leaves: dict[str, Tensor] = {
            w.leaf: w.of(state[w.parameter]).detach().requires_grad_() for w in captured.weights
        }
        self.leaves |= {
            leaf: state[name].detach().double() for leaf, name in captured.buffers.items()
        }
        self.masks: list[Tensor] = []
        drawn = {
            n.leaf.name: n.leaf for n in captured.graph.leaves if n.leaf.name.startswith(DRAWN)
        }
        for name in sorted(drawn, key=_number):
            mask = torch.rand(drawn[name].shape) < 0.5
            self.masks.append(mask)
            self.leaves[name] = torch.where(mask, -30.0, 30.0).double()

    def of(self, inputs: Any) -> Any:
        """What the module is given in the place of its examples."""
        leaves = {node.leaf.name: node.leaf for node in self._captured.graph.leaves}
        names = iter(self._captured.inputs)

        def drawn(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: drawn(part) for key, part in value.items()}
            if isinstance(value, (list, tuple)):
                return type(value)(drawn(part) for part in value)
            if not isinstance(value, Tensor):
                next(names, None)
                return value
            name = next(names, None)
            below = leaves[name].below if name in leaves else None
            if value.is_floating_point():
                made = torch.randn(value.shape, dtype=torch.float64)
            else:
                made = torch.randint(below or 1, value.shape).to(value.dtype)
            if name is not None:
                self.leaves[name] = made.double()
            return made

        return drawn(inputs)


class _Masks(TorchFunctionMode):
    """Dropout that takes its masks, in order, from a list."""

    def __init__(self, masks: Sequence[Tensor]) -> None:
        super().__init__()
        self._masks: Iterator[Tensor] = iter(masks)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not torch.nn.functional.dropout:
            return func(*args, **(kwargs or {}))
        names = ("input", "p", "training", "inplace")
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        share = 1.0 - given.get("p", 0.5)
        if not given.get("training", True) or not 0.0 < share < 1.0:
            return func(*args, **(kwargs or {}))
        mask = next(self._masks, None)
        if mask is None or mask.shape != given["input"].shape:
            raise ValueError("dropout where the graph has none")
        return given["input"] * mask / share

    def check(self) -> None:
        if next(self._masks, None) is not None:
            raise ValueError("no dropout where the graph has one")


def _agreement(
    name: str,
    captured: Captured,
    given: _Inputs,
    expected: Sequence[Tensor],
    outputs_of_graph: Sequence[Tensor],
) -> ModuleAgreement:
    outputs = [f"output {number}" for number in range(len(expected))]
    if (what := _not_finite(["loss", *outputs[1:]], expected)) is not None:
        return ModuleAgreement(reason=f"its {what} of random inputs is not finite")
    worst = 0.0
    for what, own, graph in zip(outputs, expected, outputs_of_graph, strict=True):
        size = max(own.detach().double().abs().max().item(), 1e-30) if own.numel() else 1.0
        worst = max(worst, _checked(name, what, own, graph, size))
    trained = list(given.parameters)
    of_module = gradients(expected[0], [given.parameters[leaf] for leaf in trained])
    of_graph = gradients(outputs_of_graph[0], [given.leaves[leaf] for leaf in trained])
    size = max((g.abs().max().item() for g in of_module if g.numel()), default=0.0) or 1e-30
    weights = {weight.leaf: weight for weight in captured.weights}
    names = [f"the gradient of {weights[leaf].parameter}" for leaf in trained]
    if (what := _not_finite(names, of_module)) is not None:
        return ModuleAgreement(reason=f"{what} on random inputs is not finite")
    for leaf, what, own, graph in zip(trained, names, of_module, of_graph, strict=True):
        worst = max(worst, _checked(name, what, weights[leaf].of(own), graph, size))
    return ModuleAgreement(len(trained), worst)


def _not_finite(names: Sequence[str], tensors: Sequence[Tensor]) -> str | None:
    """The first tensor of a module that has a NaN or an infinity. Beside these no distance means
    anything, so nothing is said of the graph."""
    for name, tensor in zip(names, tensors, strict=True):
        if not torch.isfinite(tensor).all():
            return name
    return None


def _checked(name: str, what: str, own: Tensor, graph: Tensor, size: float) -> float:
    against = (
        "so that the graph is not what the module computes; --no-compare plans it all the same"
    )
    if own.shape != graph.shape:
        problem = f"{what} has shape {list(graph.shape)}, that of the module itself"
        raise InputError(name, f"{problem} {list(own.shape)}, {against}")
    error = (own.detach().double() - graph.detach().double()).abs()
    worst = error.max().item() / size if error.numel() else 0.0
    # Not "worst > NEAR": a NaN has to fail.
    if not worst <= NEAR:
        problem = f"{what} differs by {worst:.1e} from that of the module itself"
        raise InputError(name, f"{problem} (relative, on random inputs), {against}")
    return worst


def _make_double(module: Module) -> None:
    """Plain attributes too, of which ``Module.double`` knows nothing."""
    module.double()
    for part in module.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(part, name, value.double())


def _flat(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    return [tensor for part in parts for tensor in _flat(part)]


def _number(name: str) -> int:
    """Which call of dropout a drawn leaf is of."""
    last = name.rpartition("_")[2]
    return int(last) if last.isdigit() else 0

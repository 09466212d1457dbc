"""Find the frozen parameters and buffers that a loss reads without training them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pcg.capture.regions import STOPS, ancestors, is_real, place_of
from pcg.errors import InputError

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram
    from torch.nn import Module


def frozen_parameters(module: Module, program: ExportedProgram, loss: fx.Node) -> set[fx.Node]:
    """The placeholders of parameters that never have a gradient, so that no optimizer of torch's
    touches them: those that do not require one, and those from which every way to the loss is
    detached, or leads through what has no derivative, such as an index."""
    parameters = program.graph_signature.inputs_to_parameters
    tensors = dict(module.named_parameters(remove_duplicate=False))
    reached = {parameters[node.name] for node in _moved(loss) if node.name in parameters}
    trained = {id(tensors[name]) for name in reached if tensors[name].requires_grad}
    frozen: set[fx.Node] = set()
    needed = ancestors([loss])
    for node in program.graph.nodes:
        if node.name not in parameters:
            continue
        tensor = tensors[parameters[node.name]]
        if id(tensor) not in trained and (node in needed or not tensor.requires_grad):
            frozen.add(node)
    return frozen


def _moved(loss: fx.Node) -> set[fx.Node]:
    """What a small change of moves the loss, as far as gradients tell."""
    return ancestors([loss], lambda node: is_real(node.meta["val"]) and str(node.target) != STOPS)


def check_changed(program: ExportedProgram, read: Iterable[str], where: str) -> None:
    """Raise InputError for a buffer that the loss reads and every step changes: a graph has the
    same one in all steps."""
    results = {node.name: node for node in program.graph.nodes}
    changed = {name: made for made, name in program.graph_signature.buffers_to_mutate.items()}
    for name in read:
        if name in changed:
            place = place_of(results[changed[name]], where)
            problem = "is changed by every step and read by the loss, which no plan can follow"
            raise InputError(place, f"buffer {name} {problem}")

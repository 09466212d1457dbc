"""Find the parameters and buffers that the loss reads but does not train."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pcg.capture.regions import STOPS, ancestors, is_real

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram
    from torch.nn import Module


def frozen_parameters(
    module: Module, program: ExportedProgram, loss: fx.Node, others: Iterable[fx.Node] = ()
) -> set[fx.Node]:
    """Return the placeholders of parameters that never get a gradient, so that no optimizer of
    torch changes them. They do not require a gradient, or each path from them to the loss is
    detached or goes through a value without a derivative, such as an index. ``others`` are values
    beside the loss that are computed too."""
    parameters = program.graph_signature.inputs_to_parameters
    tensors = dict(module.named_parameters(remove_duplicate=False))
    reached = {parameters[node.name] for node in _moved(loss) if node.name in parameters}
    trained = {id(tensors[name]) for name in reached if tensors[name].requires_grad}
    frozen: set[fx.Node] = set()
    needed = ancestors([loss, *others])
    for node in program.graph.nodes:
        if node.name not in parameters:
            continue
        tensor = tensors[parameters[node.name]]
        if id(tensor) not in trained and (node in needed or not tensor.requires_grad):
            frozen.add(node)
    return frozen


def _moved(loss: fx.Node) -> set[fx.Node]:
    """Return the nodes from which a gradient of the loss can flow back."""
    return ancestors([loss], lambda node: is_real(node.meta["val"]) and str(node.target) != STOPS)

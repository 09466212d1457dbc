"""The strategies of every operator on one mesh, by the rules of one library."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Node, Value
from pcg.memo import Memo, Numbering, remembered
from pcg.types.infer import index_sizes
from pcg.types.local import Axis
from search.cost.slices import WHOLE, Slices
from search.map.choose.halos import windows
from search.map.rules.cuts import Cuts, applied
from search.map.rules.templates import CutTemplates
from search.map.space.axes import Mesh
from search.map.space.strategies import Space, passes, space

MOST_CUT = 2
"""The most indices of an operator that are cut at once."""


@dataclass
class Spaces:
    """The strategies of operators. Operators of one kind share them.

    Two operators are of one kind if they have the same signature, take their batch in the same
    slices, and may let partial sums of the same operands pass through.
    """

    mesh: Mesh
    cuts: Cuts
    slices: Slices = WHOLE
    partials_pass: bool = True
    """Whether partial sums may pass through operators."""
    _numbers: Numbering[object] = field(init=False, default_factory=Numbering[object])
    _spaces: Memo[int, Space] = field(init=False, default_factory=Memo[int, Space])
    templates: CutTemplates = field(init=False, default_factory=CutTemplates)
    """The templates of the kinds that were cut so far."""
    _fitting: Memo[int, NDArray[np.bool_]] = field(
        init=False, default_factory=Memo[int, NDArray[np.bool_]]
    )

    @remembered
    def kind(self, node: Node) -> int:
        """The number of an operator's kind."""
        key = node.signature, self.carriers(node), self.slices.axis(node)
        return self._numbers[key]

    def of(self, node: Node) -> Space:
        """The strategies of an operator, on one slice of the batch."""
        return self._spaces.get(self.kind(node), lambda: self._space(node))

    def _space(self, node: Node) -> Space:
        rules = self.cuts.of(node)
        # Cutting columns besides rows would save little of the halos, for many more strategies.
        columns = {window.axis.name for window in windows(node)[1:]}
        cuttable = {
            name: self.slices.length(node, name, length)
            for name, length in _lengths(node).items()
            if name in rules and name not in columns
        }
        return space(node, cuttable, self.mesh, MOST_CUT, self.carriers(node))

    def fits(self, node: Node, place: int, degree: int) -> bool:
        """Whether a rule cuts an operator along the axis at a place into ``degree`` pieces."""
        return bool(self.fitting(node)[place, degree])

    def fitting(self, node: Node) -> NDArray[np.bool_]:
        """[axes, devices + 1]: whether a rule cuts an operator along an axis into so many pieces,
        on any mesh. True for an axis of partial sums that pass through."""
        return self._fitting.get(self.kind(node), lambda: self._fitting_of(node))

    def _fitting_of(self, node: Node) -> NDArray[np.bool_]:
        axes, degrees = self.of(node).axes, range(self.mesh.machine.devices + 1)
        every = [[self._fits(node, axis, degree) for degree in degrees] for axis in axes]
        return np.array(every, np.bool_).reshape(len(axes), len(degrees))

    def _fits(self, node: Node, axis: Axis, degree: int) -> bool:
        if passes(axis) or degree < 2:
            return degree > 0
        length = self.slices.length(node, axis.name, _lengths(node)[axis.name])
        rule = self.cuts.of(node)[axis.name]
        return length % degree == 0 and applied(rule, node, degree) is not None

    @remembered
    def carriers(self, node: Node) -> tuple[frozenset[int], ...]:
        """The sets of operands whose partial sums may pass through, if the operators that make them
        may leave partial sums."""
        sets = self.cuts.carriers(node) if self.partials_pass else ()
        return tuple(
            operands
            for operands in sets
            if all(self._leaves_partials(node.inputs[i]) for i in operands)
        )

    def _leaves_partials(self, value: Value) -> bool:
        if value.node.is_leaf:
            return False
        return any(axis.outputs[value.port] is None for axis in self.of(value.node).axes)


def _lengths(node: Node) -> dict[str, int]:
    """The lengths of the indices of a whole operator that its type lets be cut, with or without a
    halo."""
    call, types = node.operator_call, [value.type for value in node.inputs]
    sizes = index_sizes(call, types)
    typing = call.typing(tuple(tensor.rank for tensor in types))
    axes = (*typing.axes, *(window.axis for window in typing.windows))
    return {axis.name: sizes[axis.name] for axis in axes}

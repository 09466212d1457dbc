"""The SOAP space of an operator: a degree for each divisible dimension of its results, and devices.

Degrees of samples, attributes and parameters are those of the dimensions of the results (Jia et
al., MLSys 2019, section 4). Each operator has devices of its own. So no index that is summed away
is cut, except for operators whose results have no dimensions, such as a loss. And no task is
computed twice, except for operators that depend on weights alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random

import numpy as np

from pcg.graph.graph import Graph, Node
from search.map.choose.choosing import Chooser
from search.map.space.axes import Mesh, Strategy
from search.map.space.strategies import REPLICATE, Space, passes, starts


@dataclass(frozen=True)
class Configurations:
    """The configurations of an operator: the places of its strategies, each on any of the devices
    at which it may begin."""

    space: Space
    places: tuple[int, ...]
    sharing: tuple[Node, ...]
    """The operators that do the same with the same weights, this one included, such as a layer at
    all steps of a sentence. They are configured alike, as a weight has one home."""

    def drawn(self, random: Random, mesh: Mesh) -> tuple[Strategy, int]:
        """A random strategy, and a random first device for it."""
        strategy = self.space.strategy(random.choice(self.places))
        return strategy, random.choice(starts(strategy, mesh))


def configurations(graph: Graph, chooser: Chooser) -> dict[Node, Configurations]:
    """The configurations of each operator that has more than one."""
    constant = {node.value() for node in graph.leaves if node.is_weight}
    by_node: dict[Node, Configurations] = {}
    sharing = _sharing(graph, chooser)
    for node in graph.operators:
        is_constant = constant.issuperset(node.inputs)
        if is_constant:
            constant.update(node.outputs)
        space = chooser.spaces.of(node)
        own = Configurations(space, _places(space, copies=is_constant), sharing[node])
        if sum(1 for place in own.places for _ in starts(space.strategy(place), chooser.mesh)) > 1:
            by_node[node] = own
    return by_node


def _sharing(graph: Graph, chooser: Chooser) -> dict[Node, tuple[Node, ...]]:
    groups: dict[object, list[Node]] = {}
    of_node: dict[Node, list[Node]] = {}
    for number, node in enumerate(graph.operators):
        weights = tuple(value for value in node.inputs if value.node.is_weight)
        key = (chooser.spaces.kind(node), weights) if weights else number
        of_node[node] = groups.setdefault(key, [])
        of_node[node].append(node)
    return {node: tuple(group) for node, group in of_node.items()}


def _places(space: Space, *, copies: bool) -> tuple[int, ...]:
    made = [i for i, axis in enumerate(space.axes) if any(at is not None for at in axis.outputs)]
    own = made or range(len(space.axes))
    allowed: Collection[int] = [i for i in own if not passes(space.axes[i])]
    others = [i for i in range(len(space.axes)) if i not in allowed]
    refused = others if copies else [*others, REPLICATE]
    return tuple(np.flatnonzero(~np.isin(space.strategies, refused).any(axis=1)).tolist())

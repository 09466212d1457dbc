"""The environment of Auto-MAP's agent: decisions one after the other, and the resulting step.

Problem: decide for each trained variable along which dimension it is cut, or that it is copied.
Method: the first decision is how many neighbouring devices share the variables (1: data
parallelism; all: no data parallelism). The samples are cut along the other devices. Then each
variable is decided, the largest first. The consequences of a decision, its linkage group, are found
by propagation, once for each decision: these are the tensors that are cut too, among them other
variables, which then need no decision. A decision that contradicts an earlier one is offered if the
reward punishes it (``rewards``), and copies the variable. So every sequence of decisions ends in a
plan without contradictions. In the end every operator is cut as its tensors are, and the step is
simulated. Variables that look alike are decided together.

Complexity: one propagation for each linkage group. A decision is linear in the tensors of its
group; the last decision costs a simulation. The seconds of a step are exact by the simulation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log, log2, prod

from pcg.graph.graph import Graph, Node, Value
from search.cost.simulate import price
from search.cost.tasks import program
from search.map.building import Builder
from search.map.choose.choosing import Choice, Chooser
from search.map.space.allow import sampled
from search.map.space.axes import Strategy
from search.map.space.strategies import passes
from search.planners.automap.rewards import CONTRADICTION, COPY, CUT, REWARDS, RewardName
from search.planners.gspmd.annotations import NamedMesh, TensorAnnotation, parse_mesh
from search.planners.gspmd.propagation import TensorSharding, propagated
from search.planners.gspmd.strategies import Partitioner
from search.refine.delta import DeltaSimulator

DATA, MODEL = 0, 1
COPIED = -1
"""The decision that a variable is not cut."""
DIMS, NUMBERED = 4, 24
"""The numbers of dimensions, and of groups of variables, that have a feature of their own."""
FEATURES = 14 + DIMS + NUMBERED


@dataclass(frozen=True)
class DecisionState:
    """The decisions so far. ``mesh``: the number of the mesh, None at the start; ``cut``: the
    dimension of each tensor that follows from them, COPIED for variables that are copied; ``at``:
    the number of the next group."""

    mesh: int | None = None
    cut: Mapping[Value, int] = field(default_factory=dict[Value, int])
    at: int = 0
    actions: tuple[int, ...] = ()


class DecisionEnvironment:
    """The decisions for a graph on all devices of a chooser. ``start``: the plan with which the
    reward of a step compares."""

    def __init__(self, chooser: Chooser, start: Choice, reward: RewardName = "both") -> None:
        self.chooser, self.graph, self._reward = chooser, start.graph, REWARDS[reward]
        self._builder = Builder(chooser.spaces)
        self._delta = DeltaSimulator.of(self.graph, self._builder, chooser.pricing.cost)
        self.groups = _groups(self.graph, chooser)
        self.meshes = _meshes(chooser)
        self.axes = {
            node: [axis for axis in chooser.spaces.of(node).axes if not passes(axis)]
            for node in self.graph.operators
        }
        self.devices = chooser.pricing.cost.machine.devices
        self._base: dict[int, Mapping[Value, TensorSharding]] = {}
        self._linked: dict[tuple[int, int, int], Mapping[Value, int]] = {}
        self._strategies: dict[object, Strategy] = {}
        self._seconds: dict[tuple[int, ...], float] = {}
        self.choices: dict[tuple[int, ...], Choice] = {}
        self._sizes = {v: prod(v.type.shape) for n in self.graph.nodes for v in n.outputs}
        self._variables = frozenset(value for group in self.groups for value in group)
        self._trained = sum(self._sizes[value] for value in self._variables) or 1
        self._made = sum(n for v, n in self._sizes.items() if v not in self._variables) or 1
        self.first = self._simulated(start)

    def actions(self, state: DecisionState) -> list[int]:
        """The decisions that are offered next; empty if all are made."""
        if self._reward.punishes:
            return self._divisible(state)
        return self._consistent(state)

    def after(self, state: DecisionState, action: int) -> DecisionState:
        """The state after a decision and its consequences. A decision that contradicts earlier ones
        copies the variables."""
        if self.contradicts(state, action):
            action = COPIED
        actions = (*state.actions, action)
        if state.mesh is None:
            alone = self.meshes[action].sizes[MODEL] == 1
            return DecisionState(action, {}, len(self.groups) if alone else 0, actions)
        own = self.groups[state.at]
        new = dict.fromkeys(own, COPIED) if action == COPIED else self.linked(state, action)
        cut, at = {**new, **state.cut}, state.at + 1
        while at < len(self.groups) and any(value in cut for value in self.groups[at]):
            at += 1
        return DecisionState(state.mesh, cut, at, actions)

    def contradicts(self, state: DecisionState, action: int) -> bool:
        """Whether the consequences of a decision contradict any of the decided variables."""
        if state.mesh is None or action == COPIED:
            return False
        linked, cut = self.linked(state, action), state.cut
        return not linked or any(
            cut.get(value, dim) != dim for value, dim in linked.items() if value.node.is_weight
        )

    def linked(self, state: DecisionState, dim: int) -> Mapping[Value, int]:
        """The linkage group of a dimension of the next variables: tensors and their dimensions."""
        assert state.mesh is not None
        key = (state.mesh, state.at, dim)
        if key not in self._linked:
            self._linked[key] = self._propagated(*key)
        return self._linked[key]

    def seconds(self, state: DecisionState) -> float:
        """Seconds of a step, once all is decided."""
        if state.actions not in self._seconds:
            choice = Choice(self.graph, self._cut(state), 0.0)
            self.choices[state.actions] = choice
            self._seconds[state.actions] = self._simulated(choice)
        return self._seconds[state.actions]

    def reward(self, state: DecisionState, action: int, after: DecisionState) -> float:
        """The reward of a decision in a state, which led to the state ``after``."""
        speedup = 1.0 if self._divisible(after) else self.first / self.seconds(after)
        return self._reward.total(self._decided(state, action, after), speedup)

    @property
    def found(self) -> list[tuple[float, Choice]]:
        """All simulated choices with their seconds, the fastest first."""
        ranked = sorted(self._seconds, key=lambda actions: (self._seconds[actions], actions))
        return [(self._seconds[actions], self.choices[actions]) for actions in ranked]

    def every(self, state: DecisionState | None = None) -> Iterator[DecisionState]:
        """All complete sequences of decisions without contradictions; for small graphs."""
        state = state or DecisionState()
        actions = self._consistent(state)
        if not actions:
            yield state
        for action in actions:
            yield from self.every(self.after(state, action))

    def features(self, state: DecisionState, action: int) -> list[float]:
        """The network's input for a state and a decision: FEATURES numbers, mostly from 0 to 1."""
        mesh = action if state.mesh is None else state.mesh
        own = self.groups[state.at] if state.mesh is not None else ()
        new = self.linked(state, action) if own and action != COPIED else {}
        new = {value: dim for value, dim in new.items() if value not in state.cut}
        cut = {value: dim for value, dim in state.cut.items() if dim != COPIED}
        dims = [float(bool(own) and action == dim) for dim in range(DIMS)]
        numbered = [float(bool(own) and state.at % NUMBERED == i) for i in range(NUMBERED)]
        model = self.meshes[mesh].sizes[MODEL]
        return [
            1.0,
            float(not own),
            log2(model) / max(1.0, log2(self.devices)),
            float(model == self.devices),
            float(bool(own) and action == COPIED),
            float(self.contradicts(state, action)),
            sum(self._sizes[value] for value in own) / self._trained,
            *self._shares(new),
            *self._shares(cut),
            state.at / max(1, len(self.groups)),
            log(self._trained / self._made) / 10,
            float(bool(new) and all(value.node.is_leaf for value in new)),
            *dims,
            *numbered,
        ]

    def _shares(self, cut: Mapping[Value, int]) -> list[float]:
        trained = sum(self._sizes[value] for value in cut if value.node.is_weight)
        made = sum(self._sizes[value] for value in cut if not value.node.is_weight)
        return [trained / self._trained, made / self._made]

    def _divisible(self, state: DecisionState) -> list[int]:
        if state.mesh is None:
            return list(range(len(self.meshes)))
        if state.at >= len(self.groups):
            return []
        size, shape = self.meshes[state.mesh].sizes[MODEL], self.groups[state.at][0].type.shape
        return [COPIED, *(dim for dim, length in enumerate(shape) if length % size == 0)]

    def _consistent(self, state: DecisionState) -> list[int]:
        return [one for one in self._divisible(state) if not self.contradicts(state, one)]

    def _decided(self, state: DecisionState, action: int, after: DecisionState) -> float:
        """The paper's reward: the sum over the variables that a decision cuts or copies, divided by
        the number of all variables."""
        if self.contradicts(state, action):
            return CONTRADICTION * len(self.groups[state.at]) / len(self._variables)
        new = [dim for v, dim in after.cut.items() if v in self._variables and v not in state.cut]
        earned = sum(COPY if dim == COPIED else CUT for dim in new)
        return earned / max(1, len(self._variables))

    def _samples(self, mesh: NamedMesh) -> dict[Value, TensorAnnotation]:
        own = [v for v in sampled(self.graph) if v.type.shape[0] % mesh.sizes[DATA] == 0]
        return {v: TensorAnnotation(((DATA,), *[None] * (v.rank - 1))) for v in own}

    def _propagated(self, mesh: int, group: int, dim: int) -> Mapping[Value, int]:
        named = self.meshes[mesh]
        stated = self._samples(named)
        for value in self.groups[group]:
            dims = [(MODEL,) if at == dim else () for at in range(value.rank)]
            stated[value] = TensorAnnotation(tuple(dims))
        made = propagated(self.graph, named, self.axes, stated).shardings
        return {value: own[MODEL] for value, own in made.items() if MODEL in own}

    def _cut(self, state: DecisionState) -> dict[Node, Strategy]:
        assert state.mesh is not None
        mesh = self.meshes[state.mesh]
        if state.mesh not in self._base:
            made = propagated(self.graph, mesh, self.axes, self._samples(mesh))
            self._base[state.mesh] = made.shardings
        shardings = {value: dict(own) for value, own in self._base[state.mesh].items()}
        for value, dim in state.cut.items():
            if dim != COPIED:
                shardings.setdefault(value, {})[MODEL] = dim
        partitioner = Partitioner(mesh, shardings)
        return {node: self._strategy(node, state.mesh, partitioner) for node in self.axes}

    def _strategy(self, node: Node, mesh: int, partitioner: Partitioner) -> Strategy:
        spaces, known = self.chooser.spaces, partitioner.shardings
        around = [sorted(known.get(v, {}).items()) for v in (*node.inputs, *node.outputs)]
        key = (mesh, spaces.kind(node), tuple(map(tuple, around)))
        if key not in self._strategies:
            self._strategies[key] = partitioner.strategy(node, spaces.of(node))
        return self._strategies[key]

    def _simulated(self, choice: Choice) -> float:
        made = self._delta.program(choice)
        if made is None:
            cut = self._builder.placed(choice)
            made = program(cut.schedule(), self.chooser.pricing.cost)
        return price(made, self.devices).step_seconds


def _groups(graph: Graph, chooser: Chooser) -> list[Sequence[Value]]:
    """Groups of variables that alike operators read alike, the largest first."""
    readers: dict[Value, list[tuple[int, int]]] = {}
    for node in graph.operators:
        for position, value in enumerate(node.inputs):
            if value.node.is_weight:
                readers.setdefault(value, []).append((chooser.spaces.kind(node), position))
    groups: dict[object, list[Value]] = {}
    for value, read in readers.items():
        if value.rank:
            groups.setdefault((value.type.shape, tuple(sorted(read))), []).append(value)
    return sorted(groups.values(), key=lambda own: -len(own) * prod(own[0].type.shape))


def _meshes(chooser: Chooser) -> list[NamedMesh]:
    """All named meshes with samples along the outer devices and variables along the inner ones."""
    primes = chooser.mesh.primes
    made: list[NamedMesh] = []
    for place in range(len(primes), -1, -1):
        sizes = prod(primes[:place]), prod(primes[place:])
        made.append(parse_mesh(f"data={sizes[0]},model={sizes[1]}", primes))
    return made

"""Lower bounds on the time of a step for a plan of which only the first operators are placed.

Two bounds, both below the simulated time of any plan with these placements:

- by dependences: an operator computes after its operands, the backward pass goes the same way in
  reverse, and a weight is exchanged and updated after its gradient. Streams are taken to be free at
  any time. An operator without a placement is taken to need the time of its fastest cut, with its
  operands at hand;
- by work: all devices together compute for as long as operators and updates take on each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Leaf, Node, Value
from pcg.machine import Machine
from pcg.placement.layout import grid
from pcg.placement.schedule import Compute, LeafAtHome, Schedule
from pcg.placement.view import MachineView
from pcg.readings.late import has_separate_gradients
from pcg.readings.work import gradient_nodes
from pcg.types.tensor import ParallelTensor
from search.cost.cost import NOTHING, CostModel, Duration
from search.cost.tasks import TaskProgram, program, without


@dataclass(frozen=True)
class LeastSeconds:
    """The least seconds of an operator on each of its devices, forward and backward, and the sum
    over its devices."""

    forward: float
    backward: float
    work: float
    first: float
    """Seconds of the part of the backward pass that other operators wait for."""


@dataclass(frozen=True)
class PlacedProgram:
    """The placed part of a plan, as a program."""

    program: TaskProgram
    steps: Mapping[Node, int]
    """The number of the step that computes each operator."""

    @staticmethod
    def of(made: Schedule, cost: CostModel) -> PlacedProgram:
        timed = [step for step in made.steps if not isinstance(step, LeafAtHome)]
        numbers = {step.node: i for i, step in enumerate(timed) if isinstance(step, Compute)}
        return PlacedProgram(program(made, cost), numbers)

    @property
    def computing(self) -> TaskProgram:
        """Seconds of computation, without the gradients of weights that come late, their exchange
        and updates."""
        steps = [
            step._replace(backward=without(step.backward, step.late), weights=(), late=NOTHING)
            for step in self.program.steps
        ]
        return TaskProgram(steps, ())

    @property
    def work(self) -> float:
        """Seconds of all devices, added up."""
        computed = [step for step in self.program.steps if not step.reshards]
        spent = [d for step in computed for d in (step.forward, step.backward)]
        spent += [update for _, update in self.program.weights]
        return sum(float(d.seconds.sum()) * d.groups.shape[1] for d in spent)


NOTHING_YET = PlacedProgram(TaskProgram((), ()), {})


def needs(whole: Graph) -> Mapping[Node, frozenset[int]]:
    """The operands of each operator that need gradients. All operators lead to the loss."""
    trained = gradient_nodes(whole)
    return {
        node: frozenset(i for i, value in enumerate(node.inputs) if value.node in trained)
        for node in whole.nodes
        if not node.is_leaf
    }


def cut_as(
    node: Node, types: Sequence[ParallelTensor], wanted: frozenset[int], cost: CostModel
) -> LeastSeconds | None:
    """The time of an operator on operands of some types on the fastest kind of devices. None if it
    has no such cut."""
    leaves = [Node(Leaf("tensor", str(i), t.rank, t)) for i, t in enumerate(types)]
    made = Node(node.call, tuple(leaf.value() for leaf in leaves))
    try:
        *cuts, copies = grid(made)
    except OperatorError:
        return None
    tasks = copies
    for cut in cuts:
        tasks *= cut
    each = [cost.compute_seconds(made, wanted, view) for view in _one_of_each_kind(cost.machine)]
    forward = min(own for own, _ in each)
    backward = min(own for _, own in each) if wanted else 0.0
    first = backward / 2 if has_separate_gradients(made, wanted) else backward
    return LeastSeconds(forward, backward, tasks * (forward + backward), first)


def _one_of_each_kind(machine: Machine) -> list[MachineView]:
    """One device of each kind, as views."""
    nodes = (0, *(other.first_node for other in machine.others))
    return [MachineView(node * machine.devices_per_node, (1,), (0,)) for node in nodes]


def fastest(each: Iterable[LeastSeconds | None]) -> LeastSeconds:
    """The least of several cuts of an operator, separately for each figure."""
    known = [least for least in each if least is not None]
    return LeastSeconds(
        min(least.forward for least in known),
        min(least.backward for least in known),
        min(least.work for least in known),
        min(least.first for least in known),
    )


def at_least(
    begun: PlacedProgram,
    values: Mapping[Value, Value],
    rest: Mapping[Node, LeastSeconds],
    devices: int,
) -> float:
    """A lower bound on the seconds of a step. ``values``: the values of the whole graph, as the
    placed operators cut them. ``rest``: the other operators, in order."""
    waiting = _Waiting(begun, values, rest)
    work = begun.work + sum(least.work for least in rest.values())
    return max(waiting.seconds(), work / devices)


@dataclass
class _Waiting:
    begun: PlacedProgram
    values: Mapping[Value, Value]
    rest: Mapping[Node, LeastSeconds]

    def seconds(self) -> float:
        steps, weights, _ = self.begun.program
        forward: list[float] = []
        for step in steps:
            start = max((forward[i] for i in step.reads), default=0.0)
            forward.append(start + _shortest(step.forward))
        later, back = self._rest(forward)
        ends = [*forward, *later]
        bounds = [0.0] * len(steps)
        for i in range(len(steps) - 1, -1, -1):
            if steps[i].backward is not NOTHING:
                begin = max(forward[i], back[i])
                bounds[i] = begin + _shortest(steps[i].backward)
                # The gradient of a weight may come after that of what else was read.
                first = begin + _shortest(without(steps[i].backward, steps[i].late))
                for source in steps[i].reads:
                    back[source] = max(back[source], first)
        for number, (sync, update) in enumerate(weights):
            added = max(bounds[i] for i, step in enumerate(steps) if number in step.weights)
            ends.append(added + _shortest(sync) + _shortest(update))
        return max([0.0, *ends, *bounds])

    def _rest(self, forward: Sequence[float]) -> tuple[list[float], list[float]]:
        """The earliest end of the operators without a placement, with their backward pass, and the
        earliest time at which the backward pass of each step may begin."""
        ends: dict[Node, float] = {}
        sources = {node: [self._step(value) for value in node.inputs] for node in self.rest}
        for node, least in self.rest.items():
            known = [forward[i] for i in sources[node] if i is not None]
            known += [ends[value.node] for value in node.inputs if value.node in ends]
            ends[node] = max(known, default=0.0) + least.forward
        begin = [0.0] * len(forward)
        back = dict(ends)
        for node, least in reversed([*self.rest.items()]):
            # A gradient may take no time of its own, as that of an addition. It waits all the same.
            first = back[node] + least.first
            back[node] += least.backward
            for i, value in zip(sources[node], node.inputs, strict=True):
                if i is not None:
                    begin[i] = max(begin[i], first)
                elif value.node in back:
                    back[value.node] = max(back[value.node], first)
        return list(back.values()), begin

    def _step(self, value: Value) -> int | None:
        """The step that computes a value, if it is placed."""
        placed = self.values.get(value)
        return None if placed is None else self.begun.steps.get(placed.node)


def _shortest(duration: Duration) -> float:
    return float(duration.seconds.min(initial=float("inf"))) if len(duration.seconds) else 0.0

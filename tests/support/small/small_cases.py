"""Random small graphs, machines, optimizers and limits of memory, to compare plans on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from support.mixed import mixed

from pcg.graph.graph import Graph, Value, apply, leaf
from pcg.machine import Machine, load_machine
from pcg.ops import OPERATORS
from pcg.plan.training import Optimizer, Training

BATCHES = (6, 8, 12, 24, 48, 96, 384, 1536)
WIDTHS = (12, 48, 96, 192, 384, 768, 1536)
OPTIMIZERS: tuple[Optimizer, ...] = ("sgd", "momentum", "adam")
MACHINES = (("summit", 2), ("dgx-a100", 2), ("p3-16xlarge", 2), ("summit", 3), ("dgx-a100", 4))
SHARES = (None, 1.0, 1.0, 0.98, 0.95)


@dataclass(frozen=True)
class SmallCase:
    """A graph on a machine. ``share``: the memory of a device, relative to that of a known plan.
    None for no limit."""

    graph: Graph
    machine: Machine
    training: Training
    share: float | None

    def with_memory(self, taken: int) -> Machine:
        """The machine with that share of some bytes as the memory of a device."""
        if self.share is None:
            return self.machine
        return self.machine.with_memory(int(self.share * taken))


def small_case(seed: int) -> SmallCase:
    """A random case: the same for the same seed."""
    random = Random(seed)
    name, devices = random.choice(MACHINES)
    weights = random.randint(1, 2) if devices == 2 else 1
    graph = small_graph(random, weights, 1 if weights == 1 and devices < 4 else 0)
    training = Training(random.choice(OPTIMIZERS))
    return SmallCase(
        graph, load_machine(name).with_devices(devices), training, random.choice(SHARES)
    )


def mixed_case(seed: int) -> SmallCase:
    """A random case on a V100 and an A100, in either order: the same for the same seed."""
    random = Random(seed)
    kinds = [load_machine("p3-16xlarge"), load_machine("dgx-a100")]
    random.shuffle(kinds)
    machine = mixed(*kinds, per_node=1, nodes=2)
    graph = small_graph(random, random.randint(1, 2), random.randint(0, 1))
    return SmallCase(graph, machine, Training(random.choice(OPTIMIZERS)), random.choice(SHARES))


def small_graph(random: Random, weights: int, operators: int) -> Graph:
    """A graph with ``weights`` weights, and some operators beside its products and loss at most."""
    made = [leaf("input", "x", (random.choice(BATCHES), random.choice(WIDTHS)))]
    products = set(random.sample(range(weights + operators), weights))
    for at in range(max(products) + 1 + random.randint(0, 1)):
        made.append(_next(random, made, len(made), is_product=at in products))
    return Graph((apply(OPERATORS["mean_loss"](), made[-1]),))


def _next(random: Random, made: Sequence[Value], number: int, *, is_product: bool) -> Value:
    last = made[-1]
    if is_product:
        like = [v.type.shape[1] for v in made[1:]]
        wide = random.choice([*like, random.choice(WIDTHS)])
        weight = leaf("weight", f"w{number}", (last.type.shape[1], wide))
        return apply(OPERATORS["matmul"](), last, weight)
    others = [value for value in made if value.type.shape == last.type.shape]
    kind = random.choice(("relu", "gelu", "softmax", "add", "multiply"))
    if kind in ("add", "multiply"):
        return apply(OPERATORS[kind](), random.choice(others), last)
    return apply(OPERATORS[kind](**({"axis": 1} if kind == "softmax" else {})), last)

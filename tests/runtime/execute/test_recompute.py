"""Recomputed activations: the same values, in less memory."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from support.plans.by_hand import make_plan
from torch import nn
from torch.profiler import ProfilerActivity, profile

from pcg.capture import capture
from pcg.graph.graph import Node
from pcg.plan.text import parse_graph
from runtime.execute.executor import Executor
from runtime.program.lower import Lowering
from runtime.world.collectives import World

ROWS, WIDTH, LAYERS = 2048, 32, 4


def chain(layers: int) -> str:
    """Layers, each with a chain of element-wise operators."""
    lines = [f"x0 = input[{ROWS}, {WIDTH}]"]
    for i in range(layers):
        lines += [
            f"w{i} = weight[{WIDTH}, {WIDTH}]",
            f"a{i} = sigmoid(matmul(x{i}, w{i}))",
            f"b{i} = scale(tanh(a{i}), factor=3.0)",
            f"x{i + 1} = gelu(multiply(a{i}, b{i}))",
        ]
    return "\n".join([*lines, f"return mean_loss(x{layers})"])


CHAIN = {"sigmoid", "tanh", "scale", "multiply", "gelu"}


def executor(names: set[str]) -> Executor:
    graph = parse_graph(chain(LAYERS))
    remade = frozenset(node for node in graph.nodes if not node.is_leaf and node.name in names)
    assert len(remade) == LAYERS * len(names)
    plan = replace(make_plan(graph, graph, 1, {}), recompute=remade)
    return Executor(Lowering(plan).program(0), World(), "fp64")


def train(made: Executor, steps: int = 2) -> list[float]:
    def update(gradients):
        for register, gradient in gradients.items():
            made.weights[register].sub_(gradient, alpha=0.1)

    return [made.step(step, update).loss for step in range(steps)]


def test_recomputation_changes_neither_losses_nor_weights():
    kept = executor(set())
    losses = train(kept)
    for names in ({"sigmoid"}, {"gelu"}, {"tanh", "scale"}, CHAIN, {"matmul", "tanh"}):
        again = executor(names)
        assert losses == train(again), names
        for register, weight in kept.weights.items():
            assert torch.equal(weight, again.weights[register]), names


BLOCK = """
x = input[16, 8, 8]
g = weight[8]
b = weight[8]
w = weight[8, 8]
v = weight[8, 8]
n = layer_norm(x, g, b, eps=0.001)
q = matmul(n, w)
k = matmul(n, v)
s = softmax(batch_matmul(q, transpose(k, dim0=1, dim1=2)), axis=2)
a = batch_matmul(s, q)
c = concat(a, n, axis=2)
f = flatten(c, axis=0)
return mean_loss(gelu(layer_norm(add(a, x), g, b, eps=0.001))), f
"""


def trained_block(nodes) -> tuple[list[float], dict[str, torch.Tensor]]:
    graph = parse_graph(BLOCK)
    again = frozenset(n for n in graph.nodes if not n.is_leaf and nodes(n))
    plan = replace(make_plan(graph, graph, 1, {}), recompute=again)
    made = Executor(Lowering(plan).program(0), World(), "fp64")
    return train(made), made.weights


@pytest.mark.parametrize("seed", range(12))
def test_any_set_of_operators_changes_nothing(seed):
    """Norms, attention, products and views of recomputed tensors, to the last bit."""
    random = Random(seed)
    share = random.choice((0.2, 0.5, 0.8, 1.0))
    losses, weights = trained_block(lambda node: False)
    gradients, others = trained_block(lambda node: random.random() < share)
    assert losses == gradients
    for register, weight in weights.items():
        assert torch.equal(weight, others[register])


def test_dropout_draws_the_same_numbers_again():
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 8)
            self.drop = nn.Dropout(0.4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.drop(torch.relu(self.first(self.drop(x))))).square().mean()

    graph = capture(Dropped(), (torch.ones(16, 32),)).graph
    every = frozenset(node for node in graph.nodes if not node.is_leaf)
    runs: list[list[float]] = []
    for again in (frozenset[Node](), every):
        plan = replace(make_plan(graph, graph, 1, {}), recompute=again)
        runs.append(train(Executor(Lowering(plan).program(0), World(), "fp64"), 3))
    assert runs[0] == pytest.approx(runs[1], rel=1e-12)
    assert len(set(runs[0])) == 3


def test_a_chain_may_be_as_long_as_a_graph():
    lines = ["x = input[2, 2]", "w = weight[2, 2]", "h0 = matmul(x, w)"]
    lines += [f"h{i + 1} = tanh(h{i})" for i in range(1100)]
    graph = parse_graph("\n".join([*lines, "return mean_loss(gelu(h1100))"]))
    plan = make_plan(graph, graph, 1, {})
    made = [
        Executor(Lowering(replace(plan, recompute=again)).program(0), World(), "fp64")
        for again in (frozenset[Node](), frozenset(n for n in graph.nodes if n.name == "tanh"))
    ]
    kept, again = (train(one, 1) for one in made)
    assert kept == again


def peak_bytes(made: Executor) -> int:
    """The peak of allocated bytes in a step, beyond the bytes before it."""
    train(made, 1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        train(made, 1)
    assert seen.profiler is not None
    assert seen.profiler.kineto_results is not None
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
        most = max(most, held)
    return most


def test_recomputed_activations_are_not_held():
    """The backward pass reads the results of four operators of each layer, and the layer's input.
    Of these only the product stays, and the recomputed tensors of one layer at a time."""
    activation = ROWS * WIDTH * 8
    kept, again = peak_bytes(executor(set())), peak_bytes(executor(CHAIN))
    assert kept >= LAYERS * 5 * activation
    assert again <= (LAYERS + 9) * activation


def test_a_program_says_what_is_computed_again():
    graph = parse_graph(chain(1))
    tanh = next(node for node in graph.nodes if not node.is_leaf and node.name == "tanh")
    plan = replace(make_plan(graph, graph, 1, {}), recompute=frozenset({tanh}))
    shown = str(Lowering(plan).program(0)).splitlines()
    assert [line for line in shown if "again" in line] == [
        "  t2 = tanh(t1), and again in the backward pass  [2048, 32]"
    ]

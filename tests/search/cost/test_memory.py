"""Memory by liveness: which tensors are held at which time, and how much recomputation saves."""

from __future__ import annotations

from random import Random

import pytest
from support.cases import each
from support.graphs.random_graphs import operators, random_graph

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.placement.layout import grid
from pcg.placement.schedule import schedule
from pcg.placement.view import MachineView
from pcg.plan.text import parse_graph
from pcg.plan.training import Optimizer, Training
from search.cost.cost import SGD, CostModel
from search.cost.liveness import liveness, saved_positions
from search.cost.memory import peak_memory
from search.cost.pointwise_chains import worth_recomputing
from search.cost.simulate import recomputing, simulate


def steps_of(graph: Graph):
    graph.check()
    return schedule(graph, {n: MachineView.packed(0, grid(n)) for n in operators(graph)})


def elements(text: str, **options) -> int:
    """Peak memory of a graph, in elements."""
    memory = peak_memory(steps_of(parse_graph(text)), SGD, **options)
    return memory.activations // SGD.formats.narrow


X = "x = input[10, 10]\nw = weight[10, 10]\n"


def test_weights_gradients_and_states():
    graph = parse_graph(f"{X}return mean_loss(matmul(x, w))")
    expected: dict[Optimizer, int] = {"sgd": 0, "momentum": 400, "adam": 800}
    for optimizer, states in expected.items():
        memory = peak_memory(steps_of(graph), Training(optimizer))
        assert (memory.parameters, memory.gradients, memory.optimizer) == (400, 400, states)
        parts = (memory.parameters, memory.gradients, memory.optimizer, memory.activations)
        assert memory.total == sum(parts)


def test_weight_without_a_gradient_takes_no_gradient_memory():
    graph = parse_graph(f"{X}v = weight[10, 10]\nreturn mean_loss(matmul(x, w)), relu(v)")
    memory = peak_memory(steps_of(graph), SGD)
    assert (memory.parameters, memory.gradients) == (800, 400)


LOSS = 1


def test_a_linear_operator_holds_nothing():
    # Data, and the product, or its gradient with that of the loss.
    assert elements(f"{X}return mean_loss(matmul(x, w))") == 100 + 100 + LOSS
    longer = "mean_loss(scale(shift(scale(matmul(x, w), factor=2.0), offset=1.0), factor=3.0))"
    # Never more than a value and the next one, or the gradients of two.
    assert elements(f"{X}return {longer}") == 100 + 200 + LOSS


def test_saved_tensors_are_held_until_the_backward_pass():
    # gelu reads its operand: each of three is held until then, with the gradients of two.
    chain = "gelu(gelu(gelu(matmul(x, w))))"
    assert elements(f"{X}return mean_loss({chain})") == 100 + 3 * 100 + 2 * 100 + LOSS
    # relu may read its own output: the second's serves the third as its operand.
    chain = "relu(relu(relu(matmul(x, w))))"
    assert elements(f"{X}return mean_loss({chain})") == 100 + 2 * 100 + 2 * 100 + LOSS
    text = f"{X}v = weight[10, 10]\nreturn mean_loss(matmul(relu(matmul(x, w)), v))"
    # One tensor is held for relu and for the second product.
    assert elements(text) == 100 + 100 + 2 * 100 + LOSS


def test_views_take_nothing():
    plain = elements(f"{X}return mean_loss(gelu(matmul(x, w)))")
    turned = "transpose(transpose(matmul(x, w), dim0=0, dim1=1), dim0=0, dim1=1)"
    assert elements(f"{X}return mean_loss(gelu({turned}))") == plain


def test_only_the_fullest_device_counts():
    made = "reduce(mean_loss(gelu(matmul(x, replicate(w, degree=2)))), degree=2)"
    text = f"x = input[8/2, 8]\nw = weight[8, 8]\nreturn {made}"
    whole = "x = input[8, 8]\nw = weight[8, 8]\nreturn mean_loss(gelu(matmul(x, w)))"
    half, full = (peak_memory(steps_of(parse_graph(t)), SGD) for t in (text, whole))
    assert half.parameters == full.parameters
    assert half.activations == pytest.approx(full.activations / 2, rel=0.02)


def norms(layers: int) -> Graph:
    """Dense layers with a norm, in single steps, and a relu."""
    text, value = "x = input[64, 32]\n", "x"
    for i in range(layers):
        text += f"""w{i} = weight[32, 32]
            g{i} = weight[32]
            a{i} = matmul({value}, w{i})
            c{i} = subtract(a{i}, expand_as(a{i}, mean_axis(a{i}, axis=1), axis=1))
            r{i} = rsqrt(mean_axis(multiply(c{i}, c{i}), axis=1))
            n{i} = multiply(c{i}, expand_as(c{i}, r{i}, axis=1))
            y{i} = relu(multiply(n{i}, expand_vector(n{i}, g{i}, axis=1)))
            """
        value = f"y{i}"
    return parse_graph(f"{text}return mean_loss({value})")


def test_recomputation_takes_less_memory_and_more_time():
    steps = steps_of(norms(4))
    cost = CostModel(load_machine("dgx-a100").with_devices(1))
    again = worth_recomputing(steps)
    assert {node.name for node in again} == {"subtract", "rsqrt", "multiply", "relu"}
    before, after = (peak_memory(steps, SGD, remade=nodes) for nodes in ((), again))
    assert after.activations < before.activations
    forward = sum(cost.compute_seconds(node, frozenset())[0] for node in again)
    recomputed, plain = recomputing(steps, cost, again).simulation, simulate(steps, cost)
    assert recomputed.step_seconds == pytest.approx(plain.step_seconds + forward)


def test_no_operator_is_recomputed_if_recomputation_saves_nothing():
    steps = steps_of(parse_graph(f"{X}return mean_loss(matmul(relu(matmul(x, w)), w))"))
    assert not worth_recomputing(steps)
    steps = steps_of(parse_graph(f"{X}return mean_loss(matmul(x, w))"))
    assert not worth_recomputing(steps)


@each("seed", range(25))
def test_each_tensor_lives_until_its_last_use(seed: int):
    """On random graphs. Recomputation changes the lifetimes, and recomputed tensors are there in
    time."""
    random = Random(seed)
    graph = random_graph(random, 4, random.randrange(1, 9))
    steps = steps_of(graph)
    every = frozenset(n for n in operators(graph) if n.name in ("relu", "gelu", "add", "multiply"))
    for remade in (frozenset(), every, worth_recomputing(steps)):
        intervals = liveness(steps, remade)
        assert all(0 <= life.first <= life.last <= intervals.end for life in intervals.lifetimes)
        numbers = [i for made in intervals.recomputed.values() for i in made]
        assert len(numbers) == len(set(numbers))
        assert {getattr(steps.steps[i], "node", None) for i in numbers} <= remade
        seen: set[int] = set()
        for reader in sorted(intervals.recomputed, reverse=True):
            for i in intervals.recomputed[reader]:
                sources = [s for s in intervals.recomputed[reader] if s < i]
                assert sources == sorted(sources)
                seen.add(i)
        assert peak_memory(steps, SGD, remade=remade).activations > 0


def test_saved_tensors_of_an_uncut_graph_equal_those_of_its_schedule():
    graph = norms(1)
    graph.check()
    kept = saved_positions(graph)
    names = sorted((n.name, sorted(r.operands), sorted(r.outputs)) for n, r in kept.items())
    # The product reads data and, since that needs no gradient, not its weight. Products read the
    # centred input, the root of the variance, which is repeated, and the normed tensor; relu its
    # operand.
    assert names == [
        ("matmul", [0], []),
        ("multiply", [0], []),
        ("multiply", [0], []),
        ("relu", [0], []),
        ("rsqrt", [], [0]),
    ]

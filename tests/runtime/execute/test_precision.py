"""Narrow number formats beside master weights, and compiled segments."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from support.plans.by_hand import make_plan
from support.runs.simulated import on_ranks

from pcg.plan.precision import Precision
from pcg.plan.text import parse_graph
from runtime.execute.executor import Executor
from runtime.execute.precision import LossScale
from runtime.execute.segment import Segment
from runtime.program.lower import Lowering
from runtime.program.program import Run
from runtime.world.collectives import World

MODEL = """
x = input[16, 32]
w1 = weight[32, 64]
w2 = weight[64, 8]
y = matmul(relu(matmul(x, w1)), w2)
loss = mean_loss(multiply(y, y))
return loss, y
"""

TENSOR_PARALLEL = """
x = input[16, 32]
w1 = weight[32, 64]
w2 = weight[64, 8]
h = relu(matmul(replicate(x, degree=2), partition(w1, dim=1, degree=2)))
y = replicate(reduce(matmul(h, partition(w2, dim=0, degree=2)), degree=2), degree=2)
loss = mean_loss(multiply(y, y))
return loss, y
"""


def losses(executor: Executor, steps: int = 4) -> list[float]:
    def update(gradients):
        for register, gradient in gradients.items():
            assert gradient.dtype == executor.weights[register].dtype
            executor.weights[register].sub_(gradient, alpha=0.2)

    return [executor.step(step, update).loss for step in range(steps)]


def alone(precision: Precision, text: str = MODEL, **options) -> list[float]:
    graph = parse_graph(text)
    program = Lowering(make_plan(graph, graph, 1, {})).program(0)
    return losses(Executor(program, World(), precision, **options))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_follows_full_precision_nearby(precision):
    full, mixed = alone("fp32"), alone(precision)
    assert mixed == pytest.approx(full, rel=0.02)
    assert mixed != full


def test_mixed_precision_on_several_ranks():
    model, graph = parse_graph(MODEL), parse_graph(TENSOR_PARALLEL)
    lowering = Lowering(make_plan(model, graph, 2, {}))

    def work(world):
        executor = Executor(lowering.program(world.rank), world, "bf16")
        by_rank = losses(executor)
        assert {weight.dtype for weight in executor.weights.values()} == {torch.float32}
        return by_rank

    first, second = on_ranks(2, work)
    assert first == second
    assert first == pytest.approx(alone("bf16"), rel=0.02)


WORDS = """
ids = input[8, 16] below 1000
table = weight[1000, 32]
x = embedding(ids, table)
w1 = weight[32, 64]
w2 = weight[64, 1000]
y = matmul(relu(matmul(x, w1)), w2)
labels = input[8, 16] below 1000
loss = cross_entropy(flatten(y, axis=0), flatten(labels, axis=0))
return loss, y
"""


def words(precision: Precision) -> Executor:
    graph = parse_graph(WORDS)
    return Executor(Lowering(make_plan(graph, graph, 1, {})).program(0), World(), precision)


def made_by(executor: Executor) -> dict[str, list[torch.dtype]]:
    """The formats of the outputs of each operator in a step, by its name."""
    (version,) = executor._versions
    (segment,) = executor._passes.blocks
    assert isinstance(segment, Segment)
    made: dict[str, list[torch.dtype]] = {}

    def noted(name, compute, blocks):
        results = compute(blocks)
        made[name] = [result.dtype for result in results]
        return results

    version._actions[id(segment)] = tuple(
        action._replace(compute=partial(noted, instruction.call.name, action.compute))
        for action, instruction in zip(version.actions(segment), segment.instructions, strict=True)
        if isinstance(instruction, Run)
    )
    executor.step(0, None)
    return made


def test_operators_make_narrow_values_and_losses_are_wide():
    made = made_by(words("bf16"))
    assert made.pop("cross_entropy") == [torch.float32]
    # One is of the product, which comes last, and one of the labels.
    assert made.pop("flatten") in ([torch.bfloat16], [torch.float32])
    assert set(made) == {"lookup", "matmul", "relu"}
    assert all(formats == [torch.bfloat16] for formats in made.values())


def test_ids_and_losses_have_the_precision_of_float32():
    """bf16 holds whole numbers up to 256. Other rows of the table would have another loss."""
    mixed, double = (words(precision).step(0, None).loss for precision in ("bf16", "fp64"))
    assert mixed == pytest.approx(double, rel=1e-3)
    assert mixed != float(torch.tensor(mixed).bfloat16())


def test_weights_have_one_narrow_copy_for_a_step():
    executor = words("bf16")
    (version,) = executor._versions
    executor.step(1, None)
    narrow = version.narrow
    assert narrow is not None
    assert {copy.dtype for copy in narrow.copies.values()} == {torch.bfloat16}
    assert narrow.copies.keys() == version.leaves.keys()
    before = dict(narrow.copies)
    executor.step(2, lambda gradients: None)
    assert not narrow.copies, "weights have changed"
    executor.step(3, None)
    assert narrow.copies.keys() == before.keys()


def test_compiled_segments_compute_the_same(monkeypatch):
    """With a backend of torch's own that needs no C++ compiler."""
    # Imported here because it takes long to load, and a worker may run no other test of this file.
    from torch._dynamo.backends.registry import lookup_backend

    seen: list[list[str]] = []
    whole = torch.compile

    def kept(graph, inputs):
        seen.append([node.op for node in graph.graph.nodes])
        return lookup_backend("aot_eager")(graph, inputs)

    monkeypatch.setattr(torch, "compile", lambda f, **options: whole(f, backend=kept, **options))
    assert alone("fp64", compiles=True) == pytest.approx(alone("fp64"), rel=1e-12)
    # The model is one segment, and all of it one graph.
    assert len(seen) == 1
    assert sum(op.startswith("call") for op in seen[0]) > 3


def test_each_segment_is_compiled_once(monkeypatch):
    """Torch compiles eight functions with one code object at most, and runs others uncompiled."""
    graphs: list[object] = []
    whole = torch.compile

    def kept(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda f, **options: whole(f, backend=kept, **options))
    # The segments differ in a number only, and have operands of the same shapes.
    for factor in range(1, 11):
        text = MODEL.replace("relu(matmul(x, w1))", f"scale(matmul(x, w1), factor={factor}.0)")
        compiled = alone("fp64", text, compiles=True)
        assert compiled == pytest.approx(alone("fp64", text), rel=1e-12)
    assert len(graphs) == 10


def test_gradients_that_are_not_finite_halve_the_scale_of_the_loss():
    scale, used = LossScale(), {"w": torch.tensor([2.0**15])}
    assert scale.accepts(used, float)
    assert used["w"].tolist() == [1.0]
    bad = {"w": torch.tensor([1.0, float("inf")])}
    assert not scale.accepts(bad, float)
    assert scale.value == 2.0**14
    # Another rank's gradients count as well.
    assert not scale.accepts(used, lambda own: own + 1.0)
    scale.value = 1.0
    assert scale.accepts(bad, float)


def test_an_update_that_is_left_out_leaves_weights_alone():
    """A scale beyond the range of float32 makes all gradients infinite."""
    graph = parse_graph(MODEL)
    program = Lowering(make_plan(graph, graph, 1, {})).program(0)
    executor = Executor(program, World(), "fp16")
    executor.loss_scale = LossScale(2.0**127)
    before = {register: weight.clone() for register, weight in executor.weights.items()}
    losses(executor, 1)
    assert executor.loss_scale.value == 2.0**126
    assert all(torch.equal(before[r], weight) for r, weight in executor.weights.items())

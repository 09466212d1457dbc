"""The graph of a pipeline: it computes the model's outputs and gradients from slices of the
batch."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from fidelity.price import graph_of
from support.cases import a_third
from support.graphs.strategies import parts_of_leaves
from support.plans.pipelines import DECODER, TIED, model_graph, two_nodes

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph, Node, Value
from pcg.machine import load_machine
from pcg.plan.plan import Plan, machine_record
from pcg.plan.schema import EstimatesFile
from pcg.plan.text import parse_graph
from pcg.readings.evaluate import evaluate_shards, meaning
from pcg.readings.ring import Reals
from runtime.execute.kernels import run_whole
from search.cost.cost import CostModel
from search.map.rules.cuts import Cuts
from search.pipeline.built.build import PipelineParts
from search.pipeline.crossing import Crossings
from search.pipeline.micro import MicroBatches
from search.pipeline.streams import Streams, streams
from substitutions.audit.replay import replay
from substitutions.rules.store import load_library

EVALUATED = ["mlp-mnist", "candle-uno-tiny", "xdl-tiny", "tied"]
"""Models whose operators all have equations, so the reference evaluation knows their values."""
MODELS = [*EVALUATED, "labels"]


@pytest.fixture(scope="module")
def library():
    return load_library()


def built(source: Streams, library, slices: int, stages: int):
    """The pipeline with bounds that divide the operators evenly, for 4 devices."""
    cost = CostModel(load_machine("dgx-a100").with_devices(4 // stages))
    batches = MicroBatches(source, cost, Cuts.of_rules(library.concrete(source.graph)), slices)
    count = len(batches.nodes)
    bounds = [count * stage // stages for stage in range(stages + 1)]
    return batches, PipelineParts(batches, batches.choose(), bounds).derived()


@pytest.mark.parametrize("name", a_third(EVALUATED))
@pytest.mark.parametrize(("slices", "stages"), [(2, 2), (4, 1)])
def test_a_pipeline_computes_what_the_model_does(name, slices, stages, library):
    """Under the reference evaluation, shard by shard and slice by slice."""
    graph = model_graph(name)
    _, cut = built(streams(graph, library), library, slices, stages)
    assert any(t > 1 for n in cut.graph.nodes for x in n.types for t in x.degrees.slices)
    for seed in (3, 4):
        parts = parts_of_leaves(graph, seed, Reals())
        before, after = (
            [meaning(actual, Reals()) for actual in evaluate_shards(g, parts, Reals())]
            for g in (graph, cut.graph)
        )
        for expected, actual in zip(before, after, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-7, atol=1e-9)


Tensors = dict[Value, torch.Tensor]


def run(nodes: list[Node], known: Tensors) -> None:
    for node in nodes:
        made = run_whole(node.operator_call, [known[value] for value in node.inputs])
        known.update({node.value(port): tensor for port, tensor in enumerate(made)})


def sliced_from_whole(source: Streams) -> set[Value]:
    """A tensor that is whole, and read slice by slice along its first dimension."""
    sliced: set[Value] = set()
    for node, name in source.axes.items():
        ranks = tuple(value.rank for value in node.inputs)
        (axis,) = (a for a in node.operator_call.typing(ranks).axes if a.name == name)
        for value, dim in zip(node.inputs, axis.operands, strict=True):
            if dim is not None and value.node not in source.axes:
                assert dim == 0
                sliced.add(value)
    return sliced


def leaves(graph: Graph) -> Tensors:
    parts = parts_of_leaves(graph, 5, Reals())
    tensors: Tensors = {}
    for node in graph.leaves:
        values = torch.tensor(parts[node.leaf.name][0], dtype=torch.float64)
        tensors[node.value()] = values.long() if node.leaf.below else values
        if node.leaf.kind == "weight":
            tensors[node.value()].requires_grad_()
    return tensors


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("slices", [2, 4])
def test_gradients_need_no_other_slice(name, slices, library):
    """1F1B runs the backward pass of a micro-batch before others have gone forward. So the gradient
    that the tail gives a slice, with zeros in place of the others, is its share of the model's
    gradient."""
    source = streams(model_graph(name), library)
    graph = source.graph
    sliced = [node for node in graph.nodes if node in source.axes]
    tail = [node for node in graph.nodes if node in source.tail]
    ahead = [node for node in graph.nodes if node in source.ahead]
    late = {*source.axes, *tail, *ahead}
    once = [node for node in graph.operators if node not in late]
    whole = leaves(graph)
    run([node for node in graph.nodes if not node.is_leaf], whole)
    whole[graph.outputs[0]].backward()
    cut = leaves(graph)
    run(ahead, cut)
    for number in range(slices):
        known = dict(cut)
        for value in sliced_from_whole(source):
            known[value] = cut[value].chunk(slices)[number]
        run(once + sliced, known)
        for value in {v for node in tail for v in node.inputs if v.node in source.axes}:
            blocks = [torch.zeros_like(known[value])] * slices
            blocks[number] = known[value]
            known[value] = torch.cat(blocks)
        run(tail, known)
        known[graph.outputs[0]].backward()
    for leaf in graph.leaves:
        if leaf.leaf.kind == "weight":
            expected, actual = whole[leaf.value()].grad, cut[leaf.value()].grad
            torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def test_inputs_are_pipelined_once_and_nothing_is_joined_between(library):
    source = streams(model_graph("mlp-mnist"), library)
    batches, cut = built(source, library, 4, 2)
    names = [node.name for node in cut.graph.nodes if not node.is_leaf]
    inputs = [leaf for leaf in cut.graph.leaves if leaf.leaf.kind == "input"]
    assert names.count("pipeline") == len(inputs)
    readers = {value.node for node in source.tail for value in node.inputs} & source.axes.keys()
    # Outputs of the model that hold samples are joined, too.
    ends = readers | {value.node for value in graph_outputs(source) if value.node in source.axes}
    assert names.count("batch") == len(ends)
    rules = [step.text for step in cut.steps]
    assert sum("== batch(" in text for text in rules) == len(source.axes)
    assert any(text.startswith("pipeline(batch(x") for text in rules)
    halves = {view.start // 2 for view in cut.views.values()}
    assert halves == {0, 1}
    assert len(cut.views) == len(batches.nodes)


def graph_outputs(source: Streams) -> tuple[Value, ...]:
    return source.graph.outputs


def test_operators_that_read_all_samples_together_are_refused(library):
    normed = (
        "x = input[8, 6]\nw = weight[6, 4]\ng = weight[4]\nb = weight[4]\n"
        "return mean_loss(batch_norm(matmul(x, w), g, b, eps=0.1))"
    )
    with pytest.raises(NegativeAnswer, match="batch_norm reads all samples together"):
        streams(parse_graph(normed), library)
    squared = (
        "x = input[8, 6]\nw = weight[6, 4]\ny = mean_axis(matmul(x, w), axis=0)\n"
        "return mean_loss(multiply(y, y))"
    )
    with pytest.raises(NegativeAnswer, match="multiply reads all samples together"):
        streams(parse_graph(squared), library)
    with pytest.raises(NegativeAnswer, match="no input with a dimension of samples"):
        streams(parse_graph("w = weight[6, 4]\nreturn mean_loss(w)"), library)


AHEAD = """
x = input[8, 6]
k = input[8, 6]
w = weight[6, 4]
h = tanh(k)
n = sum_loss(multiply(h, h))
y = sum_loss(matmul(multiply(x, h), w))
"""


def test_operators_that_depend_on_inputs_alone_are_computed_ahead(library):
    """The tail need not be linear in such an operator. Other readers take slices of it."""
    source = streams(parse_graph(f"{AHEAD}return divide(y, n)"), library)
    assert sorted(node.name for node in source.ahead) == ["multiply", "sum_loss", "tanh"]
    assert {"matmul", "multiply"} <= {node.name for node in source.axes}
    assert source.ahead.isdisjoint({*source.axes, *source.tail})


def test_only_operands_of_the_tail_are_computed_ahead(library):
    source = streams(parse_graph(f"{AHEAD}return add(y, n)"), library)
    assert not source.ahead


def test_what_has_the_shape_of_a_trained_tensor_is_not_computed_ahead(library):
    """Before the first slice, the trained tensor is not there."""
    shaped = "x = input[8, 6]\nk = input[4]\nw = weight[6, 4]\ny = matmul(x, w)\n"
    quotient = "return divide(sum_loss(y), sum_loss(expand_as(y, k, axis=0)))"
    with pytest.raises(NegativeAnswer, match="divide reads all samples together"):
        streams(parse_graph(shaped + quotient), library)


def test_quotient_by_a_tensor_that_depends_on_a_weight_is_refused(library):
    trained = "x = input[8, 6]\nw = weight[6, 4]\ny = sum_loss(matmul(x, w))\n"
    with pytest.raises(NegativeAnswer, match="divide reads all samples together"):
        streams(parse_graph(f"{trained}return divide(sum_loss(x), y)"), library)


def test_a_transposed_operand_does_not_stream(library):
    """Each sample meets every other: slices of one side would need the whole other side."""
    gram = (
        "x = input[8, 8]\nw = weight[8, 8]\nh = matmul(x, w)\n"
        "return mean_loss(matmul(h, transpose(h, dim0=0, dim1=1)))"
    )
    with pytest.raises(NegativeAnswer, match="matmul reads all samples together"):
        streams(parse_graph(gram), library)


REPLAYED = {
    "one value twice": (
        "x = input[8, 8]\nw = weight[8, 8]\nt = matmul(x, w)\n"
        "return mean_loss(add(add(t, t), multiply(relu(t), t)))"
    ),
    "read by several": (
        "x = input[8, 8]\nw = weight[8, 4]\nv = weight[8, 4]\nh = relu(x)\n"
        "return sum_loss(add(matmul(h, w), matmul(h, v))), matmul(h, v)"
    ),
    "two outputs": (
        "x = input[8, 8]\nw = weight[8, 8]\na, b = split(matmul(x, w), axis=1, at=4)\n"
        "return sum_loss(add(relu(a), b))"
    ),
    "tied": TIED,
}


@pytest.mark.parametrize("name", REPLAYED)
def test_a_pipeline_follows_from_the_model_step_by_step(name, library):
    """An audit, which shares nothing with the search, arrives at the same graph."""
    model = parse_graph(REPLAYED[name])
    _, cut = built(streams(model, library), library, 2, 2)
    estimates = EstimatesFile(
        step_seconds=1.0,
        one_device_seconds=1.0,
        communication_elements=0,
        peak_memory_bytes=0,
    )
    machine = machine_record(load_machine("local"))
    plan = Plan("m", model, cut.graph, cut.views, machine, "", cut.steps, estimates)
    followed = replay(plan, library.rules)
    assert followed.findings == ()
    assert followed.steps == len(cut.steps) > len(model.nodes) - len(model.leaves)


@pytest.mark.parametrize("name", [*REPLAYED, "decoder", "labels"])
def test_pipeline_of_templates_equals_that_of_its_steps(name, library):
    """For any strategies of operators, any bounds of stages, and any crossings of tensors."""
    graphs = {"decoder": lambda: graph_of(DECODER, 8), "labels": lambda: model_graph("labels")}
    graph = graphs[name]() if name in graphs else parse_graph(REPLAYED[name])
    source, machine, random = streams(graph, library), two_nodes(1e7), Random(name)
    batches = MicroBatches(
        source, CostModel(machine.with_devices(2)), Cuts.of_rules(library.concrete(source.graph)), 2
    )
    best, count = batches.choose(), len(batches.nodes)
    for turn in range(3):
        drawn = (random.choice(batches.spaces.of(n).strategies.tolist()) for n in batches.nodes)
        some = replace(best, strategies=tuple(map(tuple, drawn))) if turn else best
        chunks = 2 * (turn % 2 + 1)
        bounds = [0, *sorted(random.sample(range(1, count), chunks - 1)), count]
        crossings = Crossings(CostModel(machine))
        given = batches, some, bounds, chunks // 2, 1 + turn // 2, crossings
        made, cut = PipelineParts(*given).placed(), PipelineParts(*given).derived()
        assert made.graph == cut.graph
        assert made.views == cut.views
        assert [node.types for node in made.graph.nodes] == [n.types for n in cut.graph.nodes]

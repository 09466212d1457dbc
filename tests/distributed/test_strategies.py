"""The usual ways to parallelize, written by hand, against training on one process.

One plan for each kind of communication runs on processes. The others run on threads, except under
`make soak`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.mixed import mixed
from support.plans.by_hand import make_plan
from support.plans.pipelines import by_degrees, layers, planned
from support.plans.small_plans import small_plan

from pcg.machine import load_machine
from pcg.placement.in_parts import stated_parts
from pcg.placement.schedule import trace
from pcg.plan.pipeline import PipelineFile
from pcg.plan.text import parse_graph
from runtime.program.lower import Lowering
from search.choices import Mode
from search.pipeline.planner import PipelinePlanner
from search.plan.planner import MeshPlanner
from substitutions.rules.store import load_library

pytestmark = pytest.mark.distributed

MLP = """
x = input[8, 12]
w1 = weight[12, 16]
w2 = weight[16, 8]
target = input[8, 8]
y = matmul(relu(matmul(x, w1)), w2)
error = add(y, scale(target, factor=-1.0))
loss = mean_loss(multiply(error, error))
return loss, y
"""


def weights(report):
    return {c.name for c in report.comparisons if c.kind == "weight"}


def test_data_parallel(agree_on_processes):
    report = agree_on_processes(
        MLP,
        """
        x = input[8, 12]
        w1 = weight[12, 16]
        w2 = weight[16, 8]
        target = input[8, 8]
        hidden = relu(matmul(partition(x, dim=0, degree=4), replicate(w1, degree=4)))
        y = matmul(hidden, replicate(w2, degree=4))
        error = add(y, scale(partition(target, dim=0, degree=4), factor=-1.0))
        loss = reduce(mean_loss(multiply(error, error)), degree=4)
        return loss, combine(y, dim=0, degree=4)
        """,
    )
    assert weights(report) == {"w1", "w2"}


def test_tensor_parallel_column_then_row(agree):
    agree(
        MLP,
        """
        x = input[8, 12]
        w1 = weight[12, 16]
        w2 = weight[16, 8]
        target = input[8, 8]
        hidden = relu(matmul(replicate(x, degree=4), partition(w1, dim=1, degree=4)))
        y = reduce(matmul(hidden, partition(w2, dim=0, degree=4)), degree=4)
        copies = replicate(y, degree=4)
        error = add(copies, scale(replicate(target, degree=4), factor=-1.0))
        loss = mean_loss(multiply(error, error))
        return loss, y
        """,
    )


def test_reduction_parallel(agree_on_processes):
    agree_on_processes(
        MLP,
        """
        x = input[8, 12]
        w1 = weight[12, 16]
        w2 = weight[16, 8]
        target = input[8, 8]
        a = matmul(partition(x, dim=1, degree=4), partition(w1, dim=0, degree=4))
        hidden = relu(replicate(reduce(a, degree=4), degree=4))
        y = matmul(hidden, partition(w2, dim=1, degree=4))
        error = add(y, scale(partition(target, dim=1, degree=4), factor=-1.0))
        loss = reduce(mean_loss(multiply(error, error)), degree=4)
        return loss, y
        """,
    )


def test_mixed_data_and_tensor_parallel(agree):
    agree(
        MLP,
        """
        x = input[8, 12]
        w1 = weight[12, 16]
        w2 = weight[16, 8]
        target = input[8, 8]
        x2 = replicate(partition(x, dim=0, degree=2), degree=2)
        hidden = relu(matmul(x2, replicate(partition(w1, dim=1, degree=2), degree=2)))
        y = matmul(hidden, replicate(partition(w2, dim=0, degree=2), degree=2))
        rows = reduce(y, degree=2)
        error = add(rows, scale(partition(target, dim=0, degree=2), factor=-1.0))
        loss = reduce(mean_loss(multiply(error, error)), degree=2)
        return loss, rows
        """,
    )


def test_reduce_scatter_between_layers(agree_on_processes):
    agree_on_processes(
        MLP,
        """
        x = input[8, 12]
        w1 = weight[12, 16]
        w2 = weight[16, 8]
        target = input[8, 8]
        a = matmul(partition(x, dim=1, degree=4), partition(w1, dim=0, degree=4))
        hidden = relu(partition(reduce(a, degree=4), dim=0, degree=4))
        y = matmul(hidden, replicate(w2, degree=4))
        error = add(y, scale(partition(target, dim=0, degree=4), factor=-1.0))
        loss = reduce(mean_loss(multiply(error, error)), degree=4)
        return loss, y
        """,
    )


def test_all_to_all_between_layers(agree_on_processes):
    agree_on_processes(
        MLP,
        """
        x = input[8, 12]
        w1 = weight[12, 16]
        w2 = weight[16, 8]
        target = input[8, 8]
        a = relu(matmul(replicate(x, degree=4), partition(w1, dim=1, degree=4)))
        rows = partition(combine(a, dim=1, degree=4), dim=0, degree=4)
        y = matmul(rows, replicate(w2, degree=4))
        error = add(y, scale(partition(target, dim=0, degree=4), factor=-1.0))
        loss = reduce(mean_loss(multiply(error, error)), degree=4)
        return loss, y
        """,
    )


def test_weights_stored_in_parts_and_combined_before_use(agree_on_processes):
    """ZeRO: each weight is stored in four parts and gathered before use, and its gradient is
    scattered."""
    agree_on_processes(
        MLP,
        """
        x = input[8, 12]
        w1 = weight[12, 16]
        w2 = weight[16, 8]
        target = input[8, 8]
        all1 = replicate(combine(partition(w1, dim=0, degree=4), dim=0, degree=4), degree=4)
        all2 = replicate(combine(partition(w2, dim=1, degree=4), dim=1, degree=4), degree=4)
        hidden = relu(matmul(partition(x, dim=0, degree=4), all1))
        y = matmul(hidden, all2)
        error = add(y, scale(partition(target, dim=0, degree=4), factor=-1.0))
        loss = reduce(mean_loss(multiply(error, error)), degree=4)
        return loss, y
        """,
    )


def test_operators_on_different_devices(agree_on_processes):
    """The layers run on devices 0-1, 2-3 and 1-2, so pieces cross between devices."""
    agree_on_processes(
        MLP,
        """
        x = input[8, 12]
        w1 = weight[12, 16]
        w2 = weight[16, 8]
        target = input[8, 8]
        h = matmul(partition(x, dim=0, degree=2), replicate(w1, degree=2))
        r = relu(partition(combine(h, dim=0, degree=2), dim=1, degree=2))
        y = matmul(r, partition(w2, dim=0, degree=2))
        error = add(reduce(y, degree=2), scale(target, factor=-1.0))
        loss = mean_loss(multiply(error, error))
        return loss, reduce(y, degree=2)
        """,
        t5=2,
        t7=1,
        t9=3,
        t10=3,
    )


def test_uneven_use_of_devices(agree):
    """Most of the work on one device, the loss on another."""
    agree(MLP, MLP, t0=1, t1=1, t2=3, t3=2)


IN_SLICES = """
x = input[16, 12]
w1 = weight[12, 16]
w2 = weight[16, 8]
h = relu(matmul(replicate(pipeline(x, dim=0, degree=2), degree=4), partition(w1, dim=1, degree=4)))
y = partition(reduce(matmul(h, partition(w2, dim=0, degree=4)), degree=4), dim=0, degree=4)
loss = sum_loss(combine(batch(multiply(y, y), dim=0, degree=2), dim=0, degree=4))
return loss, combine(batch(y, dim=0, degree=2), dim=0, degree=4)
"""


def test_a_pipeline_of_one_stage_whose_ranks_meet_in_every_slice(agree_on_processes):
    """A rank without the loss begins to add the loss up earlier, in another group."""
    model = """
    x = input[16, 12]
    w1 = weight[12, 16]
    w2 = weight[16, 8]
    y = matmul(relu(matmul(x, w1)), w2)
    return sum_loss(multiply(y, y)), y
    """
    plan = make_plan(parse_graph(model), parse_graph(IN_SLICES), 4, {})
    stages = PipelineFile(stages=1, micro_batches=2, schedule="1f1b")
    plan = replace(plan, pipeline=stages)
    assert tuple(range(4)) in Lowering(plan).program(0).groups
    agree_on_processes.of(plan)


def test_interleaved_stages(agree_on_processes):
    """Two stages of two chunks, on two processes each."""
    agree_on_processes.of(small_plan("interleaved"))


@pytest.mark.soak
def test_copies_that_cross_stages_in_parts(agree):
    """Tensor parallelism of two in each of two stages. Each process sends one half."""
    plan = by_degrees("tensor=2,pipeline=2,micro-batches=4", load_library())
    chains = [trace(v)[1] for n in plan.graph.operators if not n.is_parallel for v in n.inputs]
    assert any(stated_parts(chain) for chain in chains)
    agree.of(plan)


@pytest.mark.soak
def test_interleaved_stages_of_the_search_with_one_process_each(agree):
    """The tables of dlrm are looked up in the first chunk, and read by several."""
    agree.of(planned("xdl-tiny", load_library(), 8, 4, interleave=2))


def test_rows_of_an_image_cut_by_the_search(agree):
    plan = small_plan("halos")
    haloed = [node for node in plan.graph.nodes if any(t.degrees.halos for t in node.types)]
    assert len(haloed) >= 2
    agree.of(plan)


TOWERS = """
x = input[7, 11]
w1 = weight[11, 13]
w2 = weight[11, 13]
y = add(tanh(matmul(x, w1)), relu(matmul(x, w2)))
loss = mean_loss(multiply(y, y))
return loss, y
"""
"""These sizes cannot be cut."""


@pytest.mark.soak
def test_branches_side_by_side_by_the_search(agree):
    machine = load_machine("tests/data/two-devices.toml").with_nodes(2).with_devices(4)
    # With algebra, the two products are one.
    planner = MeshPlanner(machine, load_library(), mode=Mode.PARALLEL)
    plan = planner.plan("towers", parse_graph(TOWERS)).plan
    products = [view for node, view in plan.views.items() if node.name == "matmul"]
    first, second = (set(view.devices) for view in products)
    assert first.isdisjoint(second)
    agree.of(plan)


def test_branches_on_halves_of_the_devices(agree):
    """One layer on devices 0-1, one on 2-3. Pieces cross from these to the others and back."""
    model = TOWERS.replace("7, 11", "8, 12").replace("11, 13", "12, 4")
    agree(
        model,
        """
        x = input[8, 12]
        w1 = weight[12, 4]
        w2 = weight[12, 4]
        halves = partition(x, dim=0, degree=2)
        a = tanh(matmul(halves, replicate(w1, degree=2)))
        b = relu(matmul(replicate(x, degree=2), partition(w2, dim=1, degree=2)))
        y = add(a, partition(combine(b, dim=1, degree=2), dim=0, degree=2))
        loss = reduce(mean_loss(multiply(y, y)), degree=2)
        return loss, combine(y, dim=0, degree=2)
        """,
        t6=2,
        t7=2,
    )


IMAGES = """
x = input[2, 3, 16, 8]
k1 = weight[4, 3, 3, 3]
k2 = weight[2, 4, 3, 5]
"""
FIRST = "height=16, width=8, stride_h=1, stride_w=1, top=1, left=1, dilation_h=1, dilation_w=1"
POOL = "height=8, width=4, kernel_h=2, kernel_w=2, stride_h=2, stride_w=2, top=0, left=0"
SECOND = "height=4, width=4, stride_h=2, stride_w=1, top=1, left=2, dilation_h=1, dilation_w=1"
WINDOWS = f"""{IMAGES}
h = max_pool2d(relu(conv2d(x, k1, {FIRST})), {POOL})
y = conv2d(h, k2, {SECOND})
return mean_loss(multiply(y, y)), y
"""


def test_rows_of_images_with_halos_of_their_neighbours(agree):
    """The first halo comes from the data, and the last one from neighbours, to which its gradient
    goes back. The pool reads nothing beyond its rows."""
    report = agree(
        WINDOWS,
        f"""{IMAGES}
        rows = partition(x, dim=2, degree=4, before=1, after=1)
        a = relu(conv2d(rows, replicate(k1, degree=4), {FIRST}))
        h = max_pool2d(partition(a, dim=2, degree=1, before=0, after=0), {POOL})
        near = partition(h, dim=2, degree=1, before=1, after=0)
        y = conv2d(near, replicate(k2, degree=4), {SECOND})
        loss = reduce(mean_loss(multiply(y, y)), degree=4)
        return loss, combine(y, dim=2, degree=4)
        """,
    )
    assert weights(report) == {"k1", "k2"}


def test_rows_and_columns_of_images(agree):
    """Cut in two dimensions, with halos wider than needed and as wide as the whole tensor."""
    agree(
        WINDOWS,
        f"""{IMAGES}
        rows = partition(x, dim=2, degree=2, before=3, after=16)
        tiles = partition(rows, dim=3, degree=2, before=1, after=2)
        a = relu(conv2d(tiles, replicate(k1, degree=4), {FIRST}))
        inner = partition(partition(a, dim=2, degree=1, before=0, after=0), dim=3, degree=1,
            before=0, after=0)
        h = max_pool2d(inner, {POOL})
        near = partition(h, dim=2, degree=1, before=1, after=2)
        y = conv2d(partition(near, dim=3, degree=1, before=2, after=2), replicate(k2, degree=4),
            {SECOND})
        loss = reduce(reduce(mean_loss(multiply(y, y)), degree=2), degree=2)
        return loss, combine(combine(y, dim=2, degree=2), dim=3, degree=2)
        """.replace("degree=1,\n            before", "degree=1, before").replace(
            "replicate(k2, degree=4),\n            ", "replicate(k2, degree=4), "
        ),
    )


@pytest.mark.soak
def test_stages_on_devices_of_two_kinds(agree):
    """Two stages of two devices each. The faster devices have more layers."""
    machine = mixed(load_machine("p3-16xlarge"), load_machine("dgx-h100"), per_node=2, nodes=2)
    plan = PipelinePlanner(machine, load_library()).plan("layers", layers(5, 8, 512)).plan
    assert plan.pipeline is not None
    assert plan.pipeline.stages == 2
    views = [view for node, view in plan.views.items() if node.name == "matmul"]
    assert sum(0 in view.devices for view in views) < sum(2 in view.devices for view in views)
    report = agree.of(plan)
    assert all(min(c.absolute, c.relative) <= 1e-9 for c in report.comparisons)

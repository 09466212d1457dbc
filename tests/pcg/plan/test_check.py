"""Well-formedness: each check finds its fault, and well-formed graphs pass all checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from support.cases import a_third, each
from support.graphs.strategies import graphs, placed, training_graphs

from pcg.graph.graph import (
    Graph,
    Leaf,
    LeafKind,
    Node,
    Value,
    apply,
    drawn_mask,
    leaf,
    tensor,
)
from pcg.language.poly import Poly
from pcg.models import MODELS, build_model
from pcg.ops import OPERATORS
from pcg.ops.algebra import matmul, relu, scale
from pcg.ops.layers import embedding, mean_loss
from pcg.ops.parallel import partition, replicate
from pcg.ops.reindexing import split
from pcg.placement.layout import grid
from pcg.placement.view import MachineView
from pcg.plan.check import (
    GRAPH_CHECKS,
    PLACEMENT_CHECKS,
    TRAINING_CHECKS,
    Placement,
    Problem,
    check_graph,
    check_placement,
)
from pcg.plan.text import parse_graph
from pcg.types.operator import Call
from pcg.types.tensor import Degrees, ParallelTensor

X = leaf("input", "x", (4, 6))
W = leaf("weight", "w", (6, 3))


@given(graphs())
def test_typed_graphs_pass(graph: Graph):
    assert check_graph(graph) == []


@given(training_graphs())
def test_training_graphs_pass(graph: Graph):
    assert check_graph(graph, training=True) == []


@pytest.mark.parametrize("name", a_third([name for name in MODELS if name.endswith("-tiny")]))
def test_models_pass(name: str):
    assert check_graph(build_model(name, 4, 1), training=True) == []


@given(placed(graphs()))
def test_packed_placements_pass(case: tuple[Graph, Mapping[Node, MachineView], int]):
    assert check_placement(Placement(*case)) == []


def leaf_of(
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    *,
    copies: int = 1,
    kind: LeafKind = "input",
    below: int | None = None,
    rank: int | None = None,
) -> Value:
    own = Degrees(dims, (1,) * len(dims), copies, 1)
    rank = len(shape) if rank is None else rank
    return Value(Node(Leaf(kind, "x", rank, ParallelTensor(shape, own), below)))


def call(name: str, **attributes: int | float | Poly) -> Call:
    """A call without the checks that operators make."""
    return Call(OPERATORS[name], tuple(attributes.items()))


def unchecked(node: Node, *inputs: Value) -> Node:
    """The node with other operands, without the check of their number."""
    object.__setattr__(node, "inputs", inputs)
    return node


def ids() -> Value:
    return leaf("input", "ids", (4,), below=6)


TABLE = leaf("weight", "table", (6, 3))

FAULTS: list[tuple[str, Graph, str, str]] = [
    # check, graph, node, what
    ("outputs", Graph(()), "", "no outputs"),
    ("references", Graph((Value(X.node, 1),)), "x", "output 1 of x, which has 1"),
    ("references", Graph((apply(relu(), Value(apply(split(axis=0, at=2), X).node, 2)),)), "t2",
     "output 2 of split, which has 2"),
    ("operands", Graph((Value(unchecked(Node(relu(), (X,)), X, X)),)), "t0",
     "2 operands, expected 1"),
    ("rule inputs", Graph((apply(relu(), tensor("y", 2)),)), "y", "an input of a rule"),
    ("names", Graph((leaf("input", "a.b", (2,)),)), "a.b", "name 'a.b'"),
    ("names", Graph((leaf("input", "return", (2,)),)), "return", "name 'return'"),
    ("names", Graph((X, leaf("weight", "x", (2,)))), "x", "two leaves with the name 'x'"),
    ("leaf types", Graph((leaf_of((4, 6), (3, 1)),)), "x", "dimension 0: degree 3 does not divide"),
    ("leaf types", Graph((leaf_of((4, 0), (1, 1)),)), "x", "sizes and degrees are 1 or more"),
    ("leaf types", Graph((leaf_of((4,), (1,), copies=0),)), "x", "sizes and degrees are 1 or more"),
    ("leaf types", Graph((leaf_of((4,), (1,), rank=2),)), "x", "rank 2, but its type has 1"),
    ("leaf types", Graph((leaf_of((4,), (1,), below=0),)), "x", "below 0, expected 1 or more"),
    ("leaf types", Graph((leaf_of((4,), (1,), kind="weight", below=3),)), "x", "on an input"),
    ("leaf types", Graph((drawn_mask("a", (4,), 1.0),)), "drawn__a", "share 1.0, expected one"),
    ("leaf types", Graph((drawn_mask("a", (4,), 0.0),)), "drawn__a", "share 0.0, expected one"),
    ("leaf types", Graph((Value(Node(Leaf("input", "x", 2, X.type, share=0.5))),)), "x",
     "share 0.5, expected one between 0 and 1 of a drawn mask"),
    ("attributes", Graph((apply(scale(factor=Poly.of("k")), X),)), "t0", "factor is k, expected"),
    ("attributes", Graph((apply(scale(factor=float("nan")), X),)), "t0", "factor is nan"),
    ("attributes", Graph((apply(call("softmax", dim=1), X),)), "t0", "expected the attributes"),
    ("degrees", Graph((apply(replicate(degree=1), X),)), "t0", "degree 1, expected an integer"),
    ("degrees", Graph((apply(partition(dim=0, degree=-2), X),)), "t0", "degree -2"),
    ("degrees", Graph((apply(replicate(degree=2.0), X),)), "t0", "degree 2.0"),
    ("types", Graph((apply(relu(), apply(matmul(), X, X)),)), "t0",
     "matmul: operand w, dimension 0: size 4, expected 6"),
    ("types", Graph((apply(partition(dim=0, degree=3), X),)), "t0", "does not divide size 4"),
    ("integers", Graph((apply(embedding(), leaf("input", "x", (4,)), TABLE),)), "t0",
     "operand ids is an index, expected integers"),
    ("integers", Graph((apply(embedding(), apply(scale(factor=0.5), ids()), TABLE),)), "t1",
     "operand ids is an index, expected integers"),
]  # fmt: skip


@each(("check", "graph", "node", "what"), FAULTS)
def test_each_graph_check_finds_its_fault(check: str, graph: Graph, node: str, what: str):
    first, *_ = check_graph(graph)
    assert (first.check, first.node) == (check, node)
    assert what in first.what
    assert "\n" not in str(first)


@pytest.mark.parametrize(
    ("graph", "what"),
    [
        (Graph((apply(matmul(), X, W),)), "expected a scalar, got shape [4, 3]"),
        (Graph((apply(mean_loss(), X),)), "the loss depends on no weight"),
    ],
)
def test_training_needs_a_loss(graph: Graph, what: str):
    assert check_graph(graph) == []
    (problem,) = check_graph(graph, training=True)
    assert problem.check == "loss"
    assert what in problem.what


def test_integers_may_be_moved():
    rows = apply(partition(dim=0, degree=2), ids())
    parts = apply(split(axis=0, at=2), ids()).node
    joined = apply(OPERATORS["concat"](axis=0), Value(parts, 1), Value(parts, 0))
    copied = apply(replicate(degree=2), TABLE)
    graph = Graph((apply(embedding(), rows, copied), apply(embedding(), joined, TABLE)))
    assert check_graph(graph) == []


GRAPH = parse_graph("""
    x = input[4/2, 6]
    w = weight[6, 3]
    t = matmul(x, replicate(w, degree=2))
    return mean_loss(t), x
""")
PRODUCT, LOSS = (node for node in GRAPH.nodes if node.name in ("matmul", "mean_loss"))
VIEWS = {
    PRODUCT: MachineView.packed(0, (2, 1, 1, 1, 1)),
    LOSS: MachineView.packed(0, (2, 1, 1, 1)),
}


def placement(
    views: Mapping[Node, MachineView] | None = None, devices: int = 2, **changed: MachineView
) -> Placement:
    named = {"matmul": PRODUCT, "mean_loss": LOSS}
    new = {named[name]: view for name, view in changed.items()}
    return Placement(GRAPH, (VIEWS if views is None else dict(views)) | new, devices)


PLACEMENT_FAULTS: list[tuple[str, Placement, str, str]] = [
    ("views", placement({}), "t1", "no view, expected one of (2, 1, 1, 1, 1) tasks"),
    ("views", placement(VIEWS | {X.node: VIEWS[LOSS]}), "", "x has a view, but has no tasks"),
    ("shapes", placement(matmul=VIEWS[LOSS]), "t1", "shape (2, 1, 1, 1), expected (2, 1, 1, 1, 1)"),
    ("shapes", placement(mean_loss=MachineView(0, (2, 1, 1, 1), (1,))), "t2", "shape (2, 1, 1, 1)"),
    ("devices", placement(devices=1), "t1", "device 1, the machine has 1"),
    ("devices", placement(matmul=MachineView(1, (2, 1, 1, 1, 1), (1,) * 5)), "t1", "device 2"),
    ("devices", placement(matmul=MachineView(0, (2, 1, 1, 1, 1), (-1,) * 5)), "t1", "device -1"),
    ("injective", placement(matmul=MachineView(0, (2, 1, 1, 1, 1), (0,) * 5)), "t1",
     "puts two tasks on one device"),
    ("devices", placement(matmul=MachineView(0, (2, 1, 1, 1, 1), (0,) * 5), devices=1), "t1",
     "2 tasks on 1 devices"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "case", "node", "what"), PLACEMENT_FAULTS)
def test_each_placement_check_finds_its_fault(check: str, case: Placement, node: str, what: str):
    first, *_ = check_placement(case)
    assert (first.check, first.node) == (check, node)
    assert what in first.what


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("x = input[4]\nreturn replicate(x, degree=1000000000000)", 10**12),
        ("x = input[4] copies=1000000000000\nreturn x", 10**12),
        ("w = weight[8]\nreturn combine(partition(w, dim=0, degree=4), dim=0, degree=4)", 4),
    ],
)
def test_leaves_and_outputs_need_devices(text: str, pieces: int):
    first, *_ = check_placement(Placement(parse_graph(text), {}, 2))
    assert first.check == "homes"
    assert first.what == f"{pieces} pieces on 2 devices"


def test_a_grid_larger_than_the_machine_is_refused_before_it_is_walked():
    graph = parse_graph("x = input[4] copies=1000000000000\nreturn relu(x)")
    node = graph.outputs[0].node
    view = MachineView(0, (1, 1, 10**12), (0, 0, 0))
    first, *_ = check_placement(Placement(graph, {node: view}, 2))
    assert (first.check, first.what) == ("devices", f"{10**12} tasks on 2 devices")


def test_more_tasks_than_can_be_gone_through_are_refused():
    devices = 1 << 20
    lines = [f"x = input[{devices}/{devices}]", "t0 = relu(x)"]
    lines += [f"t{i} = relu(t{i - 1})" for i in range(1, 17)]
    graph = parse_graph("\n".join([*lines, "return t16"]))
    views = {n: MachineView.packed(0, grid(n)) for n in graph.nodes if not n.is_leaf}
    first, *_ = check_placement(Placement(graph, views, devices))
    assert (first.check, first.what) == ("tasks", "17825792 tasks, expected at most 16777216")


def test_tables_are_named_and_tested():
    checks = (*GRAPH_CHECKS, *TRAINING_CHECKS, *PLACEMENT_CHECKS)
    names = [check.name for check in checks]
    assert len(set(names)) == len(names)
    assert all(check.meaning and "\n" not in check.meaning for check in checks)
    tested = {check for check, *_ in [*FAULTS, *PLACEMENT_FAULTS]} | {"loss", "homes", "tasks"}
    assert tested == set(names)


def test_problems_print_with_their_node():
    problem = Problem("types", "t0", "wrong")
    assert str(problem) == "t0: wrong"
    assert str(replace(problem, node="")) == "wrong"

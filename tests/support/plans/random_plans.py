"""Random small models, cut and placed at random. Random operators are recomputed, parallel ones
among them. Operators are issued in a random order."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

from hypothesis import strategies as st
from support.plans.by_hand import make_plan

from pcg.graph.graph import Graph, Node, Value, apply, leaf
from pcg.ops import OPERATORS
from pcg.placement.layout import grid
from pcg.placement.order import ordered
from pcg.placement.view import MachineView
from pcg.plan.plan import Plan
from pcg.plan.text import node_names, print_graph
from pcg.types.infer import bind_sizes
from pcg.types.tensor import Degrees, ParallelTensor

RANKS = 4
op = OPERATORS


class Model:
    """A model on whole tensors that grows by one operator at a time. Sizes are 4, 8 or 16."""

    def __init__(self, draw) -> None:
        self.draw, self.leaves = draw, 0
        rows = leaf("input", "x", (8, 4))
        ids = leaf("input", "ids", (8,), below=8)
        self.values = [
            draw(st.sampled_from((rows, apply(op["embedding"](), ids, self.weight(8, 4)))))
        ]

    def weight(self, *shape: int) -> Value:
        self.leaves += 1
        return leaf("weight", f"w{self.leaves}", shape)

    def grow(self) -> None:
        x = self.draw(st.sampled_from(self.values))
        made = getattr(self, self.draw(st.sampled_from(GROWTHS)))(x)
        self.values += [v for v in made if v.type.elements <= 512]

    def matmul(self, x):
        return [apply(op["matmul"](), x, self.weight(x.type.shape[-1], 8))]

    def elementwise(self, x):
        call = self.draw(st.sampled_from((op["relu"](), op["gelu"](), op["scale"](factor=0.5))))
        return [apply(call, x)]

    def binary(self, x):
        same = [v for v in self.values if v.type.shape == x.type.shape]
        y = self.draw(st.sampled_from((*same, self.weight(*x.type.shape))))
        return [apply(op[self.draw(st.sampled_from(("add", "multiply")))](), x, y)]

    def softmax(self, x):
        return [apply(op["softmax"](axis=self.draw(st.integers(0, x.type.rank - 1))), x)]

    def layer_norm(self, x):
        size = x.type.shape[-1]
        return [apply(op["layer_norm"](eps=1e-3), x, self.weight(size), self.weight(size))]

    def turn(self, x):
        first = self.draw(st.integers(0, x.type.rank - 2))
        return [apply(op["transpose"](dim0=first, dim1=first + 1), x)]

    def concat(self, x):
        same = [v for v in self.values if v.type.shape == x.type.shape]
        axis = self.draw(st.integers(0, x.type.rank - 1))
        joined = apply(op["concat"](axis=axis), x, self.draw(st.sampled_from(same)))
        node = Node(op["split"](axis=axis, at=x.type.shape[axis] // 2 * 3), (joined,))
        return [joined, *([] if x.type.shape[axis] % 8 else [node.value(0), node.value(1)])]

    def reshape(self, x):
        axis = self.draw(st.integers(0, x.type.rank - 1))
        size = x.type.shape[axis]
        if size % 16 == 0:
            return [apply(op["unflatten"](axis=axis, outer=size // 4, inner=4), x)]
        if x.type.rank > 2:
            return [apply(op["flatten"](axis=0), x)]
        return []

    def gram(self, x):
        turned = apply(op["transpose"](dim0=x.type.rank - 2, dim1=x.type.rank - 1), x)
        return [apply(op["batch_matmul"](), x, turned)]


GROWTHS = (
    *("matmul", "elementwise", "binary", "softmax", "layer_norm", "turn", "concat", "reshape"),
    "gram",
)


@st.composite
def models(draw) -> Graph:
    model = Model(draw)
    for _ in range(draw(st.integers(1, 7))):
        model.grow()
    last = apply(op["matmul"](), model.values[-1], model.weight(model.values[-1].type.shape[-1], 4))
    loss = apply(op["mean_loss"](), apply(op["multiply"](), last, last))
    return Graph((loss, draw(st.sampled_from(model.values))))


class Cutter:
    """The same model with operators cut at random, and the resharding between them."""

    def __init__(self, draw) -> None:
        self.draw, self.images = draw, {}

    def cut(self, model: Graph) -> Graph:
        for node in model.nodes:
            self.images[node] = Node(node.call) if node.is_leaf else self.node(node)
        loss, other = (Value(self.images[v.node], v.port) for v in model.outputs)
        return Graph((loss, other))

    def node(self, node: Node) -> Node:
        inputs = [Value(self.images[v.node], v.port) for v in node.inputs]
        wanted = self.draw(st.sampled_from(self.options(node, inputs)))
        moved = tuple(self.move(x, t) for x, t in zip(inputs, wanted, strict=True))
        return Node(node.call, moved)

    def options(self, node: Node, inputs: list[Value]) -> list[tuple[ParallelTensor, ...]]:
        """The operand types to choose from: all types that four devices can hold and resharding
        leads to."""
        call, shapes = node.operator_call, [v.type.shape for v in inputs]
        ranks = tuple(map(len, shapes))
        typing = call.typing(ranks)
        sizes = bind_sizes(call, call.instance(ranks), shapes)
        degrees = [[d for d in (1, 2, 4) if sizes[f"|{a.name}|"] % d == 0] for a in typing.axes]
        partials = [v.type.degrees.partials for v in inputs]
        choices: list[tuple[ParallelTensor, ...]] = []
        for cuts, copies, carriers in product(
            product(*degrees), (1, 2, 4), (frozenset(), *typing.carriers)
        ):
            passing = min((partials[i] for i in carriers), default=1)
            if prod(cuts) * copies * passing > RANKS or (carriers and passing == 1):
                continue
            types = tuple(
                self.operand(typing, i, shapes[i], cuts, copies, (i in carriers, passing))
                for i in range(len(inputs))
            )
            have = [v.type.degrees for v in inputs]
            if all(t.degrees.copies % h.copies == 0 for t, h in zip(types, have, strict=True)):
                choices.append(types)
        return choices

    def operand(self, typing, i, shape, cuts, copies, passing) -> ParallelTensor:
        dims, times = [1] * len(shape), copies * (1 if passing[0] else passing[1])
        for axis, degree in zip(typing.axes, cuts, strict=True):
            position = axis.operands[i]
            if position is None:
                times *= degree
            else:
                dims[position] = degree
        partials = passing[1] if passing[0] else 1
        return ParallelTensor(shape, Degrees(tuple(dims), (1,) * len(shape), times, partials))

    def move(self, x: Value, wanted: ParallelTensor) -> Value:
        x = self.fully_sharded(x)
        have, want = x.type.degrees, wanted.degrees
        if have.partials > want.partials:
            x = apply(op["reduce"](degree=have.partials // want.partials), x)
        for dim, (a, b) in enumerate(zip(have.dims, want.dims, strict=True)):
            if a > b:
                x = apply(op["combine"](dim=dim, degree=a // b), x)
            if b > a:
                x = apply(op["partition"](dim=dim, degree=b // a), x)
        if want.copies > have.copies:
            x = apply(op["replicate"](degree=want.copies // have.copies), x)
        assert x.type == wanted
        return x

    def fully_sharded(self, x: Value) -> Value:
        """Sometimes a weight that is fully sharded and gathered before use."""
        if not x.node.is_leaf or x.node.leaf.kind == "input" or not self.draw(st.booleans()):
            return x
        degree = self.draw(st.sampled_from((2, 4)))
        stored = apply(op["partition"](dim=0, degree=degree), x)
        return apply(op["combine"](dim=0, degree=degree), stored)


@st.composite
def views_of(draw, graph: Graph) -> dict[str, MachineView]:
    names = node_names(graph)
    views: dict[str, MachineView] = {}
    for node in graph.nodes:
        if node.is_leaf or node.is_parallel:
            continue
        *cuts, copies = grid(node)
        # With enough ranks, two may compute the same.
        times = draw(st.integers(1, min(2, RANKS // (prod(cuts) * copies))))
        shape = (*cuts, copies * times)
        order = draw(st.permutations(range(len(shape))))
        start = draw(st.integers(0, RANKS - prod(shape)))
        views[names[node][0]] = MachineView.packed(start, shape, tuple(order))
    return views


@st.composite
def orders_of(draw, graph: Graph) -> tuple[Node, ...]:
    places = draw(st.permutations(range(len(graph.computing))))
    return ordered(graph, dict(zip(graph.computing, places, strict=True)))


def drawn_plan(data: st.DataObject) -> Plan:
    model = data.draw(models(), label="model")
    graph = Cutter(data.draw).cut(model)
    views = data.draw(views_of(graph))
    print(print_graph(model), print_graph(graph), sep="\n")
    plan = make_plan(model, graph, RANKS, views)
    nodes = [node for node in graph.nodes if not node.is_leaf]
    again = frozenset(data.draw(st.sets(st.sampled_from(nodes))))
    return replace(plan, recompute=again, order=data.draw(orders_of(graph)))

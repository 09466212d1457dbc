"""Graphs with annotations of some tensors, as users of GSPMD write them, for four devices."""

from __future__ import annotations

from dataclasses import dataclass

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.plan.text import parse_graph
from search.planners.common import PlannerSetting
from search.planners.gspmd.planner import GspmdPlanner
from substitutions.rules.store import load_library


@dataclass(frozen=True)
class ShardedByUsers:
    """A model and the annotations of its user."""

    text: str
    mesh: str
    shards: tuple[str, ...]

    @property
    def graph(self) -> Graph:
        return parse_graph(self.text)

    @property
    def planner(self) -> GspmdPlanner:
        machine = load_machine("tests/data/four-devices.toml").with_devices(4)
        return GspmdPlanner(PlannerSetting(machine, load_library()), self.mesh, self.shards)


LAYERS = """
x = input[8, 4, 12]
w1 = weight[12, 16]
b1 = weight[16]
w2 = weight[16, 12]
b2 = weight[12]
a = gelu(x)
h = matmul(a, w1)
r = gelu(add(h, expand_vector(h, b1, axis=2)))
y = matmul(r, w2)
z = add(a, add(y, expand_vector(y, b2, axis=2)))
return mean_loss(multiply(z, z)), z
"""
MEGATRON = ShardedByUsers(LAYERS, "data=2,model=2", ("x=data,-,-", "w1=-,model"))
"""The columns of one product are annotated. The rows of the next one follow."""
TWO_DIMENSIONS = ShardedByUsers(
    LAYERS, "data=2,model=2", ("x=data,-,model", "w1=data,model", "w2=model,data")
)
"""The dense layers of GSPMD's table 1: activations and weights cut along both axes."""
EXPERTS = ShardedByUsers(
    """
x = input[4, 8, 3, 6]
w1 = weight[8, 6, 10]
w2 = weight[8, 10, 6]
places = flatten(transpose(x, dim0=0, dim1=1), axis=1)
made = batch_matmul(relu(batch_matmul(places, w1)), w2)
y = transpose(unflatten(made, axis=1, outer=4, inner=3), dim0=0, dim1=1)
return mean_loss(multiply(y, x)), y
""",
    "data=4",
    ("x=data,-,-,-", "t1=data,-,-", "w1=data,-,-", "w2=data,-,-", "t4=data,-,-", "t6=data,-,-,-"),
)
"""Tokens in groups, along the mesh axis of the experts: they go to the experts and back."""
SPATIAL = ShardedByUsers(
    """
x = input[2, 3, 16, 8]
k1 = weight[4, 3, 3, 3]
k2 = weight[2, 4, 3, 3]
a = relu(conv2d(x, k1, height=16, width=8, stride_h=1, stride_w=1, top=1, left=1,\
 dilation_h=1, dilation_w=1))
y = conv2d(a, k2, height=16, width=8, stride_h=1, stride_w=1, top=1, left=1,\
 dilation_h=1, dilation_w=1)
return mean_loss(multiply(y, y)), y
""",
    "data=2,rows=2",
    ("x=data,-,rows,-",),
)
EVERY = {
    "megatron": MEGATRON,
    "two dimensions": TWO_DIMENSIONS,
    "experts": EXPERTS,
    "spatial": SPATIAL,
}

"""The zoo: the functions and sizes of the models, and models from a user's file."""

from __future__ import annotations

import resource
from collections import Counter
from pathlib import Path

import pytest
import torch
from support.cases import a_third
from support.graphs.capturing import assert_agrees, bounds_of, filled
from support.graphs.torch_functions import default_dtype

from pcg.errors import InputError
from pcg.graph.graph import Graph
from pcg.models import MODELS, build_model, capture_model
from pcg.models.mlp import mlp
from pcg.ops.parallel import partition
from pcg.plan.text import print_graph
from pcg.types.infer import infer
from pcg.types.operator import Call

TINY = [name for name in MODELS if name.endswith("-tiny")]

FULL = {
    "mlp": (16 * 8192**2, 35),
    # Torchvision and Hugging Face state these, the last with a head that predicts masked tokens.
    "resnext50": (25_028_904, 179),
    "inception-v3": (23_834_568, 337),
    "bert-large": (335_174_458, 786),
    # Tables, then layers.
    "dlrm": (8 * 10**6 * 256 + 8 * 1024**2 + (3 * 1024) * 1024 + 3 * 1024**2 + 1024, 46),
    "xdl": (4 * 10**6 * 64 + 2 * 256**2 + 256 * 2, 13),
    "candle-uno": (
        (942 + 5270 + 2048 + 5270 + 2048) * 4192 + 35 * 4192**2 + 20962 * 4192 + 3 * 4192**2 + 4192,
        99,
    ),
}
"""The numbers of parameters and operators."""


def parameters(graph: Graph) -> int:
    return sum(n.value().type.elements for n in graph.leaves if n.leaf.kind == "weight")


@pytest.mark.parametrize("name", a_third(TINY))
def test_tiny_models_compute_what_torch_does(name: str) -> None:
    captured = capture_model(name, 4, 1)
    assert captured.opaque == ()
    assert captured.buffers == {}
    with default_dtype(torch.float64):
        generator = torch.manual_seed(1)
        module, inputs = MODELS[name].make(4)
        given = filled(inputs, bounds_of(captured), generator)
        assert_agrees(module, given, captured)


LARGE = ("inception-v3", "bert-large", "resnext50")
"""Models that take long to capture."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.soak if n in LARGE else ()) for n in FULL]
)
def test_full_models_have_the_published_sizes(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = build_model(name, None, 2)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    operators = sum(not node.is_leaf for node in graph.nodes)
    assert (parameters(graph), operators) == FULL[name]
    # In KiB: dlrm's tables alone would take 8 GiB.
    assert grown < 1 << 19


def test_each_model_has_a_tiny_size() -> None:
    assert {f"{name}-tiny" for name in FULL} == set(TINY)
    assert set(FULL) | set(TINY) | {"mlp-mnist"} == set(MODELS)


def test_batch_grows_with_the_devices() -> None:
    graph = build_model("xdl-tiny", None, 3)
    shapes = {node.leaf.name: node.value().type.shape for node in graph.leaves}
    assert shapes["labels"] == shapes["ids_3"] == (3 * 48,)


def test_perceptrons_are_the_products_that_they_were() -> None:
    assert print_graph(mlp(64, (784, 512, 10))) == (
        "x = input[64, 784]\n"
        "w1 = weight[784, 512]\n"
        "t0 = matmul(x, w1)\n"
        "t1 = relu(t0)\n"
        "w2 = weight[512, 10]\n"
        "t2 = matmul(t1, w2)\n"
        "target = input[64, 10]\n"
        "t3 = scale(target, factor=-1.0)\n"
        "t4 = add(t2, t3)\n"
        "t5 = multiply(t4, t4)\n"
        "t6 = mean_loss(t5)\n"
        "return t6\n"
    )


def test_attention_heads_may_be_cut() -> None:
    """From the projection of the queries to the product after attention, by the same degree: its
    columns, the heads, and the rows of the next weight."""
    graph = build_model("bert-large-tiny", 2, 1)
    attention = next(node for node in graph.nodes if node.name == "attention")
    assert str(attention.types[0]) == "[2, 12, 24, 8]"
    value = attention.inputs[0]
    chain: list[Call] = []
    while value.node.name != "add":
        chain.append(value.node.operator_call)
        value = value.node.inputs[0]
    assert [call.name for call in chain] == ["transpose", "unflatten"]
    (cut,) = infer(partition(dim=2, degree=4), [value.type])
    for call in reversed(chain):
        (cut,) = infer(call, [cut])
    assert str(cut) == "[2, 12/4, 24, 8]"
    (out,) = infer(attention.operator_call, [cut] * 3)
    after: list[str] = []
    node = attention
    while node.name != "matmul":
        (node,) = graph.users[node]
        after.append(node.name)
        if node.name != "matmul":
            (out,) = infer(node.operator_call, [out])
    assert after == ["transpose", "flatten", "matmul"]
    assert str(out) == "[2, 24, 96/4]"


MINE = """\
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x, labels, scale=None):
        return nn.functional.cross_entropy(self.layer(x) * self.scale, labels)

def make_model():
    return Mine(), (torch.zeros(4, 6), torch.zeros(4, dtype=torch.long))

def make_none():
    return None

def make_failing():
    raise ValueError("no weights")

def make_scalar():
    return Mine(), (torch.tensor(1.0),)

def make_wrong():
    return Mine(), (torch.zeros(4, 5), torch.zeros(4, dtype=torch.long))

number = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize(("batch", "devices", "rows"), [(None, 1, 4), (None, 3, 12), (64, 3, 64)])
def test_models_from_a_file(mine: Path, batch: int | None, devices: int, rows: int) -> None:
    captured = capture_model(f"{mine}:make_model", batch, devices)
    shapes = {n.leaf.name: n.value().type.shape for n in captured.graph.leaves}
    assert shapes["x"] == (rows, 6)
    assert shapes["labels"] == (rows,)
    assert Counter(w.parameter for w in captured.weights) == Counter(
        ("layer.weight", "layer.bias", "scale")
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("{}", "expected FILE.py:FUNCTION"),
        ("{}:missing", "{}:missing: no such function"),
        ("{}:number", "{}:number: no such function"),
        ("{}:make_none", "returned NoneType, expected a torch module and a tuple"),
        ("{}:make_failing", "line 20: make_failing raised ValueError: no weights"),
        ("{}:make_scalar", "example inputs have no batch"),
        (
            "{}:make_wrong",
            "{}: line 11: torch.export: RuntimeError: a and b must have same",
        ),
        ("no/such.py:make", "no/such.py: no such file"),
    ],
)
def test_wrong_models_are_one_line(mine: Path, name: str, problem: str) -> None:
    with pytest.raises(InputError) as raised:
        build_model(name.format(mine), None, 1)
    assert problem.format(mine) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_fails_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import torch\n1 / 0\n")
    with pytest.raises(InputError, match=r"broken.py: line 2: ZeroDivisionError"):
        build_model(f"{path}:make_model", None, 1)

"""Operators from a user's file: a declaration that contradicts itself is caught by name."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.cases import check_each, each
from support.graphs.operators import known_within
from torch import Tensor
from torch.nn import functional

from pcg.errors import InputError
from pcg.ops import OPERATORS
from pcg.types.operator import Kernel, Operator
from pcg.types.task import KernelTask
from unity.__main__ import main
from unity.support.declarations import load_user_operators
from unity.support.kernels import kernel_problem

BILINEAR = "out[b, o] = sum i, j: x[b, i] * w[o, i, j] * y[b, j]"
SQUARED_RELU = "out[i...] = relu(x[i...]) * relu(x[i...])"
LOOK_UP = "out[b..., d] = sum v: (ids[b...] == v) * table[v, d]"
MEAN = "out[] = (sum i...: x[i...]) / |i...|"
HEAD = """
from pcg.lazy import torch
from pcg.types.operator import Operator

"""


@pytest.fixture(autouse=True)
def _restored():
    with known_within():
        yield


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my_ops.py"
    path.write_text(HEAD + text, "utf-8")
    return path


def declared(name: str, equation: str, stated: str) -> str:
    return f'op = Operator("{name}", "{equation}", {stated})\n'


def refusal(tmp_path: Path, text: str) -> str:
    """The reason why a file is refused, without the file's name. Checks that the table of operators
    is unchanged."""
    path, before = written(tmp_path, text), dict(OPERATORS)
    with pytest.raises(InputError) as error:
        load_user_operators(path)
    assert before == OPERATORS
    assert error.value.exit_status == 2
    return str(error.value).removeprefix(f"{path}: ")


def test_right_declarations_join_the_table(tmp_path: Path):
    kernel = "lambda task, x, w, y: torch.einsum('bi,oij,bj->bo', x, w, y)"
    text = declared("bilinear", BILINEAR, f"kernel={kernel}")
    text += 'both = Operator("both", "out[i...] = x[i...] * y[i...] + 1", commutative=True)\n'
    assert [o.name for o in load_user_operators(written(tmp_path, text))] == ["bilinear", "both"]
    assert {"bilinear", "both"} <= OPERATORS.keys()


@pytest.mark.parametrize(
    "names",
    [
        ("matmul", "split", "embedding", "layer_norm", "mean_loss", "identity_matrix"),
        pytest.param(
            (
                *("softmax", "concat", "unflatten", "embedding_bag", "conv2d", "grouped_conv2d"),
                *("max_pool2d", "one_hot", "causal_attention", "cumulative_sum"),
            ),
            marks=pytest.mark.soak,
        ),
    ],
    ids=["some", "others"],
)
def test_right_kernels_pass(names: tuple[str, ...]):
    def check(name: str) -> None:
        assert OPERATORS[name].kernel is not None
        assert kernel_problem(OPERATORS[name]) is None

    check_each(names, check)


def test_constants_are_made_as_before():
    before = torch.get_default_dtype()
    assert kernel_problem(OPERATORS["matmul"]) is None
    assert kernel_problem(replace(OPERATORS["matmul"], kernel=lambda task, x, w: None))
    assert torch.get_default_dtype() == before


def local_mean(task: KernelTask, x: Tensor) -> Tensor:
    """Correct for whole operands. For a block, it divides by the size of the block."""
    return x.mean()


def overwriting(task: KernelTask, x: Tensor) -> Tensor:
    return x.detach().mul_(2)


def picky(task: KernelTask, x: Tensor) -> Tensor:
    """A kernel that refuses an attribute of no use, as kernels of torch may."""
    if task.attributes["step"] == 0:
        raise ValueError("a step of 0")
    return x * task.attributes["step"]


DISAGREES = "its kernel disagrees with its equation on shapes"
NUMBERS = r"-?[\d.e-]+, expected -?[\d.e-]+"
PRODUCT = "out[a, c] = sum b: x[a, b] * y[b, c]"

WRONG: list[tuple[Operator, str]] = [
    (
        Operator(
            "bilinear",
            BILINEAR,
            kernel=lambda task, x, w, y: 2 * torch.einsum("bi,oij,bj->bo", x, w, y),
        ),
        rf"{DISAGREES} \[\d, \d\], \[\d, \d, \d\], \[\d, \d\]: element \[0, 0\] is {NUMBERS}",
    ),
    (
        Operator(
            "squared_relu",
            SQUARED_RELU,
            kernel=lambda task, x: torch.relu(x) * torch.relu(x).detach(),
        ),
        rf"{DISAGREES} \[.*\]: the gradient of x at element \[.*\] is {NUMBERS}",
    ),
    (
        Operator("squared_relu", SQUARED_RELU, kernel=lambda task, x: torch.relu(x).detach() ** 2),
        r"the gradient of x at element \[.*\] is 0, expected",
    ),
    (
        Operator("total", "out[] = sum i...: x[i...]", kernel=lambda task, x: x.sum(0, True)),
        r"its kernel returns shape \[1\] on shapes \[\d\], expected \[\]",
    ),
    (
        Operator(
            "product", "out[a, c] = sum b: x[a, b] * y[b, c]", kernel=lambda task, x, y: y @ x
        ),
        r"its kernel raises RuntimeError: (mm: )?mat1 and mat2 .* on shapes \[\d, \d\], \[\d, \d\]",
    ),
    (
        Operator("double", "out[i...] = 2 * x[i...]", kernel=lambda task, x, y: x + y),
        r"its kernel raises TypeError: .* missing 1 required positional argument: 'y'",
    ),
    (
        Operator("double", "out[i...] = 2 * x[i...]", kernel=lambda task, x: None),
        r"its kernel returns a NoneType on shapes \[\], expected a tensor",
    ),
    (
        Operator("double", "out[i...] = 2 * x[i...]", kernel=lambda task, x: (x + x, x)),
        r"its kernel returns 2 tensors on shapes \[\], expected 1",
    ),
    (
        Operator("double", "out[i...] = 2 * x[i...]", kernel=overwriting),
        r"the gradient of x at element \[\] is 0, expected",
    ),
    (
        Operator(
            "halves",
            "x[n] -> a[i < at] = x[i]; b[j < |n| - at] = x[at + j]",
            ("at",),
            kernel=lambda task, x: (x[: task.attributes["at"]], -x[task.attributes["at"] :]),
        ),
        r"with at=\d: element \[\d\] of b is ",
    ),
    (
        Operator(
            "shifted",
            "out[i...] = x[i...] + by",
            reals=("by",),
            kernel=lambda task, x: x + abs(task.attributes["by"]),
        ),
        r"with by=-[\d.]+: element \[.*\] is ",
    ),
    (
        Operator("mean_all", MEAN, kernel=local_mean),
        rf"{DISAGREES} \[\d\] \(the second half of index i0\): element \[\] is {NUMBERS}",
    ),
    (
        Operator(
            "look_up",
            LOOK_UP,
            kernel=lambda task, ids, table: functional.embedding(ids.long(), table),
        ),
        r"its kernel raises IndexError: .* \(the second half of index v\)",
    ),
    (
        Operator("stepped", "out[i...] = x[i...] * 2 * step", ("step",), kernel=picky),
        r"with step=\d: element \[.*\] is ",
    ),
    (
        Operator(
            "hopeless",
            "x[n] -> out[i < at] = x[i]",
            ("at",),
            kernel=lambda task, x: x[: task.attributes["to"]],
        ),
        r"its kernel raises KeyError: 'to' on shapes \[\d\] with at=\d",
    ),
    (
        Operator("nowhere", "out[i...] = log(-1 - x[i...] * x[i...])", kernel=lambda task, x: x),
        r"its kernel cannot be compared: no small sizes .* at ranks 0",
    ),
]


@each(("operator", "says"), WRONG, ids=[o.name for o, _ in WRONG])
def test_a_wrong_kernel_is_found_out(operator: Operator, says: str):
    problem = kernel_problem(operator)
    assert problem is not None
    assert re.search(says, problem), problem


@pytest.mark.parametrize(
    ("equation", "kernel"),
    [
        (MEAN, lambda task, x: x.sum() / task.elements("i")),
        ("out[i...] = log(x[i...])", lambda task, x: torch.log(x)),
        ("out[i...] = (x[i...] == 0) * 2", lambda task, x: 2.0 * (x == 0)),
    ],
)
def test_kernels_need_to_agree_only_where_the_equation_has_a_value(equation: str, kernel: Kernel):
    assert kernel_problem(Operator("op", equation, kernel=kernel)) is None


def test_a_kernel_may_refuse_attributes_of_no_use():
    operator = Operator("stepped", "out[i...] = x[i...] * step", ("step",), kernel=picky)
    assert kernel_problem(operator) is None


def test_the_file_and_the_operator_are_named(tmp_path: Path):
    text = declared("fine", SQUARED_RELU, "kernel=lambda task, x: torch.relu(x) ** 2")
    text += declared("square", "out[i...] = x[i...] * x[i...]", "kernel=lambda task, x: 2 * x")
    problem = refusal(tmp_path, text.replace("op =", "first =", 1))
    assert problem.startswith("operator square: its kernel disagrees with its equation on shapes ")


@pytest.mark.parametrize(
    ("equation", "says"),
    [
        (
            "out[i...] = x[i...] - y[i...]",
            "declared commutative, but exchanging its operands is refuted: x: [], y: []: element",
        ),
        (
            PRODUCT,
            "declared commutative, but exchanging its operands is ",
        ),
        ("out[i...] = x[i...]", "declared commutative, but takes 1 operands"),
        ("out[i, j] = x[i, j] * y[j]", "declared commutative, but its operands may have ranks 2"),
    ],
)
def test_a_wrong_claim_to_be_commutative_is_found_out(equation: str, says: str, tmp_path: Path):
    problem = refusal(tmp_path, declared("op", equation, "commutative=True"))
    assert problem.startswith(f"operator op: {says}")


@pytest.mark.parametrize(
    "command",
    [
        ("verify", "rules.json"),
        ("generate", "--out", "."),
        ("optimize", "mlp-tiny"),
        ("run", "plan.json"),
    ],
    ids=lambda command: command[0],
)
def test_all_commands_refuse_a_wrong_declaration(
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    text = declared("square", "out[i...] = x[i...] * x[i...]", "kernel=lambda task, x: 2 * x")
    written(tmp_path, text)
    monkeypatch.setattr("sys.argv", ["unity", *command, "--operators", "my_ops.py"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("unity: error: my_ops.py: operator square: its kernel disagrees")
    assert len(printed.err.splitlines()) == 1

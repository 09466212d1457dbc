"""False declarations of batched functions."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest
import torch

from pcg.errors import InputError, OperatorError
from pcg.graph.graph import apply, leaf
from pcg.graph.opaque import TensorType, batched, parse_declaration
from pcg.graph.slicewise import SharedIndex
from pcg.ops.parallel import partition, replicate
from pcg.plan.text import parse_graph, print_graph
from pcg.types.task import KernelTask

ROWS = TensorType((4, 6), "float32")
CALL = "aten.cumsum.default(x0, 1)"
TASK = KernelTask({}, {}, {})


def declaration(function: str, reads: list[str], writes: list[str], axes: str) -> str:
    """A declaration with the name that a forger would give it."""
    target = function.partition("(")[0].split(".")
    spec = json.dumps([function, reads, writes, *axes.split("; ")])
    name = f"{'_'.join(target[1:])}_{sha256(spec.encode()).hexdigest()}"
    return f"batched {name} = {function} : {', '.join(reads)} -> {', '.join(writes)} along {axes}"


X = "[4, 6] float32"


def test_true_declaration_is_read_and_printed() -> None:
    line = declaration(CALL, [X], [X], "0 -> 0")
    operator = parse_declaration(line)
    assert operator is not None
    assert operator.name == batched(CALL, [ROWS], [ROWS]).name
    assert operator.declaration == line
    text = f"{line}\nx = input[4, 6]\nt0 = {operator.name}(x)\nreturn t0\n"
    assert print_graph(parse_graph(text)) == text


@pytest.mark.parametrize(
    ("function", "reads", "writes", "axes", "problem"),
    [
        # Functions of the whole axis.
        (CALL, [X], [X], "1 -> 1", "not independent along 1 -> 1"),
        (CALL, [X], [X], "0 -> 0; 1 -> 1", "not independent along 1 -> 1"),
        ("aten.cumsum.default(x0, -1)", [X], [X], "1 -> 1", "not independent"),
        ("aten.cumsum.default(x0, 0)", [X], [X], "0 -> 0", "not independent"),
        ("aten.sort.default(x0)", [X], [X, "[4, 6] int64"], "1 -> 1, 1", "not independent"),
        ("aten.roll.default(x0, [1])", [X], [X], "0 -> 0", "not independent"),
        ("aten.softmax.int(x0, 1)", [X], [X], "1 -> 1", "not independent"),
        # Functions that the table does not know.
        ("aten.tril.default(x0)", [X], [X], "0 -> 0", "not independent"),
        ("aten.view.default(x0, [4, 6])", [X], [X], "0 -> 0", "not independent"),
        ("aten.nonzero.default(x0)", [X], ["[24, 2] int64"], "0 -> 0", "not independent"),
        # Invalid axes.
        (CALL, [X], [X], "0 -> 1", "not independent"),
        (CALL, [X], [X], "7 -> 7", "not independent"),
        (CALL, [X], [X], "0, 0 -> 0", "not independent"),
        (CALL, [X], [X], "- -> 0", "not independent"),
        (CALL, [X], [X], "0 -> 0; 0 -> 0", "no axis, or along one twice"),
        (CALL, [X], [X], "", "expected .batched NAME"),
        (CALL, [X], [X], "0", "expected dimensions"),
        (CALL, [X], [X], "0 -> ", "expected dimensions"),
        (CALL, [X], [X], "-1 -> -1", "expected dimensions"),
        (CALL, [X], [X], "0 -> 0x0", "expected dimensions"),
        (CALL, [X], [X], "\u0661 -> 0", "expected dimensions"),
        (CALL, [X], [X], f"{'9' * 5000} -> 0", "expected dimensions"),
        # Operands whose sizes do not fit together.
        (
            "aten.gather.default(x0, 1, x1)",
            [X, "[2, 6] int64"],
            ["[2, 6] float32"],
            "0, 0 -> 0",
            "not independent",
        ),
        # Functions that do more than compute.
        ("aten.cumsum_.default(x0, 1)", [X], [X], "0 -> 0", "changes its operands"),
        ("aten.multinomial.default(x0, 6)", [X], [X], "0 -> 0", "draws random numbers"),
        (
            "aten.rnn_tanh.input(x0, x1, [x2, x3], False, 1, 0.5, True, False, True)",
            ["[4, 5, 6] float32", "[1, 4, 6] float32", X, X],
            ["[4, 5, 6] float32", "[1, 4, 6] float32"],
            "0, 1, -, - -> 0, 1",
            "draws random numbers",
        ),
    ],
)
def test_false_declaration_is_refused(
    function: str, reads: list[str], writes: list[str], axes: str, problem: str
) -> None:
    line = declaration(function, reads, writes, axes)
    with pytest.raises(InputError, match=rf"^graph: line 1: .*{problem}"):
        parse_graph(f"{line}\nx = input[4, 6]\nreturn x\n")


@pytest.mark.parametrize("changed", ["opaque", "elementwise"])
def test_declaration_with_the_name_of_another_kind_is_refused(changed: str) -> None:
    line = declaration(CALL, [X], [X], "0 -> 0").replace("batched", changed, 1)
    with pytest.raises(ValueError, match=r"expected|does not name|unknown number format"):
        parse_declaration(line)
    with pytest.raises(ValueError, match="expected 'batched NAME"):
        parse_declaration(declaration(CALL, [X], [X], "0 -> 0").partition(" along")[0])


def test_declaration_with_fewer_axes_is_another_operator() -> None:
    cube = TensorType((4, 6, 8), "float32")
    every = batched(CALL, [cube], [cube])
    one = batched(CALL, [cube], [cube], [SharedIndex((0,), (0,))])
    assert (len(every.axes), len(one.axes)) == (2, 1)
    assert every.name != one.name
    assert every.form != one.form


def test_types_refuse_other_cuts_and_other_sizes() -> None:
    operator = batched(CALL, [ROWS], [ROWS])
    x = leaf("input", "x", (4, 6))
    assert str(apply(operator(), apply(partition(dim=0, degree=2), x)).type) == "[4/2, 6]"
    assert str(apply(operator(), apply(replicate(degree=2), x)).type) == "[4, 6] copies=2"
    with pytest.raises(OperatorError, match="degree 2, expected 1"):
        _ = apply(operator(), apply(partition(dim=1, degree=2), x)).type
    with pytest.raises(OperatorError):
        _ = apply(operator(), leaf("input", "x", (4, 7))).type
    partial = parse_graph("x = input[4, 6] partials=2\nreturn x").outputs[0]
    with pytest.raises(OperatorError, match="partial sums cannot pass"):
        _ = apply(operator(), partial).type


def test_a_function_that_returns_something_else_is_refused() -> None:
    """If the declaration is wrong, so are the results."""
    operator = batched("aten.topk.default(x0, 2)", [ROWS], [TensorType((4, 3), "float32")] * 2)
    kernel: Any = operator.kernel
    with pytest.raises(OperatorError, match="returned tensors of shape"):
        kernel(TASK, torch.ones(4, 6))
    with pytest.raises(ValueError, match="returns"):
        operator.check_results()

"""Calls of torch's functions in a plan: calls that do more than compute, or whose results differ
from the plan, are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from typing import Any

import pytest
import torch
from support.borders import refused
from support.cases import a_third
from support.plans.forged_plans import Content, both, must_refuse, sign

from pcg.errors import OperatorError
from pcg.graph.opaque import TensorType, opaque, parse_declaration
from pcg.graph.torch_calls import (
    ATTENTION,
    FORMATS,
    TorchCall,
    _check_function,
    _resolved,
    _results,
    parse_call,
)
from unity.audit import app

SQUARE = TensorType((4, 4), "float32")
TASK: Any = None
"""No kernel of torch's reads its task."""


def declared(function: str, reads: list[str], writes: list[str]) -> tuple[str, str]:
    """The name of an opaque operator, and its declaration, as a forger would write them."""
    target = function.partition("(")[0].split(".")
    digest = sha256(json.dumps([function, reads, writes]).encode()).hexdigest()
    name = f"{target[1]}_{target[2]}_{digest}"
    return name, f"opaque {name} = {function} : {', '.join(reads)} -> {', '.join(writes)}"


X, Y = "[8, 6] float32", "[8, 6] float32"
CALLS: dict[str, tuple[str, list[str], list[str]]] = {
    "a file that is mapped": ("aten.from_file.default('made', True, 48)", [], ["[48] float32"]),
    "a file that is read": (
        "aten.from_file.default('/etc/passwd', False, 48)",
        [],
        ["[48] float32"],
    ),
    "a file by its keyword": (
        "aten.from_file.default(filename='made', shared=True, size=48)",
        [],
        ["[48] float32"],
    ),
    "a fill in place": ("aten.fill_.Scalar(x0, 0.0)", [X], [Y]),
    "an addition in place": ("aten.add_.Tensor(x0, x0)", [X], [Y]),
    "an output that is given": ("aten.add.out(x0, x0, out=x0)", [X], [Y]),
    "a copy in place": ("aten.copy_.default(x0, x1)", [X, X], [Y]),
    "another storage": ("aten.set_.source_Tensor(x0, x1)", [X, X], [Y]),
    "another size": ("aten.resize_.default(x0, [100, 100])", [X], [Y]),
    "an assignment": ("aten.index_put_.default(x0, [x1], x0)", [X, "[8] int64"], [Y]),
    "statistics in place": (
        "aten.instance_norm.default(x0, None, None, x1, x1, True, 0.1, 1e-5, False)",
        ["[8, 6, 2] float32", "[6] float32"],
        ["[8, 6, 2] float32"],
    ),
    "an addition to all": ("aten._foreach_add_.Scalar([x0], 1.0)", [X], [Y]),
    "random numbers": ("aten.rand.default([8, 6])", [], [Y]),
    "random numbers like others": ("aten.randn_like.default(x0)", [X], [Y]),
    "dropout": ("aten.dropout.default(x0, 0.5, True)", [X], [Y]),
    "dropout of torch's own": (
        "aten.native_dropout.default(x0, 0.5, True)",
        [X],
        [Y, "[8, 6] bool"],
    ),
    "attention with dropout": (
        "aten.scaled_dot_product_attention.default(x0, x0, x0, None, 0.5)",
        ["[2, 8, 6] float32"],
        ["[2, 8, 6] float32"],
    ),
    "attention with dropout by its keyword": (
        "aten.scaled_dot_product_attention.default(x0, x0, x0, dropout_p=1e-9)",
        ["[2, 8, 6] float32"],
        ["[2, 8, 6] float32"],
    ),
    "a generator": ("aten.bernoulli.default(x0, generator=None)", [X], [Y]),
    "memory as it is": ("aten.empty.memory_format([8, 6])", [], [Y]),
    "memory like another": ("aten.empty_like.default(x0)", [X], [Y]),
    "memory of a new one": ("aten.new_empty.default(x0, [8, 6])", [X], [Y]),
    "a device": ("aten.to.device(x0, 'cuda', float32)", [X], [Y]),
    "a device by its keyword": ("aten.full.default([8, 6], 1.0, device='cuda')", [], [Y]),
    "a device as a number": ("aten._to_copy.default(x0, device=0)", [X], [Y]),
    "a layout": ("aten._to_copy.default(x0, layout=0)", [X], [Y]),
    "a number of a tensor": ("aten.item.default(x0)", ["[] float32"], ["[] float32"]),
    "a warning": ("aten.warn.default('hello')", [], [Y]),
    "an internal function of torch": (
        "aten._cdist_forward.bogus(x0, x0, 2.0, None)",
        [X],
        ["[8, 8] float32"],
    ),
    "an unchecked index": ("aten._unsafe_index.Tensor(x0, [x1])", [X, "[8] int64"], [Y]),
    "a text as an option": ("aten.gelu.default(x0, approximate='tanh; import os')", [X], [Y]),
    "a long text": (f"aten.einsum.default('{'a' * 1000}', [x0])", [X], [Y]),
    "a text in the place of a tensor": ("aten.relu.default('made')", [], [Y]),
    "bytes": ("aten.relu.default(b'made')", [], [Y]),
    "a lambda": ("aten.relu.default(lambda: 0)", [X], [Y]),
    "a call within": ("aten.relu.default(aten.fill_.Scalar(x0, 0.0))", [X], [Y]),
    "an attribute within": ("aten.relu.default(x0.data)", [X], [Y]),
    "a comprehension": ("aten.cat.default([x0 for x0 in [x0]])", [X], [Y]),
    "an unpacked list": ("aten.cat.default(*[[x0]])", [X], [Y]),
    "unpacked names": ("aten.relu.default(**{'self': x0})", [X], [Y]),
    "an operand that is not there": ("aten.relu.default(x7)", [X], [Y]),
    "an operand of huge number": (f"aten.relu.default(x{'9' * 5000})", [X], [Y]),
    "too many arguments": ("aten.relu.default(x0, x0, x0)", [X], [Y]),
    "an argument twice": ("aten.relu.default(x0, self=x0)", [X], [Y]),
    "an unknown argument": ("aten.relu.default(x0, out=x0)", [X], [Y]),
    "too few arguments": ("aten.relu.default()", [X], [Y]),
    "a dunder": ("aten.__class__.default(x0)", [X], [Y]),
    "a module's dunder": ("aten.__dict__.default(x0)", [X], [Y]),
    "an overload's dunder": ("aten.relu.__init__(x0)", [X], [Y]),
    "a name of the table": ("aten.name.default(x0)", [X], [Y]),
    "an overload that is not there": ("aten.relu.Tensor(x0)", [X], [Y]),
    "another namespace": ("prims.relu.default(x0)", [X], [Y]),
    "a module": ("os.system.default('touch made')", [], [Y]),
    "a longer path": ("aten.relu.default.__globals__.get(x0)", [X], [Y]),
    "no call": ("aten.relu.default", [X], [Y]),
    "nested brackets": (f"aten.cat.default({'[' * 10_000}x0{']' * 10_000})", [X], [Y]),
    "nested minuses": (f"aten.add.Scalar(x0, {'-' * 20_000}1)", [X], [Y]),
    "a number of 5,000 digits": (f"aten.add.Scalar(x0, {'9' * 5000})", [X], [Y]),
    "a number of 30 digits": (f"aten.add.Scalar(x0, {10**30})", [X], [Y]),
    "a call of a megabyte": (f"aten.full.default([{'1, ' * 350_000}1], 1.0)", [], [Y]),
    "a complex format": ("aten.relu.default(x0)", ["[8, 6] complex64"], ["[8, 6] complex64"]),
    "a quantized format": ("aten.relu.default(x0)", ["[8, 6] qint8"], ["[8, 6] qint8"]),
    "a format that is none": ("aten.relu.default(x0)", ["[8, 6] save"], ["[8, 6] save"]),
    "100,000 axes": ("aten.relu.default(x0)", [f"[{'1, ' * 99_999}1] float32"], [Y]),
    "a size of 10^30": ("aten.relu.default(x0)", [f"[{10**30}] float32"], [f"[{10**30}] float32"]),
}
RESULTS: dict[str, tuple[str, list[str], list[str]]] = {
    "the device itself": ("aten.cuda.default(x0)", [X], [Y]),
    "another layout": ("aten.to_sparse.default(x0)", [X], [Y]),
    "locked memory": ("aten.pin_memory.default(x0)", [X], [Y]),
    "places of what is not 0": ("aten.nonzero.default(x0)", [X], ["[8, 2] int64"]),
    "a view beyond its tensor": ("aten.as_strided.default(x0, [8, 6], [1000000000, 1])", [X], [Y]),
    "10^12 elements": ("aten.full.default([1000000, 1000000], 1.0)", [], [Y]),
    "10^36 elements": (
        "aten.full.default([1000000000000, 1000000000000, 1000000000000], 1.0)",
        [],
        [Y],
    ),
    "parts without end": ("aten.split.Tensor(x0, 1)", ["[100000000000] float32"], [Y]),
    "another shape": ("aten.relu.default(x0)", [X], ["[6, 8] float32"]),
    "more results": ("aten.relu.default(x0)", [X], [Y, Y]),
    "another number format": ("aten.relu.default(x0)", [X], ["[8, 6] int64"]),
    "shapes that do not fit": ("aten.mm.default(x0, x0)", [X], [Y]),
}
"""Calls whose fault shows only when they are tried."""


def with_call(function: str, reads: list[str], writes: list[str]) -> Callable[[Content], None]:
    """A plan whose model and graph call a function."""
    name, declaration = declared(function, reads, writes)
    leaves = [f"x{i} = input[8, 6]" for i in range(1, len(reads))]
    given = ", ".join(["x", *(f"x{i}" for i in range(1, len(reads)))][: len(reads)])
    names = ", ".join(f"t{i}" for i in range(len(writes)))

    def change(content: Content) -> None:
        lines = [
            declaration,
            "x = input[8, 6]",
            *leaves,
            "w1 = weight[6, 6]",
            f"{names} = {name}({given})",
        ]
        lines += ["y = matmul(x, w1)", "return mean_loss(multiply(y, t0))"]
        content["model"]["graph"] = content["decisions"]["graph"] = lines
        content["decisions"]["views"] = {}

    return change


@pytest.mark.parametrize("name", a_third(CALLS))
def test_a_call_that_does_more_than_compute(plan_path, name):
    content = json.loads(plan_path.read_text())
    with_call(*CALLS[name])(content)
    plan_path.write_text(json.dumps(content))
    line = must_refuse(plan_path)
    assert "model.graph: line 1: " in line


@pytest.mark.parametrize("name", a_third(RESULTS))
def test_a_call_that_does_not_return_what_it_says(plan_path, name):
    """An audit finds it. A run ends in one line."""
    function, reads, writes = RESULTS[name]
    content = json.loads(plan_path.read_text())
    _, declaration = declared(function, reads, writes)
    shapes = [read.partition("]")[0] + "]" for read in reads]
    made = parse_declaration(declaration)
    assert made is not None
    given = ", ".join(f"x{i}" for i in range(len(reads)))
    lines = [declaration, "x = input[8, 6]", "w1 = weight[6, 6]"]
    lines += [f"x{i} = input{shape}" for i, shape in enumerate(shapes)]
    names = ", ".join(f"t{i}" for i in range(len(writes)))
    lines += [f"{names} = {made.name}({given})", "y = matmul(x, w1)"]
    both("\n".join([*lines, f"return mean_loss(multiply(y, y)), {names}"]))(content)
    sign(content)
    plan_path.write_text(json.dumps(content))
    refused(app, "audit", plan_path, "--no-proofs", "--no-capture", "--no-machine")
    if name in ("another number format", "parts without end", "10^12 elements"):
        return
    assert made.kernel is not None
    operands = [torch.ones(read.shape) for read in made.reads]
    with pytest.raises(OperatorError) as caught:
        made.kernel(TASK, *operands)
    assert str(caught.value).isprintable()


def test_name_of_a_function_is_the_hash_of_its_call_and_types():
    """The name is a SHA-256 of the call and of its operand and result types."""
    name, line = declared("aten.relu.default(x0)", [X], [Y])
    declaration = parse_declaration(line)
    assert declaration is not None
    assert declaration.name == name
    others = [
        declared("aten.relu.default( x0)", [X], [Y]),
        declared("aten.relu.default(x0)", ["[8, 6] float64"], [Y]),
        declared("aten.relu.default(x0)", ["[48] float32"], ["[48] float32"]),
    ]
    assert len({name, *(other for other, _ in others)}) == 4
    with pytest.raises(ValueError, match="does not name this function"):
        parse_declaration(line.replace("8, 6] float32 ->", "8, 6] float64 ->"))
    with pytest.raises(ValueError, match="does not name this function"):
        parse_declaration(f"opaque relu = {line.partition('= ')[2]}")


def functions() -> Iterator[TorchCall]:
    """All functions of torch that the rules accept without arguments."""
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        space, _, rest = full.partition("::")
        name, _, overload = rest.partition(".")
        call = TorchCall(name, overload or "default", parse_call("aten.f.g()").call)
        with suppress(ValueError):
            if space == "aten" and call.target != ATTENTION:
                _check_function(call, _resolved(call))
                yield call


def test_accepted_functions_of_one_tensor_do_not_change_it():
    """Each function of torch is called twice, as by a plan, and gives the same again."""
    passed = 0
    for call in functions():
        try:
            made = opaque(f"{call.target}(x0)", [SQUARE], [SQUARE])
        except ValueError:
            continue
        given = torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) + 0.1
        before = given.clone()
        kernel: Any = made.kernel
        try:
            first, second = (kernel(TASK, given)[0] for _ in range(2))
        except OperatorError:
            continue
        assert torch.equal(given, before), call.target
        assert torch.equal(first, second) or bool(first.isnan().any()), call.target
        passed += 1
    assert passed > 60


@pytest.mark.soak
@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("shape", [(4, 4), (2, 4, 4), (2, 4, 4, 4)])
def test_accepted_functions_do_not_change_their_operands(shape, flag):
    """All functions of torch that take arguments of these kinds, whatever their schemas state."""
    ran = 0
    for call in functions():
        function = _resolved(call)
        operands: list[torch.Tensor] = []
        given, named = drawn_arguments(function, shape, flag, operands)
        before = [tensor.clone() for tensor in operands]
        try:
            bare = [on_meta(value) for value in given], {k: on_meta(v) for k, v in named.items()}
            results = _results(function(*bare[0], **bare[1]))
            if any(str(t.dtype).removeprefix("torch.") not in FORMATS for t in results):
                continue
            function(*given, **named)
        except Exception:  # arguments that it does not take
            continue
        for old, new in zip(before, operands, strict=True):
            assert torch.equal(old, new), call.target
        ran += 1
    assert ran > 150


def drawn_arguments(
    function: Any, shape: tuple[int, ...], flag: bool, operands: list[torch.Tensor]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of the kinds in a schema. The tensors among them are in ``operands``."""
    given: list[Any] = []
    named: dict[str, Any] = {}
    for argument in function._schema.arguments:
        kind = str(argument.real_type)
        inner = re.sub(r"(List|Optional)\[|\]", "", kind)
        plain = {"int": 1, "float": 0.5, "number": 0.5, "bool": flag}
        if inner == "Tensor":
            small = re.search("weight|bias|mean|var", argument.name)
            value: Any = torch.ones(shape[1]) if small else torch.rand(shape) + 0.1
            operands.append(value)
        elif inner in plain:
            value = plain[inner]
        elif argument.has_default_value():
            continue
        else:
            value = None
        value = [value, value] if "List[" in kind else value
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            given.append(value)
    return given, named


def on_meta(value: Any) -> Any:
    if isinstance(value, list):
        return [on_meta(part) for part in value]
    return value.to("meta") if isinstance(value, torch.Tensor) else value

"""Plans that lie, or would run code: refused in one line before anything runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from borders import files, refused
from by_hand import make_plan

from pcg.errors import InputError, OperatorError
from pcg.opaque import TensorType, opaque, parse_opaque
from pcg.plan import PlanFile, load_plan, part_hashes, save_plan
from pcg.text import parse_graph
from pcg.torch_calls import (
    ATTENTION,
    FORMATS,
    TorchCall,
    _check_function,
    _resolved,
    _results,
    parse_call,
)
from substitutions.store import load_library
from unity.audit import app

MODEL = """
x = input[8, 6]
w1 = weight[6, 6]
w2 = weight[6, 4]
return mean_loss(matmul(relu(matmul(x, w1)), w2))
"""
GRAPH = """
x = input[8, 6]
w1 = weight[6, 6]
w2 = weight[6, 4]
p = matmul(partition(x, dim=0, degree=2), replicate(w1, degree=2))
return mean_loss(combine(matmul(relu(p), replicate(w2, degree=2)), dim=0, degree=2))
"""
Content = dict[str, Any]
SQUARE = TensorType((4, 4), "float32")
TASK: Any = None
"""No kernel of torch's asks for it."""


@pytest.fixture(scope="module", autouse=True)
def _one_library():
    """Reading it takes a second or two, each time that an audit runs."""
    with pytest.MonkeyPatch.context() as patch:
        library = load_library()
        patch.setattr("unity.audit.load_library", lambda path=None: library)
        yield


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    model, graph = parse_graph(MODEL), parse_graph(GRAPH)
    save_plan(make_plan(model, graph, 2, {}), tmp_path / "plan.json")
    return tmp_path / "plan.json"


def sign(content: Content) -> None:
    """Give a plan the hashes that a forger would."""
    try:
        model = content["model"]
        model["hash"] = parse_graph("\n".join(model["graph"])).digest
        content["hashes"] = part_hashes(PlanFile.model_validate_json(json.dumps(content)))
    except Exception:  # what is no plan has none
        return


def must_refuse(path: Path, status: int = 2) -> str:
    before = files(path.parent)
    line = refused(app, "audit", path, "--no-proofs", "--no-capture", "--no-machine", status=status)
    if status == 2:
        with pytest.raises(InputError):
            load_plan(path)
    assert files(path.parent) == before
    return line


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
    "a function of torch's own use": (
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
"""What shows only once a call is tried."""


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


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_does_more_than_compute(path, name):
    content = json.loads(path.read_text())
    with_call(*CALLS[name])(content)
    path.write_text(json.dumps(content))
    line = must_refuse(path)
    assert "model.graph: line 1: " in line


@pytest.mark.parametrize("name", RESULTS)
def test_a_call_that_does_not_return_what_it_says(path, name):
    """An audit finds it; a run meets it in one line."""
    function, reads, writes = RESULTS[name]
    content = json.loads(path.read_text())
    _, declaration = declared(function, reads, writes)
    shapes = [read.partition("]")[0] + "]" for read in reads]
    made = parse_opaque(declaration)
    assert made is not None
    given = ", ".join(f"x{i}" for i in range(len(reads)))
    lines = [declaration, "x = input[8, 6]", "w1 = weight[6, 6]"]
    lines += [f"x{i} = input{shape}" for i, shape in enumerate(shapes)]
    names = ", ".join(f"t{i}" for i in range(len(writes)))
    lines += [f"{names} = {made.name}({given})", "y = matmul(x, w1)"]
    both("\n".join([*lines, f"return mean_loss(multiply(y, y)), {names}"]))(content)
    sign(content)
    path.write_text(json.dumps(content))
    refused(app, "audit", path, "--no-proofs", "--no-capture", "--no-machine")
    if name in ("another number format", "parts without end", "10^12 elements"):
        return
    assert made.kernel is not None
    operands = [torch.ones(read.shape) for read in made.reads]
    with pytest.raises(OperatorError) as caught:
        made.kernel(TASK, *operands)
    assert str(caught.value).isprintable()


def test_what_is_called_has_one_name_only():
    """Its SHA-256, of the call and of what it reads and writes."""
    name, line = declared("aten.relu.default(x0)", [X], [Y])
    found = parse_opaque(line)
    assert found is not None
    assert found.name == name
    others = [
        declared("aten.relu.default( x0)", [X], [Y]),
        declared("aten.relu.default(x0)", ["[8, 6] float64"], [Y]),
        declared("aten.relu.default(x0)", ["[48] float32"], ["[48] float32"]),
    ]
    assert len({name, *(other for other, _ in others)}) == 4
    with pytest.raises(ValueError, match="does not name this function"):
        parse_opaque(line.replace("8, 6] float32 ->", "8, 6] float64 ->"))
    with pytest.raises(ValueError, match="does not name this function"):
        parse_opaque(f"opaque relu = {line.partition('= ')[2]}")


def functions() -> Iterator[TorchCall]:
    """All of torch's functions that the rules let through, without arguments."""
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        space, _, rest = full.partition("::")
        name, _, overload = rest.partition(".")
        call = TorchCall(name, overload or "default", parse_call("aten.f.g()").call)
        with suppress(ValueError):
            if space == "aten" and call.target != ATTENTION:
                _check_function(call, _resolved(call))
                yield call


def test_functions_of_a_tensor_that_are_let_through_leave_it_as_it_was():
    """All of torch's, called as a plan would, twice: they give the same again."""
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
def test_functions_that_are_let_through_leave_their_operands_as_they_were(shape, flag):
    """All of torch's that take arguments of these kinds, whatever their schemas say."""
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
    """Arguments of the kinds that a schema asks for; the tensors among them in ``operands``."""
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


def at(*keys: str | int, to: Any) -> Callable[[Content], None]:
    """A change of one field, by the way to it."""

    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = to

    return change


def line(number: int, text: str, *, model: bool = False) -> Callable[[Content], None]:
    """A line of the graph, or of the model's, replaced."""

    def change(content: Content) -> None:
        (content["model"] if model else content["decisions"])["graph"][number] = text

    return change


def both(text: str) -> Callable[[Content], None]:
    """The model's graph and the plan's replaced, without views."""

    def change(content: Content) -> None:
        content["model"]["graph"] = content["decisions"]["graph"] = text.splitlines()
        content["decisions"]["views"] = {}

    return change


STEP = {"rule": "r", "at": ["t0"], "inputs": ["x"], "symbols": {"k": 2}}
RULE = {"rule": "r", "axes": [], "operators": [], "reversed": False, "text": "x == x"}


def step(**changes: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        content["decisions"]["derivation"] = [STEP | changes]
        content["decisions"]["rules"] = {"r": RULE}

    return change


def rule(**changes: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        content["decisions"]["derivation"] = [STEP]
        content["decisions"]["rules"] = {"r": RULE | changes}

    return change


def view(**changes: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        content["decisions"]["views"]["t5"] |= changes

    return change


NAN, INF = float("nan"), float("inf")
FIELDS: dict[str, Callable[[Content], None]] = {
    "an older version": at("schema_version", to=3),
    "a version to come": at("schema_version", to=5),
    "a version that is a text": at("schema_version", to="4"),
    "an unknown field": at("command", to="touch made"),
    "a name with control characters": at("model", "name", to="mlp\x1b]0;owned\x07"),
    "a name with a line break": at("model", "name", to="mlp\nplan.json: follows from mlp"),
    "a name that runs backwards": at("model", "name", to="mlp\u202e"),
    "a name of a megabyte": at("model", "name", to="m" * 1_000_000),
    "devices of 10^9": at("machine", "devices", to=10**9),
    "no devices": at("machine", "devices", to=0),
    "devices below 0": at("machine", "devices", to=-2),
    "devices of 10^30": at("machine", "devices", to=10**30),
    "half a device": at("machine", "devices", to=1.5),
    "another kind of device": at("machine", "kind", to="tpu"),
    "a time that is no number": at("estimates", "step_seconds", to=NAN),
    "a time without end": at("estimates", "step_seconds", to=INF),
    "a time below 0": at("estimates", "step_seconds", to=-1.0),
    "a time of 1e300": at("estimates", "one_device_seconds", to=1e300),
    "a memory of 10^400": at("estimates", "peak_memory_bytes", to=10**400),
    "elements below 0": at("estimates", "communication_elements", to=-1),
    "an axis of 10^30": line(0, f"x = input[{10**30}, 6]"),
    "a size of 0": line(0, "x = input[0, 6]"),
    "a size below 0": line(0, "x = input[-8, 6]"),
    "no size": line(0, "x = input[NaN, 6]"),
    "100,000 axes": line(0, f"x = input[{', '.join(['1'] * 100_000)}]"),
    "a degree that does not divide": line(0, "x = input[8/3, 6]"),
    "a degree of 0": line(0, "x = input[8/0, 6]"),
    "copies without end": line(0, "x = input[8, 6] copies=99999999999999999999"),
    "two leaves of a name": line(1, "x = weight[6, 6]"),
    "a name of another": line(1, "x.w1 = weight[6, 6]"),
    "a value that comes later": line(0, "x = relu(t7)"),
    "a value of its own": both("t0 = relu(t0)\nreturn t0"),
    "an unknown operator": line(3, "p = os.system(x)"),
    "calls nested deeply": line(3, f"p = {'relu(' * 3000}x{')' * 3000}"),
    "a product without end": line(
        3, f"p = partition(x, dim=0, degree={'*'.join(['a'] * 200_000)})"
    ),
    "a sum without end": line(3, f"p = partition(x, dim=0, degree={'+'.join('abcdef' * 30_000)})"),
    "a degree that is a symbol": line(3, "p = partition(x, dim=0, degree=|x.d0|)"),
    "a degree of 10^18": line(3, f"p = replicate(w1, degree={10**18})"),
    "a degree below 0": line(3, "p = replicate(w1, degree=-2)"),
    "a dimension that is not there": line(3, "p = partition(x, dim=7, degree=2)"),
    "no graph": at("decisions", "graph", to=[]),
    "a graph without an end": at("decisions", "graph", to=["x = input[8, 6]"]),
    "70,000 lines": at("decisions", "graph", to=["x = input[8, 6]"] * 70_000),
    "a line of a megabyte": line(3, "p = relu(x" + " " * 1_000_000 + ")"),
    "lines within a line": line(0, "x = input[8, 6]\nreturn x"),
    "another graph than the model's": line(0, "x = input[16, 6]"),
    "a model without a loss": both("x = input[8, 6]\nw = weight[6, 6]\nreturn matmul(x, w)"),
    "a loss without a weight": both("x = input[8, 6]\nreturn mean_loss(x)"),
    "a view of no operator": at(
        "decisions", "views", "t99", to={"start": 0, "shape": [1], "strides": [1]}
    ),
    "a view beyond the machine": view(start=5),
    "a view at 10^30": view(start=10**30),
    "a view before the machine": view(start=-1),
    "a view that lists a device twice": view(strides=[0, 0, 0]),
    "a view of another shape": view(shape=[7]),
    "a view of 2^20 by 2^20": view(shape=[1 << 20, 1 << 20], strides=[1, 1]),
    "a view of 100,000 axes": view(shape=[1] * 100_000, strides=[1] * 100_000),
    "a view with fewer strides": view(strides=[]),
    "a step by no rule": at("decisions", "derivation", to=[STEP]),
    "a rule that no step applies": at("decisions", "rules", "r", to=RULE),
    "a step with a symbol that is no number": step(symbols={"k": NAN}),
    "a step with a text for a symbol": step(symbols={"k": "u0+1"}),
    "a step at a control character": step(at=["t0\x1b[2J"]),
    "a rule of 100,000 axes": rule(axes=[100_000]),
    "a rule of axes below 0": rule(axes=[-1]),
    "a rule with many numbers of axes": rule(axes=[1] * 100_000),
    "a recomputed operator that is not there": at("decisions", "recompute", to=["t99"]),
    "a recomputed leaf": at("decisions", "recompute", to=["x"]),
    "a pipeline without stages": at(
        "decisions", "pipeline", to={"stages": 0, "micro_batches": 1, "schedule": "1f1b"}
    ),
    "a pipeline of 10^9 stages": at(
        "decisions", "pipeline", to={"stages": 10**9, "micro_batches": 1, "schedule": "1f1b"}
    ),
    "a pipeline without slices": at(
        "decisions", "pipeline", to={"stages": 2, "micro_batches": 4, "schedule": "1f1b"}
    ),
    "an optimizer that is none": at("decisions", "optimizer", to="os.system"),
    "statistics of nothing": at(
        "statistics", to=[{"value": "t99", "mean": ["m"], "variance": ["v"], "momentum": 0.1}]
    ),
    "a momentum above 1": at(
        "statistics", to=[{"value": "x", "mean": ["m"], "variance": ["v"], "momentum": 2.0}]
    ),
    "a parameter without names": at("naming", to={"parameters": {"w1": {"names": []}}}),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_plan_that_lies(path, name):
    content = json.loads(path.read_text())
    FIELDS[name](content)
    sign(content)
    path.write_text(json.dumps(content))
    must_refuse(path)


TEXTS: dict[str, str | bytes] = {
    "nothing": "",
    "no JSON": "{",
    "another file": "[]",
    "lists nested deeply": "[" * 100_000,
    "tables nested deeply": '{"a":' * 100_000,
    "a number of 100,000 digits": "9" * 100_000,
    "a number without end": '{"schema_version": 1e999}',
    "no number": '{"schema_version": NaN}',
    "minus infinity": '{"schema_version": -Infinity}',
    "a key twice": '{"schema_version": 4, "schema_version": 4}',
    "half a surrogate pair": '{"\\ud800": 4}',
    "other bytes": b"\xff\xfe{}",
    "a NUL": b'{"schema_version": 4\x00}',
    "a pickle": b"\x80\x04\x95cos\nsystem\n.",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_that_is_no_plan(path, name):
    text = TEXTS[name]
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    must_refuse(path)


def test_two_gigabytes_of_zeros(path):
    with path.open("wb") as file:
        file.truncate(2 << 30)
    assert "larger than 32 MiB" in refused(app, "audit", path)


@pytest.mark.parametrize("place", ["/dev/zero", ".", "missing.json", "plan.json/x", "\0"])
def test_something_else_than_a_file(path, place):
    refused(app, "audit", place)


def test_steps_in_a_circle(path):
    """A value that is made of one that comes later: the audit's answer is no."""
    content = json.loads(path.read_text())
    step(at=["1.0"], inputs=["1.0"])(content)
    content["decisions"]["derivation"] *= 2
    sign(content)
    path.write_text(json.dumps(content))
    must_refuse(path, status=1)


def test_a_symbol_of_10_to_the_100(path):
    content = json.loads(path.read_text())
    step(symbols={"k": 10**100})(content)
    sign(content)
    path.write_text(json.dumps(content))
    must_refuse(path, status=1)


def test_hashes_that_lie(path):
    content = json.loads(path.read_text())
    content["estimates"]["step_seconds"] = 1e-9
    path.write_text(json.dumps(content))
    found = must_refuse(path, status=1)
    assert "does not follow" in found

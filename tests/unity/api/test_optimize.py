"""Planning a module in Python: its arguments, its result, and that the module is unchanged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support.runs.own_loop import batch_of, words
from torch import Tensor, nn
from torch.nn import functional

import unity
from pcg.capture import Captured
from pcg.plan.plan import load_plan, save_plan
from runtime.module.twin import twin, without_elements
from runtime.train.eager import ON_EXAMPLES
from unity.api.losses import LossSource, with_loss
from unity.api.optimizing import _Asked, _example


class Two(nn.Module):
    """A linear layer of two inputs, which returns the result of a given function."""

    def __init__(self, returns=None) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.returns = returns

    def forward(self, x, y=None, *, scale: float = 1.0):
        given = x if y is None else x + y
        output = self.layer(given) * scale
        return output if self.returns is None else self.returns(output)


def made(model: nn.Module, inputs, loss=None, batch=None, devices=2) -> Captured:
    """The graph of a model for some devices."""
    losses = LossSource(loss)
    asked = _Asked(model, "model", _example(model, inputs, losses), losses, batch)
    return asked.captured(devices, 1)


def value(model: nn.Module, inputs, loss=None) -> float:
    """The loss that is planned, as torch computes it."""
    losses = LossSource(loss)
    call = _example(model, inputs, losses)
    return with_loss(model, call, losses)(*call.tensors.values()).item()


NO_LOSS = LossSource(None)
X, Y = torch.randn(4, 6), torch.randint(5, (4,))
LOGITS = torch.randn(4, 6)


def mean_loss(output: Tensor, batch) -> Tensor:
    target = batch["labels"] if isinstance(batch, dict) else batch[-1]
    return functional.cross_entropy(output, target) * 2.0


@pytest.mark.parametrize(
    ("returns", "inputs", "loss", "expected"),
    [
        (torch.mean, X, None, lambda o: o.mean()),
        (torch.mean, (X,), None, lambda o: o.mean()),
        (torch.mean, {"x": X}, None, lambda o: o.mean()),
        (lambda o: {"logits": o, "loss": o.sum()}, {"x": X}, None, lambda o: o.sum()),
        (lambda o: SimpleNamespace(loss=o.sum()), [X], None, lambda o: o.sum()),
        (lambda o: (o.sum(), o), (X,), None, lambda o: o.sum()),
        (None, (X, Y), "cross_entropy", lambda o: functional.cross_entropy(o, Y)),
        (None, {"x": X, "labels": Y}, "cross_entropy", lambda o: functional.cross_entropy(o, Y)),
        (
            lambda o: {"logits": o},
            (X, Y),
            nn.CrossEntropyLoss(label_smoothing=0.1),
            lambda o: functional.cross_entropy(o, Y, label_smoothing=0.1),
        ),
        (None, (X, Y), mean_loss, lambda o: 2.0 * functional.cross_entropy(o, Y)),
        (None, {"labels": Y, "x": X}, mean_loss, lambda o: 2.0 * functional.cross_entropy(o, Y)),
    ],
)
def test_inputs_and_losses(returns, inputs, loss, expected):
    model = Two(returns)
    assert value(model, inputs, loss) == pytest.approx(expected(model.layer(X)).item())
    graph = made(model, inputs, loss).graph
    shapes = {n.leaf.name: n.leaf.shape for n in graph.leaves if n.leaf.kind == "input"}
    assert shapes["x"] == (8, 6)
    assert graph.outputs[0].type.elements == 1


@pytest.mark.parametrize(
    ("returns", "inputs", "loss", "problem"),
    [
        (None, (X,), None, r"tensor of shape \[4, 5\], which is no loss"),
        (lambda o: {"logits": o}, (X,), None, "returns dict without a loss"),
        (lambda o: SimpleNamespace(loss=None), (X,), None, "without a loss, expected inputs with"),
        (None, (X,), "cross_entropies", "unknown, expected a function of"),
        (None, (X, Y), 3, "expected a name or a function"),
        (None, {"x": X}, "cross_entropy", "does not take, got nothing"),
        (None, {"x": X, "a": Y, "b": Y}, "cross_entropy", "does not take, got a, b"),
        (lambda o: [o, o], (X, Y), "cross_entropy", "neither a tensor nor has logits"),
        (torch.mean, (X, X, X), None, "do not fit forward of Two: too many .* needs loss="),
        (torch.mean, {"z": X}, None, "do not fit forward of Two: missing a required argument: 'x'"),
        (torch.mean, {"x": 3.0}, None, "have no batch"),
        (torch.mean, torch.zeros(()), None, "have no batch"),
        (torch.mean, torch.zeros(0, 6), None, "have no batch"),
        (torch.mean, "x", None, "expected a tuple of arguments, a dictionary"),
    ],
)
def test_module_that_cannot_be_planned_is_refused_in_one_line(returns, inputs, loss, problem: str):
    with pytest.raises(unity.InputError, match=problem) as refused:
        unity.optimize(Two(returns), inputs, loss=loss, devices=1, quiet=True)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"planner": "magic"}, "planner magic: unknown"),
        ({"mode": "magic"}, "mode: magic: expected one of"),
        ({"batch_norm": "no"}, "batch_norm: expected whole"),
        ({"allow": "time"}, "allow: time: expected some of"),
        ({"batch": 0}, "batch: expected 1 to"),
        ({"machine": "nowhere"}, "nowhere"),
        ({"optimizer": "magic"}, "optimizer magic: unknown"),
        ({"devices": 0}, "expected 1 to"),
    ],
)
def test_errors_name_options_as_in_python(options, problem: str):
    with pytest.raises(unity.InputError, match=problem):
        unity.optimize(Two(torch.mean), X, quiet=True, **options)


def test_no_module_and_hooks_are_refused():
    with pytest.raises(unity.InputError, match="expected a torch module, got str"):
        unity.optimize("gpt2", X)  # pyright: ignore[reportArgumentType]
    with pytest.raises(unity.InputError, match="expected a torch module, got type"):
        unity.parallelize(Two, "plan.json")  # pyright: ignore[reportArgumentType]
    model = Two(torch.mean)
    model.layer.register_full_backward_hook(lambda *given: None)
    with pytest.raises(unity.InputError, match=r"a backward hook of layer \(Linear\) is lost"):
        unity.optimize(model, X, quiet=True)


def test_names_are_those_of_the_module_and_of_forward():
    planned = made(words(), batch_of(0), devices=1)
    assert [name for name in planned.naming.inputs if name] == ["ids", "labels"]
    names = {name for p in planned.naming.parameters.values() for name in p.names}
    assert {"table.weight", "head.weight", "inner.0.bias"} <= names
    assert set(planned.buffers.values()) == {"places", "shift"}


def test_an_input_may_have_the_name_of_a_weight():
    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.ones(6))

        def forward(self, x, batch):
            return (x * self.x + batch["x"][0]).sum()

    planned = made(Same(), (X, {"x": [X]}))
    names = [name for name in planned.naming.inputs if name]
    assert len({*names, *planned.naming.parameters}) == 3
    assert names[1] == "batch_x_0"


@pytest.mark.parametrize("own", [1, 4])
@pytest.mark.parametrize("batch", [None, 16])
def test_the_batch_is_that_of_all_devices(own: int, batch: int | None):
    planned = made(Two(torch.mean), X[:own], batch=batch, devices=8)
    (leaf,) = [n.leaf for n in planned.graph.leaves if n.leaf.kind == "input"]
    assert leaf.shape == (batch or 8 * own, 6)


def test_a_module_is_planned_as_on_the_meta_device_and_left_alone(tmp_path):
    model, meta = words(), twin(words(), without_elements)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = {name: dict(part.__dict__) for name, part in model.named_modules()}
    inputs = batch_of(0)
    first = unity.optimize(model, inputs, devices=1, planner="data-parallel", quiet=True)
    assert {name: part.__dict__ for name, part in model.named_modules()} == before
    torch.testing.assert_close(dict(model.state_dict()), state, rtol=0, atol=0)
    assert first.agreement is not None
    assert first.agreement.error is not None
    on_meta = {name: tensor.to("meta") for name, tensor in inputs.items()}
    second = unity.optimize(meta, on_meta, devices=1, planner="data-parallel", quiet=True)
    for number, plan in enumerate((first, second)):
        plan.save(tmp_path / f"{number}.json")
    assert (tmp_path / "0.json").read_text() == (tmp_path / "1.json").read_text()
    assert all(tensor.is_meta for tensor in meta.state_dict().values())
    loaded = unity.load_plan(tmp_path / "0.json")
    save_plan(loaded, tmp_path / "2.json")
    assert load_plan(tmp_path / "2.json") == loaded
    assert "matmul" in str(first)
    assert "Words on 1 x local" in first._repr_html_()
    assert first.step_seconds > 0
    assert first.memory_bytes > 0


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (nn.Dropout(0.1), "trains without dropout: call train"),
        (nn.BatchNorm1d(6), "trains with the statistics that batch norms keep: call train"),
        (nn.Dropout(0.0), None),
        (nn.LayerNorm(6), None),
    ],
)
def test_evaluation_mode_is_reported_if_it_matters(part: nn.Module, told: str | None):
    model = nn.Sequential(part, nn.Linear(6, 5))
    inputs = (X, Y)
    assert made(model, inputs, "cross_entropy").notes == ()
    notes = made(model.eval(), inputs, "cross_entropy").notes
    assert len(notes) == (told is not None)
    assert told is None or told in notes[0]


class Choosy(Two):
    """A model that takes no inputs but its own, as one whose texts have a place for each image."""

    def forward(self, x, y=None, *, scale: float = 1.0):
        if not torch.compiler.is_compiling() and not torch.equal(x.float(), X):
            raise ValueError("images and their places do not match")
        return super().forward(x, y, scale=scale).square().mean()


def test_a_model_that_refuses_random_inputs_is_compared_on_the_inputs_given():
    inputs = (X,)
    asked = _Asked(Choosy(), "model", _example(Choosy(), inputs, NO_LOSS), NO_LOSS, None)
    agreement = asked.agreement()
    assert agreement.copy == ON_EXAMPLES
    assert agreement.error is not None
    assert agreement.error < 1e-6

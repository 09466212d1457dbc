"""Features of training loops beside forward, backward and step: shards give the same results."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from support.cases import a_third
from support.runs.own_loop import (
    BATCH,
    MODULES,
    RANKS,
    assert_same,
    batch_of,
    captured,
    parallel,
    planned,
    trained,
    words,
    words_planned,
)
from support.runs.simulated import on_ranks
from torch import Tensor, nn
from torch.nn import functional

from pcg.errors import InputError
from pcg.plan.plan import Plan
from runtime.module.module import ParallelModule
from runtime.module.twin import twin, without_elements
from runtime.world.collectives import World


class Dense(nn.Module):
    """A perceptron, with a module of the test in its middle."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), middle, nn.Linear(8, 5))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": functional.cross_entropy(self.layers(x), labels)}


def dense(middle: nn.Module, seed: int = 0) -> Dense:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Dense(middle).double()


def numbers_of(number: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)
    return {"x": x, "labels": torch.randint(5, (BATCH,), generator=generator)}


def both(module: nn.Module, plan: Plan, batch, parts: int = 1):
    """The results of a loop for the module and for the ranks of its plan."""
    modules = [deepcopy(module) for _ in range(plan.machine.devices)]

    def loop(world):
        model = parallel(modules[world.rank], plan, world)
        return trained(model, model.clip_grad_norm_, batch, parts)

    def clip(most: float) -> Tensor:
        return nn.utils.clip_grad_norm_(module.parameters(), most)

    by_rank = on_ranks(plan.machine.devices, loop)
    return by_rank, trained(module, clip, batch, parts)


def test_pipeline_trains_as_the_module():
    module = dense(nn.ReLU())
    plan = planned(captured(module, numbers_of(0)), "pipeline")
    assert plan.pipeline is not None
    actual, expected = both(module, plan, numbers_of, parts=2)
    for own in actual:
        assert_same(own, expected)


def test_running_statistics_are_those_of_the_module():
    module = dense(nn.BatchNorm1d(8))
    plan = planned(captured(module, numbers_of(0)), "data-parallel")
    actual, expected = both(module, plan, numbers_of)
    for own in actual:
        assert_same(own, expected)


def test_dropout_does_not_depend_on_the_plan():
    made = captured(dense(nn.Dropout(0.5)), numbers_of(0))
    seen = []
    for plan in (planned(made, "data-parallel"), planned(made, "joint", 1)):
        modules = [dense(nn.Dropout(0.5)) for _ in range(plan.machine.devices)]

        def loop(world, plan=plan, modules=modules):
            model = parallel(modules[world.rank], plan, world, seed=7)
            return trained(model, model.clip_grad_norm_, numbers_of)

        seen += on_ranks(plan.machine.devices, loop)
    for other in seen[1:]:
        assert_same(other, seen[0])


def on_meta(module: nn.Module) -> nn.Module:
    """The module without values. (``to`` would take its shared parameters apart.)"""
    return twin(module, without_elements)


def gradients(model: ParallelModule) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_gradients_without_sync_are_added_to_those_of_the_next_batch():
    def loop(world):
        model = parallel(MODULES[world.rank], words_planned("zero"), world)
        for number in range(2):
            model(**batch_of(number)).loss.backward()
        expected = gradients(model)
        model.zero_grad()
        with model.no_sync():
            model(**batch_of(0)).loss.backward()
            assert not gradients(model)
        model(**batch_of(1)).loss.backward()
        return expected, gradients(model)

    for expected, actual in on_ranks(RANKS, loop):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_two_losses_of_one_step():
    model = parallel(words(), words_planned("joint", 1), World())
    first, second = model(**batch_of(0)), model(**batch_of(1))
    (first * 2.0 + second.loss).backward()
    module = words()
    (module(**batch_of(0))["loss"] * 2.0 + module(**batch_of(1))["loss"]).backward()
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            gradient = model.get_parameter(name).grad
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [1.0, 2.0, float("inf")])
def test_clipping_counts_every_piece_once(kind: float):
    module = words()
    module(**batch_of(0))["loss"].backward()
    expected = nn.utils.clip_grad_norm_(module.parameters(), 0.1, kind)

    def norm(world):
        model = parallel(MODULES[world.rank], words_planned("zero"), world)
        model(**batch_of(0)).loss.backward()
        return model.clip_grad_norm_(0.1, kind), model.clip_grad_norm_(0.1, kind)

    for before, after in on_ranks(RANKS, norm):
        torch.testing.assert_close(before, expected, rtol=1e-12, atol=1e-12)
        assert float(after) <= 0.1 * (1 + 1e-9)


def test_clipping_reports_gradients_that_are_not_finite():
    model = parallel(words(), words_planned("joint", 1), World())
    model(**batch_of(0)).loss.backward()
    first = next(p.grad for p in model.parameters() if p.grad is not None)
    first.fill_(torch.nan)
    with pytest.raises(RuntimeError, match="nan"):
        model.clip_grad_norm_(1.0, error_if_nonfinite=True)
    for kind in (2.0, float("inf")):
        assert model.clip_grad_norm_(1.0, kind).isnan()
    assert all(p.grad.isnan().all() for p in model.parameters() if p.grad is not None)


def test_autocast_and_a_scaler():
    """The loss is scaled, an overflow leaves the update out, and the scale halves, as in torch."""
    module = dense(nn.ReLU()).float()
    batch = {n: t.float() if t.is_floating_point() else t for n, t in numbers_of(0).items()}
    plan = planned(captured(module, batch), "joint", 1)
    model = parallel(module, plan, World())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(60):
        with torch.autocast("cpu", torch.float16):
            loss = model(**batch).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert scaler.get_scale() < 2.0**40
    assert losses[0] == losses[1], "the first update was left out"
    assert losses[-1] < losses[0]
    with torch.autocast("cpu", torch.float16):
        eager = module(**batch)["loss"]
    assert losses[0] == pytest.approx(eager.item(), rel=1e-2)


def gradients_in(number_format: torch.dtype | None, module: nn.Module) -> dict[str, Tensor]:
    """The gradients of all weights, whole, read off an update. No format: without autocast."""
    batch = {n: t.float() if t.is_floating_point() else t for n, t in numbers_of(0).items()}
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    is_on = number_format is not None
    with torch.autocast("cpu", number_format or torch.bfloat16, enabled=is_on):
        loss = module(**batch)["loss"]
    loss.backward()
    torch.optim.SGD(module.parameters(), lr=1.0).step()
    return {name: before[name] - tensor for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("number_format", a_third([torch.bfloat16, torch.float16]))
@pytest.mark.parametrize("planner", ["data-parallel", "zero"])
def test_autocast_is_that_of_the_module(number_format: torch.dtype, planner: str):
    """As far as the format goes. Without autocast, the difference is larger."""
    modules = [dense(nn.LayerNorm(8)).float() for _ in range(RANKS + 2)]
    batch = {n: t.float() if t.is_floating_point() else t for n, t in numbers_of(0).items()}
    plan = planned(captured(modules[-1], batch), planner)
    actual = on_ranks(
        RANKS,
        lambda w: gradients_in(number_format, parallel(modules[w.rank], plan, w)),
    )
    expected, exact = (
        gradients_in(f, m) for f, m in zip((number_format, None), modules[-2:], strict=True)
    )

    def apart(these: dict[str, Tensor], others: dict[str, Tensor]) -> float:
        largest = max(t.abs().max().item() for t in others.values())
        return max((these[n] - t).abs().max().item() for n, t in others.items()) / largest

    for own in actual:
        assert apart(own, expected) < torch.finfo(number_format).eps
        assert apart(own, exact) > torch.finfo(number_format).eps / 64


def test_ranks_agree_on_an_overflow():
    def seen(world):
        model = parallel(MODULES[world.rank], words_planned("zero"), world)
        value = torch.inf if world.rank == 1 else 1.0
        flags = {"a": torch.full((2,), value)}
        model._own.engine._agree_on_overflow(flags)
        return flags["a"]

    assert all(flags.isinf().all() for flags in on_ranks(RANKS, seen))


def test_without_gradients_the_loss_is_the_same_and_nothing_is_kept():
    model, module = parallel(words(), words_planned("joint", 1), World()), words()
    with torch.no_grad():
        loss = model(**batch_of(0))
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(module(**batch_of(0))["loss"].item(), rel=1e-12)
    model.eval()
    model(batch_of(0)["ids"], labels=batch_of(0)["labels"]).loss.backward()
    assert gradients(model)


def test_state_goes_from_one_plan_to_another():
    """A state dict of four ranks starts a run of one, which then goes on as the four do."""

    def states(world):
        model = parallel(MODULES[world.rank], words_planned("zero"), world)
        first = trained(model, model.clip_grad_norm_)
        return first.state, trained(model, model.clip_grad_norm_).state

    (before, after), *_ = on_ranks(RANKS, states)
    model = parallel(on_meta(words()), words_planned("joint", 1), World())
    with pytest.raises(InputError, match="load_state_dict"):
        model(**batch_of(0))
    missing, unexpected = model.load_state_dict(before)
    assert not missing
    assert not unexpected
    state = trained(model, model.clip_grad_norm_).state
    torch.testing.assert_close(state, after, rtol=1e-9, atol=1e-9)
    words().load_state_dict(state)


def test_tensor_assigned_to_a_shard_is_used_in_the_next_step():
    model, module = parallel(words(), words_planned("joint", 1), World()), words(3)
    for name, parameter in model.named_parameters():
        parameter.data = module.get_parameter(name).data.clone()
    expected = module(**batch_of(0))["loss"].item()
    assert model(**batch_of(0)).item() == pytest.approx(expected, rel=1e-12)


def test_names_are_those_of_the_module_and_ties_stay():
    model, module = parallel(words(), words_planned("joint", 1), World()), words()
    trained_names = [n for n, p in module.named_parameters() if p.requires_grad]
    assert [name for name, _ in model.named_parameters()] == trained_names
    assert model.get_parameter("head.weight") is model.get_parameter("table.weight")
    assert list(model.state_dict()) == list(module.state_dict())


LOSSES = batch_of(0)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda m: m(LOSSES["ids"]), "lack labels, expected ids, labels"),
        (lambda m: m(**LOSSES, mask=LOSSES["ids"]), "have mask, expected ids, labels"),
        (lambda m: m(LOSSES["ids"], LOSSES["labels"], LOSSES["ids"]), "too many positional"),
        (
            lambda m: m(LOSSES["ids"][:3], LOSSES["labels"][:3]),
            r"input ids: expected shape \[8, 4\]",
        ),
        (lambda m: m(LOSSES["ids"] + 9, LOSSES["labels"]), "expected integers from 0 to 11"),
        (lambda m: m(LOSSES["ids"].double() + 0.5, LOSSES["labels"]), "expected whole numbers"),
        (lambda m: m.float()(**LOSSES), r"parameter .* is float32 .* expected float64"),
        (lambda m: [m(**LOSSES).loss.backward(), m.clip_grad_norm_(1.0, 0.0)], "above 0"),
    ],
)
def test_arguments_that_do_not_fit_the_plan_are_refused(call, problem: str):
    with pytest.raises(InputError, match=problem):
        call(parallel(words(), words_planned("joint", 1), World()))


def test_second_backward_of_a_loss_is_refused():
    loss = parallel(words(), words_planned("joint", 1), World())(**batch_of(0)).loss
    loss.backward(retain_graph=True)
    with pytest.raises(InputError, match="a second time"):
        loss.backward()


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({}, "table.weight is missing|shift is missing"),
        ({**words().state_dict(), "more": torch.zeros(1)}, "more is unexpected"),
        ({**words().state_dict(), "norm.bias": torch.zeros(3)}, r"norm.bias has shape \[3\]"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(state, problem: str):
    model = parallel(words(), words_planned("joint", 1), World())
    before = model.state_dict()
    with pytest.raises(RuntimeError, match=problem):
        model.load_state_dict(state)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_modules_and_plans_that_do_not_match_are_refused():
    with pytest.raises(InputError, match="expected 4 processes, one a device, got 1"):
        parallel(words(), words_planned("zero"), World())
    with pytest.raises(InputError, match=r"has no table\.weight"):
        parallel(dense(nn.ReLU()), words_planned("joint", 1), World())
    apart = words()
    apart.head.weight = nn.Parameter(apart.table.weight.detach().clone())
    with pytest.raises(InputError, match=r"head\.weight are several tensors"):
        parallel(apart, words_planned("joint", 1), World())
    untied = planned(captured(apart, batch_of(0)), "joint", 1)
    with pytest.raises(InputError, match=r"head\.weight are one tensor"):
        parallel(words(), untied, World())
    (mixed := words().float()).head.double()
    with pytest.raises(InputError, match="float32 and float64, expected all in one format"):
        parallel(mixed, words_planned("joint", 1), World())
    with pytest.raises(InputError, match="names no parameters"):
        parallel(
            words(),
            replace(words_planned("joint", 1), naming=type(words_planned("joint", 1).naming)()),
            World(),
        )
    delayed = planned(captured(dense(nn.ReLU()), numbers_of(0)), "pipeline-2bw")
    modules = [dense(nn.ReLU()) for _ in range(RANKS)]
    with pytest.raises(AssertionError, match="one update old"):
        on_ranks(RANKS, lambda world: parallel(modules[world.rank], delayed, world))


def test_checkpoints_go_from_one_plan_to_another(tmp_path):
    """One process stops after three steps. Four go on, and have the state of three more steps."""

    def loop(model, last: int, folder, *, saves: bool = False):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        for step in range(model.load_checkpoint(folder, optimizer), last):
            model(**batch_of(step)).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if saves:
                model.save_checkpoint(folder, optimizer, step=step + 1, keep=2)
        return model.state_dict()

    expected = loop(parallel(words(), words_planned("joint", 1), World()), 6, tmp_path / "none")
    loop(parallel(words(), words_planned("joint", 1), World()), 3, tmp_path, saves=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    modules = [on_meta(words(5)) for _ in range(RANKS)]

    def on_four(world):
        return loop(parallel(modules[world.rank], words_planned("zero"), world), 6, tmp_path)

    for actual in on_ranks(RANKS, on_four):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def test_a_checkpoint_of_another_module_is_refused(tmp_path):
    model = parallel(words(), words_planned("joint", 1), World())
    assert model.load_checkpoint(tmp_path / "none") == 0
    model.save_checkpoint(tmp_path, step=1)
    other = dense(nn.ReLU())
    plan = planned(captured(other, numbers_of(0)), "joint", 1)
    with pytest.raises(InputError, match="another graph"):
        parallel(other, plan, World()).load_checkpoint(tmp_path)

"""Outputs of the module beside its loss, and evaluation: shards give the same as the module
itself."""

from __future__ import annotations

import io
from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cases import examples
from support.runs.own_loop import (
    BATCH,
    MODULES,
    RANKS,
    batch_of,
    captured,
    parallel,
    planned,
    words,
    words_cut_at_random,
    words_planned,
)
from support.runs.simulated import on_ranks
from torch import Tensor, nn
from torch.nn import functional

from pcg.errors import InputError
from runtime.module.twin import twin, without_elements
from runtime.world.collectives import World


class Noisy(nn.Module):
    """Dropout, a batch norm, a buffer that is not saved, and outputs in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 5)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> tuple[Tensor, ...]:
        inner = functional.dropout(self.norm(self.first(x)) * self.scale, 0.5, self.training)
        out = self.second(inner)
        return (out,) if labels is None else (functional.cross_entropy(out, labels), out)


def noisy() -> Noisy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Noisy().double()


def numbers_of(number: int, samples: int = BATCH) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
    return {"x": x, "labels": torch.randint(5, (samples,), generator=generator)}


def own(batch: dict[str, Tensor], world: World) -> dict[str, Tensor]:
    """The samples of a rank."""
    each = BATCH // world.size
    return {n: t[world.rank * each : (world.rank + 1) * each] for n, t in batch.items()}


def step(module: nn.Module, batch: dict[str, Tensor]) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(**batch)["loss"].backward()
    optimizer.step()


def same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@examples(2)
@given(data=st.data())
def test_logits_of_any_plan_are_those_of_the_module(data):
    """In training, before and after an update, of the whole batch and of a rank's samples."""
    plan = words_cut_at_random(data.draw)

    def seen(world: World) -> list[Tensor]:
        model = parallel(MODULES[world.rank], plan, world)
        first = model(**batch_of(0))
        actual = [first["logits"].detach()]
        step(model, batch_of(0))
        return [*actual, model(**own(batch_of(1), world))["logits"].detach()]

    module = words()
    expected = [module(**batch_of(0))["logits"]]
    step(module, batch_of(0))
    expected.append(module(**batch_of(1))["logits"])
    actual = on_ranks(RANKS, seen)
    for whole, _ in actual:
        same(whole, expected[0])
    same(torch.cat([part for _, part in actual]), expected[1])


def test_without_labels_there_are_outputs_and_no_loss():
    def seen(world: World) -> dict[str, Tensor]:
        model = parallel(MODULES[world.rank], words_planned("zero"), world).eval()
        with torch.no_grad():
            return model(own(batch_of(2), world)["ids"])

    actual = on_ranks(RANKS, seen)
    assert all(set(output) == {"logits"} for output in actual)
    expected = words()(batch_of(2)["ids"])["logits"]
    same(torch.cat([output["logits"] for output in actual]), expected)


def test_evaluation_is_that_of_the_module():
    """Dropout is off, running statistics are those of training, and batches may have any size."""
    plan = planned(captured(noisy(), numbers_of(0)), "zero")
    modules = [noisy() for _ in range(RANKS)]

    def seen(world: World):
        model = parallel(modules[world.rank], plan, world)
        model(**numbers_of(0))[0].backward()
        with pytest.raises(InputError, match=r"dropout .* expected eval\(\)"):
            model(**numbers_of(1))[1]
        state = model.state_dict()
        model.eval()
        return state, model(**numbers_of(5, 3 + world.rank))

    module = noisy()
    for rank, (state, (loss, out)) in enumerate(on_ranks(RANKS, seen)):
        module.load_state_dict(state)
        expected = module.eval()(**numbers_of(5, 3 + rank))
        same(loss, expected[0])
        same(out, expected[1])


def test_weights_are_gathered_once_until_they_change():
    model = parallel(words(), words_planned("joint", 1), World()).eval()
    expected = deepcopy(words())
    with torch.no_grad():
        same(model(batch_of(0)["ids"])["logits"], expected(batch_of(0)["ids"])["logits"])
        for change in (1.5, 0.5):
            for module in (model, expected):
                # Torch does not count this as a change.
                module.get_parameter("norm.weight").data.mul_(change)
            same(model(batch_of(0)["ids"])["logits"], expected(batch_of(0)["ids"])["logits"])


def test_a_loss_is_copied_and_saved_as_a_number():
    model = parallel(words(), words_planned("joint", 1), World())
    with torch.no_grad():
        loss = model(**batch_of(0)).loss
    file = io.BytesIO()
    torch.save(loss, file)
    file.seek(0)
    for other in (deepcopy(loss), torch.load(file, weights_only=True), loss * 1):
        assert type(other) is Tensor
        same(other, loss.detach())


def test_misuse_of_outputs_is_refused():
    model = parallel(words(), words_planned("joint", 1), World())
    output = model(**batch_of(0))
    with pytest.raises(InputError, match="the loss of the plan alone has gradients"):
        (output.loss + output["logits"].square().mean()).backward()
    output["logits"].detach().mean()
    output = model(**batch_of(0))
    step(model, batch_of(0))
    with pytest.raises(InputError, match="weights that have changed since"):
        output["logits"]
    with pytest.raises(AttributeError):
        _ = model(**batch_of(0)).nothing
    with pytest.raises(InputError, match="lack labels"):
        model(batch_of(0)["ids"])
    empty = parallel(twin(words(), without_elements), words_planned("joint", 1), World()).eval()
    with pytest.raises(InputError, match="expected load_state_dict first"):
        empty(batch_of(0)["ids"])


def test_a_module_that_cannot_be_copied_trains_all_the_same():
    module = words()
    vars(module)["parts"] = (part for part in ())
    model = parallel(module, words_planned("joint", 1), World())
    output = model(**batch_of(0))
    with pytest.raises(InputError, match="cannot be copied"):
        output["logits"]
    output.loss.backward()

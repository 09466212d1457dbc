"""Models of ``transformers`` at tiny size, with their own losses and dropout."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import torch

pytest.importorskip("transformers")
from support.public.calls import Loss
from support.public.compared import compared
from support.public.further import FURTHER
from support.public.language import LANGUAGE, Maker
from support.public.transformers5.recent import RECENT
from support.public.vision import VISION

from pcg.errors import InputError
from pcg.mixtures.blocks import KNOWN

HAVE_LOOPS = int(version("transformers").partition(".")[0]) < 5
"""Whether the models' experts are modules, in a loop."""
QUICK = ("gpt2-sdpa", "llama-eager")
CASES = [
    pytest.param(n, a, id=f"{n}-{a}", marks=() if f"{n}-{a}" in QUICK else pytest.mark.soak)
    for n in (*LANGUAGE, *VISION)
    for a in ("sdpa", "eager")
]


def assert_graph_agrees(make: Maker, attention: str) -> None:
    """The graph agrees with the module, and holds no function as a whole."""
    torch.manual_seed(0)
    model, given = make(attention)
    captured, _ = compared(Loss(model, given), tuple(given.values()))
    assert captured.opaque == ()


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_graphs_agree_with_public_models(name: str, attention: str) -> None:
    assert_graph_agrees({**LANGUAGE, **VISION}[name], attention)


@pytest.mark.parametrize("name", FURTHER)
@pytest.mark.soak
def test_graphs_agree_with_further_models(name: str) -> None:
    assert_graph_agrees(FURTHER[name], "sdpa")


@pytest.mark.parametrize("name", RECENT)
@pytest.mark.soak
def test_graphs_agree_with_models_of_transformers_5(name: str) -> None:
    assert_graph_agrees(RECENT[name], "sdpa")


@pytest.mark.parametrize("name", ["mixtral", "olmoe", "deepseek-v2", "gpt-oss"])
@pytest.mark.skipif(not HAVE_LOOPS, reason="experts are stacked from transformers 5 on")
@pytest.mark.soak
def test_a_loop_over_experts_that_is_not_known_is_refused_by_its_line(name: str) -> None:
    model, given = LANGUAGE[name]("sdpa")
    for part in model.modules():
        if type(part).__name__ in KNOWN:
            part.__class__ = type("Mine", (type(part),), {})
    with pytest.raises(InputError, match=r"modeling_\w+\.py: line \d+: .*there is unity.nn"):
        compared(Loss(model, given), tuple(given.values()))

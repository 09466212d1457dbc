"""Parameters that are read as one stack are one weight. Other parameters are unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cases import a_third
from torch import Tensor, nn

from pcg.capture import capture
from pcg.capture.stacks import common_name
from pcg.plan.naming import ParameterFile, swapped_last
from runtime.train.eager import compare_module

COUNT = 3


class Experts(nn.Module):
    """Layers read side by side by ``read``."""

    def __init__(self, read: Callable[[Experts, Tensor], Tensor]) -> None:
        super().__init__()
        self.read = read
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(COUNT))
        self.other = nn.Linear(4, 4)

    def weights(self, *order: int, name: str = "weight") -> list[Tensor]:
        return [self.layers[i].get_parameter(name) for i in order or range(COUNT)]

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self, x).square().sum()


def made(x: Tensor, stack: Tensor) -> Tensor:
    return x @ stack


def some(own: Experts, x: Tensor) -> Tensor:
    return made(x, torch.stack(own.weights(0, 1))) + x @ own.weights(2)[0]


def kinds(own: Experts, x: Tensor) -> Tensor:
    biases = torch.stack(own.weights(name="bias"))
    return made(x, torch.stack(own.weights()).transpose(-1, 1)) + biases[:, None]


def reversed_order(own: Experts, x: Tensor) -> Tensor:
    return made(x, torch.stack(own.weights(2, 0, 1)))


STACKED: dict[str, tuple[Callable[[Experts, Tensor], Tensor], list[tuple[int, ...]]]] = {
    "transposed, and vectors": (kinds, [(3, 4, 4), (3, 4)]),
    "in another order": (reversed_order, [(3, 4, 4)]),
    "turned and not": (
        lambda own, x: made(x, (s := torch.stack(own.weights()))) + made(x, s.mT),
        [(3, 4, 4)],
    ),
    "two of three": (some, [(2, 4, 4)]),
}


APART: dict[str, Callable[[Experts, Tensor], Tensor]] = {
    "used elsewhere": lambda own, x: made(x, torch.stack(own.weights())) + x @ own.weights(0)[0],
    "the same twice": lambda own, x: made(x, torch.stack(own.weights(0, 0, 1))),
    "another dimension": lambda own, x: made(x, torch.stack(own.weights(), 1).transpose(0, 1)),
    "computed": lambda own, x: made(x, torch.stack([w * 2.0 for w in own.weights()])),
    "in two stacks": lambda own, x: (
        made(x, torch.stack(own.weights())) + made(x, torch.stack(own.weights(1, 2, 0)))
    ),
    "one alone": lambda own, x: made(x, torch.stack(own.weights(1))),
}


def checked(module: Experts) -> list[ParameterFile]:
    """The records of a module's graph, which is checked to agree with it."""
    inputs = (torch.randn(2, 4),)
    captured = capture(module, inputs)
    comparison = compare_module(module, inputs, captured, "model")
    assert comparison.error is not None, comparison
    assert comparison.error < 1e-12
    shapes = {n.leaf.name: n.leaf.shape for n in captured.graph.leaves}
    records = captured.naming.parameters
    for name, record in records.items():
        if record.stacked:
            assert shapes[name][0] == len(record.stacked)
    return list(records.values())


@pytest.mark.parametrize("name", a_third(STACKED))
def test_a_stack_is_one_weight(name: str):
    torch.manual_seed(0)
    read, shapes = STACKED[name]
    records = [r for r in checked(Experts(read)) if r.stacked]
    assert [len(r.stacked) for r in records] == [shape[0] for shape in shapes]


def test_parts_are_in_the_order_of_the_stack():
    (record,) = checked(Experts(reversed_order))
    assert record.stacked == tuple(f"layers.{i}.weight" for i in (2, 0, 1))
    assert record.names == ("layers.*.weight",)


@pytest.mark.parametrize("name", a_third(APART))
def test_stacks_of_other_tensors_stay_operators(name: str):
    torch.manual_seed(0)
    assert not [r for r in checked(Experts(APART[name])) if r.stacked]


@pytest.mark.parametrize("change", ["frozen", "tied"])
def test_frozen_and_shared_parameters_are_not_stacked(change: str):
    torch.manual_seed(0)
    module = Experts(lambda own, x: made(x, torch.stack(own.weights())))
    if change == "frozen":
        module.layers[1].requires_grad_(False)
    else:
        module.other.weight = module.layers[0].get_parameter("weight")
    assert not [r for r in checked(module) if r.stacked]


def test_stacks_with_equal_name_patterns_get_different_names():
    def read(own: Experts, x: Tensor) -> Tensor:
        named = dict[str, Tensor](own.named_parameters())
        first, last = ([named[f"more.{i}.weight"] for i in part] for part in ((0, 1), (2, 3)))
        return made(x, torch.stack(first)).sum() + made(x, torch.stack(last))

    module = Experts(read)
    module.more = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
    names = {r.names[0] for r in checked(module) if r.stacked}
    assert names == {"more.*.weight", "more.*.weight.2"}


@given(st.integers(1, 4), st.booleans(), st.integers(0, 3), st.integers(1, 3))
def test_stacked_weight_converts_to_its_tensors_and_back(
    count: int, transposed: bool, rank: int, size: int
):
    transposed = transposed and rank == 2
    names = tuple(f"e.{i}" for i in range(count))
    record = ParameterFile(names=("e.*",), stacked=names, transposed=transposed)
    state = {name: torch.randn(tuple(range(size, size + rank))) for name in names}
    weight = record.weight(state)
    back = record.tensors(weight)
    assert list(back) == list(names)
    assert all(torch.equal(back[name], state[name]) for name in names)
    assert record.reoriented(weight.shape) == (count, *state["e.0"].shape)
    assert record.misfit(weight.shape, state) is None
    assert record.missing_from(state) is None
    short = {name: tensor for name, tensor in state.items() if name != names[-1]}
    assert record.missing_from(short) == names[-1]
    wide = {**state, names[-1]: torch.zeros(9, 9, 9, 9)}
    misfit = record.misfit(weight.shape, wide)
    assert misfit is not None
    assert misfit[:2] == (names[-1], [9, 9, 9, 9])


@given(st.lists(st.integers(), max_size=5))
def test_swapping_the_last_two_dimensions_twice_changes_nothing(shape: list[int]):
    assert swapped_last(swapped_last(shape)) == tuple(shape)


@pytest.mark.parametrize(
    ("names", "common"),
    [
        (("e.0.w", "e.1.w"), "e.*.w"),
        (("a.0.x.w", "b.0.y.w"), "*.0.*.w"),
        (("e.0", "f.0.w"), "e.0.*"),
        (("w0", "w1"), "*"),
    ],
)
def test_a_common_name(names: tuple[str, ...], common: str):
    assert common_name(names) == common

"""A small module, its plans, and a user's training loop that trains it by a plan and eagerly."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache
from threading import RLock
from typing import TypeVar

import torch
from support.plans.by_hand import make_plan
from support.plans.random_plans import Cutter, views_of
from torch import Tensor, nn
from torch.nn import functional

from pcg.capture import Captured, capture
from pcg.graph.graph import Graph, Node, Value
from pcg.machine import load_machine
from pcg.plan.plan import Plan
from pcg.plan.training import Training
from runtime.module.calls import ForwardSignature, call_of
from runtime.module.module import ParallelModule
from runtime.program.lower import Lowering
from runtime.world.collectives import World
from substitutions.audit.locate import of_module
from substitutions.rules.store import load_library
from unity.api.losses import LossSource, with_loss
from unity.support.planners import planner_of

T = TypeVar("T")
RANKS = 4
BATCH, WORDS, LENGTH = 8, 12, 4
STEPS = 3


class Words(nn.Module):
    """Tied embedding, a buffer that the loss reads, a frozen parameter, and a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 8)
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.table.weight
        self.shift = nn.Parameter(torch.linspace(0.0, 1.0, 8), requires_grad=False)
        self.register_buffer("places", torch.linspace(-1.0, 1.0, LENGTH * 8).view(LENGTH, 8))

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = self.table(ids) + self.places + self.shift
        logits = self.head(self.norm(x + self.inner(x)))
        if labels is None:
            return {"logits": logits}
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


def words(seed: int = 0) -> Words:
    """The module in double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Words().double()


MODULES = tuple(words(seed) for seed in range(RANKS))
"""The module of each rank. The parameters of the first one count. They are made here, because ranks
that are threads would draw random numbers in each other's order."""


def batch_of(number: int) -> dict[str, Tensor]:
    """The whole batch of a step."""
    generator = torch.Generator().manual_seed(number)
    drawn = torch.randint(WORDS, (2, BATCH, LENGTH), generator=generator)
    return {"ids": drawn[0], "labels": drawn[1]}


def captured(module: nn.Module, example: dict[str, Tensor]) -> Captured:
    """The graph for a whole batch."""
    call = call_of(ForwardSignature.of(module), (), example)
    return capture(with_loss(module, call, LossSource(None)), tuple(call.tensors.values()))


def once(make: Callable[..., T]) -> Callable[..., T]:
    """The result of a function, computed at its first use, also by ranks that are threads."""
    lock, kept = RLock(), cache(make)

    def asked(*given: Hashable) -> T:
        with lock:
            return kept(*given)

    return asked


@once
def words_captured() -> Captured:
    """The graph of ``Words``."""
    return captured(words(), batch_of(0))


@once
def words_planned(planner: str, ranks: int = RANKS) -> Plan:
    """A plan of ``Words`` by a planner."""
    return planned(words_captured(), planner, ranks)


def named(plan: Plan, made: Captured) -> Plan:
    """A plan of a captured graph, with the module's names."""
    assert plan.model.digest == made.graph.digest
    return replace(plan, naming=made.naming)


def planned(made: Captured, planner: str, ranks: int = RANKS, name: str = "local") -> Plan:
    """A plan by a planner. Links of the local machine are so slow that the plan may use one
    rank."""
    machine, library = load_machine(name).with_devices(ranks), load_library()
    answer = planner_of(planner, machine, library, 10.0, Training("adam"), None).plan(
        "words", made.graph
    )
    return of_module(answer.plan, made, library.rules)


def cut_at_random(draw, model: Graph) -> Graph:
    """The same graph with operators cut at random and the resharding between them."""
    cutter = Cutter(draw)
    for node in model.nodes:
        cutter.images[node] = Node(node.call) if node.is_leaf else cutter.node(node)
    return Graph(tuple(Value(cutter.images[v.node], v.port) for v in model.outputs))


def words_cut_at_random(draw) -> Plan:
    """A plan of ``Words`` with random cuts and views."""
    made = words_captured()
    graph = cut_at_random(draw, made.graph)
    return named(make_plan(made.graph, graph, RANKS, draw(views_of(graph))), made)


@dataclass(frozen=True)
class Trained:
    """The results of a training loop: losses, norms of gradients before clipping, final weights."""

    losses: list[float]
    norms: list[float]
    state: dict[str, Tensor]


def trained(module: nn.Module, clip, batch=batch_of, parts: int = 1) -> Trained:
    """Run a training loop that knows nothing of plans. ``clip(max_norm)`` clips the gradients."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    losses: list[float] = []
    norms: list[float] = []
    for step in range(STEPS):
        for part in range(parts):
            loss = module(**batch(step * parts + part))["loss"]
            (loss / parts).backward()
            losses.append(loss.item())
        norms.append(float(clip(0.5)))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return Trained(losses, norms, dict(module.state_dict()))


def eagerly(module: nn.Module, parts: int = 1) -> Trained:
    """Train by torch alone."""

    def clip(most: float) -> Tensor:
        return nn.utils.clip_grad_norm_(module.parameters(), most)

    return trained(module, clip, parts=parts)


def parallel(module: nn.Module, plan: Plan, world: World, seed: int = 0) -> ParallelModule:
    """A rank's part of a module that is trained by a plan."""
    return ParallelModule(module, Lowering(plan), world, seed)


def on_rank(plan: Plan, world: World, *, halves: bool, parts: int = 1) -> Trained:
    """Train by a plan on one rank. ``halves``: whether a rank is given its samples alone."""
    model = parallel(MODULES[world.rank], plan, world)

    def batch(number: int) -> dict[str, Tensor]:
        whole, own = batch_of(number), BATCH // world.size
        if not halves:
            return whole
        return {n: t[world.rank * own : (world.rank + 1) * own] for n, t in whole.items()}

    return trained(model, model.clip_grad_norm_, batch, parts)


def assert_same(actual: Trained, expected: Trained, near: float = 1e-9) -> None:
    """Check that two loops have equal results."""
    torch.testing.assert_close(actual.losses, expected.losses, rtol=near, atol=near)
    torch.testing.assert_close(actual.norms, expected.norms, rtol=near, atol=near)
    assert list(actual.state) == list(expected.state)
    for name, tensor in expected.state.items():
        torch.testing.assert_close(actual.state[name], tensor, rtol=near, atol=near, msg=name)

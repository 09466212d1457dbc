"""A deep Q-network that learns to decide, from the rewards of whole plans.

Problem: of a state and each decision that it allows, tell the reward of the best plan that still
can follow. Method: Q-learning with a network of two hidden layers over features of a state and a
decision (Mnih et al., 2015), whose target is made by a second network that follows slowly and whose
best decision is found by the first (double Q, van Hasselt et al., 2016). Transitions are replayed
by priority (Schaul et al., 2016). Only the last decision of a plan is rewarded; nothing is
discounted. Decisions are drawn at random less and less often. Features do not name a graph, so that
the network may learn from small ones first. Complexity: an update for each decision. Nothing is
known of how good the decisions are; the same seed makes the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcg.lazy import torch
from search.planners.automap.environment import FEATURES, DecisionEnvironment, DecisionState

HIDDEN, BATCH, CAPACITY = 64, 32, 4096
RATE, FOLLOWS = 1e-3, 0.02
"""Of Adam, and how much of the network the target takes over in each update."""
SHARPNESS, CORRECTION, LEAST = 0.6, 0.4, 1e-3
"""Exponents of priorities and of their correction, and the least priority."""
LAST_RANDOM = 0.05

Rows = NDArray[np.float32]
"""Features of the decisions of a state, a row each."""


@dataclass(frozen=True)
class Transition:
    """A decision, what it earned, and the decisions that were possible then; None at the end."""

    taken: Rows
    reward: float
    following: Rows | None


class PrioritizedReplay:
    """The last transitions, drawn in proportion to powers of their errors."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._kept: list[Transition] = []
        self._priorities: list[float] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, transition: Transition) -> None:
        """Keep a transition, as likely as the likeliest."""
        priority = max(self._priorities, default=1.0)
        if len(self._kept) < CAPACITY:
            self._kept.append(transition)
            self._priorities.append(priority)
            return
        self._kept[self._next], self._priorities[self._next] = transition, priority
        self._next = (self._next + 1) % CAPACITY

    def drawn(self) -> tuple[list[int], list[Transition], NDArray[np.float64]]:
        """The numbers of BATCH transitions, these, and the weights that correct for the draw."""
        chances = np.array(self._priorities) ** SHARPNESS
        chances /= chances.sum()
        numbers = self._random.choice(len(chances), BATCH, p=chances)
        weights = (len(chances) * chances[numbers]) ** -CORRECTION
        return numbers.tolist(), [self._kept[i] for i in numbers], weights / weights.max()

    def update(self, numbers: Sequence[int], errors: Sequence[float]) -> None:
        """The errors of some transitions are known anew."""
        for number, error in zip(numbers, errors, strict=True):
            self._priorities[number] = abs(error) + LEAST


class Agent:
    """A network with what it has seen. ``seed``: of its weights and of all that is drawn."""

    def __init__(self, seed: int = 0) -> None:
        self._random, self.replay = Random(seed), PrioritizedReplay(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._network, self._target = _network(), _network()
        self._target.load_state_dict(self._network.state_dict())
        self._adam = torch.optim.Adam(self._network.parameters(), lr=RATE)

    def trained(
        self,
        environment: DecisionEnvironment,
        episodes: int,
        first_random: float = 1.0,
        ends: Callable[[int, float], bool] = lambda done, seconds: False,
    ) -> int:
        """Learn from so many plans; how many it were. ``first_random``: how often the first
        decisions are drawn evenly; ``ends``: told how many plans are done and the seconds of a step
        of the last, says whether to stop."""
        for episode in range(episodes):
            part = min(1.0, 1.25 * episode / episodes)
            chance = first_random + (LAST_RANDOM - first_random) * part
            if ends(episode + 1, self._episode(environment, chance)):
                return episode + 1
        return episodes

    def decoded(self, environment: DecisionEnvironment) -> DecisionState:
        """The decisions that the network finds best, none at random."""
        state = DecisionState()
        while actions := environment.actions(state):
            best = int(np.argmax(self._values(_rows(environment, state, actions))))
            state = environment.after(state, actions[best])
        return state

    def _episode(self, environment: DecisionEnvironment, chance: float) -> float:
        state = DecisionState()
        actions = environment.actions(state)
        rows = _rows(environment, state, actions)
        while actions:
            if self._random.random() < chance:
                taken = self._random.randrange(len(actions))
            else:
                taken = int(np.argmax(self._values(rows)))
            state = environment.after(state, actions[taken])
            decided = rows[taken]
            actions = environment.actions(state)
            following = _rows(environment, state, actions) if actions else None
            reward = 0.0 if actions else environment.reward(state)
            self.replay.add(Transition(decided, reward, following))
            rows = decided[None] if following is None else following
            if len(self.replay) >= BATCH:
                self._learns()
        return environment.seconds(state)

    def _values(self, rows: Rows) -> NDArray[np.float32]:
        with torch.no_grad():
            return self._network(torch.from_numpy(rows))[:, 0].numpy()

    def _learns(self) -> None:
        numbers, drawn, weights = self.replay.drawn()
        targets = torch.from_numpy(self._targets(drawn))
        values = self._network(torch.from_numpy(np.stack([one.taken for one in drawn])))[:, 0]
        errors = values - targets
        losses = torch.nn.functional.smooth_l1_loss(values, targets, reduction="none")
        self._adam.zero_grad()
        (torch.from_numpy(weights.astype(np.float32)) * losses).mean().backward()
        self._adam.step()
        self.replay.update(numbers, errors.detach().tolist())
        with torch.no_grad():
            pairs = zip(self._target.parameters(), self._network.parameters(), strict=True)
            for slow, fast in pairs:
                slow.lerp_(fast, FOLLOWS)

    def _targets(self, drawn: Sequence[Transition]) -> Rows:
        """What each decision is worth: what it earned, and the best that follows."""
        targets = np.array([one.reward for one in drawn], np.float32)
        open_ones = [(i, one.following) for i, one in enumerate(drawn) if one.following is not None]
        if not open_ones:
            return targets
        rows = torch.from_numpy(np.concatenate([rows for _, rows in open_ones]))
        with torch.no_grad():
            found, worth = self._network(rows)[:, 0].numpy(), self._target(rows)[:, 0].numpy()
        start = 0
        for i, own in open_ones:
            targets[i] += worth[start + int(np.argmax(found[start : start + len(own)]))]
            start += len(own)
        return targets


def _network() -> Any:
    layer = torch.nn.Linear
    relu = torch.nn.ReLU
    return torch.nn.Sequential(
        layer(FEATURES, HIDDEN), relu(), layer(HIDDEN, HIDDEN), relu(), layer(HIDDEN, 1)
    )


def _rows(environment: DecisionEnvironment, state: DecisionState, actions: Sequence[int]) -> Rows:
    return np.array([environment.features(state, action) for action in actions], np.float32)

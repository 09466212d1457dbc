"""A deep Q-network that learns decisions from the rewards of whole plans.

Problem: for a state and each decision that it allows, predict the reward of the best plan that can
still follow. Method: Q-learning with a network of two hidden layers over features of a state and a
decision (Mnih et al., 2015). The target is computed by a second network, which follows slowly, for
the decision that the first network finds best (double Q, van Hasselt et al., 2016). Transitions are
replayed by priority (Schaul et al., 2016). Each decision has a reward (``rewards``), and nothing is
discounted. Decisions are random less and less often. Features do not identify a graph,
so that the network can learn from small graphs first. Complexity: an update for each decision.
Nothing is known about the quality of the decisions. The same seed gives the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcg.lazy import torch
from search.cost.progress import check_time
from search.planners.automap.environment import FEATURES, DecisionEnvironment, DecisionState

HIDDEN, BATCH, CAPACITY = 64, 32, 4096
RATE, FOLLOWS = 1e-3, 0.02
"""The learning rate of Adam, and the fraction by which the target network follows in each
update."""
MEANS, SQUARES, ADDED = 0.9, 0.999, 1e-8
"""Adam's decay of the means of gradients and of their squares, and the number that it adds to the
roots of these."""
SHARPNESS, CORRECTION, LEAST = 0.6, 0.4, 1e-3
"""The exponents of priorities and of their correction, and the least priority."""
LAST_RANDOM = 0.05

Rows = NDArray[np.float32]
"""Features of the decisions in a state, one row each."""


@dataclass(frozen=True)
class Transition:
    """A decision, its reward, and the decisions that were possible afterwards; None at the end."""

    taken: Rows
    reward: float
    following: Rows | None


class PrioritizedReplay:
    """The last transitions, drawn with probabilities in proportion to powers of their errors."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._kept: list[Transition] = []
        self._priorities: list[float] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, transition: Transition) -> None:
        """Keep a transition, with the highest priority so far."""
        priority = max(self._priorities, default=1.0)
        if len(self._kept) < CAPACITY:
            self._kept.append(transition)
            self._priorities.append(priority)
            return
        self._kept[self._next], self._priorities[self._next] = transition, priority
        self._next = (self._next + 1) % CAPACITY

    def drawn(self) -> tuple[list[int], list[Transition], NDArray[np.float64]]:
        """The numbers of BATCH random transitions, the transitions, and the weights that correct
        for their probabilities."""
        chances = np.array(self._priorities) ** SHARPNESS
        chances /= chances.sum()
        numbers = self._random.choice(len(chances), BATCH, p=chances)
        weights = (len(chances) * chances[numbers]) ** -CORRECTION
        return numbers.tolist(), [self._kept[i] for i in numbers], weights / weights.max()

    def update(self, numbers: Sequence[int], errors: Sequence[float]) -> None:
        """Set the errors of some transitions."""
        for number, error in zip(numbers, errors, strict=True):
            self._priorities[number] = abs(error) + LEAST


class Adam:
    """Adam (Kingma and Ba, 2015) with the constants above. The one of ``torch.optim`` loads torch's
    compiler, which takes longer than a short search has."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        self._moments = [(one, torch.zeros_like(one), torch.zeros_like(one)) for one in parameters]
        self._updates = 0

    def update(self) -> None:
        """Update the parameters by their gradients, and forget these."""
        self._updates += 1
        rate = RATE / (1 - MEANS**self._updates)
        root = (1 - SQUARES**self._updates) ** 0.5
        with torch.no_grad():
            for parameter, means, squares in self._moments:
                gradient = parameter.grad
                means.lerp_(gradient, 1 - MEANS)
                squares.mul_(SQUARES).addcmul_(gradient, gradient, value=1 - SQUARES)
                parameter.addcdiv_(means, (squares.sqrt() / root).add_(ADDED), value=-rate)
                parameter.grad = None


class Agent:
    """A network with its replay memory. ``seed``: of its weights and of all random draws."""

    def __init__(self, seed: int = 0) -> None:
        self._random, self.replay = Random(seed), PrioritizedReplay(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._network, self._target = _network(), _network()
        self._target.load_state_dict(self._network.state_dict())
        self._adam = Adam(self._network.parameters())

    def trained(
        self,
        environment: DecisionEnvironment,
        episodes: int,
        first_random: float = 1.0,
        ends: Callable[[int, float], bool] = lambda done, seconds: False,
    ) -> int:
        """Learn from up to ``episodes`` plans. Returns their number. ``first_random``: the
        probability of a random decision at the beginning; ``ends``: a function from the number of
        plans and the seconds of a step of the last plan to whether to stop. Raises OutOfTime if the
        search under way has to end."""
        for episode in range(episodes):
            part = min(1.0, 1.25 * episode / episodes)
            chance = first_random + (LAST_RANDOM - first_random) * part
            if ends(episode + 1, self._episode(environment, chance)):
                return episode + 1
        return episodes

    def decoded(self, environment: DecisionEnvironment) -> DecisionState:
        """The decisions that the network finds best, without randomness. Raises OutOfTime if the
        search under way has to end."""
        state = DecisionState()
        while actions := environment.actions(state):
            check_time()
            best = int(np.argmax(self._values(_rows(environment, state, actions))))
            state = environment.after(state, actions[best])
        return state

    def _episode(self, environment: DecisionEnvironment, chance: float) -> float:
        state = DecisionState()
        actions = environment.actions(state)
        rows = _rows(environment, state, actions)
        while actions:
            check_time()
            if self._random.random() < chance:
                taken = self._random.randrange(len(actions))
            else:
                taken = int(np.argmax(self._values(rows)))
            before, action, decided = state, actions[taken], rows[taken]
            state = environment.after(before, action)
            actions = environment.actions(state)
            following = _rows(environment, state, actions) if actions else None
            reward = environment.reward(before, action, state)
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
        (torch.from_numpy(weights.astype(np.float32)) * losses).mean().backward()
        self._adam.update()
        self.replay.update(numbers, errors.detach().tolist())
        with torch.no_grad():
            pairs = zip(self._target.parameters(), self._network.parameters(), strict=True)
            for slow, fast in pairs:
                slow.lerp_(fast, FOLLOWS)

    def _targets(self, drawn: Sequence[Transition]) -> Rows:
        """The value of each decision: its reward, plus the best value that follows."""
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

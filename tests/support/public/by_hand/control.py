"""Reinforcement learning, and a density of several modes."""

from __future__ import annotations

import copy

import torch
from support.public.by_hand.inputs import Maker, ids, rows
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, Normal
from torch.nn import functional as f


class QLearning(nn.Module):
    """Values of actions, with a target network that does not learn (DQN)."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.target = copy.deepcopy(self.values).requires_grad_(False)

    def forward(
        self, state: Tensor, action: Tensor, reward: Tensor, after: Tensor, ended: Tensor
    ) -> Tensor:
        value = self.values(state).gather(1, action.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            wanted = reward + 0.99 * self.target(after).max(1)[0] * (1 - ended.float())
        return f.smooth_l1_loss(value, wanted)


class ClippedPolicy(nn.Module):
    """A policy with clipped ratios, values and entropy (PPO)."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
        self.policy, self.value = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(
        self, state: Tensor, action: Tensor, before: Tensor, gain: Tensor, wanted: Tensor
    ) -> Tensor:
        h = self.trunk(state)
        policy = Categorical(logits=self.policy(h))
        ratio = (policy.log_prob(action) - before).exp()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        clipped = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        error = f.mse_loss(self.value(h).squeeze(-1), wanted)
        return -clipped + 0.5 * error - 0.01 * policy.entropy().mean()


class SoftActor(nn.Module):
    """A policy of squashed normal actions, with its entropy (SAC)."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.value = nn.Linear(4, 4), nn.Linear(6, 1)

    def forward(self, state: Tensor) -> Tensor:
        mean, logarithm = self.policy(state).chunk(2, -1)
        normal = Normal(mean, logarithm.clamp(-5, 2).exp())
        drawn = normal.rsample()
        action = torch.tanh(drawn)
        density = normal.log_prob(drawn) - torch.log(1 - action.pow(2) + 1e-6)
        value = self.value(torch.cat([state, action], -1))
        return (0.2 * density.sum(-1, keepdim=True) - value).mean()


class MixtureDensity(nn.Module):
    """The density of a number as a mixture of five normal ones."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(4, 15)

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        weights, mean, spread = self.network(x).chunk(3, -1)
        mixture = MixtureSameFamily(Categorical(logits=weights), Normal(mean, spread.exp()))
        return -mixture.log_prob(wanted).mean()


CONTROL: dict[str, Maker] = {
    "dqn": lambda: (QLearning(), (rows(4), ids(2), rows(), rows(4), ids(2).bool())),
    "ppo": lambda: (ClippedPolicy(), (rows(4), ids(3), rows(), rows(), rows())),
    "sac": lambda: (SoftActor(), (rows(4),)),
    "mixture-density": lambda: (MixtureDensity(), (rows(4), rows())),
}
